/*
 * assert_fails: asks whether something asserts, for tests of what must never happen.
 *
 *     assert_true(asserts(give, &argument));
 */
#ifndef KVT_TESTS_UNIT_ASSERT_FAILS_H
#define KVT_TESTS_UNIT_ASSERT_FAILS_H

#include <setjmp.h>
#include <stdbool.h>

#include "runtime/base/assert.h"

static jmp_buf assertion_failed;

static inline void leave_assertion(int result, const char *expression, const char *file, int line)
{
    (void)result;
    (void)expression;
    (void)file;
    (void)line;
    longjmp(assertion_failed, 1);
}

/* True when run(user) fails an assertion. What it did until then stays done. */
__attribute__((noinline)) static bool asserts(void (*run)(void *user), void *user)
{
    const kvt_check_hook_fn before = kvt_check_hook;
    kvt_check_hook = leave_assertion;
    if (setjmp(assertion_failed)) {
        kvt_check_hook = before;
        return true;
    }
    run(user);
    kvt_check_hook = before;
    return false;
}

#endif
