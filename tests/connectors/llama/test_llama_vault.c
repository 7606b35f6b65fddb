/* The vault's places for writes. vault.c is a part of this program, so that they can be counted. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "connectors/llama/vault.c"

static int remove_entry(const char *path, const struct stat *entry, int kind, struct FTW *walk)
{
    (void)entry, (void)kind, (void)walk;
    return remove(path);
}

static void ignore(void *user, enum kvt_log_level level, const char *line) { (void)user, (void)level, (void)line; }

/* Goal: others come back while one waits for the store's queue, and each gives its place back. */
static void no_place_is_lost_while_a_write_waits(void **state)
{
    (void)state;
    enum { LENGTH = 1 << 20, RECORDS = 240 };
    const char *parent = getenv("TMPDIR");
    char directory[128], path[160], error[256] = "";
    (void)snprintf(directory, sizeof directory, "%.90s/kvt-vault-XXXXXX", parent ? parent : "/tmp");
    assert_non_null(mkdtemp(directory));
    (void)snprintf(path, sizeof path, "%s/kv", directory);
    struct kvt_env env = kvt_env_default();
    env.log = ignore;
    const struct kvt_llama_vault_config config = { .host_bytes = 256 * KVT_MIB,
                                                   .path = path,
                                                   .nvme_bytes = 1024 * KVT_MIB,
                                                   .record_bytes_max = LENGTH,
                                                   .space = { 1, 2 },
                                                   .env = &env };
    struct kvt_llama_vault *vault = NULL;
    if (kvt_llama_vault_open(&config, &vault, error, sizeof error) != KVT_OK) fail_msg("%s", error);
    uint8_t *bytes = kvt_alloc(1, LENGTH);
    for (uint64_t i = 0; i < RECORDS; i++) {
        memset(bytes, (int)i, LENGTH);
        assert_int_equal(kvt_llama_vault_put(vault, (struct kvt_key){ i, ~i }, bytes, LENGTH, true), KVT_OK);
    }
    assert_int_equal(kvt_llama_vault_flush(vault), KVT_OK);
    uint32_t free_count = 0;
    for (const struct write *write = vault->free_write; write; write = write->next_free) free_count++;
    assert_int_equal(free_count, WRITES_MAX);
    kvt_llama_vault_close(&vault);
    kvt_free(bytes);
    assert_int_equal(nftw(directory, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(no_place_is_lost_while_a_write_waits) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
