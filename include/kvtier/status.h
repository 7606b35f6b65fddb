/*
 * status: how kvtier says that something failed.
 *
 * An expected outcome (a miss, "room is being made") is never a status: it has its own enum.
 * A bug of kvtier's own is never a status either: it aborts. What is left is here.
 */
#ifndef KVTIER_STATUS_H
#define KVTIER_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define KVT_STATUS_LIST(X)                              \
    X(OK, 0, "ok")                                      \
    X(NOMEM, -1, "out of memory")                       \
    X(INVAL, -2, "invalid argument")                    \
    X(FULL, -3, "full")                                 \
    X(IO, -4, "input/output error")                     \
    X(CORRUPT, -5, "bytes that fail their check")       \
    X(UNSUPPORTED, -6, "not supported here")            \
    X(SHUTDOWN, -7, "shut down, or a child after fork") \
    X(BUSY, -8, "in use by another process")            \
    X(NOTFOUND, -9, "no such record")

enum kvt_status {
#define KVT_STATUS_ENUM(name, value, text) KVT_##name = (value),
    KVT_STATUS_LIST(KVT_STATUS_ENUM)
#undef KVT_STATUS_ENUM
};

#if defined(__GNUC__)
#define KVT_NODISCARD __attribute__((warn_unused_result))
#define KVT_API __attribute__((visibility("default")))
#else
#define KVT_NODISCARD
#define KVT_API
#endif

/* The text of a status, never NULL. Any thread. */
KVT_API const char *kvt_status_text(enum kvt_status status);

#ifdef __cplusplus
}
#endif

#endif
