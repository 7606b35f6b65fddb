/* commit: which state of the sources this is; written by the build. */
#ifndef KVT_TESTS_SIM_COMMIT_H
#define KVT_TESTS_SIM_COMMIT_H

extern const char sim_commit[];

#endif
