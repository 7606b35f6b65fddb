/*
 * prefix, against a plain array of what is in it.
 *
 * Method: keys come from few homes, so that buckets overflow into the next ones and around the end of the
 * table; many share their whole tag and differ only in the block. After each operation a few keys are looked up,
 * and after each round all of them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "runtime/base/rng.h"
#include "runtime/prefix.h"

enum { BLOCKS = 96, OPERATIONS = 200000 };

struct fixture {
    struct kvt_block_table table;
    struct kvt_prefix prefix;
    bool is_in[BLOCKS];
    struct kvt_rng rng;
};

static struct kvt_key key_of(struct fixture *fixture, uint32_t block)
{
    /* Eight homes, four of them at the end of the table; each block's own key differs in its low half, or in hi alone. */
    static const uint32_t homes[] = { 0,           1u << 20,    1u << 29,    1u << 30,
                                      0xfe000000u, 0xff000000u, 0xfff00000u, 0xffffffffu };
    const uint64_t tag = homes[kvt_rng_below(&fixture->rng, 8)];
    return (struct kvt_key){ (tag << 32) | (block & 7), block };
}

static void open_fixture(struct fixture *fixture)
{
    memset(fixture, 0, sizeof *fixture);
    fixture->rng.state = 5;
    assert_int_equal(kvt_block_table_init(&fixture->table, BLOCKS), KVT_OK);
    assert_int_equal(kvt_prefix_init(&fixture->prefix, fixture->table.blocks, BLOCKS), KVT_OK);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        const uint32_t block = kvt_block_table_take(&fixture->table, i & 1);
        assert_int_equal(block, i);
        fixture->table.blocks[i].key = key_of(fixture, i);
    }
}

static void close_fixture(struct fixture *fixture)
{
    kvt_prefix_done(&fixture->prefix);
    kvt_block_table_done(&fixture->table);
}

static void look_up(const struct fixture *fixture, uint32_t i)
{
    const struct kvt_block *block = &fixture->table.blocks[i];
    const uint32_t found = kvt_prefix_find(&fixture->prefix, block->group, block->key);
    assert_int_equal(found, fixture->is_in[i] ? i : KVT_NO_BLOCK);
    /* The same key in another group is another name. */
    assert_int_equal(kvt_prefix_find(&fixture->prefix, block->group + 2u, block->key), KVT_NO_BLOCK);
}

static void what_is_inserted_is_found_until_it_is_removed(void **state)
{
    (void)state;
    struct fixture fixture;
    open_fixture(&fixture);
    uint32_t count = 0;
    for (uint32_t n = 0; n < OPERATIONS; n++) {
        const uint32_t i = (uint32_t)kvt_rng_below(&fixture.rng, BLOCKS);
        if (fixture.is_in[i]) {
            kvt_prefix_remove(&fixture.prefix, i);
            count--;
        } else {
            fixture.table.blocks[i].key = key_of(&fixture, i);
            kvt_prefix_insert(&fixture.prefix, i);
            count++;
        }
        fixture.is_in[i] = !fixture.is_in[i];
        assert_int_equal(fixture.prefix.count, count);
        look_up(&fixture, i);
        look_up(&fixture, (uint32_t)kvt_rng_below(&fixture.rng, BLOCKS));
        for (uint32_t k = 0; n % 512 == 0 && k < BLOCKS; k++) look_up(&fixture, k);
    }
    /* An emptied table is like a new one: nothing makes later searches longer. */
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (fixture.is_in[i]) kvt_prefix_remove(&fixture.prefix, i);
    }
    for (uint32_t i = 0; i < fixture.prefix.bucket_count; i++)
        assert_true((fixture.prefix.buckets[i].tags[0] | fixture.prefix.buckets[i].tags[1]) == 0);
    close_fixture(&fixture);
}

static void a_second_block_of_the_same_key_finds_the_first_and_is_not_inserted(void **state)
{
    (void)state;
    struct fixture fixture;
    open_fixture(&fixture);
    fixture.table.blocks[2].key = fixture.table.blocks[4].key = (struct kvt_key){ 7, 9 }; /* both of group 0 */
    fixture.table.blocks[3].key = fixture.table.blocks[2].key;                            /* of group 1 */
    assert_int_equal(kvt_prefix_find_or_insert(&fixture.prefix, 2), KVT_NO_BLOCK);
    assert_int_equal(kvt_prefix_find_or_insert(&fixture.prefix, 4), 2);
    assert_int_equal(kvt_prefix_find_or_insert(&fixture.prefix, 3), KVT_NO_BLOCK);
    assert_int_equal(fixture.prefix.count, 2);
    kvt_prefix_remove(&fixture.prefix, 2);
    assert_int_equal(kvt_prefix_find_or_insert(&fixture.prefix, 4), KVT_NO_BLOCK);
    close_fixture(&fixture);
}

static void as_many_blocks_as_were_asked_for_have_room(void **state)
{
    (void)state;
    struct fixture fixture;
    open_fixture(&fixture);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        kvt_prefix_insert(&fixture.prefix, i);
        fixture.is_in[i] = true;
    }
    for (uint32_t i = 0; i < BLOCKS; i++) look_up(&fixture, i);
    close_fixture(&fixture);
}

/* A collision in the half of the key that the table hashes is no hit: identity is the whole digest. */
static void b49_keys_that_agree_in_64_bits_are_told_apart(void **state)
{
    (void)state;
    struct fixture fixture;
    open_fixture(&fixture);
    const uint32_t group = fixture.table.blocks[0].group;
    fixture.table.blocks[0].key = (struct kvt_key){ 0x123456789abcdef0, 1 };
    fixture.table.blocks[2].key = (struct kvt_key){ 0x123456789abcdef0, 2 };
    kvt_prefix_insert(&fixture.prefix, 0);
    assert_int_equal(kvt_prefix_find(&fixture.prefix, group, fixture.table.blocks[0].key), 0);
    assert_int_equal(kvt_prefix_find(&fixture.prefix, group, fixture.table.blocks[2].key), KVT_NO_BLOCK);
    kvt_prefix_insert(&fixture.prefix, 2);
    assert_int_equal(kvt_prefix_find(&fixture.prefix, group, fixture.table.blocks[2].key), 2);
    close_fixture(&fixture);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_inserted_is_found_until_it_is_removed),
        cmocka_unit_test(a_second_block_of_the_same_key_finds_the_first_and_is_not_inserted),
        cmocka_unit_test(b49_keys_that_agree_in_64_bits_are_told_apart),
        cmocka_unit_test(as_many_blocks_as_were_asked_for_have_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
