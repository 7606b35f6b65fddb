/*
 * models: which KV a model has: by name, by a written shape, or from a HuggingFace config.json.
 *
 * Thread: any; no state.
 * Fails:  INVAL with one line in ret_error[error_bytes] that names field, value and rule; the caller puts the
 *         option before it.
 */
#ifndef KVT_TOOLS_MODELS_H
#define KVT_TOOLS_MODELS_H

#include <stdint.h>

#include "kvtier/shape.h"
#include "runtime/base/status.h"

struct kvt_model {
    char name[64];
    uint32_t attention_heads;     /* query heads of one attention layer; of a written shape: its KV heads */
    enum kvt_dtype dtype;         /* that the model computes in */
    struct kvt_model_shape shape; /* block_tokens is 0: the caller sets it */
};

/* A name as in kvt_model_names(), in any case. */
KVT_NODISCARD enum kvt_status kvt_model_find(const char *name, struct kvt_model *ret_model, char *ret_error,
                                             uint32_t error_bytes);

/* The names, with ", " between them. */
const char *kvt_model_names(void);

/*
 * layers=,kv_heads=,head_dim=,dtype=[,kind=full|window|state,window=,sinks=,planes=,state_bytes=], groups joined by
 * '+'. window= and state_bytes= imply their kind. A state group wants layers and state_bytes only.
 */
KVT_NODISCARD enum kvt_status kvt_model_parse_shape(const char *text, struct kvt_model *ret_model, char *ret_error,
                                                    uint32_t error_bytes);

/* IO: the file cannot be read (said in ret_error) | INVAL: it is no config.json, or lacks what is needed | NOMEM. */
KVT_NODISCARD enum kvt_status kvt_model_read_config(const char *path, struct kvt_model *ret_model, char *ret_error,
                                                    uint32_t error_bytes);

/* Sets the dtype of every group that has one. */
void kvt_model_set_dtype(struct kvt_model *model, enum kvt_dtype dtype);

#endif
