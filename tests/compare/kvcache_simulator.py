#!/usr/bin/env python3
"""Runs `kvtier sim` beside the kvcache-simulator package, on one trace, in one run.

    tests/compare/kvcache_simulator.py PROGRAM [--trace FILE] [--capacities 60] [--rounds 3] [--venv DIR]

The package counts LRU on a tree of prefixes: the hit tokens of the last half of the requests, a request's hits ending
at its first miss, its last block weighing what it has of tokens, the leaf whose use is longest ago leaving first. With
`kvtier sim --count prefix --order tail --warmup 50%` that is the same, to the token. Both read the trace and count
every capacity on one thread; rounds alternate, and the median time is taken. The package runs inside this process, its
C++ core compiled before; the program is started anew each time.

Exit status: 0, the same hit tokens at every capacity and the program at least 1.5 times as fast; 1, not so; 77, the
package or the trace is not there, with the reason.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PACKAGE = "kvcache-simulator"
MODEL = "llama-3.1-8b"
BLOCK_TOKENS = 512
FASTER_AT_LEAST = 1.5
SKIPPED = 77


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def enter_venv(folder):
    """Goes on in a Python that has the package; installs it into a virtual environment if need be."""
    try:
        import kvcache_sim  # noqa: F401
        return
    except ImportError:
        pass
    if os.environ.get("KVTIER_COMPARE_VENV"):
        skip(f"{PACKAGE} was installed and cannot be imported")
    python = pathlib.Path(folder, "bin", "python3")
    commands = [[python, "-m", "pip", "install", "--quiet", PACKAGE]]
    if not python.exists():
        commands.insert(0, [sys.executable, "-m", "venv", folder])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            skip(f"{PACKAGE} cannot be installed: {lines[-1] if lines else 'no reason given'}")
    os.environ["KVTIER_COMPARE_VENV"] = str(folder)
    os.execv(python, [python, *sys.argv])


def spread(count, least, most):
    """So many capacities, each larger than the one before by about the same factor."""
    return [round(least * (most / least) ** (i / (count - 1))) for i in range(count)]


def count_with_package(path, capacities):
    """Returns (seconds, seconds of counting alone, {capacity: hit tokens})."""
    from kvcache_sim import BYTES_PER_GIB, calculate_cache_size, load_models_data, run_sweep
    from kvcache_sim.trace import parse_trace_file

    models = load_models_data()
    model = next((m["id"] for m in models["models"] if m["id"] == MODEL), models["models"][0]["id"])
    begun = time.perf_counter()
    trace = parse_trace_file(path, block_size=BLOCK_TOKENS)
    loaded = time.perf_counter()
    size = calculate_cache_size(next(m for m in models["models"] if m["id"] == model), tokens=BLOCK_TOKENS,
                                block_size=BLOCK_TOKENS, include_linear_attention_state=False, models_data=models)
    # Half a block more: rounding down gives the capacity again.
    budgets = [(c + 0.5) * size.bytes_per_block / BYTES_PER_GIB for c in capacities]
    counting = time.perf_counter()
    result = run_sweep(trace, model_id=model, budgets_gib=budgets, policies=["lru"], estimate_tokens=BLOCK_TOKENS,
                       models_data=models)
    ended = time.perf_counter()
    hits = {p["cacheBlocks"]: p["results"]["lru"]["hitTokens"] for p in result["points"]}
    return loaded - begun + ended - counting, ended - counting, hits


def count_with_program(program, path, capacities):
    command = [program, "sim", "--trace", path, "--policies", "lru", "--count", "prefix", "--order", "tail",
               "--warmup", "50%", "--threads", "1", "--json", "--capacities", ",".join(map(str, capacities))]
    begun = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ended = time.perf_counter()
    if done.returncode != 0:
        sys.exit(f"{program}: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    hits = {r["capacity_blocks"]: r["hit_tokens"] for r in report["results"] if r["filled_before"]}
    return ended - begun, report["seconds"], hits


def main():
    shared = os.environ.get("KVTIER_SHARED", "../shared")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("--trace", default=f"{shared}/data/traces/mooncake_conversation.jsonl")
    parser.add_argument("--capacities", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--venv", default=os.path.join(tempfile.gettempdir(), f"kvtier-compare-{os.getuid()}"))
    options = parser.parse_args()
    if not os.access(options.trace, os.R_OK):
        skip(f"{options.trace} cannot be read; KVTIER_SHARED names the folder that holds data/")
    enter_venv(options.venv)

    capacities = spread(options.capacities, 500, 60000)
    count_with_package(options.trace, capacities[:1])
    theirs, ours = [], []
    for _ in range(options.rounds):
        theirs.append(count_with_package(options.trace, capacities))
        ours.append(count_with_program(options.program, options.trace, capacities))

    print(f"{'blocks':>8} {PACKAGE:>20} {'kvtier sim':>14}   hit tokens, LRU")
    apart = 0
    for capacity in capacities:
        their_hits, our_hits = theirs[0][2].get(capacity), ours[0][2].get(capacity)
        is_same = their_hits == our_hits and their_hits is not None
        apart += not is_same
        print(f"{capacity:>8} {str(their_hits):>20} {str(our_hits):>14}{'' if is_same else '   NOT THE SAME'}")
    faster = []
    for part, what in ((0, "reading and counting"), (1, "counting alone")):
        their_seconds = statistics.median(t[part] for t in theirs)
        our_seconds = statistics.median(o[part] for o in ours)
        faster.append(their_seconds / our_seconds)
        print(f"{what}: {their_seconds:.3f} s and {our_seconds:.3f} s, {faster[-1]:.1f} times as fast")
    print(f"{len(capacities) - apart} of {len(capacities)} capacities are the same")
    return 0 if apart == 0 and min(faster) >= FASTER_AT_LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
