#!/usr/bin/env python3
"""Time to first token after a switch to another conversation: restored from host memory, from NVMe, computed again.

    bench_engine.py [--tokens N] [--rounds N] [--type f16|bf16] [--json] [--folder DIR]

All three in one run, by turns; medians. First token: the prompt's last token is evaluated and its logits are there. For NVMe the library is
detached and attached anew before each round, and the page cache is told to forget the store's files (which O_DIRECT does not use).
"""
import argparse
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

from engine import MIB, OK, Cache, Context, absent, text


def forget_pages(folder):
    for file in pathlib.Path(folder).rglob("*"):
        if file.is_file():
            with open(file, "rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def first_token(context, cache, seq, tokens):
    """Seconds until the logits behind the prompt are there, and what was restored."""
    context.remove(seq)
    start = time.monotonic()
    have = 0
    if cache:
        status, have = cache.restore(seq, tokens)
        assert status == OK, status
    logits = context.evaluate(seq, tokens, have)
    return time.monotonic() - start, have, logits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--type", default="f16", choices=("f16", "bf16"))
    parser.add_argument("--swa-full", action="store_true", help="window layers' cache as large as the full ones'")
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder")
    options = parser.parse_args()
    reason = absent()
    if reason:
        print(f"skipped: {reason}", file=sys.stderr)
        return 77
    kind = {"f16": 1, "bf16": 30}[options.type]
    context = Context(n_ctx=2 * 4096, n_seq=2, n_batch=512, type_k=kind, type_v=kind, swa_full=options.swa_full,
                      flash=options.flash)
    tokens = context.tokenize(text(1, 2 * options.tokens))[:options.tokens + 1]
    prompt = tokens[:options.tokens]
    times = {"recompute": [], "host": [], "nvme": []}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        store = {"host": 256 * MIB, "path": pathlib.Path(folder, "store"), "nvme": 512 * MIB}
        cache = Cache(context, **store)
        context.evaluate(0, prompt, 0, lambda at: cache.save(0, prompt[:at]))
        cache.idle(0, prompt)
        cache.close()
        for turn in range(options.rounds):
            if turn == 0 or turn == options.rounds - 1:
                times["recompute"].append(first_token(context, None, 0, tokens)[0])
                context.remove(0)
            forget_pages(folder)
            cache = Cache(context, **store)
            seconds, have, _ = first_token(context, cache, 0, tokens)
            assert have == options.tokens, f"{have} tokens came from NVMe"
            assert cache.stats().host_hits == 0, "some came from host memory"
            times["nvme"].append(seconds)
            seconds, have, _ = first_token(context, cache, 1, tokens)
            assert have == options.tokens and cache.stats().host_hits > 0, "it did not come from host memory"
            times["host"].append(seconds)
            context.remove(0)
            context.remove(1)
            cache.close()
    result = {name: statistics.median(values) for name, values in times.items()}
    result.update({"tokens": options.tokens, "type": options.type, "rounds": options.rounds,
                   "host_times_shorter": result["recompute"] / result["host"],
                   "nvme_times_shorter": result["recompute"] / result["nvme"]})
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{options.tokens} tokens of {options.type}: first token after a switch\n"
              f"  computed again    {result['recompute'] * 1e3:9.1f} ms\n"
              f"  from host memory  {result['host'] * 1e3:9.1f} ms   {result['host_times_shorter']:6.0f} times shorter\n"
              f"  from NVMe         {result['nvme'] * 1e3:9.1f} ms   {result['nvme_times_shorter']:6.0f} times shorter")
    return 0


if __name__ == "__main__":
    sys.exit(main())
