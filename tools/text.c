#include "tools/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"

#define NS_PER_S ((uint64_t)1000000000)
#define TIME_NS_MAX (1000 * 86400 * NS_PER_S)
#define RATE_GB_MAX 1000000.0 /* 1 PB/s */

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit size_units[] = {
    { "B", 1 }, { "KiB", KVT_KIB }, { "MiB", KVT_MIB }, { "GiB", KVT_GIB }, { "TiB", KVT_GIB << 10 }
};

static const struct unit time_units[] = { { "ns", 1 },       { "us", 1000 },           { "ms", 1000000 },
                                          { "s", NS_PER_S }, { "min", 60 * NS_PER_S }, { "h", 3600 * NS_PER_S } };

static bool find_unit(const struct unit *units, uint32_t count, const char *name, uint64_t *ret_factor)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(units[i].name, name) == 0) {
            *ret_factor = units[i].factor;
            return true;
        }
    }
    return false;
}

enum whole { WHOLE_OK, WHOLE_NONE, WHOLE_OVERFLOW };

/* The digits at the start of *text; *text is moved behind them. */
static enum whole read_whole(const char **text, uint64_t *ret_value)
{
    const char *c = *text;
    uint64_t value = 0;
    bool is_overflown = false;
    for (; *c >= '0' && *c <= '9'; c++) {
        is_overflown = is_overflown || !kvt_multiply(value, 10, &value)
            || __builtin_add_overflow(value, (uint64_t)(*c - '0'), &value);
    }
    if (c == *text) return WHOLE_NONE;
    *text = c;
    if (is_overflown) return WHOLE_OVERFLOW;
    *ret_value = value;
    return WHOLE_OK;
}

const char *kvt_parse_size(const char *text, uint64_t *ret_bytes)
{
    uint64_t value = 0, factor, bytes;
    const enum whole outcome = read_whole(&text, &value);
    if (outcome == WHOLE_NONE) return "a size is a whole number and a unit, as in 64MiB";
    if (*text == '\0') return "a size needs a unit, as in 64MiB";
    if (*text == '.' || *text == ',') return "a size is a whole number and a unit, as in 64MiB";
    if (!find_unit(size_units, KVT_ARRAY_COUNT(size_units), text, &factor))
        return "a size's unit is B, KiB, MiB, GiB or TiB";
    if (outcome == WHOLE_OVERFLOW || !kvt_multiply(value, factor, &bytes)) return "a size fits in 64 bits";
    if (bytes == 0) return "a size is at least 1 byte";
    *ret_bytes = bytes;
    return NULL;
}

const char *kvt_parse_count(const char *text, uint64_t least, uint64_t most, uint64_t *ret_count)
{
    static _Thread_local char rule[80];
    uint64_t value = 0;
    const enum whole outcome = read_whole(&text, &value);
    if (outcome != WHOLE_OK || *text != '\0' || value < least || value > most) {
        (void)snprintf(rule, sizeof rule, "a whole number, %llu to %llu", (unsigned long long)least,
                       (unsigned long long)most);
        return rule;
    }
    *ret_count = value;
    return NULL;
}

/* Digits, and maybe a point and more digits. Digits beyond what a double holds are rounded away. */
static bool read_decimal(const char **text, double *ret_value)
{
    const char *c = *text;
    double value = 0, unit = 1;
    if (*c < '0' || *c > '9') return false;
    for (; *c >= '0' && *c <= '9'; c++) value = value * 10 + (*c - '0');
    if (*c == '.') {
        c++;
        if (*c < '0' || *c > '9') return false;
        for (; *c >= '0' && *c <= '9'; c++) {
            value = value * 10 + (*c - '0');
            unit *= 10;
        }
    }
    *text = c;
    *ret_value = value / unit;
    return true;
}

const char *kvt_parse_decimal(const char *text, double least, double most, double *ret_value)
{
    static _Thread_local char rule[80];
    double value = 0;
    if (!read_decimal(&text, &value) || *text != '\0' || !(value >= least && value <= most)) {
        (void)snprintf(rule, sizeof rule, "a number, %g to %g", least, most);
        return rule;
    }
    *ret_value = value;
    return NULL;
}

const char *kvt_parse_time(const char *text, uint64_t *ret_ns)
{
    double value;
    uint64_t factor;
    if (!read_decimal(&text, &value)) return "a time is a number and a unit, as in 20ms or 5s";
    if (*text == '\0' && value <= 0) {
        *ret_ns = 0;
        return NULL;
    }
    if (*text == '\0') return "a time needs a unit, as in 20ms or 5s";
    if (!find_unit(time_units, KVT_ARRAY_COUNT(time_units), text, &factor))
        return "a time's unit is ns, us, ms, s, min or h";
    const double ns = value * (double)factor;
    if (!(ns <= (double)TIME_NS_MAX)) return "a time is at most 1000 days";
    *ret_ns = (uint64_t)(ns + 0.5);
    return NULL;
}

const char *kvt_parse_rate(const char *text, uint64_t *ret_bytes_per_s)
{
    double value;
    if (!read_decimal(&text, &value) || *text != '\0') return "a rate is a number of GB/s, as in 2.5";
    if (!(value <= RATE_GB_MAX)) return "a rate is at most 1000000 GB/s";
    const uint64_t rate = (uint64_t)(value * 1e9 + 0.5);
    if (rate == 0) return "a rate is more than 0 GB/s";
    *ret_bytes_per_s = rate;
    return NULL;
}

struct kvt_text kvt_format_bytes(uint64_t bytes)
{
    static const char *const names[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    struct kvt_text text;
    uint32_t unit = 0;
    uint64_t scale = 1;
    while (unit + 1 < KVT_ARRAY_COUNT(names) && bytes / scale >= 1024) {
        scale *= 1024;
        unit++;
    }
    const double value = (double)bytes / (double)scale;
    const int digits = bytes % scale == 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
    (void)snprintf(text.text, sizeof text.text, "%.*f %s", digits, value, names[unit]);
    return text;
}

struct kvt_text kvt_format_count(uint64_t count)
{
    struct kvt_text text;
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)count);
    char *out = text.text;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) *out++ = ',';
        *out++ = digits[i];
    }
    *out = '\0';
    return text;
}

struct kvt_text kvt_format_duration(uint64_t ns)
{
    struct kvt_text text;
    const uint64_t seconds = ns / NS_PER_S;
    if (ns < 1000) {
        (void)snprintf(text.text, sizeof text.text, "%llu ns", (unsigned long long)ns);
    } else if (ns < 1000 * 1000) {
        (void)snprintf(text.text, sizeof text.text, "%.1f us", (double)ns / 1e3);
    } else if (ns < NS_PER_S) {
        (void)snprintf(text.text, sizeof text.text, "%.1f ms", (double)ns / 1e6);
    } else if (seconds < 60) {
        (void)snprintf(text.text, sizeof text.text, "%.2f s", (double)ns / 1e9);
    } else if (seconds < 3600) {
        (void)snprintf(text.text, sizeof text.text, "%llu min %02llu s", (unsigned long long)(seconds / 60),
                       (unsigned long long)(seconds % 60));
    } else {
        (void)snprintf(text.text, sizeof text.text, "%llu h %02llu min", (unsigned long long)(seconds / 3600),
                       (unsigned long long)(seconds / 60 % 60));
    }
    return text;
}
