/*
 * fuzz: what the fuzz targets share.
 *
 * A target is one function, LLVMFuzzerTestOneInput(): any bytes in, no crash, no leak, no broken promise. With clang and
 * -Dfuzz=true libFuzzer drives it; otherwise replay.c runs it over the kept corpus and a few mutations of each entry.
 */
#ifndef KVT_TESTS_FUZZ_FUZZ_H
#define KVT_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* 0 always. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A promise that was broken: libFuzzer keeps the input. */
#define FUZZ_HOLDS(condition)                                                          \
    do {                                                                               \
        if (!(condition)) {                                                            \
            (void)fprintf(stderr, "%s:%d: not: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                   \
        }                                                                              \
    } while (0)

/* The bytes as a file for readers that take a path; valid until closed with close(*ret_fd). */
static inline const char *fuzz_file(const uint8_t *data, size_t size, int *ret_fd)
{
    static char path[64];
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_HOLDS(fd >= 0);
    FUZZ_HOLDS(write(fd, data, size) == (ssize_t)size);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    *ret_fd = fd;
    return path;
}

/* The bytes as a text that ends; free() it. */
static inline char *fuzz_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    FUZZ_HOLDS(text != NULL);
    if (size > 0) memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

/* A refusal says why. (That it is one line is the printing's part: cli.h.) */
static inline void fuzz_check_error(const char *error) { FUZZ_HOLDS(error[0] != '\0'); }

#endif
