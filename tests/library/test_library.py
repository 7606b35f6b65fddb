#!/usr/bin/env python3
"""libkvtier.so as others see it: its symbols, its name, its pkg-config file, and the examples built against it.

    tests/library/test_library.py --nm NM --cc CC [--cxx CXX] [--coverage] --include DIR --pkgconfig DIR --library FILE EXAMPLE.c...
"""
import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

DECLARED = re.compile(r"\bKVT_API\b[^;{]*?\b(kvt_\w+)\s*\(")
CONNECTORS = {"llama.h"}
COVERAGE = re.compile(r"__gcov_\w+|mangle_path")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def declared_functions(include):
    """Of libkvtier: a connector's functions (kvt_llama_...) are a library of its own."""
    names = set()
    for header in sorted(pathlib.Path(include, "kvtier").glob("*.h")):
        if header.name not in CONNECTORS:
            names |= set(DECLARED.findall(COMMENT.sub(" ", header.read_text(encoding="utf-8"))))
    return names


def shown_symbols(options, library):
    """Without those of gcov, in a build with coverage: its library is linked into ours, and is not ours."""
    run = subprocess.run([options.nm, "--dynamic", "--extern-only", "--defined-only", "--format=posix", library],
                         capture_output=True, text=True, check=True)
    names = {line.split()[0] for line in run.stdout.splitlines() if line.split()}
    return {name for name in names if not (options.coverage and COVERAGE.fullmatch(name))}


def check_symbols(options):
    declared, shown = declared_functions(options.include), shown_symbols(options, options.library)
    if len(declared) < 20:
        return [f"only {len(declared)} public functions were found in the headers"]
    return ([f"{name} is shown and in no public header" for name in sorted(shown - declared)]
            + [f"{name} is in a public header and not shown" for name in sorted(declared - shown)])


def check_connector_symbols(options):
    header = pathlib.Path(options.include, "kvtier", "llama.h").read_text(encoding="utf-8")
    declared, shown = set(DECLARED.findall(COMMENT.sub(" ", header))), shown_symbols(options, options.llama)
    return [f"{name} is in one of llama.h and libkvtier_llama alone" for name in sorted(declared ^ shown)]


def check_declarations_are_found():
    text = "/* KVT_API int kvt_no(void); */ KVT_NODISCARD KVT_API enum e\n kvt_yes(int (*f)(void)); int kvt_private(void);"
    found = DECLARED.findall(COMMENT.sub(" ", text))
    return [] if found == ["kvt_yes"] else [f"in the example it found {found}"]


def check_soname(options):
    run = subprocess.run(["readelf", "-d", options.library], capture_output=True, text=True, check=True)
    return [] if "[libkvtier.so.0]" in run.stdout else ["its soname is not libkvtier.so.0"]


def check_pkgconfig(options):
    environment = {**os.environ, "PKG_CONFIG_PATH": options.pkgconfig}
    run = subprocess.run(["pkg-config", "--libs", "kvtier"], capture_output=True, text=True, env=environment, check=False)
    return [] if "-lkvtier" in run.stdout else [f"pkg-config says {run.stdout!r} {run.stderr!r}"]


def check_example(options, compiler, source):
    """Compiled by the compiler of one language, run twice: on no directory, and on the store of the first run."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(pathlib.Path(folder, "program"))
        library = pathlib.Path(options.library)
        build = subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", f"-I{options.include}", source, "-x", "none",
                                str(library), f"-Wl,-rpath,{library.parent.resolve()}", "-o", program],
                               capture_output=True, text=True, check=False)
        if build.returncode != 0:
            return [build.stderr]
        for _ in range(2):
            run = subprocess.run([program, str(pathlib.Path(folder, "store"))], capture_output=True, text=True,
                                 timeout=60, check=False)
            if run.returncode != 0:
                return [f"exit status {run.returncode}: {run.stdout}{run.stderr}"]
    return []


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("nm", "cc", "cxx", "include", "pkgconfig", "library", "llama"):
        parser.add_argument("--" + name)
    parser.add_argument("--coverage", action="store_true", help="the libraries were built with b_coverage")
    parser.add_argument("examples", nargs="+")
    options = parser.parse_args()
    tests = {"declarations_are_found": check_declarations_are_found(),
             "the_library_shows_what_the_headers_mark_and_nothing_else": check_symbols(options)}
    if options.llama:
        tests["the_llama_library_shows_its_header_and_nothing_else"] = check_connector_symbols(options)
    if shutil.which("readelf"):
        tests["the_soname_has_a_version"] = check_soname(options)
    if shutil.which("pkg-config"):
        tests["pkg_config_knows_the_library"] = check_pkgconfig(options)
    for example in options.examples:
        name = pathlib.Path(example).stem
        tests[f"{name}_runs_as_c"] = check_example(options, [options.cc, "-std=c11"], example)
        if options.cxx:
            tests[f"{name}_runs_as_cpp"] = check_example(options, [options.cxx, "-x", "c++"], example)
    for name, problems in tests.items():
        print("".join(f"  {problem}\n" for problem in problems), end="")
        print(f"[  {'FAILED' if problems else '    OK'}  ] {name}")
    return 1 if any(tests.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
