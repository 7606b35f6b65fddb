/*
 * generators: workloads made from a seed, for when there is no trace.
 *
 *   chat     sessions that begin with one system prompt; a few turns, a person thinking between them
 *   agent    long tool-using sessions; many turns, short pauses, little output and much tool output between
 *   longdoc  one question each over a few long documents, each document asked several times
 *   batch    many independent requests at once, behind a few shared sets of examples
 *
 * Each is a pure function of the options: integers only, so that every machine makes the same. A session's random
 * numbers are its own, so that asking for more requests adds sessions and changes none.
 */
#include <string.h>

#include "runtime/base/bytes.h"
#include "tools/workload/workload_build.h"

#define CONTEXT_TOKENS_MIN 64
#define CONTEXT_TOKENS_MAX ((uint64_t)1 << 24)
#define THINK_NS_MAX (86400 * KVT_NS_PER_S)
#define TOKEN_NS (20 * KVT_NS_PER_MS) /* how long a token is thought to take when arrivals are laid out */

struct generator {
    const char *name;
    enum kvt_status (*generate)(const struct generator *generator, struct kvt_workload_build *build);
    uint32_t requests;       /* default */
    uint64_t context_tokens; /* default */
    uint64_t shared_tokens;  /* of the system prompt; less when the context is short */
    uint32_t turns_min, turns_max;
    uint32_t output_percent; /* of a turn */
    enum kvt_stop stop;
    uint64_t think_ns, gap_ns; /* means: default pause between turns; between the starts of sessions or requests */
};

/* What the options come to for one generator. */
struct plan {
    uint32_t requests;
    uint64_t context_tokens, shared_tokens, think_ns;
};

static struct plan plan_of(const struct generator *generator, const struct kvt_workload_build *build)
{
    const struct kvt_workload_options *options = build->options;
    struct plan plan = {
        .requests = options->requests_max ? options->requests_max : generator->requests,
        .context_tokens = options->context_tokens ? options->context_tokens : generator->context_tokens,
        .think_ns = options->think_ns != UINT64_MAX ? options->think_ns : generator->think_ns,
    };
    plan.shared_tokens = kvt_min_u64(generator->shared_tokens, plan.context_tokens / 8);
    return plan;
}

/*
 * The exponential distribution of the given mean, from its quantiles at 1/32, 3/32, .. 31/32 in thousandths,
 * spread a little.
 */
static uint64_t draw_ns(struct kvt_rng *rng, uint64_t mean_ns)
{
    static const uint16_t quantiles[16] = { 32,  98,  170,  247,  330,  421,  521,  633,
                                            758, 901, 1068, 1269, 1520, 1856, 2367, 3466 };
    const uint64_t quantiles_mean = 979;
    const uint64_t value = mean_ns * quantiles[kvt_rng_below(rng, 16)] / quantiles_mean;
    return value / 1000 * (900 + kvt_rng_below(rng, 201));
}

/* From least to most, both included. */
static uint64_t draw(struct kvt_rng *rng, uint64_t least, uint64_t most)
{
    return most <= least ? least : least + kvt_rng_below(rng, most - least + 1);
}

/* Around mean: half to one and a half of it, at least `least`. */
static uint64_t draw_around(struct kvt_rng *rng, uint64_t mean, uint64_t least)
{
    return kvt_max_u64(least, draw(rng, mean / 2, mean + mean / 2));
}

enum purpose { PURPOSE_SESSION = 3, PURPOSE_SESSION_TOKENS, PURPOSE_GROUP, PURPOSE_GROUP_TOKENS, PURPOSE_REQUEST };

static uint64_t derive(const struct kvt_workload_build *build, enum purpose purpose, uint32_t index)
{
    return kvt_workload_mix(build->options->seed, ((uint64_t)purpose << 32) + index);
}

/* ---- Sessions: chat and agent ------------------------------------------------------------------------------------ */

static enum kvt_status add_session(const struct generator *generator, struct kvt_workload_build *build,
                                   const struct plan *plan, uint32_t session, uint64_t *start_ns)
{
    struct kvt_rng rng = { derive(build, PURPOSE_SESSION, session) };
    *start_ns += draw_ns(&rng, generator->gap_ns);
    const uint32_t turns = (uint32_t)draw(&rng, generator->turns_min, generator->turns_max);
    const uint64_t tokens_per_turn = draw_around(&rng, plan->context_tokens - plan->shared_tokens, turns) / turns;

    uint64_t arrival_ns = *start_ns, context = plan->shared_tokens;
    for (uint32_t turn = 0; turn < turns && build->row_count < plan->requests; turn++) {
        const uint64_t tokens = draw_around(&rng, tokens_per_turn, 2);
        const uint64_t output = kvt_max_u64(1, draw_around(&rng, tokens * generator->output_percent / 100, 1));
        const uint64_t input = tokens > output ? tokens - output : 1;
        const uint64_t think_ns = turn > 0 ? draw_ns(&rng, plan->think_ns) : 0;
        arrival_ns += think_ns;

        struct kvt_workload_row *row;
        KVT_TRY(kvt_workload_add_row(build, &row));
        row->request.arrival_ns = arrival_ns;
        row->request.session = session;
        row->request.turn = turn;
        row->request.think_ns = think_ns;
        row->request.stop = generator->stop;
        row->request.prompt_tokens = context + input;
        row->request.output_tokens = output;
        row->streams.common_end = plan->shared_tokens;
        row->streams.own = derive(build, PURPOSE_SESSION_TOKENS, session);

        context += input + output;
        arrival_ns += output * TOKEN_NS;
    }
    return KVT_OK;
}

static enum kvt_status generate_sessions(const struct generator *generator, struct kvt_workload_build *build)
{
    const struct plan plan = plan_of(generator, build);
    uint64_t start_ns = 0;
    while (build->row_count < plan.requests)
        KVT_TRY(add_session(generator, build, &plan, build->session_count++, &start_ns));
    build->shared_prefix_tokens = (uint32_t)plan.shared_tokens;
    return KVT_OK;
}

/* ---- Requests that stand alone: longdoc and batch ---------------------------------------------------------------- */

/*
 * One request that begins with the workload's prompt, then group_tokens of its group, then `input` tokens of its
 * own.
 */
static enum kvt_status add_request(struct kvt_workload_build *build, const struct plan *plan, uint32_t group,
                                   uint64_t group_tokens, uint64_t input, uint64_t output, uint64_t arrival_ns)
{
    struct kvt_workload_row *row;
    KVT_TRY(kvt_workload_add_row(build, &row));
    row->request.arrival_ns = arrival_ns;
    row->request.prompt_tokens = plan->shared_tokens + group_tokens + input;
    row->request.output_tokens = output;
    row->streams.common_end = plan->shared_tokens;
    row->streams.group_end = plan->shared_tokens + group_tokens;
    row->streams.group = derive(build, PURPOSE_GROUP_TOKENS, group);
    return KVT_OK;
}

static enum kvt_status generate_longdoc(const struct generator *generator, struct kvt_workload_build *build)
{
    const struct plan plan = plan_of(generator, build);
    const uint32_t documents = kvt_min_u32(16, kvt_max_u32(1, plan.requests / 8));
    const uint64_t question = kvt_max_u64(8, kvt_min_u64(64, plan.context_tokens / 16));
    uint64_t arrival_ns = 0;
    for (uint32_t i = 0; i < plan.requests; i++) {
        struct kvt_rng rng = { derive(build, PURPOSE_REQUEST, i) };
        const uint32_t document = (uint32_t)kvt_rng_below(&rng, documents);
        struct kvt_rng document_rng = { derive(build, PURPOSE_GROUP, document) };
        const uint64_t space = plan.context_tokens - plan.shared_tokens - 3 * question;
        const uint64_t document_tokens = draw(&document_rng, space / 2 + 1, space);
        const uint64_t input = draw_around(&rng, question, 1), output = draw_around(&rng, question, 1);
        KVT_TRY(add_request(build, &plan, document, document_tokens, input, output, arrival_ns));
        arrival_ns += draw_ns(&rng, generator->gap_ns);
    }
    build->shared_prefix_tokens = (uint32_t)plan.shared_tokens;
    return KVT_OK;
}

static enum kvt_status generate_batch(const struct generator *generator, struct kvt_workload_build *build)
{
    const struct plan plan = plan_of(generator, build);
    const uint32_t example_sets = 8;
    const uint64_t examples_tokens = plan.context_tokens / 2 - plan.shared_tokens;
    for (uint32_t i = 0; i < plan.requests; i++) {
        struct kvt_rng rng = { derive(build, PURPOSE_REQUEST, i) };
        const uint32_t set = (uint32_t)kvt_rng_below(&rng, example_sets);
        const uint64_t input = draw(&rng, plan.context_tokens / 16, plan.context_tokens * 3 / 8);
        const uint64_t output = draw(&rng, 1, plan.context_tokens / 8);
        KVT_TRY(add_request(build, &plan, set, examples_tokens, input, output, 0));
    }
    build->shared_prefix_tokens = (uint32_t)plan.shared_tokens;
    return KVT_OK;
}

/* ---- The registry ------------------------------------------------------------------------------------------------ */

static const struct generator generators[] = {
    { .name = "chat",
      .generate = generate_sessions,
      .requests = 240,
      .context_tokens = 4096,
      .shared_tokens = 512,
      .turns_min = 4,
      .turns_max = 8,
      .output_percent = 60,
      .stop = KVT_STOP_END_TURN,
      .think_ns = 20 * KVT_NS_PER_S,
      .gap_ns = KVT_NS_PER_S / 2 },
    { .name = "agent",
      .generate = generate_sessions,
      .requests = 240,
      .context_tokens = 32768,
      .shared_tokens = 2048,
      .turns_min = 12,
      .turns_max = 36,
      .output_percent = 12,
      .stop = KVT_STOP_TOOL_USE,
      .think_ns = 2 * KVT_NS_PER_S,
      .gap_ns = 2 * KVT_NS_PER_S },
    { .name = "longdoc",
      .generate = generate_longdoc,
      .requests = 120,
      .context_tokens = 16384,
      .shared_tokens = 256,
      .gap_ns = KVT_NS_PER_S },
    { .name = "batch", .generate = generate_batch, .requests = 256, .context_tokens = 2048, .shared_tokens = 128 },
};

enum kvt_status kvt_workload_generate(struct kvt_workload_build *build)
{
    const struct kvt_workload_options *options = build->options;
    if (options->context_tokens != 0
        && (options->context_tokens < CONTEXT_TOKENS_MIN || options->context_tokens > CONTEXT_TOKENS_MAX)) {
        return kvt_workload_refuse_option(build, "context_tokens is %llu: %d to %llu",
                                          (unsigned long long)options->context_tokens, CONTEXT_TOKENS_MIN,
                                          (unsigned long long)CONTEXT_TOKENS_MAX);
    }
    if (options->think_ns != UINT64_MAX && options->think_ns > THINK_NS_MAX)
        return kvt_workload_refuse_option(build, "think_ns is %llu: at most a day",
                                          (unsigned long long)options->think_ns);
    for (uint32_t i = 0; i < KVT_ARRAY_COUNT(generators); i++) {
        if (strcmp(options->generator, generators[i].name) == 0) return generators[i].generate(&generators[i], build);
    }
    return kvt_workload_refuse_option(build, "workload is '%.40s': chat, agent, longdoc or batch", options->generator);
}
