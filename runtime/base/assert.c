#include "runtime/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

kvt_check_hook_fn kvt_check_hook;
void (*kvt_check_dump)(void);

void kvt_check_failed(const char *expression, const char *file, int line)
{
    if (kvt_check_hook) {
        kvt_check_hook(0, expression, file, line);
        abort();
    }
    fprintf(stderr, "kvtier: %s:%d: this should hold and does not: %s\n", file, line, expression);
    if (kvt_check_dump) kvt_check_dump();
    abort();
}
