#include "tests/sim/plants.h"

#include <string.h>

#include "runtime/base/bytes.h"
#include "runtime/base/plant.h"

#ifdef KVT_PLANT_AT_RUN_TIME

enum kvt_plant kvt_plant_chosen;

bool sim_plant_choose(const char *name)
{
    static const char *const names[] = {
        "NONE",
#define X(id, text) #id,
        KVT_PLANT_LIST(X)
#undef X
    };
    for (uint32_t i = 1; i < KVT_ARRAY_COUNT(names); i++) {
        if (strcmp(names[i], name) != 0) continue;
        kvt_plant_chosen = (enum kvt_plant)i;
        return true;
    }
    return false;
}

#else

bool sim_plant_choose(const char *name)
{
    (void)name;
    return false;
}

#endif
