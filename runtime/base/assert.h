/*
 * assert: our own bugs abort, in release builds too.
 *
 * KVT_ASSERT is for cheap facts about arguments, results and edges, and is always on. KVT_VERIFY guards
 * whole-structure walks and is on in builds with -Dverify=true. Neither is for input from disk or
 * from a caller's options: that is a status.
 *
 * Tests set kvt_check_hook to catch a failing assertion instead of dying.
 */
#ifndef KVT_RUNTIME_BASE_ASSERT_H
#define KVT_RUNTIME_BASE_ASSERT_H

#include <stdbool.h>

typedef void (*kvt_check_hook_fn)(int result, const char *expression, const char *file, int line);

/* NULL: print the expression and abort. A hook gets result 0 and does not return (cmocka's mock_assert fits). */
extern kvt_check_hook_fn kvt_check_hook;

/* Called before an abort, to dump what led here (the trace ring); may be NULL. */
extern void (*kvt_check_dump)(void);

/* Nothing runs on behind a failed assertion, and what follows one may rely on it. */
__attribute__((noreturn, cold)) void kvt_check_failed(const char *expression, const char *file, int line);

#define KVT_ASSERT(expression)                                                                     \
    do {                                                                                           \
        if (__builtin_expect(!(expression), 0)) kvt_check_failed(#expression, __FILE__, __LINE__); \
    } while (0)

#define KVT_IMPLIES(a, b) (!(a) || (b))

#ifdef KVT_VERIFY_BUILD
#define KVT_VERIFY_ENABLED true
#else
#define KVT_VERIFY_ENABLED false
#endif

/* Runs a statement that walks a whole structure, in verifying builds only; it always compiles. */
#define KVT_VERIFY(statement)                  \
    do {                                       \
        if (KVT_VERIFY_ENABLED) { statement; } \
    } while (0)

#endif
