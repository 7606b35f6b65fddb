/*
 * trace_azure: Azure's LLM inference traces: TIMESTAMP,ContextTokens,GeneratedTokens; lines may end in CR LF.
 *
 * A timestamp is 2023-11-16 18:17:03.9799600, with 0 to 9 digits of a second and, in later years' files, +00:00
 * behind it. There are no ids: nothing is shared between requests.
 */
#include <string.h>

#include "tools/workload/lines.h"
#include "tools/workload/workload_build.h"

#define HEADER "TIMESTAMP,ContextTokens,GeneratedTokens"

/* Exactly `digits` digits. */
static bool read_fixed(const char **text, uint32_t digits, uint64_t least, uint64_t most, uint64_t *ret_value)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < digits; i++) {
        const char c = (*text)[i];
        if (c < '0' || c > '9') return false;
        value = value * 10 + (uint64_t)(c - '0');
    }
    if (value < least || value > most) return false;
    *text += digits;
    *ret_value = value;
    return true;
}

static bool read_char(const char **text, char c)
{
    if (**text != c) return false;
    (*text)++;
    return true;
}

/* Days since 1970-01-01 of a date in the Gregorian calendar, year >= 1970. */
static uint64_t days_of(uint64_t year, uint64_t month, uint64_t day)
{
    static const uint16_t days_before[] = { 0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334 };
    const uint64_t past = year - 1; /* leap days of the years before this one, and this one's own */
    const bool is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    const uint64_t leap_days = past / 4 - past / 100 + past / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400);
    return (year - 1970) * 365 + leap_days + days_before[month - 1] + (is_leap && month > 2) + day - 1;
}

static bool read_timestamp(const char **text, uint64_t *ret_ns)
{
    uint64_t year, month, day, hour, minute, second;
    if (!read_fixed(text, 4, 1970, 2262, &year) || !read_char(text, '-')) return false;
    if (!read_fixed(text, 2, 1, 12, &month) || !read_char(text, '-')) return false;
    if (!read_fixed(text, 2, 1, 31, &day) || !read_char(text, ' ')) return false;
    if (!read_fixed(text, 2, 0, 23, &hour) || !read_char(text, ':')) return false;
    if (!read_fixed(text, 2, 0, 59, &minute) || !read_char(text, ':')) return false;
    if (!read_fixed(text, 2, 0, 60, &second)) return false;
    uint64_t fraction_ns = 0;
    if (read_char(text, '.')) {
        uint64_t unit = KVT_NS_PER_S / 10, digit;
        for (; unit > 0 && read_fixed(text, 1, 0, 9, &digit); unit /= 10) fraction_ns += digit * unit;
    }
    if (strncmp(*text, "+00:00", 6) == 0) *text += 6;
    const uint64_t seconds = days_of(year, month, day) * 86400 + hour * 3600 + minute * 60 + second;
    *ret_ns = seconds * KVT_NS_PER_S + fraction_ns;
    return true;
}

static bool read_count(const char **text, uint64_t least, uint64_t *ret_value)
{
    uint64_t value = 0, digit;
    const char *start = *text;
    while (read_fixed(text, 1, 0, 9, &digit)) {
        value = value * 10 + digit;
        if (value > KVT_TRACE_TOKENS_MAX) return false;
    }
    if (*text == start || value < least) return false;
    *ret_value = value;
    return true;
}

/* A comma, or the end of the line, follows each field; `from` is where the field began. */
static int field_length(const char *from)
{
    const size_t length = strcspn(from, ",");
    return length < 40 ? (int)length : 40;
}

static enum kvt_status read_line(struct kvt_workload_build *build, uint64_t number, const char *line, size_t length)
{
    struct kvt_workload_row *row;
    KVT_TRY(kvt_workload_add_row(build, &row));
    struct kvt_request *request = &row->request;

    const char *text = line, *field = line;
    if (!read_timestamp(&text, &request->arrival_ns) || !read_char(&text, ',')) {
        return kvt_workload_refuse(build, number,
                                   "TIMESTAMP is '%.*s': year-month-day hour:minute:second, and a comma behind it",
                                   field_length(field), field);
    }
    field = text;
    if (!read_count(&text, 1, &request->prompt_tokens) || !read_char(&text, ',')) {
        return kvt_workload_refuse(build, number,
                                   "ContextTokens is '%.*s': a whole number, 1 to 1099511627776, and a comma behind it",
                                   field_length(field), field);
    }
    field = text;
    if (!read_count(&text, 0, &request->output_tokens) || text != line + length) {
        return kvt_workload_refuse(
            build, number, "GeneratedTokens is '%.40s': a whole number, 0 to 1099511627776, at the line's end", field);
    }
    return KVT_OK;
}

enum kvt_status kvt_trace_read_azure(struct kvt_workload_build *build, struct kvt_lines *lines, char *line,
                                     size_t length)
{
    if (length != strlen(HEADER) || strcmp(line, HEADER) != 0)
        return kvt_workload_refuse(build, lines->number, "'%.60s': the header of this kind of trace is " HEADER, line);
    for (;;) {
        if (kvt_workload_has_enough(build)) return KVT_OK;
        KVT_TRY(kvt_lines_next(lines, &line, &length));
        if (!line) return KVT_OK;
        if (length > 0) KVT_TRY(read_line(build, lines->number, line, length));
    }
}
