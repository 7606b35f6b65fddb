/* Serving traces: Mooncake JSONL in its spellings, Azure CSV. */
#include "tests/fuzz/fuzz.h"
#include "tools/workload/workload.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd;
    char error[512] = "";
    const struct kvt_workload_options options = { .trace = fuzz_file(data, size, &fd),
                                                  .block_tokens = 16,
                                                  .think_ns = UINT64_MAX };
    struct kvt_workload *workload = NULL;
    const enum kvt_status status = kvt_workload_create(&options, &workload, error, sizeof error);
    (void)close(fd);
    if (status == KVT_INVAL || status == KVT_IO) fuzz_check_error(error);
    if (status != KVT_OK) return 0;
    for (uint32_t r = 0; r < workload->request_count; r++) {
        const struct kvt_request *request = &workload->requests[r];
        FUZZ_HOLDS(r == 0 || request->arrival_ns >= workload->requests[r - 1].arrival_ns);
        const uint64_t blocks = request->prompt_tokens / workload->block_tokens;
        FUZZ_HOLDS(!request->ids || request->id_count == blocks
                   || request->id_count
                       == (request->prompt_tokens + workload->block_tokens - 1) / workload->block_tokens);
        uint32_t tokens[4];
        const uint64_t all = request->prompt_tokens + request->output_tokens;
        if (all >= 4) kvt_workload_tokens(workload, r, all - 4, 4, tokens);
    }
    kvt_workload_destroy(&workload);
    return 0;
}
