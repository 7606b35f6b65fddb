#!/usr/bin/env python3
"""
Runs the tests of the Python package and prints one line for each test function, as cmocka does.

    tests/connectors/python/run_tests.py --package BUILD/connectors/python [--only NAME] MODULE...

A module that needs what is not here (cffi, an engine, weights) skips its tests and says why. Exit status: 0 all passed,
1 some failed, 77 nothing ran.
"""
import argparse
import importlib
import pathlib
import sys
import unittest


class LinesResult(unittest.TestResult):
    """Prints while it runs: a test function that crashes the process has its RUN line alone."""

    def startTest(self, test):
        super().startTest(test)
        print(f"[ RUN      ] {name_of(test)}", flush=True)

    def addSuccess(self, test):
        super().addSuccess(test)
        print(f"[       OK ] {name_of(test)}", flush=True)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        print(f"  skipped: {reason}\n[  SKIPPED ] {name_of(test)}", flush=True)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        print(f"{self.failures[-1][1]}[  FAILED  ] {name_of(test)}", flush=True)

    def addError(self, test, err):
        super().addError(test, err)
        print(f"{self.errors[-1][1]}[  ERROR   ] {name_of(test)}", flush=True)


def name_of(test):
    return test.id().rsplit(".", 1)[-1].removeprefix("test_")


def functions(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from functions(item)
        else:
            yield item


def main():
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0])
    parser.add_argument("--package", help="the folder that holds the built package; none: it was not built")
    parser.add_argument("--only", default="", help="run the tests whose name contains this")
    parser.add_argument("modules", nargs="+")
    options = parser.parse_args()
    if not options.package:
        print("skipped: no python3 with cffi was found when the build was set up (Debian: python3-cffi)")
        return 77
    sys.path[:0] = [options.package, str(pathlib.Path(__file__).resolve().parent)]
    suite, left_out = unittest.TestSuite(), 0
    for module in options.modules:
        try:
            loaded = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
        except unittest.SkipTest as reason:
            print(f"  skipped: {reason}\n[  SKIPPED ] {module.removeprefix('test_')}")
            left_out += 1
            continue
        suite.addTests(test for test in functions(loaded) if options.only in name_of(test))
    result = LinesResult()
    suite.run(result)
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped) + left_out
    passed = result.testsRun - failed - len(result.skipped)
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    if failed > 0 or passed + skipped == 0:
        return 1
    return 0 if passed > 0 else 77


if __name__ == "__main__":
    sys.exit(main())
