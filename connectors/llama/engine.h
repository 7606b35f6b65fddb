/*
 * engine: llama.cpp's public C functions, found in the running process.
 *
 * What is declared here is the part of its C interface that the connector calls, in types of the same size.
 * Nothing of llama.cpp is compiled in or linked, so one build of the connector serves whatever build of it the
 * process has loaded.
 *
 * Thread: the one that may call the engine.
 * Fails:  resolve alone, when a function is not there.
 */
#ifndef KVT_CONNECTORS_LLAMA_ENGINE_H
#define KVT_CONNECTORS_LLAMA_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvtier/llama.h"
#include "runtime/base/status.h"

struct llama_model;
struct llama_vocab;
struct llama_memory_i;

/* What llama_decode takes, by value. NULL members mean: none, or as usual. */
struct kvt_llama_batch {
    int32_t n_tokens;
    int32_t *token;
    float *embd;
    int32_t *pos;
    int32_t *n_seq_id;
    int32_t **seq_id;
    int8_t *logits;
};

/* Its first parameter is an enum of theirs. */
typedef void (*kvt_llama_engine_log)(int level, const char *text, void *user);

struct kvt_llama_engine {
    void *library; /* opened here, closed here; NULL: the caller's, or the process itself */

    const struct llama_model *(*get_model)(const struct llama_context *ctx);
    struct llama_memory_i *(*get_memory)(const struct llama_context *ctx);
    const struct llama_vocab *(*model_get_vocab)(const struct llama_model *model);
    uint32_t (*n_ctx)(const struct llama_context *ctx);
    uint32_t (*n_batch)(const struct llama_context *ctx);
    uint32_t (*n_ubatch)(const struct llama_context *ctx);
    uint32_t (*n_seq_max)(const struct llama_context *ctx);
    int32_t (*vocab_n_tokens)(const struct llama_vocab *vocab);
    int32_t (*model_n_swa)(const struct llama_model *model);
    int32_t (*model_n_layer)(const struct llama_model *model);
    int32_t (*model_n_embd)(const struct llama_model *model);
    int32_t (*model_n_head_kv)(const struct llama_model *model);
    int32_t (*model_desc)(const struct llama_model *model, char *buffer, size_t size);
    uint64_t (*model_size)(const struct llama_model *model);
    uint64_t (*model_n_params)(const struct llama_model *model);
    int32_t (*model_meta_count)(const struct llama_model *model);
    int32_t (*model_meta_key_by_index)(const struct llama_model *model, int32_t i, char *buffer, size_t size);
    int32_t (*model_meta_val_str_by_index)(const struct llama_model *model, int32_t i, char *buffer, size_t size);
    bool (*model_is_recurrent)(const struct llama_model *model);
    bool (*model_is_hybrid)(const struct llama_model *model);
    bool (*memory_seq_rm)(struct llama_memory_i *memory, int32_t seq, int32_t from, int32_t to);
    int32_t (*memory_seq_pos_min)(struct llama_memory_i *memory, int32_t seq);
    int32_t (*memory_seq_pos_max)(struct llama_memory_i *memory, int32_t seq);
    size_t (*state_seq_get_size_ext)(struct llama_context *ctx, int32_t seq, uint32_t flags);
    size_t (*state_seq_get_data_ext)(struct llama_context *ctx, uint8_t *target, size_t size, int32_t seq,
                                     uint32_t flags);
    size_t (*state_seq_set_data_ext)(struct llama_context *ctx, const uint8_t *source, size_t size, int32_t seq,
                                     uint32_t flags);
    int32_t (*decode)(struct llama_context *ctx, struct kvt_llama_batch batch);

    /* NULL where there is none. */
    void (*log_get)(kvt_llama_engine_log *ret_log, void **ret_user);
    void (*log_set)(kvt_llama_engine_log log, void *user);
};

/*
 * Finds the functions: in config->library, in config->library_path, or in what the process has loaded.
 * UNSUPPORTED: the error line says which one is missing.
 */
KVT_NODISCARD enum kvt_status kvt_llama_engine_resolve(const struct kvt_llama_config *config,
                                                       struct kvt_llama_engine *ret_engine, char *ret_error,
                                                       size_t error_bytes);
void kvt_llama_engine_done(struct kvt_llama_engine *engine);

#endif
