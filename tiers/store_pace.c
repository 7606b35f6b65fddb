#include "tiers/store_pace.h"

#include "runtime/base/assert.h"

#define WINDOW_NS UINT64_C(20000000)

void kvt_pace_begin(struct kvt_pace *pace, uint64_t now_ns)
{
    const uint32_t writes = __atomic_load_n(&pace->writes, __ATOMIC_RELAXED);
    if (writes == 0) __atomic_store_n(&pace->heard_ns, now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&pace->writes, writes + 1, __ATOMIC_RELAXED);
}

void kvt_pace_end(struct kvt_pace *pace, uint64_t bytes, uint64_t now_ns)
{
    const uint32_t writes = __atomic_load_n(&pace->writes, __ATOMIC_RELAXED);
    KVT_ASSERT(writes > 0);
    const uint64_t heard_ns = __atomic_load_n(&pace->heard_ns, __ATOMIC_RELAXED);
    pace->busy_ns += now_ns > heard_ns ? now_ns - heard_ns : 0;
    pace->bytes += bytes;
    __atomic_store_n(&pace->heard_ns, now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&pace->writes, writes - 1, __ATOMIC_RELAXED);
    if (pace->busy_ns < WINDOW_NS) return;
    const uint64_t measured = (uint64_t)((double)pace->bytes * 1e9 / (double)pace->busy_ns);
    const uint64_t before = kvt_pace_bytes_per_s(pace);
    const uint64_t speed = before ? before / 2 + measured / 2 : measured;
    __atomic_store_n(&pace->bytes_per_s, speed ? speed : 1, __ATOMIC_RELAXED);
    pace->busy_ns = pace->bytes = 0;
}

bool kvt_pace_allows(const struct kvt_pace *pace, uint64_t queued_bytes, uint64_t bytes, uint64_t now_ns)
{
    if (queued_bytes == 0) return true;
    const uint64_t heard_ns = __atomic_load_n(&pace->heard_ns, __ATOMIC_RELAXED);
    const bool is_waiting = __atomic_load_n(&pace->writes, __ATOMIC_RELAXED) > 0;
    if (is_waiting && now_ns > heard_ns && now_ns - heard_ns > pace->drain_ns_max) return false;
    const uint64_t speed = kvt_pace_bytes_per_s(pace);
    return speed == 0 || (double)(queued_bytes + bytes) * 1e9 / (double)speed <= (double)pace->drain_ns_max;
}
