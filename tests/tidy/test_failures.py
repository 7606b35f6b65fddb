#!/usr/bin/env python3
"""Every test, checker and planted bug that docs/failures.md names exists; every failure of the list has a row.

    tests/tidy/test_failures.py

The list itself is no part of the project: with KVTIER_SHARED, or beside the checkout, its ids and tags are read, too.
"""
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROW = re.compile(r"^\| (B\d\d) \| ([^|]+) \| ([^|]+) \|$")
ENTRY = re.compile(r"^### (B\d\d) \[([A-Z,]+)\]", re.MULTILINE)


def rows_of(text):
    """(id, what, where) of each row of the table."""
    return [match.groups() for match in map(ROW.match, text.splitlines()) if match]


def missing_names(where, functions, plants):
    """Names of a row that no source has."""
    names = re.findall(r"`([^`]+)`", where)
    return [name for name in names if name not in functions and name not in plants]


def functions_in(folder, pattern):
    found = set()
    for path in folder.rglob("*.c"):
        found.update(re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE))
    return found


def listed_failures():
    """Ids that are plain logic or fault hooks, or None when the list is not here."""
    shared = pathlib.Path(os.environ.get("KVTIER_SHARED", ROOT.parent / "shared"))
    path = shared / "field-failures.md"
    if not path.is_file():
        print(f"skipped: {path} is not here, so the ids of the table are not compared with the list")
        return None
    return {number for number, tags in ENTRY.findall(path.read_text(encoding="utf-8")) if set(tags.split(",")) & {"C", "I"}}


def examples_fall():
    """The check itself can fail."""
    assert rows_of("| B01 | x | `b01_x` |\nno row\n| B2 | x | y |") == [("B01", "x", "`b01_x`")]
    assert missing_names("`a_b`, plant `X`", {"a_b"}, {"Y"}) == ["X"]
    assert missing_names("`a_b`, plant `X`", {"a_b"}, {"X"}) == []


def main():
    examples_fall()
    rows = rows_of((ROOT / "docs/failures.md").read_text(encoding="utf-8"))
    # A test is a function; so is a checker of the simulation. Both stand at the beginning of a line.
    functions = functions_in(ROOT / "tests", r"^(?:static )?[a-z_0-9 ]+[ *]([a-z_0-9]+)\(")
    plants = set(re.findall(r"X\(([A-Z_]+),", (ROOT / "runtime/base/plant.h").read_text(encoding="utf-8")))
    findings = []
    for number, _, where in rows:
        findings += [f"{number} names {name}, which no test has" for name in missing_names(where, functions, plants)]
        if "`" not in where:
            findings.append(f"{number} names no test")
    ids = [number for number, _, _ in rows]
    findings += [f"{number} has two rows" for number in sorted(set(ids)) if ids.count(number) > 1]
    listed = listed_failures()
    if listed is not None:
        findings += [f"{number} is in the list and has no row" for number in sorted(listed - set(ids))]
    for finding in findings:
        print(finding)
    print(f"{len(rows)} rows, {len(findings)} findings")
    return 1 if findings or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
