/*
 * calibrate: the parts of `kvtier bench --calibrate`: what this machine's links, codec, store and engine do, in the form
 * that `kvtier sim --links` reads (tools/links.h).
 *
 *     calibrate_device.c   host <-> device and the codec: ops of the device tier
 *     calibrate_disk.c     the store's own path: ops of the nvme tier
 *     calibrate_engine.c   a small run of the main job: what a step takes besides its own time
 *
 * Each part prints one line on stderr and returns false when it cannot be measured.
 */
#ifndef KVT_TOOLS_BENCH_CALIBRATE_H
#define KVT_TOOLS_BENCH_CALIBRATE_H

#include "kvtier/shape.h"
#include "tools/links.h"

struct kvt_calibration {
    struct kvt_model_shape shape;
    const char *directory; /* of the disk; NULL: it is not measured */
    struct kvt_links links;
};

bool kvt_calibrate_device(struct kvt_calibration *calibration);
/* What is made in the directory is removed again. */
bool kvt_calibrate_disk(struct kvt_calibration *calibration);
bool kvt_calibrate_engine(struct kvt_calibration *calibration);

/* One line on stderr; false, to be returned. */
bool kvt_calibrate_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Sorts; 0 without any. */
double kvt_calibrate_quantile(double *values, uint32_t count, double quantile);

#endif
