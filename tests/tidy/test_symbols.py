#!/usr/bin/env python3
"""Every external symbol of the static libraries starts with kvt_: they link into engines that have names of their own.

    tests/tidy/test_symbols.py --nm NM --cc CC LIBRARY.a...
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

EXAMPLE = """
int kvt_good(void) { return 1; }
int bad(void) { return 2; }
int bad_data = 3;
static int fine(void) { return 4; }
int (*kvt_keep)(void) = fine;
"""


def foreign_symbols(nm, library):
    """Names of external, defined symbols of a library that do not start with kvt_."""
    run = subprocess.run([nm, "--extern-only", "--defined-only", "--format=posix", library],
                         capture_output=True, text=True, check=True)
    symbols = [line.split() for line in run.stdout.splitlines()]
    return sorted(words[0] for words in symbols if len(words) >= 2 and not words[0].startswith("kvt_"))


def check_example(nm, cc):
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "example.c"), pathlib.Path(folder, "example.o")
        source.write_text(EXAMPLE, encoding="utf-8")
        subprocess.run([cc, "-c", "-w", "-o", str(target), str(source)], check=True)
        found = foreign_symbols(nm, str(target))
    return [] if found == ["bad", "bad_data"] else [f"in the example it found {found}"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--cc", default="cc")
    parser.add_argument("libraries", nargs="+")
    options = parser.parse_args()
    tests = {"symbols_finds_its_examples": check_example(options.nm, options.cc)}
    for library in options.libraries:
        name = pathlib.Path(library).stem
        tests[f"{name}_exports_only_kvt_names"] = foreign_symbols(options.nm, library)
    for name, problems in tests.items():
        print("".join(f"  {problem}\n" for problem in problems), end="")
        print(f"[  {'FAILED' if problems else '    OK'}  ] {name}")
    return 1 if any(tests.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
