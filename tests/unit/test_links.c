/* links: what was measured is read back as it was written, and nothing else is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/bytes.h"
#include "tools/links.h"

static char path[] = "/tmp/kvtier_links_XXXXXX";

static void write_text(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

static struct kvt_links example(void)
{
    struct kvt_links links = { .device = "emulated",
                               .to_host = { 5e9, 1200 },
                               .to_device = { 6e9, 900.5 },
                               .has_disk = true,
                               .read = { 2e9, 90000 },
                               .write = { 1e9, 60000 },
                               .mixed_bytes_per_s = 2.2e9,
                               .put_ns = 2500,
                               .get_ns = 1500,
                               .alignment = 512,
                               .point_count = 1,
                               .engine = { 0.25, 80, 60000, 40000, 30000 } };
    links.codec[KVT_DTYPE_BF16].is_measured = true;
    links.codec[KVT_DTYPE_BF16].pack_ns_per_byte = 0.5;
    links.codec[KVT_DTYPE_BF16].unpack_ns_per_byte = 0.25;
    links.codec[KVT_DTYPE_BF16].ratio = 1.49;
    return links;
}

/* Goal: every figure that a simulator uses survives the file. */
static void what_is_written_is_read_back(void **state)
{
    (void)state;
    struct kvt_links links = example(), read;
    char error[256] = "";
    for (int has_disk = 0; has_disk < 2; has_disk++) {
        links.has_disk = has_disk;
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        assert_int_equal(kvt_links_write(&links, file), KVT_OK);
        assert_int_equal(fclose(file), 0);
        if (kvt_links_read(path, &read, error, sizeof error) != KVT_OK) fail_msg("%s", error);
        assert_string_equal(read.device, "emulated");
        assert_true(read.to_host.bytes_per_s == 5e9 && read.to_host.op_ns == 1200);
        assert_true(read.to_device.bytes_per_s == 6e9 && read.to_device.op_ns == 900.5);
        assert_int_equal(read.has_disk, has_disk);
        assert_true(read.write.bytes_per_s == (has_disk ? 1e9 : 0));
        assert_int_equal(read.alignment, has_disk ? 512 : 0);
        assert_true(read.codec[KVT_DTYPE_BF16].is_measured);
        assert_false(read.codec[KVT_DTYPE_FP8].is_measured);
        assert_true(read.codec[KVT_DTYPE_BF16].ratio == 1.49);
        assert_memory_equal(&read.engine, &links.engine, sizeof read.engine);
    }
}

#define DEVICE "\"device\":{\"name\":\"emulated\",\"to_host\":" LINK ",\"to_device\":" LINK "}"
#define LINK "{\"bytes_per_second\":1e9,\"op_ns\":5}"
#define ENGINE "\"engine\":{\"write_ns_per_byte\":1,\"line_ns\":1,\"oversleep_ns\":1,\"between_ns\":1,\"wake_ns\":1}"

/* Goal: a file that is not what the bench writes gets one line that names what is wrong, and nothing is changed. */
static void another_file_is_refused_in_one_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *named;
    } wrong[] = {
        { "", "it must be one JSON object" },
        { "[]", "one JSON object" },
        { "{", "it must be one JSON object" },
        { "{}", "kvtier_links is missing" },
        { "{\"kvtier_links\":2}", "kvtier_links is 2" },
        { "{\"kvtier_links\":1}", "device is missing" },
        { "{\"kvtier_links\":1,\"device\":7}", "device is 7" },
        { "{\"kvtier_links\":1,\"device\":{\"name\":null,\"to_host\":" LINK ",\"to_device\":" LINK "}}",
          "device.name is missing" },
        { "{\"kvtier_links\":1," DEVICE "}", "codec is missing" },
        { "{\"kvtier_links\":1," DEVICE ",\"codec\":{}}", "engine is missing" },
        { "{\"kvtier_links\":1," DEVICE ",\"codec\":{\"bf16\":{\"ratio\":0.5}}," ENGINE "}", "pack_ns_per_byte" },
        { "{\"kvtier_links\":1," DEVICE ",\"codec\":{},\"nvme\":{}," ENGINE "}", "read is missing" },
        { "{\"kvtier_links\":1," DEVICE ",\"codec\":{},\"nvme\":{\"read\":" LINK ",\"write\":" LINK
          ",\"mixed_bytes_per_second\":1,\"put_ns\":1,\"get_ns\":1,\"alignment\":777}," ENGINE "}",
          "nvme.alignment is 777" },
        { "{\"kvtier_links\":1,\"device\":{\"name\":\"x\",\"to_host\":{\"bytes_per_second\":-1,\"op_ns\":0}}}",
          "to_host.bytes_per_second is -1" },
    };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(wrong); i++) {
        struct kvt_links links = { .alignment = 7 };
        char error[256] = "";
        write_text(wrong[i].text);
        assert_int_equal(kvt_links_read(path, &links, error, sizeof error), KVT_INVAL);
        if (!strstr(error, wrong[i].named)) fail_msg("'%s' is refused by '%s'", wrong[i].text, error);
        assert_null(strchr(error, '\n'));
        assert_int_equal(links.alignment, 7);
    }
    struct kvt_links links;
    char error[256];
    assert_int_equal(kvt_links_read("/nonexistent/links.json", &links, error, sizeof error), KVT_IO);
    assert_non_null(strstr(error, "/nonexistent/links.json"));
}

static int enter(void **state)
{
    (void)state;
    const int file = mkstemp(path);
    return file >= 0 ? close(file) : -1;
}

static int leave(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read_back),
        cmocka_unit_test(another_file_is_refused_in_one_line),
    };
    return cmocka_run_group_tests(tests, enter, leave);
}
