#include "tools/cmd_bench_store.h"

#include <errno.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/crc32c.h"
#include "runtime/base/mem.h"
#include "tools/bench/store_bench.h"
#include "tools/cli.h"
#include "tools/commands.h"
#include "tools/text.h"

static const char command[] = "kvtier bench store";

static const struct part {
    const char *name;
    bool (*run)(struct kvt_store_bench *bench);
} parts[] = { { "speed", kvt_store_bench_speed },
              { "small", kvt_store_bench_small },
              { "mixed", kvt_store_bench_mixed },
              { "codec", kvt_store_bench_codec } };

const char *kvt_bench_store_part_rule(const char *part)
{
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(parts); i++)
        if (strcmp(part, parts[i].name) == 0) return NULL;
    return "speed, small, mixed or codec";
}

/* ---- Report ------------------------------------------------------------------------------------------------------ */

static bool holds(const struct kvt_store_bench_case *c)
{
    const double judged = c->is_value_judged ? c->value : c->ratio;
    return c->is_at_most ? judged <= c->target : judged >= c->target;
}

static void print_json(const struct kvt_store_bench *bench)
{
    struct json_object *root = json_object_new_object(), *probe = json_object_new_object(),
                       *cases = json_object_new_array();
    (void)json_object_object_add(probe, "path", json_object_new_string(bench->facts.path));
    (void)json_object_object_add(probe, "is_direct", json_object_new_boolean(bench->facts.is_direct));
    (void)json_object_object_add(probe, "is_registered", json_object_new_boolean(bench->facts.is_registered));
    (void)json_object_object_add(probe, "alignment", json_object_new_int((int)bench->facts.alignment));
    (void)json_object_object_add(probe, "note", json_object_new_string(bench->facts.note));
    (void)json_object_object_add(probe, "checksum", json_object_new_string(kvt_crc32c_name(kvt_crc32c_chosen())));
    (void)json_object_object_add(probe, "fio", json_object_new_boolean(bench->has_fio));
    for (uint32_t i = 0; i < bench->case_count; i++) {
        const struct kvt_store_bench_case *c = &bench->cases[i];
        struct json_object *item = json_object_new_object();
        (void)json_object_object_add(item, "name", json_object_new_string(c->name));
        (void)json_object_object_add(item, "value", json_object_new_double(c->value));
        (void)json_object_object_add(item, "unit", json_object_new_string(c->unit));
        (void)json_object_object_add(item, "ceiling", json_object_new_double(c->ceiling));
        (void)json_object_object_add(item, "ratio", json_object_new_double(c->ratio));
        if (c->target > 0) {
            (void)json_object_object_add(item, c->is_at_most ? "at_most" : "at_least",
                                         json_object_new_double(c->target));
            (void)json_object_object_add(item, "holds", json_object_new_boolean(holds(c)));
        }
        (void)json_object_array_add(cases, item);
    }
    (void)json_object_object_add(root, "probe", probe);
    (void)json_object_object_add(root, "cases", cases);
    (void)printf("%s\n", json_object_to_json_string_ext(root, JSON_C_TO_STRING_PLAIN));
    (void)json_object_put(root);
}

static void print_table(const struct kvt_store_bench *bench)
{
    const struct kvt_block_io_facts *facts = &bench->facts;
    (void)printf("probe: %s, %s, buffers %s, alignment %u, checksums by %s%s%s\n", facts->path,
                 facts->is_direct ? "O_DIRECT" : "page cache", facts->is_registered ? "registered" : "not registered",
                 facts->alignment, kvt_crc32c_name(kvt_crc32c_chosen()), facts->note[0] ? "; " : "", facts->note);
    if (!bench->has_fio) (void)printf("fio is not installed: the ceiling is the raw loop\n");
    struct kvt_listing *listing = kvt_alloc(1, sizeof *listing);
    if (!listing) return;
    kvt_listing_init(listing, "lrlrrl");
    const char *const head[] = { "case", "value", "unit", "ceiling", "ratio", "target" };
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(head); i++) kvt_listing_add(listing, "%s", head[i]);
    for (uint32_t i = 0; i < bench->case_count; i++) {
        const struct kvt_store_bench_case *c = &bench->cases[i];
        kvt_listing_add(listing, "%s", c->name);
        kvt_listing_add(listing, "%.3f", c->value);
        kvt_listing_add(listing, "%s", c->unit);
        kvt_listing_add(listing, "%.3f", c->ceiling);
        kvt_listing_add(listing, "%.3f", c->ratio);
        if (c->target > 0)
            kvt_listing_add(listing, "%s%s %.2f: %s", c->is_value_judged ? "value " : "",
                            c->is_at_most ? "at most" : "at least", c->target, holds(c) ? "yes" : "NO");
        else kvt_listing_add(listing, "%s", "");
    }
    kvt_listing_print(listing, stdout, "");
    kvt_free(listing);
}

/* ---- Run --------------------------------------------------------------------------------------------------------- */

static bool start(struct kvt_store_bench *bench, const struct kvt_bench_store_options *options)
{
    bench->size_bytes = options->size_bytes ? options->size_bytes : 512 * KVT_MIB;
    bench->pairs = (uint32_t)(options->pairs ? options->pairs : 7);
    bench->has_fio = kvt_store_bench_has_fio();
    bench->rng.state = 1;
    bench->buffers_bytes = 32 * KVT_MIB;
    bench->buffers = kvt_table_map(bench->buffers_bytes);
    bench->order_max = (uint32_t)(bench->size_bytes / 4096);
    bench->order = kvt_alloc(bench->order_max, sizeof *bench->order);
    if (!bench->buffers || !bench->order) return kvt_store_bench_fail("out of memory");
    for (uint64_t i = 0; i < bench->buffers_bytes; i += 8) kvt_store_u64(bench->buffers + i, kvt_rng_next(&bench->rng));
    (void)snprintf(bench->directory, sizeof bench->directory, "%s/kvtier-bench-XXXXXX", options->directory);
    if (!mkdtemp(bench->directory)) {
        bench->directory[0] = '\0';
        return kvt_store_bench_fail("no directory can be made in %s: %s", options->directory, strerror(errno));
    }
    return kvt_store_bench_probe(bench);
}

int kvt_bench_store(const struct kvt_bench_store_options *options)
{
    struct kvt_store_bench *bench = kvt_alloc(1, sizeof *bench);
    if (!bench) return kvt_failure(command, "out of memory");
    bool is_ok = start(bench, options);
    for (uint32_t i = 0; is_ok && i < KVT_ARRAY_COUNT(parts); i++)
        if (!options->part || strcmp(options->part, parts[i].name) == 0) is_ok = parts[i].run(bench);
    if (is_ok && options->is_json) print_json(bench);
    if (is_ok && !options->is_json) print_table(bench);
    if (bench->directory[0]) kvt_store_bench_remove(bench, "");
    kvt_table_unmap(bench->buffers, bench->buffers_bytes);
    kvt_free(bench->order);
    kvt_free(bench);
    return is_ok ? KVT_EXIT_OK : KVT_EXIT_FAILED;
}
