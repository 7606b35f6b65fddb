/*
 * plant: bugs that are planted on purpose, one at a time, in test programs of their own, which must fail.
 *
 * A test that cannot fail tests nothing. A program built with -DKVT_PLANT=KVT_PLANT_<NAME> has that one bug; one built
 * with -DKVT_PLANT_AT_RUN_TIME has the one that it chooses; every other build has none, and the compiler drops what
 * stands behind KVT_PLANTED. The list is closed: a plant that no program is built with is dead.
 */
#ifndef KVT_RUNTIME_BASE_PLANT_H
#define KVT_RUNTIME_BASE_PLANT_H

#define KVT_PLANT_LIST(X)                                                                      \
    X(STASH_BEFORE_WRITE, "a stash does not wait for the kernel that writes the block")        \
    X(FETCH_BEFORE_READ, "a fetch does not wait for the kernel that still reads the slot")     \
    X(REUSE_BEFORE_STASH, "a slot is given on while its stash is still to read it")            \
    X(STASH_BEFORE_FILL, "a copy counts as filled when the transfer that fills it starts")     \
    X(PACK_BEFORE_SAVE, "blocks are packed with a table that is not saved yet")                \
    X(DROPPED_UNPIN, "a block that gave its place to an equal one stays claimed after a step") \
    X(FAILED_COPY, "a fetch that failed is taken for one that did not")                        \
    X(SLOT_TWICE, "the slot of a fetch that failed is given back twice")                       \
    X(MARK_GOES_BACK, "a slot's mark is overwritten with an older one")                        \
    X(LAYER_BEFORE_LOAD, "a stream is not ordered behind the layer that it is to read")        \
    X(WINDOW_BEFORE_READ, "a place of a window is filled again while a kernel still reads it") \
    X(TABLE_TWICE, "a kernel's table is written again while a kernel is still to read it")     \
    X(ANY_ORDER, "a batch of copies may read its sources before its stream comes to it")       \
    X(MARK_MISFILED, "a mark is looked up by its serial alone")                                \
    X(FOUND_NOT_HELD, "a lookup finds a block and does not hold it")                           \
    X(SALT_IGNORED, "a key does not say whose tokens they are")                                \
    X(HIT_MISCOUNTED, "a block that only the store has counts as no hit")                      \
    X(RESET_TOP_ONLY, "a reset leaves the store as it is")                                     \
    X(LATE_STASH, "what waited for the store before a reset is stored after it")               \
    X(NO_DEADLINE, "a transfer that does not come back is waited for without end")             \
    X(NO_GIVE_UP, "nobody gives way when every tier is full of what idle sequences hold")      \
    X(NO_PAUSE, "a device that fails every copy is asked again at once")                       \
    X(NO_CAP, "a segment is added without asking whether the disk space is the store's")       \
    X(NO_CHECKSUM, "a record's payload is believed")                                           \
    X(BAD_RECORD_STAYS, "a record that failed its check is still found")                       \
    X(SHORT_IS_WHOLE, "a short read or write is taken for a whole one")                        \
    X(SYNC_SKIPS, "a sync says OK without syncing the segments")                               \
    X(WINDOW_HOLE, "a prefix is served without all of its window")

enum kvt_plant {
    KVT_PLANT_NONE,
#define X(name, text) KVT_PLANT_##name,
    KVT_PLANT_LIST(X)
#undef X
};

#ifdef KVT_PLANT_AT_RUN_TIME
extern enum kvt_plant kvt_plant_chosen;
#define KVT_PLANT kvt_plant_chosen
#endif

#ifndef KVT_PLANT
#define KVT_PLANT KVT_PLANT_NONE
#endif

#define KVT_PLANTED(name) (KVT_PLANT == KVT_PLANT_##name)

#endif
