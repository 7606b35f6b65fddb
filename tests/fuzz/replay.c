/*
 * replay: runs a fuzz target over kept inputs, as a plain test.
 *
 *     fuzz_NAME CORPUS_FOLDER
 *
 * Each entry as it is, and some mutations of it that are the same at every run.
 */
#include <dirent.h>

#include "runtime/base/rng.h"
#include "tests/fuzz/fuzz.h"

enum { INPUT_MAX = 1 << 16, MUTATIONS = 60 };

static uint8_t input[INPUT_MAX], mutated[INPUT_MAX];

static size_t mutate(size_t size, struct kvt_rng *rng)
{
    memcpy(mutated, input, size);
    for (uint64_t n = 1 + kvt_rng_below(rng, 4); n > 0 && size > 0; n--) {
        const size_t at = kvt_rng_below(rng, size);
        switch (kvt_rng_below(rng, 4)) {
        case 0: mutated[at] ^= (uint8_t)(1u << kvt_rng_below(rng, 8)); break;
        case 1: mutated[at] = (uint8_t)kvt_rng_next(rng); break;
        case 2: size = at; break; /* cut off */
        default: {                /* a stretch once more */
            const size_t length = kvt_rng_below(rng, size - at) + 1;
            const size_t to = kvt_rng_below(rng, size - length + 1);
            memmove(mutated + to, mutated + at, length);
        }
        }
    }
    return size;
}

static void replay(const char *folder, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "re");
    FUZZ_HOLDS(file != NULL);
    const size_t size = fread(input, 1, sizeof input, file);
    (void)fclose(file);
    (void)LLVMFuzzerTestOneInput(input, size);
    struct kvt_rng rng = { size };
    for (uint32_t m = 0; m < MUTATIONS; m++) (void)LLVMFuzzerTestOneInput(mutated, mutate(size, &rng));
}

int main(int argc, char **argv)
{
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    if (!folder) {
        (void)fprintf(stderr, "usage: %s CORPUS_FOLDER\n", argv[0]);
        return 2;
    }
    uint32_t entries = 0;
    for (const struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (entry->d_name[0] == '.') continue;
        replay(argv[1], entry->d_name);
        entries++;
    }
    (void)closedir(folder);
    (void)printf("%u entries, %u inputs\n", entries, entries * (1 + MUTATIONS));
    return entries > 0 ? 0 : 1;
}
