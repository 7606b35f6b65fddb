#!/usr/bin/env python3
"""Style rules as tests: each rule must find its planted examples, and nothing in the checkout.

    tests/tidy/test_tidy.py [--build BUILD] [--cc CC] [--cxx CXX] [--only NAME]

Needs Python's standard library and, for the headers, a compiler. Prints one line for each test, as cmocka does.
"""
import argparse
import pathlib
import shlex
import shutil
import sys
import tempfile

import tidy

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

# Joined here, so that the rules about words and paths do not find this file.
LEFT_OVER = "TO" + "DO"
HOME = "/ho" + "me/someone"
LONG_BODY = "    x++;\n" * (tidy.FUNCTION_LINES_MAX + 1)


def header(guard, body="int kvt_x(void);\n"):
    return f"#ifndef {guard}\n#define {guard}\n{body}#endif\n"


# rule: [(files, [(path, line) of each finding])]. An empty list of findings is an example that must pass.
EXAMPLES = {
    tidy.rule_includes: [
        ({"tiers/a.c": '#include "runtime/b.h"\n', "runtime/b.h": ""}, [("tiers/a.c", 1)]),
        ({"tiers/a.c": '\n#include "policy/b.h"\n', "policy/b.h": ""}, [("tiers/a.c", 2)]),
        ({"policy/a.c": '#include "tiers/b.h"\n', "tiers/b.h": ""}, [("policy/a.c", 1)]),
        ({"policy/a.c": '#include "kernels/b.h"\n', "kernels/b.h": ""}, [("policy/a.c", 1)]),
        ({"kernels/a.c": '#include "tiers/b.h"\n', "tiers/b.h": ""}, [("kernels/a.c", 1)]),
        ({"runtime/base/a.c": '#include "runtime/b.h"\n', "runtime/b.h": ""}, [("runtime/base/a.c", 1)]),
        ({"runtime/a.c": '#include "tools/b.h"\n', "tools/b.h": ""}, [("runtime/a.c", 1)]),
        ({"tools/a.c": '#include "tests/b.h"\n', "tests/b.h": ""}, [("tools/a.c", 1)]),
        ({"tools/a.c": '#include "connectors/x/b.h"\n', "connectors/x/b.h": ""}, [("tools/a.c", 1)]),
        ({"include/kvtier/a.h": '#include "runtime/base/b.h"\n', "runtime/base/b.h": ""}, [("include/kvtier/a.h", 1)]),
        ({"runtime/a.c": '#include "b.h"\n', "runtime/b.h": ""}, [("runtime/a.c", 1)]),
        ({"runtime/a.c": '#include "runtime/../tools/b.h"\n', "tools/b.h": ""}, [("runtime/a.c", 1)]),
        ({"runtime/a.c": '#include "tiers/b.h"\n#include "policy/c.h"\n#include <kvtier/d.h>\n#include <stdio.h>\n'
                         '/* #include "tools/e.h" */\n',
          "tiers/b.h": "", "policy/c.h": '#include "runtime/base/f.h"\n', "include/kvtier/d.h": "",
          "tools/e.h": "", "runtime/base/f.h": "", "tests/unit/t.c": '#include "tools/e.h"\n'}, []),
    ],
    tidy.rule_guards: [
        ({"tiers/a.h": header("KVT_A_H")}, [("tiers/a.h", 1)]),
        ({"tiers/a.h": "#pragma once\n"}, [("tiers/a.h", 1)]),
        ({"tiers/a.h": "/* a */\n#ifndef KVT_TIERS_A_H\n#define KVT_TIERS_B_H\n#endif\n"}, [("tiers/a.h", 2)]),
        ({"tiers/a.h": header("KVT_TIERS_A_H"), "include/kvtier/b.h": header("KVTIER_B_H")}, []),
    ],
    tidy.rule_line_length: [
        ({"tools/a.c": "\n" + "x" * (tidy.LINE_MAX + 1) + "\n"}, [("tools/a.c", 2)]),
        ({"tools/a.c": "x" * tidy.LINE_MAX + "\n", "tools/README.md": "x" * 300}, []),
    ],
    tidy.rule_file_length: [
        ({"tools/a.c": "\n" * (tidy.FILE_LINES_MAX + 1)}, [("tools/a.c", tidy.FILE_LINES_MAX + 1)]),
        ({"tools/a.c": "\n" * tidy.FILE_LINES_MAX}, []),
    ],
    tidy.rule_function_length: [
        ({"tools/a.c": "void a(void)\n{\n" + LONG_BODY + "}\n"}, [("tools/a.c", 2)]),
        ({"tools/a.c": "void a(void)\n{\n}\nstatic int b(int x,\n  int y)\n{\n" + LONG_BODY + "}\n"},
         [("tools/a.c", 6)]),
        ({"tools/a.c": "void a(void)\n{\n" + LONG_BODY[:-len("    x++;\n")] + "}\n"}, []),
    ],
    tidy.rule_function_brace: [
        ({"tools/a.c": "static void a(void) {\n}\n"}, [("tools/a.c", 1)]),
        ({"tools/a.c": "struct s {\n    int x;\n};\nstatic int one(void) { return 1; }\n"
                       "void a(void)\n{\n    if (one()) {\n    }\n}\n"}, []),
    ],
    tidy.rule_banned_calls: [
        ({"tools/a.c": "void *p = malloc(1);\n"}, [("tools/a.c", 1)]),
        ({"runtime/a.c": "\n free (p);\n x = realloc(p, 2), y = calloc(1, 1);\n"},
         [("runtime/a.c", 2), ("runtime/a.c", 3), ("runtime/a.c", 3)]),
        ({"tools/a.c": "strcpy(a, b);\nsprintf(a, b);\ngets(a);\nrand();\n"}, [("tools/a.c", n) for n in (1, 2, 3, 4)]),
        ({"policy/a.c": "t = time(NULL);\nassert(x);\n"}, [("policy/a.c", 1), ("policy/a.c", 2)]),
        ({"tests/unit/a.c": "usleep(1);\nsleep(1);\nnanosleep(&t, NULL);\n"},
         [("tests/unit/a.c", n) for n in (1, 2, 3)]),
        ({"tiers/a.c": "exit(1);\nabort();\nprintf(x);\n"}, [("tiers/a.c", n) for n in (1, 2, 3)]),
        ({"tools/a.c": '/* malloc(1) */ const char *s = "free(x)"; // rand()\n'
                       "kvt_free(p); ops->free(p); e.time(1); printf(s); snprintf(a, 1, s); static_assert(1);\n",
          "runtime/base/mem.c": "free(malloc(1));\n",
          "tests/a.c": "free(malloc(1)); assert_true(1);\n"}, []),
    ],
    tidy.rule_single_writer: [
        ({"runtime/planner.c": "void f(void)\n{\n    copy->state = 1;\n}\n"}, [("runtime/planner.c", 3)]),
        ({"runtime/planner.c": "x[1].state =\n 1;\n"}, [("runtime/planner.c", 1)]),
        ({"runtime/block.c": "void f(void)\n{\n    c->state = 1;\n}\nvoid g(void)\n{\n    c->state = 2;\n}\n"},
         [("runtime/block.c", 7)]),
        ({"runtime/block.c": "void f(void)\n{\n    c->state = 1;\n    c->state = 2;\n}\n",
          "runtime/planner.c": "if (c->state == 1) x = (struct s){ .state = 1 };\n",
          "tools/a.c": "s->state = 1;\n"}, []),
        ({"runtime/core.c": "b->state_bits |= 1;\nif (b->state_bits == 0) b[i].state_bits++;\n"},
         [("runtime/core.c", 1), ("runtime/core.c", 2)]),
        ({"runtime/core.c": "*b = (struct s){ .state_bits = 0 };\n",
          "runtime/block.c": "void f(void)\n{\n    b->state_bits = (uint8_t)(b->state_bits & 3u);\n}\n"}, []),
    ],
    tidy.rule_unfinished: [
        ({"docs/a.md": f"one\n{LEFT_OVER}: two\n"}, [("docs/a.md", 2)]),
        ({"tools/a.c": f"/* {LEFT_OVER} */\n"}, [("tools/a.c", 1)]),
        ({"tools/a.c": f"int kvt_{LEFT_OVER}s; /* what is to do */\n"}, []),
    ],
    tidy.rule_home_paths: [
        ({"README.md": f"see {HOME}/x\n"}, [("README.md", 1)]),
        ({"tools/a.c": f'const char *p = "{HOME}";\n'}, [("tools/a.c", 1)]),
        ({"tools/a.c": '"../ho" "docs/ho' + f'me/x" "$dir{HOME}" "/tmp/x" "/dev/null"\n'}, []),
    ],
    tidy.rule_readmes: [
        ({"tools/workload/a.c": "", "tools/README.md": ""}, [("tools/workload", 1)]),
        ({"tools/a.c": "", "tools/README.md": "", "docs/a.md": ""}, []),
    ],
    tidy.dead_files: [
        ({"tools/a.c": "", "tools/b.c": "", "tools/meson.build": "files('a.c')"}, [("tools/b.c", 1)]),
        ({"tools/x/a.c": "", "tools/x/b.cu": "", "tools/meson.build": "files('x/a.c')",
          "meson.build": "files('tools/x/b.cu')"}, []),
    ],
}


def example_tree(folder, files):
    for path, text in files.items():
        target = pathlib.Path(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return tidy.Tree(folder)


def check_example(rule, files, want):
    """A list of lines that say what is wrong with the rule."""
    with tempfile.TemporaryDirectory() as folder:
        found = [(path, line) for path, line, _ in rule(example_tree(folder, files))]
    if sorted(found) == sorted(want):
        return []
    return [f"for {files!r}: found {found}, wanted {want}"]


def check_examples(rule):
    return [problem for files, want in EXAMPLES[rule] for problem in check_example(rule, files, want)]


def check_header_examples(options):
    """The header rule finds a header that leans on others, one that cannot be read twice, and C that C++ refuses."""
    rule = lambda tree: tidy.headers_alone(tree, options.cc, options.cxx, [])
    leaning = {"tiers/a.h": header("KVT_TIERS_A_H", "uint32_t kvt_x(void);\n")}
    twice = {"tiers/a.h": "enum kvt_x { KVT_A };\n"}
    c_only = {"include/kvtier/a.h": header("KVTIER_A_H", "int kvt_x(int new);\n"),
              "tiers/b.h": header("B", "int kvt_x(int new);\n")}
    good = {"include/kvtier/a.h": header("KVTIER_A_H"), "tiers/b.h": header("B", '#include "kvtier/a.h"\n')}
    problems = check_example(rule, leaning, [("tiers/a.h", 1)]) + check_example(rule, twice, [("tiers/a.h", 1)])
    problems += check_example(rule, c_only, [("include/kvtier/a.h", 1)] if options.cxx else [])
    return problems + check_example(rule, good, [])


def make_tests(options):
    """name: function that returns a list of lines, empty when all is well."""
    tree = tidy.Tree(ROOT)
    show = lambda findings: [f"{path}:{line}: {text}" for path, line, text in findings]
    tests = {}
    for rule in [*tidy.RULES, tidy.dead_files]:
        name = rule.__name__.removeprefix("rule_")
        tests[f"{name}_finds_its_examples"] = lambda rule=rule: check_examples(rule)
    for rule in tidy.RULES:
        tests[rule.__name__.removeprefix("rule_")] = lambda rule=rule: show(rule(tree))
    tests["dead_files"] = lambda: show(tidy.dead_files(tree, options.build))
    if options.cc:
        tests["headers_alone_finds_its_examples"] = lambda: check_header_examples(options)
        tests["headers_alone"] = lambda: show(tidy.headers_alone(tree, options.cc, options.cxx, options.flags))
    return tests


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", help="a configured build folder: its targets say which sources are built")
    parser.add_argument("--cc", default=shutil.which("cc") or "", help="C compiler")
    parser.add_argument("--cxx", default=shutil.which("c++") or "", help="C++ compiler; empty: no C++ is tried")
    parser.add_argument("--flags", default="", help="more flags for the headers (include paths of libraries)")
    parser.add_argument("--only", help="run the tests whose name contains this")
    options = parser.parse_args()
    for name in ("cc", "cxx", "flags"):
        setattr(options, name, shlex.split(getattr(options, name)))
    return options


def main():
    options = parse_options()
    is_failed = False
    for name, test in make_tests(options).items():
        if options.only and options.only not in name:
            continue
        problems = test()
        print("\n".join(f"  {problem}" for problem in problems) + "\n" if problems else "", end="")
        print(f"[  {'FAILED' if problems else '    OK'}  ] {name}")
        is_failed = is_failed or bool(problems)
    if not options.cc or not options.cxx:
        print(f"no {'C' if not options.cc else 'C++'} compiler: headers were not all tried")
    return 1 if is_failed else 0


if __name__ == "__main__":
    sys.exit(main())
