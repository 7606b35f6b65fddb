/* What an operator sees: the text of all numbers, and the lines about faults that were absorbed. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/runtime/world.h"

enum { FOUR = 4 * BLOCK_TOKENS, TEXT_BYTES = 65536 };

static char text[TEXT_BYTES];

static const char *metrics(struct world *w)
{
    assert_true(kvt_metrics_text(w->runtime, text, sizeof text) < sizeof text);
    return text;
}

/* The sample's value; fails when there is not exactly one. */
static double value_of(const char *sample)
{
    char line[160];
    (void)snprintf(line, sizeof line, "\n%s ", sample);
    const char *at = strstr(text, line);
    assert_non_null(at);
    assert_null(strstr(at + 1, line));
    return strtod(at + strlen(line), NULL);
}

static void open_with_disk(struct world *w)
{
    world_init(w, 8, 8);
    world_add_disk(w, 8, 8 * KVT_MIB);
}

/* ---- The text ---------------------------------------------------------------------------------------------------- */

static void lookups_by_tier_add_up_to_what_was_asked_for(void **state)
{
    (void)state;
    struct world w;
    struct text first, second;
    open_with_disk(&w);
    world_open(&w);
    text_make(&first, 1, FOUR + 1);
    text_make(&second, 2, FOUR + 1);
    (void)world_serve(&w, &first); /* 4 asked, none there */
    world_settle(&w);
    assert_int_equal(world_read(&w, &first), FOUR); /* 4 on the device */
    world_flush(&w, 9, true);
    (void)metrics(&w);
    const double nowhere = value_of("kvtier_lookup_blocks_total{found=\"nowhere\"}");
    assert_int_equal(world_read(&w, &first), FOUR); /* 4 on nvme */
    assert_int_equal(world_read(&w, &second), 0);   /* 4 asked, none there */
    (void)metrics(&w);
    assert_float_equal(value_of("kvtier_lookup_blocks_total{found=\"device\"}"), 4, 0);
    assert_float_equal(value_of("kvtier_lookup_blocks_total{found=\"nvme\"}"), 4, 0);
    assert_float_equal(value_of("kvtier_lookup_blocks_total{found=\"nowhere\"}"), nowhere + 4, 0);
    world_settle(&w);
    world_close(&w);
}

/* Counts of histograms are the counters of the same transfers; buckets never fall. */
static void histograms_count_what_the_counters_count(void **state)
{
    (void)state;
    struct world w;
    struct text first;
    open_with_disk(&w);
    world_open(&w);
    text_make(&first, 1, FOUR + 1);
    (void)world_serve(&w, &first);
    world_settle(&w);
    world_flush(&w, 9, true);
    assert_int_equal(world_read(&w, &first), FOUR);
    world_settle(&w);
    const struct kvt_stats stats = world_stats(&w);
    (void)metrics(&w);
    assert_true(stats.stashes > 0 && stats.fetches > 0);
    assert_float_equal(value_of("kvtier_transfer_seconds_count{leg=\"device_to_host\"}"), (double)stats.stashes, 0);
    assert_float_equal(value_of("kvtier_transfer_seconds_count{leg=\"host_to_device\"}"), (double)stats.fetches, 0);
    assert_float_equal(value_of("kvtier_transfer_seconds_bucket{leg=\"host_to_device\",le=\"+Inf\"}"),
                       (double)stats.fetches, 0);
    assert_float_equal(value_of("kvtier_fetched_blocks_total{why=\"prefetch\"}")
                           + value_of("kvtier_fetched_blocks_total{why=\"demand\"}"),
                       (double)stats.fetches, 0);
    double before = 0;
    for (const char *at = text; (at = strstr(at, "kvtier_link_seconds_bucket{leg=\"nvme_to_host\",le=")) != NULL;
         at++) {
        const double count = strtod(strchr(at, ' '), NULL);
        assert_true(count >= before);
        before = count;
    }
    assert_float_equal(before, 4, 0);
    world_close(&w);
}

static void a_value_goes_into_the_first_bucket_that_is_not_below_it(void **state)
{
    (void)state;
    struct kvt_histogram histogram = { 0 };
    kvt_histogram_add(&histogram, 0);
    kvt_histogram_add(&histogram, kvt_histogram_bound_ns(0));
    kvt_histogram_add(&histogram, kvt_histogram_bound_ns(0) + 1);
    kvt_histogram_add(&histogram, kvt_histogram_bound_ns(KVT_HISTOGRAM_BOUNDS - 1) + 1);
    assert_int_equal(histogram.counts[0], 2);
    assert_int_equal(histogram.counts[1], 1);
    assert_int_equal(histogram.counts[KVT_HISTOGRAM_BOUNDS], 1);
}

/* A step that comes too early makes a stall of as long as the sequence was not ready, under one cause. */
static void a_stall_lasts_from_the_step_that_wanted_it_until_ready(void **state)
{
    (void)state;
    struct world w;
    struct text first;
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    open_with_disk(&w);
    world_open(&w);
    text_make(&first, 1, FOUR + 1);
    (void)world_serve(&w, &first);
    world_settle(&w);
    world_flush(&w, 9, false);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, true);
    assert_int_equal(world_create(&w, &first, FOUR + 1, false, &seq), FOUR);
    world_pump(&w, 4);
    assert_int_equal(world_begin_once(&w, seq, 0, &step, &lost_from), KVT_NOT_READY);
    world_advance(&w, SECOND);
    assert_int_equal(world_begin_once(&w, seq, 0, &step, &lost_from), KVT_NOT_READY);
    world_advance(&w, SECOND / 2);
    world_gate(&w, KVT_DEVICE_STREAM_FETCH, false);
    assert_int_equal(world_begin(&w, seq, 0, &step, &lost_from), KVT_READY);
    world_end(&w, step);
    (void)metrics(&w);
    double stalls = 0, seconds = 0;
    for (uint32_t c = 0; c < KVT_STALL_COUNT; c++) {
        char sample[80];
        (void)snprintf(sample, sizeof sample, "kvtier_stalls_total{cause=\"%s\"}",
                       kvt_stall_name((enum kvt_stall_cause)c));
        stalls += value_of(sample);
        (void)snprintf(sample, sizeof sample, "kvtier_stall_seconds_total{cause=\"%s\"}",
                       kvt_stall_name((enum kvt_stall_cause)c));
        seconds += value_of(sample);
    }
    assert_float_equal(stalls, 1, 0);
    assert_float_equal(seconds, 1.5, 1e-3);
    world_finish(&w, seq, true);
    world_settle(&w);
    world_close(&w);
}

static void a_text_that_does_not_fit_says_how_long_it_is(void **state)
{
    (void)state;
    struct world w;
    world_init(&w, 4, 0);
    world_open(&w);
    const size_t length = kvt_metrics_text(w.runtime, NULL, 0);
    char small[100];
    memset(small, '#', sizeof small);
    assert_int_equal(kvt_metrics_text(w.runtime, small, 50), length);
    assert_int_equal(strlen(small), 49);
    assert_int_equal(small[50], '#');
    assert_int_equal(kvt_metrics_text(w.runtime, text, length + 1), length);
    assert_int_equal(strlen(text), length);
    assert_string_equal(text + length - 6, "# EOF\n");
    world_close(&w);
}

/* ---- Faults ------------------------------------------------------------------------------------------------------ */

static struct {
    uint32_t lines, read_lines;
    uint64_t reads_told;
} told;

static void on_log(void *user, enum kvt_log_level level, const char *line)
{
    (void)user;
    (void)level;
    told.lines++;
    if (!strstr(line, "nvme_to_host failed (corrupt)")) return;
    told.read_lines++;
    told.reads_told += strtoull(line, NULL, 10);
}

/* A request for a text whose records fail their check: it is told that its tokens are lost. */
static void read_in_vain(struct world *w, const struct text *of)
{
    kvt_seq seq;
    kvt_step step;
    uint64_t lost_from;
    assert_int_equal(world_create(w, of, of->count, false, &seq), FOUR);
    assert_int_equal(world_begin(w, seq, 0, &step, &lost_from), KVT_LOST);
    world_finish(w, seq, true);
    world_settle(w);
}

/* Every read fails its check: a miss each, counted by reason, and told once a second with the number of times. */
static void absorbed_faults_are_counted_and_told_once_a_second(void **state)
{
    (void)state;
    memset(&told, 0, sizeof told);
    struct world w;
    struct text texts[3];
    open_with_disk(&w);
    w.env.log = on_log;
    world_open(&w);
    for (uint32_t t = 0; t < 3; t++) {
        text_make(&texts[t], 1 + t, FOUR + 1);
        (void)world_serve(&w, &texts[t]);
        world_settle(&w);
    }
    world_flush(&w, 9, true);
    io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_FLIP, 1000000);
    for (uint32_t t = 0; t < 3; t++) read_in_vain(&w, &texts[t]);
    (void)metrics(&w);
    const double failed = value_of("kvtier_transfer_failures_total{leg=\"nvme_to_host\",reason=\"corrupt\"}");
    assert_true(failed >= 3);
    assert_float_equal(value_of("kvtier_store_errors_total{kind=\"corrupt\"}"), failed, 0);
    assert_int_equal(told.read_lines, 1); /* the clock stood still */
    world_advance(&w, SECOND);
    world_pump(&w, 1);
    assert_int_equal(told.read_lines, 2);
    assert_float_equal((double)told.reads_told, failed, 0);
    io_faulty_rate(w.image, IO_FAULTY_READ, IO_FAULTY_FLIP, 0);
    world_close(&w);
    assert_int_equal(told.read_lines, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookups_by_tier_add_up_to_what_was_asked_for),
        cmocka_unit_test(histograms_count_what_the_counters_count),
        cmocka_unit_test(a_value_goes_into_the_first_bucket_that_is_not_below_it),
        cmocka_unit_test(a_stall_lasts_from_the_step_that_wanted_it_until_ready),
        cmocka_unit_test(a_text_that_does_not_fit_says_how_long_it_is),
        cmocka_unit_test(absorbed_faults_are_counted_and_told_once_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
