/* key: digests agree with another implementation of BLAKE2b, and every part of a name changes it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "runtime/base/key.h"

#define TOKENS_MANY 2000 /* more than kvt_key_chain() copies to its stack */

static const struct kvt_key space = { .lo = 1, .hi = 2 };
static const struct kvt_key zero;
static uint32_t tokens[TOKENS_MANY];

static int set_up(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < TOKENS_MANY; i++) tokens[i] = i;
    return kvt_key_init() == KVT_OK ? 0 : -1;
}

static void assert_key(struct kvt_key key, uint64_t lo, uint64_t hi)
{
    assert_true(key.lo == lo);
    assert_true(key.hi == hi);
}

/* The expected values come from Python's hashlib.blake2b over the bytes that key.h describes. */
static void digests_are_blake2b_of_what_the_header_says(void **state)
{
    (void)state;
    assert_key(kvt_key_digest("abc", 3), 0x2b8d2bc691b74acf, 0x1678287502c90921);

    struct kvt_key_root root;
    kvt_key_root(NULL, 0, &space, NULL, 0, &root);
    const struct kvt_key first = kvt_key_chain(&root, zero, tokens, 16);
    assert_key(first, 0xac606be62e9c27f0, 0x8de92acfb4977a13);
    assert_key(kvt_key_chain(&root, first, tokens, 16), 0x6c51228b31fc370a, 0x5984f94e21949495);
    assert_key(kvt_key_chain(&root, zero, tokens, TOKENS_MANY), 0x0e5b994a1a53cdbc, 0xb4c07d6525a40a2c);
}

static void a_secret_and_a_salt_are_digested_as_the_header_says(void **state)
{
    (void)state;
    static const uint8_t want[32] = {
        0x61, 0x98, 0x33, 0x87, 0x24, 0x73, 0xb5, 0x26, 0xe9, 0xe9, 0x10, 0xb8, 0xce, 0x29, 0x01, 0x22,
        0x03, 0x9b, 0xed, 0x9b, 0xb2, 0xcf, 0x18, 0xcb, 0xd9, 0x5b, 0xdf, 0x02, 0x65, 0xd1, 0x0f, 0xfc,
    };
    struct kvt_key_root root;
    kvt_key_root("secret", 6, &space, "tenant", 6, &root);
    assert_memory_equal(root.bytes, want, sizeof want);
}

/* Roots that differ in one thing; the last pairs would be equal if lengths were not digested. */
static void every_part_of_a_root_changes_it(void **state)
{
    (void)state;
    const struct kvt_key other_space = { .lo = 1, .hi = 3 };
    static const uint8_t zeros[2];
    struct kvt_key_root roots[8];
    kvt_key_root(NULL, 0, &space, NULL, 0, &roots[0]);
    kvt_key_root(NULL, 0, &other_space, NULL, 0, &roots[1]);
    kvt_key_root(NULL, 0, &space, "a", 1, &roots[2]);
    kvt_key_root("a", 1, &space, NULL, 0, &roots[3]);
    kvt_key_root(zeros, 1, &space, NULL, 0, &roots[4]);
    kvt_key_root(zeros, 2, &space, NULL, 0, &roots[5]);
    kvt_key_root(NULL, 0, &space, zeros, 1, &roots[6]);
    kvt_key_root(NULL, 0, &space, zeros, 2, &roots[7]);
    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t j = 0; j < i; j++) assert_memory_not_equal(&roots[i], &roots[j], sizeof roots[i]);
    }
}

static void every_part_of_a_block_changes_its_key(void **state)
{
    (void)state;
    struct kvt_key_root root, other_root;
    kvt_key_root(NULL, 0, &space, NULL, 0, &root);
    kvt_key_root(NULL, 0, &space, "a", 1, &other_root);
    const struct kvt_key key = kvt_key_chain(&root, zero, tokens, 16);

    assert_true(kvt_key_equal(key, kvt_key_chain(&root, zero, tokens, 16)));
    assert_false(kvt_key_equal(key, kvt_key_chain(&other_root, zero, tokens, 16)));
    assert_false(kvt_key_equal(key, kvt_key_chain(&root, (struct kvt_key){ .hi = 1 }, tokens, 16)));
    assert_false(kvt_key_equal(key, kvt_key_chain(&root, zero, tokens, 15)));
    for (uint32_t i = 0; i < 16; i++) {
        tokens[i] ^= 0x80000000u;
        assert_false(kvt_key_equal(key, kvt_key_chain(&root, zero, tokens, 16)));
        tokens[i] ^= 0x80000000u;
    }
}

static void names_are_equal_only_in_both_halves(void **state)
{
    (void)state;
    const struct kvt_name name = { .space = space, .key = { .lo = 3, .hi = 4 } };
    struct kvt_name other = name;
    assert_true(kvt_name_equal(&name, &other));
    other.space.lo++;
    assert_false(kvt_name_equal(&name, &other));
    other = name;
    other.key.hi++;
    assert_false(kvt_name_equal(&name, &other));
    assert_true(kvt_key_is_zero(zero));
    assert_false(kvt_key_is_zero((struct kvt_key){ .hi = 1 }));
    assert_false(kvt_key_is_zero((struct kvt_key){ .lo = 1 }));
}

/* Neither a constant that anybody can aim at once there is a secret, nor a start that differs from process to process. */
static void b49_a_chain_starts_alike_in_every_process_and_a_secret_moves_it(void **state)
{
    (void)state;
    struct kvt_key_root root, secret_root;
    kvt_key_root(NULL, 0, &space, NULL, 0, &root);
    kvt_key_root("secret", 6, &space, NULL, 0, &secret_root);
    const struct kvt_key here = kvt_key_chain(&root, zero, tokens, 16);
    assert_false(kvt_key_equal(here, kvt_key_chain(&secret_root, zero, tokens, 16)));

    int pipe_ends[2];
    assert_int_equal(pipe(pipe_ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct kvt_key_root again;
        kvt_key_root(NULL, 0, &space, NULL, 0, &again);
        const struct kvt_key there = kvt_key_chain(&again, zero, tokens, 16);
        _exit(write(pipe_ends[1], &there, sizeof there) == sizeof there ? 0 : 1);
    }
    struct kvt_key there;
    assert_int_equal(read(pipe_ends[0], &there, sizeof there), sizeof there);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    (void)close(pipe_ends[0]);
    (void)close(pipe_ends[1]);
    assert_true(kvt_key_equal(here, there));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_blake2b_of_what_the_header_says),
        cmocka_unit_test(a_secret_and_a_salt_are_digested_as_the_header_says),
        cmocka_unit_test(every_part_of_a_root_changes_it),
        cmocka_unit_test(every_part_of_a_block_changes_its_key),
        cmocka_unit_test(names_are_equal_only_in_both_halves),
        cmocka_unit_test(b49_a_chain_starts_alike_in_every_process_and_a_secret_moves_it),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
