/* text: what a command line may say, to the byte, and what numbers look like for people. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "tools/text.h"

static void sizes_are_exact_and_carry_a_unit(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = { { "4GiB", 4 * KVT_GIB },
                 { "512MiB", 512 * KVT_MIB },
                 { "64KiB", 65536 },
                 { "1B", 1 },
                 { "16777215TiB", 16777215 * (KVT_GIB << 10) },
                 { "18446744073709551615B", UINT64_MAX },
                 { "007MiB", 7 * KVT_MIB } };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(good); i++) {
        uint64_t bytes = 0;
        assert_null(kvt_parse_size(good[i].text, &bytes));
        assert_true(bytes == good[i].bytes);
    }
}

static void bad_sizes_are_refused_by_their_rule_and_leave_the_result(void **state)
{
    (void)state;
    static const struct {
        const char *text, *rule;
    } bad[] = { { "", "a size is a whole number and a unit, as in 64MiB" },
                { "12", "a size needs a unit, as in 64MiB" },
                { "99999999999999999999", "a size needs a unit, as in 64MiB" },
                { "-1GiB", "a size is a whole number and a unit, as in 64MiB" },
                { "+1GiB", "a size is a whole number and a unit, as in 64MiB" },
                { " 1GiB", "a size is a whole number and a unit, as in 64MiB" },
                { "1.5GiB", "a size is a whole number and a unit, as in 64MiB" },
                { "1.2.3GiB", "a size is a whole number and a unit, as in 64MiB" },
                { "GiB", "a size is a whole number and a unit, as in 64MiB" },
                { "nan", "a size is a whole number and a unit, as in 64MiB" },
                { "0x10MiB", "a size's unit is B, KiB, MiB, GiB or TiB" },
                { "1e3MiB", "a size's unit is B, KiB, MiB, GiB or TiB" },
                { "4GB", "a size's unit is B, KiB, MiB, GiB or TiB" },
                { "4gib", "a size's unit is B, KiB, MiB, GiB or TiB" },
                { "4 GiB", "a size's unit is B, KiB, MiB, GiB or TiB" },
                { "4GiBx", "a size's unit is B, KiB, MiB, GiB or TiB" },
                { "0MiB", "a size is at least 1 byte" },
                { "16777216TiB", "a size fits in 64 bits" },
                { "18446744073709551616B", "a size fits in 64 bits" } };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(bad); i++) {
        uint64_t bytes = 7;
        const char *rule = kvt_parse_size(bad[i].text, &bytes);
        assert_non_null(rule);
        assert_string_equal(rule, bad[i].rule);
        assert_int_equal(bytes, 7);
    }
}

static void counts_keep_to_their_bounds(void **state)
{
    (void)state;
    uint64_t count = 7;
    assert_null(kvt_parse_count("1", 1, 10, &count));
    assert_int_equal(count, 1);
    assert_null(kvt_parse_count("18446744073709551615", 0, UINT64_MAX, &count));
    assert_true(count == UINT64_MAX);
    static const char *const bad[] = {
        "", "0", "11", "-1", "+1", "1 ", "1.0", "0x1", "18446744073709551616", "99999999999999999999999", "a"
    };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(bad); i++) {
        count = 7;
        assert_string_equal(kvt_parse_count(bad[i], 1, 10, &count), "a whole number, 1 to 10");
        assert_int_equal(count, 7);
    }
}

static void times_carry_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t ns;
    } good[] = { { "20ms", 20000000 },
                 { "5s", 5000000000u },
                 { "1.5s", 1500000000 },
                 { "0", 0 },
                 { "0s", 0 },
                 { "0.25us", 250 },
                 { "7ns", 7 },
                 { "2min", 120000000000u },
                 { "1h", 3600000000000u } };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(good); i++) {
        uint64_t ns = 1;
        assert_null(kvt_parse_time(good[i].text, &ns));
        assert_true(ns == good[i].ns);
    }
    static const struct {
        const char *text, *rule;
    } bad[] = { { "20", "a time needs a unit, as in 20ms or 5s" },
                { "-1s", "a time is a number and a unit, as in 20ms or 5s" },
                { "", "a time is a number and a unit, as in 20ms or 5s" },
                { "inf", "a time is a number and a unit, as in 20ms or 5s" },
                { ".5s", "a time is a number and a unit, as in 20ms or 5s" },
                { "1.s", "a time is a number and a unit, as in 20ms or 5s" },
                { "5sec", "a time's unit is ns, us, ms, s, min or h" },
                { "1e3s", "a time's unit is ns, us, ms, s, min or h" },
                { "99999999h", "a time is at most 1000 days" } };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(bad); i++) {
        uint64_t ns = 1;
        assert_string_equal(kvt_parse_time(bad[i].text, &ns), bad[i].rule);
        assert_int_equal(ns, 1);
    }
}

static void rates_are_gigabytes_a_second(void **state)
{
    (void)state;
    uint64_t rate;
    assert_null(kvt_parse_rate("2.5", &rate));
    assert_true(rate == 2500000000u);
    assert_null(kvt_parse_rate("64", &rate));
    assert_true(rate == 64000000000u);
    assert_string_equal(kvt_parse_rate("0", &rate), "a rate is more than 0 GB/s");
    assert_string_equal(kvt_parse_rate("0.0000000001", &rate), "a rate is more than 0 GB/s");
    assert_string_equal(kvt_parse_rate("-2", &rate), "a rate is a number of GB/s, as in 2.5");
    assert_string_equal(kvt_parse_rate("2GB", &rate), "a rate is a number of GB/s, as in 2.5");
    assert_string_equal(kvt_parse_rate("9999999", &rate), "a rate is at most 1000000 GB/s");
    char long_number[400];
    memset(long_number, '9', sizeof long_number - 1);
    long_number[sizeof long_number - 1] = '\0';
    assert_non_null(kvt_parse_rate(long_number, &rate)); /* more than a double holds */
    assert_true(rate == 64000000000u);
}

static void decimals_keep_to_their_bounds(void **state)
{
    (void)state;
    double value = 0;
    assert_null(kvt_parse_decimal("200", 0.1, 1000, &value));
    assert_true(value >= 200 && value <= 200);
    assert_string_equal(kvt_parse_decimal("0", 0.1, 1000, &value), "a number, 0.1 to 1000");
    assert_string_equal(kvt_parse_decimal("nan", 0.1, 1000, &value), "a number, 0.1 to 1000");
    assert_string_equal(kvt_parse_decimal("1e2", 0.1, 1000, &value), "a number, 0.1 to 1000");
}

static void numbers_are_written_for_people(void **state)
{
    (void)state;
    assert_string_equal(kvt_format_bytes(0).text, "0 B");
    assert_string_equal(kvt_format_bytes(1023).text, "1023 B");
    assert_string_equal(kvt_format_bytes(640 * KVT_KIB).text, "640 KiB");
    assert_string_equal(kvt_format_bytes(1342177280).text, "1.25 GiB");
    assert_string_equal(kvt_format_bytes(UINT64_MAX).text, "16.0 EiB");
    assert_string_equal(kvt_format_count(0).text, "0");
    assert_string_equal(kvt_format_count(999).text, "999");
    assert_string_equal(kvt_format_count(1166336).text, "1,166,336");
    assert_string_equal(kvt_format_count(UINT64_MAX).text, "18,446,744,073,709,551,615");
    assert_string_equal(kvt_format_duration(850).text, "850 ns");
    assert_string_equal(kvt_format_duration(20000000).text, "20.0 ms");
    assert_string_equal(kvt_format_duration(3250000000u).text, "3.25 s");
    assert_string_equal(kvt_format_duration(125000000000u).text, "2 min 05 s");
    assert_string_equal(kvt_format_duration(3720000000000u).text, "1 h 02 min");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_exact_and_carry_a_unit),
        cmocka_unit_test(bad_sizes_are_refused_by_their_rule_and_leave_the_result),
        cmocka_unit_test(counts_keep_to_their_bounds),
        cmocka_unit_test(times_carry_units),
        cmocka_unit_test(rates_are_gigabytes_a_second),
        cmocka_unit_test(decimals_keep_to_their_bounds),
        cmocka_unit_test(numbers_are_written_for_people),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
