/* A HuggingFace config.json. */
#include "tests/fuzz/fuzz.h"
#include "tools/models.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int fd;
    char error[512] = "";
    struct kvt_model model;
    const enum kvt_status status = kvt_model_read_config(fuzz_file(data, size, &fd), &model, error, sizeof error);
    (void)close(fd);
    if (status == KVT_INVAL || status == KVT_IO) fuzz_check_error(error);
    if (status != KVT_OK) return 0;
    model.shape.block_tokens = 16;
    if (kvt_shape_check(&model.shape, error, sizeof error) != KVT_OK) fuzz_check_error(error); /* too large */
    return 0;
}
