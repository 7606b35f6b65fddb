#!/usr/bin/env python3
"""
The same conversations in one llama.cpp context with each cache of llama-cpp-python, and with kvtier's, side by side.

    compare_llama.py --model MODEL.gguf [--conversations 3] [--tokens 1500] [--rounds 3] [--json]

Each cache runs in a process of its own. A context holds one conversation; in every round each of them goes on by some
words and an answer. Measured: time to the first token after a switch, peak resident memory beyond that of the run without
a cache, bytes on disk, entries that are still there after they were read, and whether the text is that of the run
without a cache. Only ratios of one run mean something; run it on a machine that does nothing else.
"""
import argparse
import json
import os
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time

MODES = {
    "none": "no cache: evaluated again",
    "ram": "LlamaRAMCache",
    "disk": "LlamaDiskCache",
    "tiered": "TieredCache, set_cache",
    "attach": "TieredCache, attach, host memory",
    "attach-nvme": "TieredCache, attach, NVMe",
}
THINGS = "apples pears nuts coins keys stones books lamps cups ropes".split()


def refuse(text):
    print(f"compare_llama: {text}", file=sys.stderr)
    sys.exit(2)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0], epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file")
    parser.add_argument("--conversations", type=int, default=3, help="how many take turns (%(default)s)")
    parser.add_argument("--tokens", type=int, default=1500, help="tokens that each begins with (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each; the first is no switch (%(default)s)")
    parser.add_argument("--answer", type=int, default=4, help="tokens of an answer (%(default)s)")
    parser.add_argument("--n-batch", type=int, default=512)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--flash-attn", action="store_true")
    parser.add_argument("--modes", default=",".join(MODES), help="which to run: %(default)s")
    parser.add_argument("--folder", type=pathlib.Path, help="where the caches on disk are made (here)", default=".")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.error = refuse  # one line
    options = parser.parse_args()
    unknown = [mode for mode in options.modes.split(",") if mode not in MODES]
    if unknown:
        parser.error(f"--modes has {unknown[0]}: some of {', '.join(MODES)}")
    if options.rounds < 2 or options.conversations < 1 or options.tokens < 1:
        parser.error("--rounds is 2 or more, --conversations and --tokens 1 or more")
    if not options.model.is_file():
        parser.error(f"--model is {options.model}: no such file")
    return options


# ---- One cache, in its own process -----------------------------------------------------------------------------------

def make_conversations(llama, options):
    """
    Tokens of long lists of facts, and of questions about them. Clear ones: what is reused splits the batches elsewhere,
    which changes the last bits of the logits, and where two tokens are nearly as likely the text with it.
    """
    made = random.Random(options.seed)
    starts, asks = [], []
    for number in range(options.conversations):
        facts = [f"In house {number} box {box} holds {made.randrange(2, 100)} {made.choice(THINGS)}.\n"
                 for box in range(options.tokens // 8)]
        starts.append(llama.tokenize("".join(facts).encode())[:options.tokens])
        boxes = [made.randrange(options.tokens // 24) for _ in range(options.rounds)]
        asks.append([llama.tokenize(f"\nQuestion: what does box {box} hold?\nAnswer: box {box} holds".encode(),
                                    add_bos=False) for box in boxes])
    return starts, asks


def make_cache(mode, llama, folder):
    """What plays the cache; None without one."""
    import llama_cpp

    if mode == "none":
        return None
    if mode in ("ram", "disk"):
        cache = llama_cpp.LlamaRAMCache() if mode == "ram" else llama_cpp.LlamaDiskCache(folder)
        llama.set_cache(cache)
        return cache
    from kvtier.llama_cpp import TieredCache

    if mode == "tiered":
        cache = TieredCache(folder)
        llama.set_cache(cache)
        return cache
    # With a cap of 1 MiB nothing of a conversation stays in host memory until it is read again.
    return TieredCache(folder, host="1MiB" if mode == "attach-nvme" else "512MiB").attach(llama)


def complete(llama, prompt, count):
    """Seconds to the first token, text, and tokens of the conversation afterwards."""
    start, first, text = time.monotonic(), None, ""
    for chunk in llama.create_completion(prompt, max_tokens=count, temperature=0.0, stream=True):
        if first is None:
            first = time.monotonic() - start
        text += chunk["choices"][0]["text"]
    return first, text, llama.input_ids[:llama.n_tokens].tolist()


def alive_after_read(cache, prompts):
    """Of the conversations that are found, how many are found when they are asked for again."""
    alive = 0
    for prompt in prompts:
        if cache is None or prompt not in cache:
            continue
        try:
            cache[prompt]
            alive += prompt in cache
        except KeyError:
            pass
    return alive


def bytes_on_disk(folder):
    return sum(path.stat().st_blocks * 512 for path in pathlib.Path(folder).rglob("*") if path.is_file())


def run_child(options):
    """Reads the histories that the run without a cache made (an empty line: there are none yet) and prints figures."""
    import llama_cpp

    known = json.loads(sys.stdin.readline() or "null")
    llama = llama_cpp.Llama(str(options.model), n_ctx=options.tokens + options.rounds * (32 + options.answer) + 32,
                            n_batch=options.n_batch, n_threads=options.threads, n_threads_batch=options.threads,
                            flash_attn=options.flash_attn, verbose=False)
    starts, asks = make_conversations(llama, options)
    folder = str(pathlib.Path(options.folder, "cache"))
    # A first decode touches the memory that every run needs.
    llama.eval(starts[0][:options.n_batch])
    llama.reset()
    cache = make_cache(options.child, llama, folder)
    first_seconds, texts, histories = [], [], [list(start) for start in starts]
    for turn in range(options.rounds):
        for i in range(options.conversations):
            prompt = histories[i] + asks[i][turn]
            seconds, text, history = complete(llama, prompt, options.answer)
            texts.append(text)
            if turn > 0:
                first_seconds.append(seconds)
            # All runs go on from the same answers, so that all have the same prompts.
            histories[i] = known["histories"][turn][i] if known else history
            print(json.dumps({"history": histories[i]}), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    disk_bytes = bytes_on_disk(folder)  # before the reads below, which remove what LlamaDiskCache has
    result = {"first_seconds": first_seconds, "texts": texts, "peak_bytes": peak,
              "alive": alive_after_read(cache, histories)}
    llama.close()
    if hasattr(cache, "close"):
        cache.close()
    result["disk_bytes"] = max(disk_bytes, bytes_on_disk(folder))
    print(json.dumps(result), flush=True)


# ---- All of them -----------------------------------------------------------------------------------------------------

def run_mode(options, mode, known, bar):
    """The child's figures; the histories are those that it went on from."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "--child", mode, "--folder", folder]
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                 text=True)
        child.stdin.write(json.dumps(known) + "\n")
        child.stdin.close()
        histories, result = [], None
        for line in child.stdout:
            read = json.loads(line)
            if "history" in read:
                histories.append(read["history"])
                bar.update()
            else:
                result = read
        errors = child.stderr.read()
        if child.wait() != 0 or result is None:
            raise RuntimeError(f"{MODES[mode]}: exit status {child.returncode}: {errors[-2000:]}")
    count = options.conversations
    result["histories"] = [histories[i:i + count] for i in range(0, len(histories), count)]
    return result


def figures_of(results, options):
    base = results["none"]
    rows = []
    for mode, result in results.items():
        first = statistics.median(result["first_seconds"])
        rows.append({"mode": mode, "cache": MODES[mode], "first_seconds": first,
                     "times_shorter": statistics.median(base["first_seconds"]) / first,
                     "memory_bytes": max(0, result["peak_bytes"] - base["peak_bytes"]),
                     "disk_bytes": result["disk_bytes"], "alive": result["alive"], "of": options.conversations,
                     "same_texts": sum(a == b for a, b in zip(result["texts"], base["texts"])),
                     "texts": len(result["texts"])})
    return rows


def print_table(rows):
    print("| cache | first token after a switch | than evaluating again | peak memory | on disk | alive after a read "
          "| same text |\n|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['cache']} | {1000 * row['first_seconds']:,.0f} ms | {row['times_shorter']:.1f} times shorter "
              f"| {row['memory_bytes'] / (1 << 20):,.0f} MiB | {row['disk_bytes'] / (1 << 20):,.0f} MiB "
              f"| {row['alive']} of {row['of']} | {row['same_texts']} of {row['texts']} |")


def main():
    options = parse_arguments()
    if options.child:
        run_child(options)
        return 0
    import tqdm

    modes = ["none", *(mode for mode in options.modes.split(",") if mode != "none")]
    results = {}
    with tqdm.tqdm(total=len(modes) * options.rounds * options.conversations, unit="turn", disable=None) as bar:
        for mode in modes:
            bar.set_postfix_str(MODES[mode])
            known = {"histories": results["none"]["histories"]} if results else None
            results[mode] = run_mode(options, mode, known, bar)
    rows = figures_of(results, options)
    if options.json:
        settings = {name: getattr(options, name) for name in ("conversations", "tokens", "rounds", "answer", "n_batch",
                                                              "threads", "flash_attn", "seed")}
        print(json.dumps({"settings": settings, "cases": rows}, indent=2))
    else:
        print_table(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
