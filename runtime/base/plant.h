/*
 * plant: bugs that are planted on purpose, one at a time, in test programs of their own, which must fail.
 *
 * A test that cannot fail tests nothing. A program built with -DKVT_PLANT=KVT_PLANT_<NAME> has that one bug; every
 * other build has none, and the compiler drops what stands behind KVT_PLANTED. The list is closed: a plant that no
 * program is built with is dead.
 */
#ifndef KVT_RUNTIME_BASE_PLANT_H
#define KVT_RUNTIME_BASE_PLANT_H

enum kvt_plant {
    KVT_PLANT_NONE,
    KVT_PLANT_STASH_BEFORE_WRITE, /* a stash does not wait for the kernel that writes the block */
    KVT_PLANT_FETCH_BEFORE_READ,  /* a fetch does not wait for the kernel that still reads the slot */
    KVT_PLANT_REUSE_BEFORE_STASH, /* a slot is given on while its stash is still to read it */
    KVT_PLANT_STASH_BEFORE_FILL,  /* a copy counts as filled when the transfer that fills it starts */
    KVT_PLANT_PACK_BEFORE_SAVE,   /* blocks are packed with a table that is not saved yet */
    KVT_PLANT_DROPPED_UNPIN,      /* a block that gave its place to an equal one stays claimed after its step */
    KVT_PLANT_FAILED_COPY,        /* a fetch that failed is taken for one that did not */
    KVT_PLANT_SLOT_TWICE,         /* the slot of a fetch that failed is given back twice */
    KVT_PLANT_MARK_GOES_BACK,     /* a slot's mark is overwritten with an older one */
    KVT_PLANT_WINDOW_BEFORE_READ, /* a place of a window is filled again while a kernel still reads it */
    KVT_PLANT_TABLE_TWICE,        /* a kernel's table is written again while a kernel is still to read it */
    KVT_PLANT_ANY_ORDER,          /* a batch of copies may read its sources before its stream comes to it */
    KVT_PLANT_MARK_MISFILED       /* a mark is looked up by its serial alone */
};

#ifndef KVT_PLANT
#define KVT_PLANT KVT_PLANT_NONE
#endif

#define KVT_PLANTED(name) (KVT_PLANT == KVT_PLANT_##name)

#endif
