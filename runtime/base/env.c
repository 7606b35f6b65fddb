#include "runtime/base/env.h"

#include <stdarg.h>
#include <stdio.h>
#include <time.h>

static uint64_t monotonic_ns(void *clock_user)
{
    (void)clock_user;
    struct timespec ts;
    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

struct kvt_env kvt_env_default(void) { return (struct kvt_env){ .now_ns = monotonic_ns }; }

void kvt_log(const struct kvt_env *env, enum kvt_log_level level, const char *format, ...)
{
    if (!env->log) return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    env->log(env->log_user, level, line);
}
