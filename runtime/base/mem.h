/*
 * mem: all memory that kvtier takes from the system.
 *
 * Tables and buffers that live as long as a runtime come from kvt_table_map(): zeroed pages that cost
 * memory only once touched, huge pages asked for, never inherited by a child's writes (a registered
 * page must not move under a device). Small open-time objects come from kvt_alloc(). Nothing else in the
 * project calls malloc, so that a test can fail the n-th allocation.
 *
 * Thread: any.
 */
#ifndef KVT_RUNTIME_BASE_MEM_H
#define KVT_RUNTIME_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* Zeroed memory, or NULL. count * size may overflow: that is NULL. */
void *kvt_alloc(size_t count, size_t size);

/*
 * Grows memory of kvt_alloc() to hold count * size bytes; old bytes kept, new ones not zeroed. NULL: old memory
 * unchanged.
 */
void *kvt_realloc(void *memory, size_t count, size_t size);

/* A copy of text, or NULL. */
char *kvt_strdup(const char *text);

/* NULL is fine. */
void kvt_free(void *memory);

/*
 * Zeroed, 2 MiB-aligned memory of its own mapping, huge pages asked for, excluded from fork. NULL when refused.
 * Untouched pages cost nothing. Give back with kvt_table_unmap() and the same size.
 */
void *kvt_table_map(size_t size_bytes);
void kvt_table_unmap(void *memory, size_t size_bytes);

/* Test hook: the n-th call from now on of any function above that can fail, fails (1: the next); 0: none. */
void kvt_alloc_fail_at(uint64_t n);

/* Allocations so far, and mapped bytes at this moment; for tests and reports. */
uint64_t kvt_alloc_calls(void);
uint64_t kvt_table_bytes(void);

#endif
