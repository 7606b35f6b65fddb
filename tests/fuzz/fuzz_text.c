/* Numbers, sizes, times and shapes as people write them. */
#include "tests/fuzz/fuzz.h"
#include "tools/models.h"
#include "tools/text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    char error[512] = "";
    uint64_t value = 0;
    double decimal = 0;
    struct kvt_model model;
    FUZZ_HOLDS(kvt_parse_size(text, &value) || value > 0);
    FUZZ_HOLDS(kvt_parse_count(text, 3, 1000, &value) || (value >= 3 && value <= 1000));
    FUZZ_HOLDS(kvt_parse_time(text, &value) || value <= UINT64_C(86400000000000) * 1000);
    FUZZ_HOLDS(kvt_parse_rate(text, &value) || value > 0);
    FUZZ_HOLDS(kvt_parse_decimal(text, 0.5, 8, &decimal) || (decimal >= 0.5 && decimal <= 8));
    if (kvt_model_find(text, &model, error, sizeof error) != KVT_OK) fuzz_check_error(error);
    if (kvt_model_parse_shape(text, &model, error, sizeof error) == KVT_OK) {
        model.shape.block_tokens = 16;
        if (kvt_shape_check(&model.shape, error, sizeof error) != KVT_OK) fuzz_check_error(error); /* too large */
    } else {
        fuzz_check_error(error);
    }
    free(text);
    return 0;
}
