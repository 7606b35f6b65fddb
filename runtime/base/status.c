#include "runtime/base/status.h"

const char *kvt_status_text(enum kvt_status status)
{
    switch (status) {
#define KVT_STATUS_CASE(name, value, text) \
    case KVT_##name: return text;
        KVT_STATUS_LIST(KVT_STATUS_CASE)
#undef KVT_STATUS_CASE
    }
    return "unknown status";
}
