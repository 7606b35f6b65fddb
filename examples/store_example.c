/*
 * Keeps ten blocks in a store and reads them back, with nothing but kvtier/store.h. Compiles as C and as C++.
 *
 *     cc store_example.c $(pkg-config --cflags --libs kvtier) && ./a.out /tmp/kv-example
 */
#include <kvtier/store.h>
#include <stdio.h>
#include <string.h>

enum { BLOCKS = 10, BLOCK_BYTES = 65536 };
static unsigned char bytes[BLOCKS][BLOCK_BYTES];

/* Submits one op for each block, and waits until all have come back. Returns how many succeeded. */
static int run(struct kvt_store *store, enum kvt_store_kind kind)
{
    static struct kvt_store_op ops[BLOCKS];
    struct kvt_store_op *list[BLOCKS], *done[BLOCKS];
    int returned = 0, good = 0;
    memset(ops, 0, sizeof ops);
    for (int i = 0; i < BLOCKS; i++) {
        kvt_store_digest("model, layout, tenant", 21, ops[i].name.space); /* everything that changes the bytes */
        kvt_store_digest(&i, sizeof i, ops[i].name.key);                  /* here: the tokens up to this block */
        ops[i].kind = kind;
        ops[i].buffer = bytes[i];
        ops[i].length = BLOCK_BYTES;
        list[i] = &ops[i];
    }
    const int accepted = (int)kvt_store_submit(store, list, BLOCKS);
    while (returned < accepted) {
        kvt_store_wait(store, UINT64_MAX); /* or poll() on kvt_store_eventfd(store) */
        const int n = (int)kvt_store_poll(store, done, BLOCKS);
        for (int i = 0; i < n; i++) good += done[i]->status == KVT_OK;
        returned += n;
    }
    return good;
}

int main(int argc, char **argv)
{
    if (argc != 2) return fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]), 2;
    char error[256];
    struct kvt_store *store = NULL;
    struct kvt_store_config config = kvt_store_config_default();
    config.path = argv[1];
    config.capacity_bytes = 64u << 20;
    if (kvt_store_open(&config, NULL, &store, error, sizeof error) != KVT_OK) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    for (int i = 0; i < BLOCKS; i++) memset(bytes[i], i + 1, BLOCK_BYTES);
    const int stored = run(store, KVT_STORE_PUT);
    const int is_durable = kvt_store_sync(store) == KVT_OK;
    memset(bytes, 0, sizeof bytes);
    const int found = run(store, KVT_STORE_GET);
    int exact = 0;
    for (int i = 0; i < BLOCKS; i++)
        exact += bytes[i][0] == i + 1 && memcmp(bytes[i], bytes[i] + 1, BLOCK_BYTES - 1) == 0;
    printf("stored %d, durable %d, found %d, exact %d\n", stored, is_durable, found, exact);
    kvt_store_close(&store);
    /* A store is a cache: a disk that is busy for long refuses puts (KVT_FULL), and what it refused is a miss. */
    return stored > 0 && found == stored && exact == found && is_durable ? 0 : 1;
}
