#!/usr/bin/env python3
"""
Answers many questions over long documents with a local model; each document is evaluated once.

    batch_documents.py --model MODEL.gguf --out answers.jsonl questions.jsonl

A line of questions.jsonl is {"document": "FILE", "question": "..."}, with the file's path seen from the folder of
questions.jsonl, or {"text": "...", "question": "..."}; an "id" is taken over. Answers are appended to --out as they come,
one JSON line each. After Ctrl-C the same command goes on where it stopped: answered questions are not asked again, and
the documents' state comes back from --cache instead of being evaluated.

Needs: pip install llama-cpp-python tqdm, and kvtier.
"""
import argparse
import collections
import json
import pathlib
import sys
import time

PROMPT = "{document}\n\nQuestion: {question}\nAnswer:"
CACHE_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}  # ggml's numbers


class WrongUse(Exception):
    """One line: what, the value, the rule."""


def refuse(text):
    raise WrongUse(text)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0], epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=pathlib.Path, help="JSONL of questions")
    parser.add_argument("--model", type=pathlib.Path, required=True, help="GGUF file")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSONL of answers, appended to")
    parser.add_argument("--cache", type=pathlib.Path, help="directory for the documents' state (OUT with .kv)")
    parser.add_argument("--host", default="512MiB", help="host memory for state (%(default)s)")
    parser.add_argument("--nvme", default="4GiB", help="disk space for state (%(default)s)")
    parser.add_argument("--n-ctx", type=int, default=8192, help="tokens of a document, question and answer (%(default)s)")
    parser.add_argument("--n-batch", type=int, default=512, help="tokens evaluated at once (%(default)s)")
    parser.add_argument("--threads", type=int, help="threads of the engine")
    parser.add_argument("--gpu-layers", type=int, default=0, help="layers on a GPU, -1 for all (%(default)s)")
    parser.add_argument("--cache-type", choices=CACHE_TYPES, default="f16",
                        help="type of K and V; bf16 packs best, on processors that compute with it (%(default)s)")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens of an answer (%(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: the most likely answer (%(default)s)")
    parser.add_argument("--stop", action="append", default=[], help="text that ends an answer; may be given again")
    parser.add_argument("--prompt", default=PROMPT, help=f"with {{document}} and {{question}} ({PROMPT!r})")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.error = refuse
    options = parser.parse_args()
    if options.cache is None:
        options.cache = options.out.with_name(options.out.name + ".kv")
    if not ("{document}" in options.prompt and "{question}" in options.prompt.split("{document}", 1)[-1]):
        raise WrongUse(f"--prompt is {options.prompt!r}: {{document}}, and {{question}} behind it")
    for name in ("n_ctx", "n_batch", "max_tokens"):
        if getattr(options, name) < 1:
            raise WrongUse(f"--{name.replace('_', '-')} is {getattr(options, name)}: 1 or more")
    if not options.model.is_file():
        raise WrongUse(f"--model is {options.model}: no such file")
    return options


# ---- Questions and answers -------------------------------------------------------------------------------------------

def read_questions(path, digest):
    """Lists of questions by document, in the order in which the documents first appear."""
    by_document = collections.OrderedDict()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise WrongUse(f"questions is {path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            question = item["question"]
            name = item["document"] if "document" in item else None
            text = item["text"] if name is None else (path.parent / name).read_text(encoding="utf-8")
        except (ValueError, TypeError, KeyError) as error:
            raise WrongUse(f"{path}:{number}: a JSON object with document or text, and question ({error})") from None
        except OSError as error:
            raise WrongUse(f"{path}:{number}: document is {name}: {error.strerror}") from None
        key = digest(text).hex()
        identity = item.get("id", digest(f"{key} {question}").hex())
        by_document.setdefault(key, []).append({"id": identity, "question": question, "text": text,
                                                "document": name or text[:40]})
    return by_document


def read_answered(path):
    """Ids of --out; a last line that was cut off is taken away."""
    if not path.exists():
        return set()
    content = path.read_bytes()
    whole = content[:content.rfind(b"\n") + 1]
    if len(whole) != len(content):
        with open(path, "r+b") as file:
            file.truncate(len(whole))
    try:
        return {json.loads(line)["id"] for line in whole.splitlines() if line.strip()}
    except (ValueError, TypeError, KeyError):
        raise WrongUse(f"--out is {path}: it has lines that are no answers of this program") from None


# ---- One question ----------------------------------------------------------------------------------------------------

def answer(llama, cache, options, item):
    """The answer, and what it took."""
    prompt = options.prompt.replace("{document}", item["text"], 1).replace("{question}", item["question"], 1)
    tokens = llama.tokenize(prompt.encode(), special=True)
    if len(tokens) + options.max_tokens > options.n_ctx:
        raise ValueError(f"{len(tokens)} tokens and an answer of {options.max_tokens}: at most {options.n_ctx} (--n-ctx)")
    before, start, first = cache.stats()["evaluated_tokens"], time.monotonic(), None
    pieces = []
    for chunk in llama.create_completion(tokens, max_tokens=options.max_tokens, temperature=options.temperature,
                                         stop=options.stop or None, stream=True):
        if first is None:
            # All of the prompt was evaluated, and of the answer at most what was held back for this piece.
            first = time.monotonic() - start
            evaluated = min(len(tokens), cache.stats()["evaluated_tokens"] - before)
        pieces.append(chunk["choices"][0]["text"])
    return {"id": item["id"], "document": item["document"], "question": item["question"],
            "answer": "".join(pieces).strip(), "prompt_tokens": len(tokens), "reused_tokens": len(tokens) - evaluated,
            "seconds_to_first": round(first, 4), "seconds": round(time.monotonic() - start, 4)}


def answer_all(llama, cache, options, waiting, bar):
    """Yields results; of a question that cannot be asked it says why."""
    for items in waiting.values():
        for item in items:
            try:
                result = answer(llama, cache, options, item)
            except ValueError as error:
                bar.write(f"{item['document'][:40]}: {item['question'][:60]}: {error}", file=sys.stderr)
                continue
            with open(options.out, "a", encoding="utf-8") as out:
                out.write(json.dumps(result, ensure_ascii=False) + "\n")
            bar.update()
            bar.set_postfix_str(item["document"][:24])
            yield result


# ---- Summary ---------------------------------------------------------------------------------------------------------

def summarize(answered):
    """Per document, and in all: what was evaluated, what came back, and about how much time that saved."""
    evaluated = sum(result["prompt_tokens"] - result["reused_tokens"] for result in answered)
    waited = sum(result["seconds_to_first"] for result in answered)
    # Tokens in a second, from the prompts that were mostly evaluated: in the others it is the restore that takes time.
    cold = [result for result in answered if 2 * result["reused_tokens"] < result["prompt_tokens"]]
    cold_tokens = sum(result["prompt_tokens"] - result["reused_tokens"] for result in cold)
    speed = cold_tokens / sum(result["seconds_to_first"] for result in cold) if cold else None
    documents = collections.OrderedDict()
    for result in answered:
        row = documents.setdefault(result["document"], dict.fromkeys(
            ("questions", "tokens", "evaluated", "reused", "seconds_to_first", "seconds"), 0))
        row["questions"] += 1
        row["tokens"] = max(row["tokens"], result["prompt_tokens"])
        row["evaluated"] += result["prompt_tokens"] - result["reused_tokens"]
        row["reused"] += result["reused_tokens"]
        row["seconds_to_first"] += result["seconds_to_first"]
        row["seconds"] += result["seconds"]
    for row in documents.values():
        row["saved_seconds"] = max(0.0, (row["evaluated"] + row["reused"]) / speed - row["seconds_to_first"]) \
            if speed else None
    reused = sum(row["reused"] for row in documents.values())
    return {"answered": len(answered), "evaluated_tokens": evaluated,
            "reused_tokens": reused, "seconds_to_first": waited, "tokens_per_s": speed,
            "saved_seconds": sum(row["saved_seconds"] for row in documents.values()) if speed else None,
            "documents": documents}


def print_table(summary):
    print(f"{'document':<26} {'questions':>9} {'tokens':>7} {'evaluated':>9} {'reused':>9} {'waited':>9} {'saved':>9}")
    rows = [*summary["documents"].items()]
    if len(rows) > 1:
        rows.append(("all", {"questions": summary["answered"], "tokens": 0, "evaluated": summary["evaluated_tokens"],
                             "reused": summary["reused_tokens"], "seconds_to_first": summary["seconds_to_first"],
                             "saved_seconds": summary["saved_seconds"]}))
    for name, row in rows:
        saved = "-" if row["saved_seconds"] is None else f"{row['saved_seconds']:.1f} s"
        name = " ".join(name.split())
        print(f"{name if len(name) <= 26 else name[:23] + '...':<26} {row['questions']:>9,} {row['tokens'] or '':>7} "
              f"{row['evaluated']:>9,} {row['reused']:>9,} {row['seconds_to_first']:>7.1f} s {saved:>9}")
    print("waited: until the first piece of the answers. saved: what evaluating every prompt whole would have taken "
          "besides.")


# ---- All of it -------------------------------------------------------------------------------------------------------

def run(options):
    try:
        import llama_cpp
        import tqdm

        import kvtier
        import kvtier.llama_cpp
    except ImportError as error:
        raise WrongUse(f"{error.name} is not installed: pip install llama-cpp-python tqdm, and kvtier") from None
    by_document = read_questions(options.questions, kvtier.digest)
    answered = read_answered(options.out)
    waiting = {key: [item for item in items if item["id"] not in answered] for key, items in by_document.items()}
    total = sum(map(len, by_document.values()))
    left = sum(map(len, waiting.values()))
    results, is_stopped = [], False
    if left > 0:
        kind = CACHE_TYPES[options.cache_type]
        llama = llama_cpp.Llama(str(options.model), n_ctx=options.n_ctx, n_batch=options.n_batch, type_k=kind,
                                type_v=kind, n_threads=options.threads, n_threads_batch=options.threads,
                                n_gpu_layers=options.gpu_layers, verbose=False)
        try:
            cache = kvtier.llama_cpp.TieredCache(options.cache, options.host, options.nvme).attach(llama)
        except kvtier.Error as error:
            raise WrongUse(str(error)) from None
        with tqdm.tqdm(total=total, initial=total - left, unit="question", disable=None) as bar:
            try:
                for result in answer_all(llama, cache, options, waiting, bar):
                    results.append(result)
            except KeyboardInterrupt:
                is_stopped = True
                cache.save()  # what was evaluated of a document that is not done
            finally:
                llama.close()  # and the cache with it: its state is on the disk then
    summary = {**summarize(results), "questions": total, "answered_before": total - left}
    if options.json:
        print(json.dumps(summary, indent=2))
    elif results:
        print_table(summary)
    if is_stopped:
        print(f"stopped: {total - left + len(results)} of {total} questions are answered; the same command goes on",
              file=sys.stderr)
        return 130
    if not options.json:
        print(f"{total - left + len(results)} of {total} questions are answered in {options.out}")
    return 0 if len(results) == left else 1


def main():
    try:
        return run(parse_arguments())
    except WrongUse as error:
        print(f"batch_documents: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped before the first question", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
