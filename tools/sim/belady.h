/*
 * belady: bounds that know the future.
 *
 * Flat: Belady's MIN: a miss inserts, and evicts the block whose next use is furthest. No schedule of evictions has
 *       more hits,
 * and this one is a schedule.
 *
 * Prefix: an upper bound. Between two requests at most `capacity` blocks are there, each of them from before or of the
 *         request
 * just ended, whatever the order inside a request was and whatever was evicted. A block that is used by a request can
 * only be a hit if it was kept at each such moment since the request that used it last. The bound keeps the most such
 * spans that fit, by dropping the furthest next use, and counts all of them, even behind a request's first miss; and
 * all repeats inside a request.
 *
 * What is kept is a set of places of next uses, as bits, with the words that are not 0 as bits above them: a step costs
 * one look at each of a few levels.
 *
 * Source: L. A. Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5(2),
 *         1966.
 */
#ifndef KVT_TOOLS_SIM_BELADY_H
#define KVT_TOOLS_SIM_BELADY_H

#include "tools/sim/count.h"

/* One tier; job->policy is not read. NOMEM. */
KVT_NODISCARD enum kvt_status kvt_belady_count(const struct kvt_count_job *job, struct kvt_count_result *ret_result);

#endif
