/* status: the helpers that kvtier's own code uses around enum kvt_status. */
#ifndef KVT_RUNTIME_BASE_STATUS_H
#define KVT_RUNTIME_BASE_STATUS_H

#include "kvtier/status.h"

/* Leaves the calling function with the status of e unless it is KVT_OK. */
#define KVT_TRY(e)                             \
    do {                                       \
        const enum kvt_status status_ = (e);   \
        if (status_ != KVT_OK) return status_; \
    } while (0)

#endif
