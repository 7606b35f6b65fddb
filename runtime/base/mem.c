#include "runtime/base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"

#define HUGE_PAGE_BYTES (2 * KVT_MIB)

static _Atomic uint64_t alloc_calls;   /* shared: counted by every thread */
static _Atomic uint64_t alloc_fail_at; /* shared: 0, or the value of alloc_calls that fails */
static _Atomic uint64_t table_bytes;   /* shared */

static bool allocation_fails(void)
{
    const uint64_t call = atomic_fetch_add(&alloc_calls, 1) + 1;
    return call == atomic_load(&alloc_fail_at);
}

void *kvt_alloc(size_t count, size_t size)
{
    uint64_t bytes;
    if (allocation_fails() || !kvt_multiply(count, size, &bytes)) return NULL;
    return calloc(count ? count : 1, size ? size : 1);
}

void *kvt_realloc(void *memory, size_t count, size_t size)
{
    uint64_t bytes;
    if (allocation_fails() || !kvt_multiply(count, size, &bytes)) return NULL;
    return realloc(memory, bytes ? bytes : 1);
}

char *kvt_strdup(const char *text)
{
    const size_t size = strlen(text) + 1;
    char *copy = kvt_alloc(1, size);
    if (copy) memcpy(copy, text, size);
    return copy;
}

void kvt_free(void *memory) { free(memory); }

void *kvt_table_map(size_t size_bytes)
{
    if (allocation_fails()) return NULL;
    KVT_ASSERT(size_bytes > 0);
    if (size_bytes > SIZE_MAX / 2) return NULL;
    const size_t mapped_bytes = kvt_align_up(size_bytes, HUGE_PAGE_BYTES);

    /* Map one huge page more than needed and cut the ends off, so that the start is aligned. */
    uint8_t *raw = mmap(NULL, mapped_bytes + HUGE_PAGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    uint8_t *memory = (uint8_t *)kvt_align_up((uintptr_t)raw, HUGE_PAGE_BYTES);
    const size_t before = (size_t)(memory - raw);
    if (before > 0) (void)munmap(raw, before);
    if (before < HUGE_PAGE_BYTES) (void)munmap(memory + mapped_bytes, HUGE_PAGE_BYTES - before);

    (void)madvise(memory, mapped_bytes, MADV_HUGEPAGE); /* advice: without it everything works, slower */
    (void)madvise(memory, mapped_bytes, MADV_DONTFORK);
    atomic_fetch_add(&table_bytes, mapped_bytes);
    return memory;
}

void kvt_table_unmap(void *memory, size_t size_bytes)
{
    if (!memory) return;
    const size_t mapped_bytes = kvt_align_up(size_bytes, HUGE_PAGE_BYTES);
    (void)munmap(memory, mapped_bytes);
    atomic_fetch_sub(&table_bytes, mapped_bytes);
}

void kvt_alloc_fail_at(uint64_t n) { atomic_store(&alloc_fail_at, n ? atomic_load(&alloc_calls) + n : 0); }

uint64_t kvt_alloc_calls(void) { return atomic_load(&alloc_calls); }
uint64_t kvt_table_bytes(void) { return atomic_load(&table_bytes); }
