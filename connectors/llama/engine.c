#include "connectors/llama/engine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "runtime/base/bytes.h"

#define FUNCTION(member)                                                   \
    {                                                                      \
        "llama_" #member, offsetof(struct kvt_llama_engine, member), false \
    }
#define OPTIONAL(member)                                                  \
    {                                                                     \
        "llama_" #member, offsetof(struct kvt_llama_engine, member), true \
    }

static const struct {
    const char *name;
    size_t offset;
    bool is_optional;
} functions[] = {
    FUNCTION(get_model),
    FUNCTION(get_memory),
    FUNCTION(model_get_vocab),
    FUNCTION(n_ctx),
    FUNCTION(n_batch),
    FUNCTION(n_ubatch),
    FUNCTION(n_seq_max),
    FUNCTION(vocab_n_tokens),
    FUNCTION(model_n_swa),
    FUNCTION(model_n_layer),
    FUNCTION(model_n_embd),
    FUNCTION(model_n_head_kv),
    FUNCTION(model_desc),
    FUNCTION(model_size),
    FUNCTION(model_n_params),
    FUNCTION(model_meta_count),
    FUNCTION(model_meta_key_by_index),
    FUNCTION(model_meta_val_str_by_index),
    FUNCTION(model_is_recurrent),
    FUNCTION(model_is_hybrid),
    FUNCTION(memory_seq_rm),
    FUNCTION(memory_seq_pos_min),
    FUNCTION(memory_seq_pos_max),
    FUNCTION(state_seq_get_size_ext),
    FUNCTION(state_seq_get_data_ext),
    FUNCTION(state_seq_set_data_ext),
    FUNCTION(decode),
    OPTIONAL(log_get),
    OPTIONAL(log_set),
};

enum kvt_status kvt_llama_engine_resolve(const struct kvt_llama_config *config, struct kvt_llama_engine *ret_engine,
                                         char *ret_error, size_t error_bytes)
{
    struct kvt_llama_engine engine = { 0 };
    void *from = config->library ? config->library : RTLD_DEFAULT;
    if (!config->library && config->library_path) {
        from = engine.library = dlopen(config->library_path, RTLD_NOW | RTLD_LOCAL);
        if (!from) {
            (void)snprintf(ret_error, error_bytes, "library_path is %s: it could not be loaded: %s",
                           config->library_path, dlerror());
            return KVT_UNSUPPORTED;
        }
    }
    for (size_t i = 0; i < KVT_ARRAY_COUNT(functions); i++) {
        void *function = dlsym(from, functions[i].name);
        if (!function && !functions[i].is_optional) {
            (void)snprintf(ret_error, error_bytes, "%s is not in %s: llama.cpp has to be loaded, with this function",
                           functions[i].name, from == RTLD_DEFAULT ? "this process" : "the library");
            kvt_llama_engine_done(&engine);
            return KVT_UNSUPPORTED;
        }
        /* POSIX lets what dlsym returns be a function; C has no conversion for it, so the bytes are copied. */
        memcpy((uint8_t *)&engine + functions[i].offset, &function, sizeof function);
    }
    *ret_engine = engine;
    return KVT_OK;
}

void kvt_llama_engine_done(struct kvt_llama_engine *engine)
{
    if (engine->library) (void)dlclose(engine->library);
    *engine = (struct kvt_llama_engine){ 0 };
}
