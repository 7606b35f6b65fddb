/* plants: the planted bugs (runtime/base/plant.h) of a build that chooses one at run time. */
#ifndef KVT_TESTS_SIM_PLANTS_H
#define KVT_TESTS_SIM_PLANTS_H

#include <stdbool.h>

/* Plants the bug from now on. False: there is none of this name, or the build has none. */
bool sim_plant_choose(const char *name);

#endif
