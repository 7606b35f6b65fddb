/*
 * llama_chat: several conversations in one small llama.cpp context. What does not fit stays in host memory and
 * on disk, and comes back without being computed again, also after a restart.
 *
 *     cc llama_chat.c -I LLAMA/include -L LLAMA/lib -lllama -lkvtier_llama -lkvtier -o llama_chat
 *     ./llama_chat MODEL.gguf FOLDER [ANSWER_TOKENS]
 *
 * A line of input is "NAME: message"; lines of the same name are one conversation. FOLDER gets NAME.tokens for
 * each, and kv/. Exit status 0 at the end of input, 1 when something failed, 2 for wrong use.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <llama.h>

#include <kvtier/llama.h>

enum { SLOTS = 3, TALKS_MAX = 64, CONTEXT = 2048, BATCH = 256 };

struct talk {
    char name[32];
    llama_token tokens[CONTEXT]; /* all that was said, by both */
    int count, held;             /* held: how many of them the context has, in sequence seq */
    int seq;                     /* -1: none */
    long last_used;
};

static struct talk talks[TALKS_MAX];
static int talk_count;
static long now;
static const char *folder;

static struct llama_model *model;
static struct llama_context *ctx;
static const struct llama_vocab *vocab;
static struct kvt_llama *cache;

static int fail(const char *what, const char *why)
{
    fprintf(stderr, "llama_chat: %s: %s\n", what, why);
    return 1;
}

static FILE *open_tokens(const struct talk *talk, const char *mode)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.tokens", folder, talk->name);
    return fopen(path, mode);
}

/* The conversation of this name; what an earlier run said in it is read again. */
static struct talk *find_talk(const char *name)
{
    for (int i = 0; i < talk_count; i++)
        if (strcmp(talks[i].name, name) == 0) return &talks[i];
    if (talk_count == TALKS_MAX) return NULL;
    struct talk *talk = &talks[talk_count++];
    (void)snprintf(talk->name, sizeof talk->name, "%.31s", name);
    talk->seq = -1;
    FILE *file = open_tokens(talk, "rb");
    if (file) {
        talk->count = (int)fread(talk->tokens, sizeof *talk->tokens, CONTEXT, file);
        (void)fclose(file);
    }
    return talk;
}

/* The sequence that is free, or that of the conversation that was used longest ago, which leaves the context. */
static int take_seq(void)
{
    struct talk *oldest = NULL;
    for (int seq = 0; seq < SLOTS; seq++) {
        struct talk *user = NULL;
        for (int i = 0; i < talk_count; i++)
            if (talks[i].seq == seq) user = &talks[i];
        if (!user) return seq;
        if (!oldest || user->last_used < oldest->last_used) oldest = user;
    }
    const int seq = oldest->seq;
    uint64_t kept = 0;
    const enum kvt_status status = kvt_llama_idle(cache, seq, oldest->tokens, (uint64_t)oldest->held, &kept);
    if (status != KVT_OK) { /* it will be computed again */
        fprintf(stderr, "llama_chat: %s is not kept: %s\n", oldest->name, kvt_status_text(status));
        (void)llama_memory_seq_rm(llama_get_memory(ctx), seq, -1, -1);
    }
    oldest->seq = -1;
    return seq;
}

/* Evaluates what the context does not have yet, with a save after each batch. False: the engine failed. */
static bool evaluate(struct talk *talk)
{
    struct llama_batch batch = llama_batch_init(BATCH, 0, 1);
    bool is_done = true;
    while (is_done && talk->held < talk->count) {
        const int n = talk->count - talk->held < BATCH ? talk->count - talk->held : BATCH;
        batch.n_tokens = n;
        for (int i = 0; i < n; i++) {
            batch.token[i] = talk->tokens[talk->held + i];
            batch.pos[i] = talk->held + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = talk->seq;
            batch.logits[i] = i == n - 1;
        }
        if (kvt_llama_is_due(cache, talk->seq, (uint64_t)talk->held, (uint64_t)n)) {
            uint64_t kept;
            if (kvt_llama_save(cache, talk->seq, talk->tokens, (uint64_t)talk->held, &kept) != KVT_OK)
                fprintf(stderr, "llama_chat: a part of %s is not kept\n", talk->name);
        }
        is_done = llama_decode(ctx, batch) == 0;
        if (is_done) talk->held += n;
    }
    llama_batch_free(batch);
    return is_done;
}

static bool add_message(struct talk *talk, const char *text)
{
    char prompt[8192];
    const struct llama_chat_message message = { "user", text };
    int length = llama_chat_apply_template(llama_model_chat_template(model, NULL), &message, 1, true, prompt,
                                           sizeof prompt);
    if (length <= 0 || length >= (int)sizeof prompt) length = snprintf(prompt, sizeof prompt, "\n%s\n", text);
    const int added = llama_tokenize(vocab, prompt, length, talk->tokens + talk->count, CONTEXT - talk->count,
                                     talk->count == 0, true);
    if (added <= 0) return false;
    talk->count += added;
    return true;
}

static llama_token likeliest(void)
{
    const float *logits = llama_get_logits_ith(ctx, -1);
    llama_token best = 0;
    for (llama_token t = 1; t < llama_vocab_n_tokens(vocab); t++)
        if (logits[t] > logits[best]) best = t;
    return best;
}

static double seconds(void)
{
    struct timespec t;
    (void)timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int answer(struct talk *talk, const char *text, int answer_tokens)
{
    const double start = seconds();
    if (!add_message(talk, text)) return fail(talk->name, "the conversation is longer than the context");
    int from_cache = talk->held;
    if (talk->seq < 0) {
        uint64_t restored = 0;
        talk->seq = take_seq();
        const enum kvt_status status = kvt_llama_resume(cache, talk->seq, talk->tokens, (uint64_t)talk->count,
                                                        &restored);
        talk->held = from_cache = status == KVT_OK ? (int)restored : 0;
    }
    talk->last_used = ++now;
    printf("%s: ", talk->name);
    double first = 0;
    for (int i = 0; i < answer_tokens && talk->count < CONTEXT; i++) {
        if (!evaluate(talk)) return fail(talk->name, "llama_decode failed");
        if (i == 0) first = seconds() - start;
        const llama_token token = likeliest();
        talk->tokens[talk->count++] = token;
        char piece[64];
        const int n = llama_vocab_is_eog(vocab, token)
            ? 0
            : llama_token_to_piece(vocab, token, piece, sizeof piece, 0, false);
        if (n <= 0) break;
        printf("%.*s", n, piece);
        (void)fflush(stdout);
    }
    printf("\n    [%d tokens were there, first answer after %.0f ms]\n", from_cache, first * 1e3);
    FILE *file = open_tokens(talk, "wb");
    if (!file) return fail(talk->name, "its tokens cannot be written");
    const size_t written = fwrite(talk->tokens, sizeof *talk->tokens, (size_t)talk->count, file);
    return fclose(file) == 0 && written == (size_t)talk->count ? 0 : fail(talk->name, "its tokens cannot be written");
}

static void stay_silent(enum ggml_log_level level, const char *text, void *user)
{
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int set_up(const char *path)
{
    llama_log_set(stay_silent, NULL);
    llama_backend_init();
    model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model) return fail(path, "not a model that llama.cpp can load");
    vocab = llama_model_get_vocab(model);
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = SLOTS * CONTEXT;
    params.n_seq_max = SLOTS;
    params.n_batch = params.n_ubatch = BATCH;
    ctx = llama_init_from_model(model, params);
    if (!ctx) return fail(path, "no context could be made");
    char error[256], kv[512];
    struct kvt_llama_config config = kvt_llama_config_default();
    (void)snprintf(kv, sizeof kv, "%s/kv", folder);
    config.path = kv;
    config.host_bytes = 64ull << 20;
    config.nvme_bytes = 512ull << 20;
    return kvt_llama_attach(&config, ctx, &cache, error, sizeof error) == KVT_OK ? 0 : fail(kv, error);
}

int main(int argc, char **argv)
{
    const int answer_tokens = argc == 4 ? (int)strtol(argv[3], NULL, 10) : 60;
    if (argc < 3 || argc > 4 || answer_tokens < 1) {
        fprintf(stderr, "usage: llama_chat MODEL.gguf FOLDER [ANSWER_TOKENS, at least 1]\n");
        return 2;
    }
    folder = argv[2];
    (void)mkdir(folder, 0700);
    int status = set_up(argv[1]);
    char line[4096];
    while (status == 0 && fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        char *text = strchr(line, ':');
        if (!text || text == line || text - line >= 32 || strchr(line, '/')) {
            fprintf(stderr, "llama_chat: a line is NAME: message, the name at most 31 letters without '/'\n");
            continue;
        }
        *text++ = '\0';
        struct talk *talk = find_talk(line);
        status = talk ? answer(talk, text + strspn(text, " "), answer_tokens) : fail(line, "too many conversations");
    }
    for (int i = 0; i < talk_count && cache; i++) {
        uint64_t kept;
        if (talks[i].seq >= 0
            && kvt_llama_idle(cache, talks[i].seq, talks[i].tokens, (uint64_t)talks[i].held, &kept) != KVT_OK)
            fprintf(stderr, "llama_chat: %s is not kept\n", talks[i].name);
    }
    kvt_llama_detach(&cache);
    if (ctx) llama_free(ctx);
    if (model) llama_model_free(model);
    return status;
}
