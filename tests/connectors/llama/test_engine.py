#!/usr/bin/env python3
"""libkvtier_llama in llama.cpp with Gemma 3 270M: what must hold, on the real engine.

    test_engine.py [--full] [--only WORD] [--list]

Without --full conversations are short, so that all of it takes a few minutes; with it the first test has the twelve conversations of
1,500 to 3,000 tokens. Exit status 77: the engine or the weights are not here. The last line is "N passed, N failed, N skipped".
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

import engine
from engine import FULL, MIB, OK, Cache, Context, Error, absent, text

F32, F16, Q8_0, BF16 = 0, 1, 8, 30
options = None


def check(value, what):
    if not value:
        raise AssertionError(what)


def same(a, b):
    return (a == b).all()


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def du(path):
    return sum(file.stat().st_blocks * 512 for file in pathlib.Path(path).rglob("*"))


def conversations(context, count, low, high):
    return [context.tokenize(text(seed, 2 * high))[:low + (high - low) * seed // max(1, count - 1)]
            for seed in range(count)]


def turns(tokens, n):
    """Where each turn of a conversation ends."""
    return [len(tokens) * (i + 1) // n for i in range(n)]


def rounds(context, cache, talks, n_turns, slots, remember=None):
    """Serves the conversations in turn over few sequences; yields (conversation, turn, logits, restored, batches)."""
    for turn in range(n_turns):
        for c, tokens in enumerate(talks):
            seq = (turn * len(talks) + c) % slots
            end = turns(tokens, n_turns)[turn]
            context.remove(seq)
            status, restored = cache.restore(seq, tokens[:end])
            check(status == OK, f"restore says {status}")
            start = turns(tokens, n_turns)[turn - 1] if turn else 0
            check(restored == start or remember is None, f"conversation {c}: {restored} of {start} tokens were restored")
            logits = context.evaluate(seq, tokens[:end], restored,
                                      lambda at, s=seq, t=tokens: check(cache.save(s, t[:at]) == (OK, at), "save failed"))
            yield c, turn, logits, restored
            status, _ = cache.idle(seq, tokens[:end])
            check(status == OK, f"idle says {status}")


def control(n_ctx, talks, n_turns, **how):
    """Every conversation in a sequence of its own that never leaves, the same batches."""
    wanted = {}
    for c, tokens in enumerate(talks):
        context = Context(n_ctx=n_ctx, n_seq=1, **how)
        start = 0
        for turn, end in enumerate(turns(tokens, n_turns)):
            wanted[c, turn] = context.evaluate(0, tokens[:end], start)
            start = end
        wanted[c, "next"] = context.decode(0, [NEXT], start)
        context.close()
    return wanted


NEXT = 7  # a token that comes after a conversation


def at_every_switch_the_logits_are_bit_identical_to_a_control_that_never_left(folder):
    count, low, high, n_turns = (12, 1500, 3000, 3) if options.full else (3, 600, 900, 2)
    n_ctx = 3072 if options.full else 1024
    context = Context(n_ctx=3 * n_ctx, n_seq=3, n_batch=256)
    talks = conversations(context, count, low, high)
    cache = Cache(context, host=24 * MIB if options.full else 8 * MIB, path=folder, nvme=(768 if options.full else 96) * MIB)
    got = {(c, turn): logits for c, turn, logits, _ in rounds(context, cache, talks, n_turns, 3 if options.full else 2, remember=True)}
    stats = cache.stats()
    check(stats.nvme_hits > 0 and stats.host_evictions > 0, "the tiers were not used")
    check(stats.host_peak <= stats.host_capacity, "host memory is over its cap")
    print(f"    {count} conversations of {min(map(len, talks))} to {max(map(len, talks))} tokens, {n_turns} turns: "
          f"{stats.hit_tokens} tokens restored, {stats.host_hits} blocks from host memory, {stats.nvme_hits} from NVMe", flush=True)
    cache.close()
    context.close()
    wanted = control(n_ctx, talks, n_turns, n_batch=256)
    different = [key for key in got if not same(got[key], wanted[key])]
    check(not different, f"other logits at {different}, of {len(got)} in all")
    print(f"    {len(got)} of {len(got)} turns bit-identical, {len(got) - count} of them after a switch")
    after_restart(folder, talks, n_ctx, wanted)


def after_restart(folder, talks, n_ctx, wanted):
    """A new process, from the disk alone: each conversation goes on by a token."""
    script = ("import sys, json, hashlib; sys.path.insert(0, sys.argv[1]); from engine import *\n"
              "ask = json.load(open(sys.argv[2])); c = Context(n_ctx=3 * ask['n_ctx'], n_seq=3, n_batch=256)\n"
              "k = Cache(c, host=24 * MIB, path=sys.argv[3], nvme=ask['nvme'])\n"
              "for t in ask['talks']:\n"
              "    status, have = k.restore(1, t + [ask['next']]); logits = c.evaluate(1, t + [ask['next']], have)\n"
              "    print(have, hashlib.sha256(logits.tobytes()).hexdigest())\n"
              "k.close()\n")
    import hashlib
    import json
    ask = {"n_ctx": n_ctx, "nvme": (768 if options.full else 96) * MIB, "talks": talks, "next": NEXT}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ask, file)
        file.flush()
        run = subprocess.run([sys.executable, "-c", script, str(pathlib.Path(__file__).parent), file.name, str(folder)],
                             capture_output=True, text=True, check=False)
    check(run.returncode == 0, run.stderr)
    for c, line in enumerate(run.stdout.splitlines()):
        have, digest = line.split()
        check(int(have) == len(talks[c]), f"conversation {c}: {have} of {len(talks[c])} tokens after a restart")
        check(digest == hashlib.sha256(wanted[c, "next"].tobytes()).hexdigest(), f"conversation {c}: other logits")
    check(len(run.stdout.splitlines()) == len(talks), "not all conversations were tried")
    print(f"    after a restart, from disk: {len(talks)} of {len(talks)} conversations bit-identical")


def b61_branches_at_block_boundaries_and_at_the_windows_edge_are_exact(folder):
    del folder
    length, batch = (1024, 512) if options.full else (640, 256)
    context = Context(n_ctx=2 * 1280, n_seq=2, n_batch=batch)
    cache = Cache(context, host=128 * MIB, block_tokens=64)
    base = context.tokenize(text(50, 4 * length))[:length]
    other = context.tokenize(text(51, 200))
    context.evaluate(0, base, 0, lambda at: cache.save(0, base[:at]))
    wanted = Context(n_ctx=1280, n_seq=1, n_batch=batch)
    wanted.evaluate(0, base, 0)
    points = {*range(64, length, 64 if options.full else 128), length - 512, length - 511, length - 1, 513, 512, 511}
    exact = earlier = 0
    for at in sorted((p for p in points if 0 < p < length), reverse=True):
        branch = base[:at] + other[7:12]
        before = context.evaluated
        status, have = cache.restore(1, branch)
        check(status == OK and 0 < have <= at, f"a branch at {at}: status {status}, {have} tokens")
        got = context.decode(1, branch[have:], have)
        check(context.evaluated - before == len(branch) - have, "reuse is not what was not evaluated")
        wanted.remove(0, have)
        check(same(got, wanted.decode(0, branch[have:], have)), f"a branch at {at}, restored to {have}: other logits")
        exact += have == at
        earlier += have < at
    print(f"    {exact} branches restored at their point, {earlier} from an earlier boundary, all bit-identical")
    cache.close()
    context.close()
    wanted.close()


def every_cache_type_and_layout_is_split_and_comes_back_exact(folder):
    del folder
    for type_k, type_v, flash, unified, swa_full in ((F32, F32, False, False, False), (F16, F16, True, False, True),
                                                     (BF16, BF16, True, True, False), (Q8_0, Q8_0, True, False, False),
                                                     (F16, Q8_0, True, True, True), (BF16, F16, False, False, True)):
        what = f"K {type_k} V {type_v} flash {flash} unified {unified} swa_full {swa_full}"
        context = Context(n_ctx=3 * 512, n_seq=3, n_batch=128, type_k=type_k, type_v=type_v, flash=flash, unified=unified,
                          swa_full=swa_full)
        cache = Cache(context)
        check(not cache.stats().is_whole, f"{what}: kept whole: {cache.lines}")
        check(cache.stats().is_transposed is not flash, f"{what}: V layout")
        tokens = context.tokenize(text(60, 600))[:200]
        context.evaluate(0, tokens, 0, lambda at: cache.save(0, tokens[:at]))
        kept = context.state(0)
        check(cache.restore(2, tokens + [5]) == (OK, 200), f"{what}: not restored")
        if not unified:
            check(same(context.decode(0, [5], 200), context.decode(2, [5], 200)), f"{what}: other logits")
        check(cache.restore(0, tokens + [5]) == (OK, 200), f"{what}: not restored in its place")
        check(context.state(0) == kept, f"{what}: other K and V bytes")
        cache.close()
        context.close()


def store_ratios_and_written_bytes_are_as_promised(folder):
    for type_kv, least in ((BF16, 1.40), (F16, 1.12)):
        shutil.rmtree(folder, ignore_errors=True)
        context = Context(n_ctx=2048, n_seq=1, n_batch=256, type_k=type_kv, type_v=type_kv, flash=True)
        tokens = context.tokenize(text(70, 5000))[:1800 if options.full else 720]
        cache = Cache(context, host=8 * MIB, path=folder, nvme=256 * MIB)
        for turn, end in enumerate(turns(tokens, 12)):
            status, have = cache.restore(0, tokens[:end])
            check(status == OK and have == (turns(tokens, 12)[turn - 1] if turn else 0), "not restored")
            context.evaluate(0, tokens[:end], have, lambda at: cache.save(0, tokens[:at]))
            check(cache.idle(0, tokens[:end])[0] == OK, "idle failed")
        check(cache.flush() == OK, "flush failed")
        stats = cache.stats()
        raw = len(tokens) * sum(stats.token_bytes)
        ratio = stats.raw_bytes / stats.packed_bytes
        unique = raw / ratio
        print(f"    type {type_kv}: ratio {ratio:.3f}; a 12-turn conversation of {len(tokens)} tokens wrote "
              f"{stats.written_bytes / unique:.3f} of its unique packed KV; du {du(folder) >> 20} MiB")
        check(ratio >= least, f"ratio {ratio:.3f}, at least {least}")
        check(stats.written_bytes <= 1.15 * unique or not options.full, f"{stats.written_bytes} written for {unique:.0f}")
        check(du(folder) <= 256 * MIB, "the disk is over its cap")
        cache.close()
        context.close()


def memory_grows_by_no_more_than_the_host_cap_and_64_mib(folder):
    context = Context(n_ctx=3 * 1024, n_seq=3, n_batch=256)
    talks = conversations(context, 4, 500, 700)
    for seq in range(3):
        context.evaluate(seq, talks[seq], 0)  # so that the engine has touched all of its own
    for seq in range(3):
        context.remove(seq)
    before = resident_bytes()
    host = 16 * MIB
    cache = Cache(context, host=host, path=folder, nvme=64 * MIB)
    most = 0
    for _ in rounds(context, cache, talks, 2, 3):
        most = max(most, resident_bytes())
        check(du(folder) <= 64 * MIB, "the disk is over its cap")
    print(f"    resident memory grew by {(most - before) / MIB:.1f} MiB with a host cap of {host // MIB} MiB")
    check(most - before <= host + 64 * MIB, f"grew by {(most - before) / MIB:.1f} MiB")
    cache.close()
    context.close()


def b62_damage_between_runs_is_recomputed_counted_and_healed(folder):
    import numpy as np
    # Blocks are batches, so that what is computed again is computed in the batches of the first time.
    context = Context(n_ctx=2 * 1024, n_seq=2, n_batch=64)
    tokens = context.tokenize(text(80, 2500))[:9 * 64 + 1]
    wanted = context.evaluate(0, tokens, 0)
    context.remove(0)

    def visit(**how):
        cache = Cache(context, host=16 * MIB, path=folder, nvme=96 * MIB, block_tokens=64, **how)
        status, have = cache.restore(0, tokens)
        check(status == OK, f"restore says {status}")
        got = context.evaluate(0, tokens, have, lambda at: cache.save(0, tokens[:at]))
        stats = cache.stats()
        context.remove(0)
        cache.close()
        return have, got, stats

    visit()
    have, got, _ = visit()
    check(have == 576 and same(got, wanted), f"{have} tokens before any damage")
    files = sorted((f for f in pathlib.Path(folder).rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    rng = np.random.default_rng(1)

    def bits():
        with open(files[-1], "r+b") as file:
            size = file.seek(0, 2)
            for at in rng.integers(4096, size, 200):
                file.seek(at)
                byte = file.read(1)[0]
                file.seek(at)
                file.write(bytes([byte ^ 1 << int(rng.integers(8))]))

    def truncation():
        os.truncate(files[-1], files[-1].stat().st_size // 3)

    def deletion():
        for file in [f for f in files if f.stat().st_size == files[-1].stat().st_size]:  # one alone may be an empty segment
            file.unlink()

    for damage in (bits, truncation, deletion):
        damage()
        have, got, stats = visit()
        check(same(got, wanted), f"{damage.__name__}: other logits")
        check(have < 576, f"{damage.__name__} met nothing")
        healed, got, _ = visit()
        check(same(got, wanted), f"{damage.__name__}: other logits after the next save")
        print(f"    {damage.__name__}: {have} of 576 tokens, {stats.damaged_blocks} records damaged; after the next save {healed}")
        check(healed == 576, f"{damage.__name__}: not healed, {healed} tokens")
        files = sorted((f for f in pathlib.Path(folder).rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    check(visit(model=b"another model")[0] == 0, "another model's records were found")
    context.close()
    other = Context(n_ctx=2 * 1024, n_seq=2, n_batch=64, type_k=BF16, type_v=BF16)
    cache = Cache(other, host=16 * MIB, path=folder, nvme=96 * MIB, block_tokens=64)
    check(cache.match(tokens) == 0, "another cache type's records were found")
    cache.close()
    other.close()


def b64_a_conversation_larger_than_the_caps_is_refused_and_evicts_nothing(folder):
    del folder
    context = Context(n_ctx=2 * 1024, n_seq=2, n_batch=256)
    cache = Cache(context, host=4 * MIB)
    small, large = context.tokenize(text(90, 300))[:60], context.tokenize(text(91, 3000))[:700]
    context.evaluate(0, small, 0)
    check(cache.save(0, small)[0] == OK, "the small one was not kept")
    kept = cache.match(small + [1])
    before = cache.stats().host_evictions
    context.evaluate(1, large, 0)
    check(cache.save(1, large)[0] == FULL, "it was not refused")
    stats = cache.stats()
    check(stats.too_large == 1 and stats.host_evictions == before, "something left")
    check(cache.match(small + [1]) == kept == len(small), "the small one is gone")
    check(any("is not kept" in line for _, line in cache.lines), "it was not said")
    cache.close()
    context.close()


def b67_the_engine_never_keeps_half_a_restore(folder):
    del folder
    context = Context(n_ctx=1024, n_seq=2, n_batch=256, unified=True)
    cache = Cache(context)
    a, b = context.tokenize(text(92, 3000))[:600], context.tokenize(text(93, 3000))[:600]
    context.evaluate(0, a, 0, lambda at: cache.save(0, a[:at]))
    check(cache.idle(0, a) == (OK, 600), "idle failed")
    context.evaluate(1, b, 0)
    status, _ = cache.restore(0, a + [1])  # too few free cells
    check(status == FULL and context.pos_max(0) == -1, f"status {status}, a sequence up to {context.pos_max(0)}")
    context.remove(1)
    check(cache.restore(0, a + [1]) == (OK, 600), "it was not kept for later")
    check(cache.stats().refused_restores == 0, "no room was taken for a refusal")
    cache.close()
    context.close()


def a_second_process_is_told_that_the_directory_is_in_use(folder):
    context = Context(n_ctx=512, n_seq=2)
    cache = Cache(context, host=8 * MIB, path=folder, nvme=64 * MIB)
    try:
        Cache(context, host=8 * MIB, path=folder, nvme=64 * MIB)
        check(False, "it was opened twice")
    except Error as error:
        check(error.status == engine.BUSY, f"status {error.status}: {error}")
    cache.close()
    context.close()


TESTS = [at_every_switch_the_logits_are_bit_identical_to_a_control_that_never_left,
         b61_branches_at_block_boundaries_and_at_the_windows_edge_are_exact,
         every_cache_type_and_layout_is_split_and_comes_back_exact,
         store_ratios_and_written_bytes_are_as_promised,
         memory_grows_by_no_more_than_the_host_cap_and_64_mib,
         b62_damage_between_runs_is_recomputed_counted_and_healed,
         b64_a_conversation_larger_than_the_caps_is_refused_and_evicts_nothing,
         b67_the_engine_never_keeps_half_a_restore,
         a_second_process_is_told_that_the_directory_is_in_use]


def run(test):
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        try:
            test(pathlib.Path(folder, "store"))
            problem = None
        except Exception:  # noqa: BLE001: a test that fails in any way has failed
            problem = traceback.format_exc()
    print(f"[  {'FAILED' if problem else '    OK'}  ] {test.__name__} ({time.monotonic() - start:.0f} s)", flush=True)
    if problem:
        print(problem, flush=True)
    return problem is None


def main():
    global options
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="conversations of 1,500 to 3,000 tokens: half an hour")
    parser.add_argument("--only", default="", help="tests whose names contain this")
    parser.add_argument("--folder", help="where stores are made; the default is the system's for temporary files")
    options = parser.parse_args()
    reason = absent()
    tests = [test for test in TESTS if options.only in test.__name__]
    if reason:
        print(f"skipped: {reason}\n\n0 passed, 0 failed, {len(tests)} skipped")
        return 77
    results = [run(test) for test in tests]
    print(f"\n{sum(results)} passed, {len(results) - sum(results)} failed, 0 skipped")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
