#!/usr/bin/env python3
"""Runs a test program that was built with a planted bug, and passes when the test that is about the bug falls.

    tests/runtime/must_fail.py PROGRAM TEST_FUNCTION

The program's output is shown only when it did what it must not do.
"""
import os
import subprocess
import sys


def main():
    program, function = sys.argv[1:]
    # Programs that know the variable run that test alone: what a bug does to others, a hang say, is not the question.
    environment = {**os.environ, "KVTIER_ONLY_TEST": function}
    run = subprocess.run([program], capture_output=True, text=True, check=False, timeout=100, env=environment)
    text = run.stdout + run.stderr
    # An assertion that stops the program is as good as a failed check, when it happened in that test.
    started = f"[ RUN      ] {function}" in text
    held = f"[       OK ] {function}" in text
    if run.returncode != 0 and started and not held:
        print(f"{function} falls, as it must")
        return 0
    print(text)
    print(f"{program} has a planted bug, and {function} did not find it")
    return 1


if __name__ == "__main__":
    sys.exit(main())
