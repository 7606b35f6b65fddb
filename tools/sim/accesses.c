#include "tools/sim/accesses.h"

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"

enum { TOKENS_AT_ONCE = 1024 };

/* Numbers by key: an open-addressed table, at most half full. */
struct numbers {
    uint64_t *keys;
    uint32_t *numbers; /* number + 1; 0: free */
    uint64_t mask;
    uint32_t count;
};

static enum kvt_status numbers_init(struct numbers *numbers, uint64_t count_max)
{
    uint64_t capacity = 16;
    while (capacity < 2 * count_max) capacity *= 2;
    *numbers = (struct numbers){ .mask = capacity - 1 };
    numbers->keys = kvt_table_map(capacity * sizeof *numbers->keys);
    numbers->numbers = kvt_table_map(capacity * sizeof *numbers->numbers);
    return numbers->keys && numbers->numbers ? KVT_OK : KVT_NOMEM;
}

static void numbers_done(struct numbers *numbers)
{
    kvt_table_unmap(numbers->keys, (numbers->mask + 1) * sizeof *numbers->keys);
    kvt_table_unmap(numbers->numbers, (numbers->mask + 1) * sizeof *numbers->numbers);
}

static uint32_t number_of(struct numbers *numbers, uint64_t key)
{
    uint64_t at = kvt_mix64(key + 1) & numbers->mask;
    while (numbers->numbers[at] != 0 && numbers->keys[at] != key) at = (at + 1) & numbers->mask;
    if (numbers->numbers[at] == 0) {
        numbers->keys[at] = key;
        numbers->numbers[at] = ++numbers->count;
    }
    return numbers->numbers[at] - 1;
}

/* is_context: the output's blocks as well. */
static uint64_t blocks_of(const struct kvt_workload *workload, const struct kvt_request *request, bool is_context)
{
    if (is_context) return (request->prompt_tokens + request->output_tokens) / workload->block_tokens;
    return request->ids ? request->id_count : request->prompt_tokens / workload->block_tokens;
}

/* The key of a block that no id names: a digest of all tokens up to its end. */
static uint64_t chain(const struct kvt_workload *workload, uint32_t request, uint64_t block, uint64_t parent)
{
    uint32_t tokens[TOKENS_AT_ONCE];
    uint64_t key = parent;
    for (uint32_t done = 0; done < workload->block_tokens;) {
        const uint32_t n = kvt_min_u32(workload->block_tokens - done, TOKENS_AT_ONCE);
        kvt_workload_tokens(workload, request, block * workload->block_tokens + done, n, tokens);
        for (uint32_t i = 0; i < n; i++) key = kvt_mix64((key ^ tokens[i]) + UINT64_C(0x9e3779b97f4a7c15));
        done += n;
    }
    return key;
}

static void fill(struct kvt_accesses *accesses, const struct kvt_workload *workload, bool is_context,
                 struct numbers *numbers)
{
    uint32_t at = 0;
    for (uint32_t r = 0; r < workload->request_count; r++) {
        const struct kvt_request *request = &workload->requests[r];
        const uint64_t count = blocks_of(workload, request, is_context);
        uint64_t key = 0;
        for (uint64_t i = 0; i < count; i++) {
            key = request->ids && !is_context ? request->ids[i] : chain(workload, r, i, key);
            accesses->blocks[at++] = number_of(numbers, key);
        }
        accesses->request_ends[r] = at;
        const uint64_t before = count > 0 ? (count - 1) * workload->block_tokens : 0;
        accesses->infos[r] = (struct kvt_access_info){
            .arrival_ms = request->arrival_ns / 1000000,
            .turn = request->session == KVT_NO_SESSION ? UINT32_MAX : request->turn,
            .last_tokens = (uint32_t)kvt_min_u64(request->prompt_tokens - before, workload->block_tokens),
            .stop = request->stop,
        };
    }
    KVT_ASSERT(at == accesses->access_count);
    accesses->block_count = numbers->count;
}

static enum kvt_status init(struct kvt_accesses *accesses, const struct kvt_workload *workload, bool is_context)
{
    *accesses = (struct kvt_accesses){ 0 };
    if (!workload) return KVT_OK;
    uint64_t count = 0;
    for (uint32_t r = 0; r < workload->request_count; r++)
        count += blocks_of(workload, &workload->requests[r], is_context);
    if (count > KVT_ACCESSES_MAX) return KVT_INVAL;

    accesses->access_count = (uint32_t)count;
    accesses->request_count = workload->request_count;
    accesses->blocks = kvt_table_map((count + 1) * sizeof *accesses->blocks);
    accesses->request_ends = kvt_table_map(((uint64_t)workload->request_count + 1) * sizeof *accesses->request_ends);
    accesses->infos = kvt_table_map(((uint64_t)workload->request_count + 1) * sizeof *accesses->infos);
    accesses->block_tokens = workload->block_tokens;
    struct numbers numbers;
    enum kvt_status status = numbers_init(&numbers, count);
    if (!accesses->blocks || !accesses->request_ends || !accesses->infos) status = KVT_NOMEM;
    if (status == KVT_OK) fill(accesses, workload, is_context, &numbers);
    numbers_done(&numbers);
    return status;
}

enum kvt_status kvt_accesses_init(struct kvt_accesses *accesses, const struct kvt_workload *workload)
{
    return init(accesses, workload, false);
}

enum kvt_status kvt_accesses_init_contexts(struct kvt_accesses *accesses, const struct kvt_workload *workload)
{
    return init(accesses, workload, true);
}

void kvt_accesses_done(struct kvt_accesses *accesses)
{
    kvt_table_unmap(accesses->blocks, ((uint64_t)accesses->access_count + 1) * sizeof *accesses->blocks);
    kvt_table_unmap(accesses->request_ends, ((uint64_t)accesses->request_count + 1) * sizeof *accesses->request_ends);
    kvt_table_unmap(accesses->infos, ((uint64_t)accesses->request_count + 1) * sizeof *accesses->infos);
    *accesses = (struct kvt_accesses){ 0 };
}
