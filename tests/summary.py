#!/usr/bin/env python3
"""Counts what a meson test run did, test function by test function, and says which failed.

    tests/summary.py BUILD/meson-logs/testlog.json

A cmocka program counts as its test functions, any other program as one test. A test function that never returned (a
crash, a hang) failed; a program that fails outside its functions (a leak found at its end, say) adds one failure. The
last line is "N passed, N failed, N skipped"; the exit status is 1 when something failed or nothing ran. Below each failed
name stands what the program said of it, because where only the end of a log is kept this is all that a reader has.
"""
import json
import re
import sys

GOOD = {"OK", "EXPECTEDFAIL"}

REASON_LINES = 12

CASE_LINE = re.compile(r"^\[ +(RUN|OK|FAILED|ERROR|SKIPPED) +\] ([A-Za-z0-9_]+)$", re.MULTILINE)


def count_program(entry):
    """Returns (passed, names of failed, skipped) of one program's entry in the log."""
    text = (entry.get("stdout") or "") + "\n" + (entry.get("stderr") or "")
    outcome = {}
    for word, name in CASE_LINE.findall(text):
        if outcome.get(name) not in ("FAILED", "ERROR"):
            outcome[name] = word
    program, result = entry["name"], entry["result"]
    if result == "SKIP":
        return 0, [], 1
    if not outcome:
        return (1, [], 0) if result in GOOD else (0, [f"{program} ({result.lower()})"], 0)
    passed = sum(word == "OK" for word in outcome.values())
    skipped = sum(word == "SKIPPED" for word in outcome.values())
    failed = [f"{program}: {name}" for name, word in outcome.items() if word in ("FAILED", "ERROR")]
    failed += [f"{program}: {name} (did not return)" for name, word in outcome.items() if word == "RUN"]
    if result not in GOOD and not failed:
        failed = [f"{program} ({result.lower()}, exit status {entry.get('returncode')})"]
    return passed, failed, skipped


def reason_of(name, entry):
    """Returns the last lines of the program's output that say why the named function, or else the program, failed."""
    said, errors = ((entry.get(stream) or "").splitlines() for stream in ("stdout", "stderr"))
    function = name.partition(": ")[2].partition(" ")[0]
    begin = next((i for i, line in enumerate(said) if function and re.fullmatch(rf"\[ RUN +\] {function}", line)), None)
    if begin is not None:
        said = said[begin + 1:]
        end = next((i for i, line in enumerate(said) if CASE_LINE.match(line)), len(said))
        said = said[:end]
    return [line for line in said + errors if line.strip() and not line.startswith("==")][-REASON_LINES:]


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], encoding="utf-8") as log:
            entries = [json.loads(line) for line in log if line.strip()]
    except (OSError, ValueError) as error:
        print(f"no test results: {error}")
        entries = []
    passed, failed, skipped = 0, [], 0
    for entry in entries:
        p, f, s = count_program(entry)
        passed, failed, skipped = passed + p, failed + [(name, entry) for name in f], skipped + s
    if not entries:
        failed.append(("no test ran", {}))
    print()
    for name, entry in failed:
        print(f"failed: {name}")
        for line in reason_of(name, entry):
            print(f"    {line[:300]}")
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
