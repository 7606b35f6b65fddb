/* doctor, from outside: what it says of a machine and a directory, and how it ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <json-c/json.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "runtime/base/bytes.h"
#include "tests/cli/run_program.h"

static const char *program;
static struct outcome outcome;

static void run(const char *const *arguments) { assert_true(run_program(program, arguments, &outcome)); }

#define RUN(...) run((const char *const[]){ "doctor", __VA_ARGS__, NULL })

static char directory[] = "/tmp/kvtier-doctor-XXXXXX";

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(directory, sizeof directory, "/tmp/kvtier-doctor-XXXXXX");
    return mkdtemp(directory) ? 0 : -1;
}

/* Removes it only when it is empty: the probe's file has to be gone. */
static int tear_down(void **state)
{
    (void)state;
    return rmdir(directory);
}

static struct json_object *report(int exit_status)
{
    assert_int_equal(outcome.exit_status, exit_status);
    assert_string_equal(outcome.err, "");
    struct json_object *root = json_tokener_parse(outcome.out);
    assert_non_null(root);
    return root;
}

/* The check of that name; NULL: there is none. */
static struct json_object *find(struct json_object *root, const char *name)
{
    struct json_object *checks;
    assert_true(json_object_object_get_ex(root, "checks", &checks));
    for (size_t i = 0; i < json_object_array_length(checks); i++) {
        struct json_object *check = json_object_array_get_idx(checks, i);
        if (strcmp(json_object_get_string(json_object_object_get(check, "name")), name) == 0) return check;
    }
    return NULL;
}

static bool is_ok(struct json_object *check)
{
    assert_non_null(check);
    return json_object_get_boolean(json_object_object_get(check, "ok"));
}

static const char *text(struct json_object *check, const char *field)
{
    assert_non_null(check);
    return json_object_get_string(json_object_object_get(check, field));
}

static void every_check_has_a_value_and_advice_exactly_where_it_is_not_ok(void **state)
{
    (void)state;
    static const char *const names[] = { "processor",   "memory",     "huge pages",       "locked memory", "open files",
                                         "file system", "free space", "asynchronous I/O", "direct I/O",    "registered buffers",
                                         "GPU",         "llama.cpp" };
    RUN("--json", directory);
    struct json_object *root = report(0);
    for (size_t i = 0; i < KVT_ARRAY_COUNT(names); i++) {
        struct json_object *check = find(root, names[i]);
        if (!check) fail_msg("no check of %s", names[i]);
        assert_true(text(check, "value")[0] != '\0');
        assert_int_equal(text(check, "advice")[0] == '\0', is_ok(check));
    }
    assert_true(json_object_get_boolean(json_object_object_get(root, "usable")));
    (void)json_object_put(root);
}

static void the_table_has_a_line_for_each_check_and_says_what_could_be_better(void **state)
{
    (void)state;
    RUN("--llama", "/nonexistent/libllama.so", directory);
    assert_int_equal(outcome.exit_status, 0);
    assert_non_null(strstr(outcome.out, "asynchronous I/O"));
    assert_non_null(strstr(outcome.out, "  --  llama.cpp           /nonexistent/libllama.so not found\n"));
    assert_non_null(strstr(outcome.out, "What could be better:\n"));
    assert_non_null(strstr(outcome.out, "  llama.cpp: only for the llama.cpp connector"));
}

static void a_library_that_is_no_llama_says_what_it_lacks(void **state)
{
    (void)state;
    RUN("--json", "--llama", "libc.so.6", directory);
    struct json_object *root = report(0);
    assert_false(is_ok(find(root, "llama.cpp")));
    assert_non_null(strstr(text(find(root, "llama.cpp"), "value"), "lacks llama_"));
    (void)json_object_put(root);
}

/* Goal: what is there is not called missing: a file that is no library says why, and a bare name is a file when it is one. */
static void a_file_that_is_no_library_says_so_and_a_bare_name_is_that_file_when_it_exists(void **state)
{
    (void)state;
    char file[sizeof directory + 16], before[4096], wanted[sizeof file + 64];
    (void)snprintf(file, sizeof file, "%s/afile", directory);
    FILE *stream = fopen(file, "w");
    assert_non_null(stream);
    assert_true(fputs("no library\n", stream) >= 0);
    assert_int_equal(fclose(stream), 0);

    RUN("--json", "--llama", file, directory);
    struct json_object *root = report(0);
    (void)snprintf(wanted, sizeof wanted, "%s is no shared library that loads: file too short", file);
    assert_string_equal(text(find(root, "llama.cpp"), "value"), wanted);
    (void)json_object_put(root);

    assert_non_null(getcwd(before, sizeof before));
    assert_int_equal(chdir(directory), 0);
    RUN("--json", "--llama", "afile", ".");
    root = report(0);
    assert_string_equal(text(find(root, "llama.cpp"), "value"),
                        "afile in this directory is no shared library that loads: file too short");
    (void)json_object_put(root);
    RUN("--json", "--llama", "libnosuch.so", ".");
    root = report(0);
    assert_string_equal(text(find(root, "llama.cpp"), "value"), "libnosuch.so not found in the loader's search path");
    (void)json_object_put(root);
    assert_int_equal(chdir(before), 0);
    assert_int_equal(remove(file), 0);
}

static void a_directory_that_takes_no_file_is_not_called_missing(void **state)
{
    (void)state;
    RUN("--json", "/proc");
    struct json_object *root = report(1);
    assert_string_equal(text(find(root, "directory"), "value"), "/proc: no file can be made there");
    (void)json_object_put(root);
    RUN("--json", "/nonexistent/store");
    root = report(1);
    assert_string_equal(text(find(root, "directory"), "value"), "/nonexistent/store: No such file or directory");
    (void)json_object_put(root);
}

static void a_directory_that_cannot_be_written_to_is_unusable(void **state)
{
    (void)state;
    static const char *const nowhere[] = { "/proc", "/nonexistent/store", "/dev/null" };
    for (size_t i = 0; i < KVT_ARRAY_COUNT(nowhere); i++) {
        RUN("--json", nowhere[i]);
        struct json_object *root = report(1);
        assert_false(json_object_get_boolean(json_object_object_get(root, "usable")));
        assert_false(is_ok(find(root, "directory")));
        assert_non_null(strstr(text(find(root, "directory"), "value"), nowhere[i]));
        (void)json_object_put(root);
    }
}

static void a_name_with_a_newline_stays_on_its_line(void **state)
{
    (void)state;
    RUN("/nonexistent/a\nb");
    assert_int_equal(outcome.exit_status, 1);
    assert_non_null(strstr(outcome.out, "/nonexistent/a?b"));
}

static void memory_that_looks_like_a_disk_is_said_to_be_none(void **state)
{
    (void)state;
    struct statfs system;
    if (statfs("/dev/shm", &system) != 0 || system.f_type != 0x01021994) {
        print_message("skipped: /dev/shm is no tmpfs here\n");
        skip();
    }
    char path[] = "/dev/shm/kvtier-doctor-XXXXXX";
    assert_non_null(mkdtemp(path));
    RUN("--json", path);
    assert_int_equal(rmdir(path), 0);
    struct json_object *root = report(0);
    assert_string_equal(text(find(root, "file system"), "value"), "tmpfs");
    assert_false(is_ok(find(root, "file system")));
    (void)json_object_put(root);
}

static void wrong_use_is_one_line_and_status_2(void **state)
{
    (void)state;
    RUN(directory, "another");
    assert_int_equal(outcome.exit_status, 2);
    assert_int_equal(count_lines(outcome.err), 1);
    assert_string_equal(outcome.out, "");
    RUN("--no-such-option");
    assert_int_equal(outcome.exit_status, 2);
    assert_int_equal(count_lines(outcome.err), 1);
}

int main(int argc, char **argv)
{
    if (argc < 2) return 2;
    program = realpath(argv[1], NULL); /* a test changes the directory */
    if (!program) return 2;
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(every_check_has_a_value_and_advice_exactly_where_it_is_not_ok),
        TEST(the_table_has_a_line_for_each_check_and_says_what_could_be_better),
        TEST(a_library_that_is_no_llama_says_what_it_lacks),
        TEST(a_file_that_is_no_library_says_so_and_a_bare_name_is_that_file_when_it_exists),
        TEST(a_directory_that_takes_no_file_is_not_called_missing),
        TEST(a_directory_that_cannot_be_written_to_is_unusable),
        TEST(a_name_with_a_newline_stays_on_its_line),
        TEST(memory_that_looks_like_a_disk_is_said_to_be_none),
        TEST(wrong_use_is_one_line_and_status_2),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free((void *)(uintptr_t)program);
    return failed;
}
