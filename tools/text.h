/*
 * text: what people write on a command line, and how numbers are written for them.
 *
 * A parser returns NULL and writes its result, or returns the rule that the text breaks ("a size needs a unit, as in
 * 64MiB") and writes nothing. Rules are static text, or valid until this thread's next call of a parser.
 */
#ifndef KVT_TOOLS_TEXT_H
#define KVT_TOOLS_TEXT_H

#include <stdint.h>

/* "64KiB", "512MiB", "4GiB", "1TiB", "4096B": a whole number, at least 1 byte. */
const char *kvt_parse_size(const char *text, uint64_t *ret_bytes);

/* A whole number from least to most. */
const char *kvt_parse_count(const char *text, uint64_t least, uint64_t most, uint64_t *ret_count);

/* "500ns", "20us", "20ms", "1.5s", "5min", "1h": not negative, at most 1000 days; 0 needs no unit. */
const char *kvt_parse_time(const char *text, uint64_t *ret_ns);

/* "2.5": GB/s, 10^9 bytes a second; more than 0. */
const char *kvt_parse_rate(const char *text, uint64_t *ret_bytes_per_s);

/* "2.5": a plain decimal number from least to most: no exponent, no sign. */
const char *kvt_parse_decimal(const char *text, double least, double most, double *ret_value);

/* Short texts by value: printf("%s", kvt_format_bytes(n).text). */
struct kvt_text {
    char text[40];
};

struct kvt_text kvt_format_bytes(uint64_t bytes); /* "0 B", "640 KiB", "1.25 GiB" */
struct kvt_text kvt_format_count(uint64_t count); /* "1,166,336" */
struct kvt_text kvt_format_duration(uint64_t ns); /* "850 ns", "20.0 ms", "3.25 s", "2 min 05 s", "1 h 02 min" */

#endif
