#include "tests/unit/admission_cells.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "runtime/base/assert.h"
#include "runtime/base/bytes.h"
#include "runtime/base/mem.h"
#include "runtime/base/rng.h"
#include "tools/workload/workload.h"

#define LIVE_MAX 256u

/* ---- Patterns ---------------------------------------------------------------------------------------------------- */

enum pattern {
    PATTERN_DOCUMENTS, /* by popularity */
    PATTERN_LOOP,      /* one after the other, again and again */
    PATTERN_SCAN,      /* a hot set, and long prompts that never come back */
    PATTERN_SHIFT,     /* a set that wanders through all documents */
    PATTERN_SESSIONS,  /* conversations that grow */
    PATTERN_PASSAGES,  /* a few passages behind each other, as retrieval gives them */
    PATTERN_TWICE,     /* each is asked twice, sooner or later */
    PATTERN_FEW,       /* each is asked one to six times in a row of requests */
    PATTERN_MIX,       /* of two of the above, request by request */
    PATTERN_PHASES     /* of two of the above, one after the other */
};

static const char *const pattern_names[KVT_PATTERNS] = { "documents", "loop",  "scan", "shift", "sessions",
                                                         "passages",  "twice", "few",  "mix",   "phases" };

struct session {
    uint32_t name, turns_left, blocks;
};

/* What one pattern remembers between requests. */
struct maker {
    enum pattern pattern;
    struct kvt_rng rng;
    uint32_t documents, length_mean, question_max, skew, noise_percent;
    uint32_t live_count, turns_mean, next, fresh;
    struct session live[LIVE_MAX];
};

struct script {
    uint64_t *ids;
    struct kvt_request *requests;
    uint32_t id_count, id_max, request_count;
    uint64_t chain; /* of the request that is being written */
};

static void write_blocks(struct script *script, uint32_t stream, uint32_t count)
{
    for (uint32_t i = 0; i < count && script->id_count < script->id_max; i++) {
        script->chain = kvt_mix64(script->chain ^ kvt_mix64(((uint64_t)stream << 32) + i + 1)) + 1;
        script->ids[script->id_count++] = script->chain;
    }
}

static uint32_t draw(struct maker *maker, uint32_t least, uint32_t most)
{
    return least + (uint32_t)kvt_rng_below(&maker->rng, (uint64_t)most - least + 1);
}

/* One of so many, the first ones more often: the larger skew, the more. */
static uint32_t draw_popular(struct maker *maker, uint32_t count)
{
    uint64_t place = count;
    for (uint32_t i = 0; i < maker->skew; i++) place = 1 + kvt_rng_below(&maker->rng, place);
    return (uint32_t)place - 1;
}

static uint32_t length_of(const struct maker *maker, uint32_t document)
{
    const uint32_t half = maker->length_mean / 2;
    return 1 + half + (uint32_t)(kvt_mix64(document + 99) % (maker->length_mean + 1));
}

static void maker_init(struct maker *maker, enum pattern pattern, uint64_t seed, uint32_t part)
{
    *maker = (struct maker){ .pattern = pattern, .rng = { .state = kvt_mix64(seed * 64 + pattern + 7) + part } };
    maker->length_mean = draw(maker, 2, 10) * draw(maker, 1, 10);
    maker->documents = 100 + 20000 / maker->length_mean * draw(maker, 1, 8) / 4;
    maker->question_max = draw(maker, 1, 6);
    maker->skew = draw(maker, 1, 4);
    maker->noise_percent = draw(maker, 0, 60);
    maker->live_count = draw(maker, 8, LIVE_MAX);
    maker->turns_mean = draw(maker, 2, 12);
    maker->fresh = UINT32_C(1) << 24 << part;
}

static void write_session_turn(struct maker *maker, struct script *script)
{
    struct session *session = &maker->live[draw(maker, 0, maker->live_count - 1)];
    if (session->turns_left == 0) {
        *session = (struct session){ .name = maker->fresh++, .turns_left = draw(maker, 1, 2 * maker->turns_mean) };
        session->blocks = draw(maker, 1, maker->length_mean);
    }
    session->turns_left--;
    session->blocks += draw(maker, 1, 1 + maker->question_max * 2);
    write_blocks(script, 1, 2);
    write_blocks(script, session->name, session->blocks);
}

/* Asked again and again until its turns are over: of one live document after the other. */
static void write_live_document(struct maker *maker, struct script *script, uint32_t uses_max)
{
    struct session *session = &maker->live[draw(maker, 0, maker->live_count - 1)];
    if (session->turns_left == 0) {
        const uint32_t uses = uses_max == 2 ? 2 : draw(maker, 1, uses_max);
        *session = (struct session){ .name = maker->fresh++, .turns_left = uses };
    }
    session->turns_left--;
    write_blocks(script, session->name, length_of(maker, session->name));
}

static void write_request(struct maker *maker, struct script *script)
{
    const bool is_noise = draw(maker, 0, 99) < maker->noise_percent;
    const uint32_t next = maker->next++;
    uint32_t document = 0;
    switch (maker->pattern) {
    case PATTERN_SESSIONS: write_session_turn(maker, script); return;
    case PATTERN_TWICE: write_live_document(maker, script, 2); return;
    case PATTERN_FEW: write_live_document(maker, script, 6); return;
    case PATTERN_PASSAGES:
        write_blocks(script, 1, 4);
        for (uint32_t i = 0; i < 3; i++) {
            document = 2 + draw_popular(maker, kvt_min_u32(maker->documents, 200));
            write_blocks(script, document, length_of(maker, document));
        }
        break;
    case PATTERN_LOOP: document = is_noise && next % 4 == 0 ? maker->fresh++ : 2 + next % maker->documents; break;
    case PATTERN_SCAN: document = is_noise ? maker->fresh++ : 2 + draw_popular(maker, maker->documents / 4 + 1); break;
    case PATTERN_SHIFT: document = 2 + next / 8 + draw_popular(maker, 1 + maker->documents / 8); break;
    case PATTERN_DOCUMENTS:
    case PATTERN_MIX:
    case PATTERN_PHASES:
    default: document = 2 + draw_popular(maker, maker->documents); break;
    }
    if (maker->pattern != PATTERN_PASSAGES) write_blocks(script, document, length_of(maker, document));
    write_blocks(script, maker->fresh++, draw(maker, 1, maker->question_max));
}

static void write_script(struct script *script, uint32_t pattern, uint64_t seed)
{
    struct kvt_rng rng = { .state = seed + 77 };
    struct maker *makers = kvt_alloc(2, sizeof *makers);
    KVT_ASSERT(makers);
    const bool is_pair = pattern == PATTERN_MIX || pattern == PATTERN_PHASES;
    for (uint32_t part = 0; part < 2; part++) {
        const uint32_t which = is_pair ? (uint32_t)kvt_rng_below(&rng, PATTERN_MIX) : pattern;
        maker_init(&makers[part], which, seed, part);
    }
    const uint32_t phase_blocks = script->id_max / (2 + (uint32_t)kvt_rng_below(&rng, 5));
    while (script->id_count < script->id_max) {
        const uint32_t begin = script->id_count;
        uint32_t part = 0;
        if (pattern == PATTERN_MIX) part = (uint32_t)kvt_rng_below(&rng, 2);
        if (pattern == PATTERN_PHASES) part = begin / phase_blocks % 2;
        script->chain = 0;
        write_request(&makers[part], script);
        script->requests[script->request_count++] = (struct kvt_request){
            .session = KVT_NO_SESSION,
            .is_last_turn = true,
            .prompt_tokens = script->id_count - begin,
            .ids = &script->ids[begin],
            .id_count = script->id_count - begin,
        };
    }
    kvt_free(makers);
}

const char *kvt_pattern_name(uint32_t pattern) { return pattern_names[pattern]; }

void kvt_pattern_accesses(uint32_t pattern, uint64_t seed, uint32_t accesses_max, struct kvt_accesses *ret_accesses)
{
    struct script script = { .id_max = accesses_max };
    script.ids = kvt_alloc(accesses_max, sizeof *script.ids);
    script.requests = kvt_alloc(accesses_max, sizeof *script.requests);
    KVT_ASSERT(script.ids);
    KVT_ASSERT(script.requests);
    write_script(&script, pattern, seed);
    const struct kvt_workload workload = { .block_tokens = 1,
                                           .request_count = script.request_count,
                                           .requests = script.requests };
    KVT_ASSERT(kvt_accesses_init(ret_accesses, &workload) == KVT_OK);
    kvt_free(script.ids);
    kvt_free(script.requests);
}

/* ---- Generators and traces --------------------------------------------------------------------------------------- */

static const char *const generator_names[KVT_GENERATORS] = { "chat", "agent", "longdoc", "batch" };
static const char *const trace_names[KVT_TRACES] = { "mooncake_conversation", "mooncake_synthetic", "agent_sessions" };

static bool load(const struct kvt_workload_options *options, struct kvt_accesses *ret_accesses)
{
    struct kvt_workload *workload;
    char error[256];
    if (kvt_workload_create(options, &workload, error, sizeof error) != KVT_OK) return false;
    KVT_ASSERT(kvt_accesses_init(ret_accesses, workload) == KVT_OK);
    kvt_workload_destroy(&workload);
    return true;
}

const char *kvt_generator_name(uint32_t i) { return generator_names[i]; }

void kvt_generator_accesses(uint32_t i, uint64_t seed, uint32_t requests, uint32_t block_tokens,
                            struct kvt_accesses *ret_accesses)
{
    const struct kvt_workload_options options = { .generator = generator_names[i],
                                                  .requests_max = requests,
                                                  .block_tokens = block_tokens,
                                                  .seed = seed,
                                                  .think_ns = UINT64_MAX };
    KVT_ASSERT(load(&options, ret_accesses));
}

const char *kvt_trace_name(uint32_t i) { return trace_names[i]; }

bool kvt_trace_accesses(uint32_t i, struct kvt_accesses *ret_accesses)
{
    const char *shared = getenv("KVTIER_SHARED");
    char path[512];
    (void)snprintf(path, sizeof path, "%s/data/traces/%s.jsonl", shared ? shared : "../shared", trace_names[i]);
    const struct kvt_workload_options options = { .trace = path, .block_tokens = 512, .think_ns = UINT64_MAX };
    return access(path, R_OK) == 0 && load(&options, ret_accesses);
}
