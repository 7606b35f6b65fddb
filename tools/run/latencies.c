#include "tools/run/latencies.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "tools/nearest_rank.h"

static void on_turn(void *user, const struct kvt_turn *turn)
{
    struct kvt_latencies *latencies = user;
    if (turn->generated == 0) return;
    latencies->first_ns[latencies->turn_count++] = turn->first_ns - kvt_min_u64(turn->due_ns, turn->first_ns);
    if (turn->generated > 1)
        latencies->token_ns[latencies->spoken_count++] = (turn->ended_ns - turn->first_ns) / (turn->generated - 1);
}

enum kvt_status kvt_latencies_init(struct kvt_latencies *latencies, uint32_t request_count)
{
    *latencies = (struct kvt_latencies){ .watch = { .on_turn = on_turn, .user = latencies } };
    latencies->first_ns = kvt_alloc((size_t)request_count + 1, sizeof *latencies->first_ns);
    latencies->token_ns = kvt_alloc((size_t)request_count + 1, sizeof *latencies->token_ns);
    if (latencies->first_ns && latencies->token_ns) return KVT_OK;
    kvt_latencies_done(latencies);
    return KVT_NOMEM;
}

void kvt_latencies_done(struct kvt_latencies *latencies)
{
    kvt_free(latencies->first_ns);
    kvt_free(latencies->token_ns);
    *latencies = (struct kvt_latencies){ 0 };
}

static int compare(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

void kvt_latencies_sort(struct kvt_latencies *latencies)
{
    qsort(latencies->first_ns, latencies->turn_count, sizeof *latencies->first_ns, compare);
    qsort(latencies->token_ns, latencies->spoken_count, sizeof *latencies->token_ns, compare);
}

static double quantile_ms(const uint64_t *sorted, uint32_t count, double quantile)
{
    return count > 0 ? (double)sorted[kvt_nearest_rank(count, quantile)] * 1e-6 : 0;
}

double kvt_latencies_first_ms(const struct kvt_latencies *latencies, double quantile)
{
    return quantile_ms(latencies->first_ns, latencies->turn_count, quantile);
}

double kvt_latencies_token_ms(const struct kvt_latencies *latencies, double quantile)
{
    return quantile_ms(latencies->token_ns, latencies->spoken_count, quantile);
}

static void put(struct json_object *object, const char *name, const uint64_t *sorted, uint32_t count)
{
    static const struct {
        const char *name;
        double quantile;
    } quantiles[] = { { "p50", 0.5 }, { "p90", 0.9 }, { "p99", 0.99 }, { "max", 1 } };
    struct json_object *inner = json_object_new_object();
    for (size_t i = 0; i < KVT_ARRAY_COUNT(quantiles); i++) {
        char text[40];
        const double ms = quantile_ms(sorted, count, quantiles[i].quantile);
        (void)snprintf(text, sizeof text, "%.6f", ms);
        (void)json_object_object_add(inner, quantiles[i].name, json_object_new_double_s(ms, text));
    }
    (void)json_object_object_add(object, name, inner);
}

void kvt_latencies_put(const struct kvt_latencies *latencies, struct json_object *object)
{
    put(object, "first_token_ms", latencies->first_ns, latencies->turn_count);
    put(object, "token_ms", latencies->token_ns, latencies->spoken_count);
}
