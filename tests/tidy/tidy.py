"""The style rules, each a function from a tree to findings. test_tidy.py runs them on the checkout and on bad examples.

A finding is (path, line, text). A rule sees a Tree, so that an example in a temporary folder is checked like the
real thing.
"""
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import tempfile

# ---- The tree --------------------------------------------------------------------------------------------------------

LAYER_FOLDERS = ("connectors", "include", "kernels", "policy", "runtime", "tests", "tiers", "tools")
SKIPPED_FOLDERS = {".git", ".venv", "__pycache__", ".cache"}
C_SUFFIXES = {".c", ".h", ".cu", ".cuh"}
CODE_SUFFIXES = C_SUFFIXES | {".S", ".py", ".sh", ".cc", ".cpp"}
TEXT_NAMES = {"meson.build", "meson_options.txt", "dev", "run", ".clang-format", ".clang-tidy"}
TEXT_SUFFIXES = CODE_SUFFIXES | {".md", ".build"}

COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)


def blanked(text, keep_strings=False):
    """C text with comments (and strings) replaced by spaces; lines stay lines."""
    def blank(match):
        found = match.group()
        if found[0] == '"' and keep_strings:
            return found
        return re.sub(r"[^\n]", " ", found)
    return COMMENT_OR_STRING.sub(blank, text)


class Tree:
    """The files of a checkout that rules look at. Build folders and what is not ours are left out."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.paths = sorted(self._walk())
        self._texts = {}
        self._code = {}

    def _walk(self):
        for folder, names, files in os.walk(self.root):
            at_root = pathlib.Path(folder) == self.root
            names[:] = [n for n in names if n not in SKIPPED_FOLDERS and not n.startswith("build")]
            if at_root:
                names[:] = [n for n in names if n in LAYER_FOLDERS or n in ("docs", ".ci")]
            for name in files:
                path = pathlib.Path(folder, name)
                if (path.suffix in TEXT_SUFFIXES or name in TEXT_NAMES) and not path.is_symlink():
                    yield path.relative_to(self.root).as_posix()

    def text(self, path):
        if path not in self._texts:
            self._texts[path] = (self.root / path).read_text(encoding="utf-8")
        return self._texts[path]

    def code(self, path):
        """The text of a C file without comments and strings."""
        if path not in self._code:
            self._code[path] = blanked(self.text(path))
        return self._code[path]

    def c_files(self, *suffixes):
        wanted = set(suffixes) or C_SUFFIXES
        return [p for p in self.paths if pathlib.PurePosixPath(p).suffix in wanted]


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


def search_code(tree, paths, pattern):
    """(path, line, match) of every place where the pattern occurs outside comments and strings."""
    for path in paths:
        code = tree.code(path)
        for match in re.finditer(pattern, code):
            yield path, line_of(code, match.start()), match


# ---- Includes point downward -----------------------------------------------------------------------------------------

# A layer may include itself, the public headers, and what stands here.
MAY_INCLUDE = {
    "include": set(),
    "runtime/base": set(),
    "kernels": {"runtime/base"},
    "tiers": {"kernels", "runtime/base"},
    "policy": {"runtime/base"},
    "runtime": {"policy", "tiers", "kernels", "runtime/base"},
    "tools": {"runtime", "policy", "tiers", "kernels", "runtime/base"},
    "connectors": {"runtime", "policy", "tiers", "kernels", "runtime/base"},
    "tests": set(LAYER_FOLDERS) | {"runtime/base"},
}
GENERATED_HEADERS = {"config.h"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:"([^"]+)"|<(kvtier/[^>]+)>)', re.MULTILINE)


def layer_of(path):
    if path.startswith("runtime/base/"):
        return "runtime/base"
    top = path.split("/", 1)[0]
    return top if top in LAYER_FOLDERS and "/" in path else None


def included_file(tree, name):
    """The file that a name stands for, from the project root or from include/; None when it is neither."""
    known = set(tree.paths)
    return next((p for p in (name, "include/" + name) if p in known), None)


def rule_includes(tree):
    for path in tree.c_files():
        source = layer_of(path)
        text = blanked(tree.text(path), keep_strings=True)
        for match in INCLUDE.finditer(text):
            name, line = match.group(1) or match.group(2), line_of(text, match.start())
            if name in GENERATED_HEADERS:
                continue
            target_path = included_file(tree, name)
            if target_path is None:
                yield path, line, f'"{name}" is no file, seen from the project root or include/'
                continue
            target = layer_of(target_path)
            if target in (source, "include") or target in MAY_INCLUDE[source]:
                continue
            yield path, line, f"{source} may not include {target} ({name})"


# ---- Headers ---------------------------------------------------------------------------------------------------------

def guard_of(path):
    """runtime/base/key.h: KVT_RUNTIME_BASE_KEY_H; include/kvtier/shape.h: KVTIER_SHAPE_H."""
    if path.startswith("include/"):
        return re.sub(r"\W", "_", path[len("include/"):]).upper()
    return "KVT_" + re.sub(r"\W", "_", path).upper()


def rule_guards(tree):
    for path in tree.c_files(".h", ".cuh"):
        code, want = tree.code(path), guard_of(path)
        found = re.search(r"#ifndef[ \t]+(\w+)\s+#define[ \t]+(\w+)", code)
        if not found or found.group(1) != want or found.group(2) != want:
            line = line_of(code, found.start()) if found else 1
            yield path, line, f"the include guard should be {want}"


def compile_text(command, text, language):
    """None when the text compiles, else the first line of what the compiler says."""
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "alone.c" if language == "c" else "alone.cc")
        source.write_text(text, encoding="utf-8")
        run = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    if run.returncode == 0:
        return None
    lines = (run.stderr or run.stdout).strip().splitlines()
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message")


def headers_alone(tree, cc, cxx, flags):
    """Every header compiles as the first and only thing in a C file, twice; a public one also as C++."""
    shared = [*flags, "-I", str(tree.root), "-I", str(tree.root / "include"), "-D_GNU_SOURCE", "-fsyntax-only",
              "-Wall", "-Wextra", "-Werror"]
    for path in tree.c_files(".h"):
        name = path[len("include/"):] if path.startswith("include/") else path
        text = f'#include "{name}"\n#include "{name}"\n'
        problem = compile_text([*cc, "-std=gnu11", *shared], text, "c")
        if problem:
            yield path, 1, f"does not compile alone as C: {problem}"
        if cxx and path.startswith("include/"):
            problem = compile_text([*cxx, "-std=c++17", *shared], text, "c++")
            if problem:
                yield path, 1, f"does not compile alone as C++: {problem}"


# ---- Sizes -----------------------------------------------------------------------------------------------------------

LINE_MAX, FUNCTION_LINES_MAX, FILE_LINES_MAX = 120, 70, 900


def is_prose(path):
    return path.endswith(".md")


def rule_line_length(tree):
    for path in tree.paths:
        if is_prose(path):
            continue
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if len(line) > LINE_MAX:
                yield path, number, f"{len(line)} columns, at most {LINE_MAX}"


def rule_file_length(tree):
    for path in tree.paths:
        count = len(tree.text(path).splitlines())
        if pathlib.PurePosixPath(path).suffix in CODE_SUFFIXES and count > FILE_LINES_MAX:
            yield path, FILE_LINES_MAX + 1, f"{count} lines, at most {FILE_LINES_MAX}"


def functions(tree, path):
    """(name, line of the opening brace, lines of the body) of each function of a C file."""
    lines = tree.code(path).split("\n")
    start = None
    for number, line in enumerate(lines, 1):
        if line.rstrip() == "{":
            start = number
        elif start and line.startswith("}"):
            heading = "\n".join(lines[max(0, start - 12):start - 1])
            heading = re.split(r"[;}]|^#.*$", heading, flags=re.MULTILINE)[-1]
            name = re.search(r"(\w+)\s*\(", heading)
            yield (name.group(1) if name else "?"), start, number - start - 1
            start = None


def rule_function_length(tree):
    for path in tree.c_files():
        for name, line, count in functions(tree, path):
            if count > FUNCTION_LINES_MAX:
                yield path, line, f"{name} has {count} lines, at most {FUNCTION_LINES_MAX}"


def rule_function_brace(tree):
    """Without this, a function could hide from the length rule."""
    pattern = r"(?m)^(?!typedef|struct \w+ \{|enum|#|extern)[a-z_][\w \t*]*\([^;{}]*\)[ \t]*\{[ \t]*$"
    for path, line, _ in search_code(tree, tree.c_files(), pattern):
        yield path, line, "the brace of a function stands on its own line"


# ---- Banned calls ----------------------------------------------------------------------------------------------------

LIBRARY = ("kernels/*", "policy/*", "runtime/*", "tiers/*")

# (where, where not, names, what to use instead). `*` in a pattern also matches `/`.
BANNED_CALLS = [
    (("*",), ("runtime/base/mem.c", "tests/*"),
     "malloc calloc realloc free strdup strndup asprintf vasprintf aligned_alloc posix_memalign memalign valloc",
     "runtime/base/mem.h: a test fails the n-th allocation there"),
    (("*",), (), "alloca strcpy strcat stpcpy sprintf vsprintf gets strtok",
     "a call that knows the size of its target"),
    (("*",), (), "rand srand random srandom drand48 lrand48", "runtime/base/rng.h: a seed replays"),
    (("*",), (), "time clock gettimeofday", "kvt_env_now_ns: a simulation has its own clock"),
    (("*",), (), "atoi atol atoll atof", "a parser that refuses what is no number"),
    (("*",), (), "assert", "KVT_ASSERT, or cmocka's in tests"),
    (("tests/*",), (), "sleep usleep nanosleep clock_nanosleep",
     "an event: a test waits for what it means, not for luck"),
    (LIBRARY, ("runtime/base/assert.c",), "exit _exit abort quick_exit", "a status: a library never ends the process"),
    (LIBRARY, ("runtime/base/assert.c",), "printf puts putchar perror", "kvt_log: a library does not print"),
]


def matches(path, patterns):
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def rule_banned_calls(tree):
    for where, where_not, names, instead in BANNED_CALLS:
        paths = [p for p in tree.c_files() if matches(p, where) and not matches(p, where_not)]
        pattern = r"(?<![\w.>])(" + "|".join(names.split()) + r")\s*\("
        for path, line, match in search_code(tree, paths, pattern):
            yield path, line, f"{match.group(1)}() is banned: {instead}"


# ---- One writer ------------------------------------------------------------------------------------------------------

# (where, where not, what assigns, the files that may, why). In each allowed file one function alone may do it.
ASSIGNS = r"\s*(?:(?:[-+|&^]|<<|>>)?=(?!=)|\+\+|--)"
SINGLE_WRITERS = [
    (("runtime/*", "tools/*"), (), r"[\w\])](?:\.|->)state_bits" + ASSIGNS, ("runtime/block.c", "runtime/block.h"),
     "copy states change in kvt_copy_step() alone"),
    (("runtime/*",), ("runtime/base/*",), r"[\w\])](?:\.|->)state" + ASSIGNS, ("runtime/block.c", "runtime/reader.c", "runtime/transfer.c"),
     "a state changes in the one function that has its edge table"),
]


def function_at(tree, path, line):
    for name, start, count in functions(tree, path):
        if start <= line <= start + count + 1:
            return name
    return None


def rule_single_writer(tree):
    for where, where_not, pattern, allowed, why in SINGLE_WRITERS:
        writers = {}
        paths = [p for p in tree.c_files() if matches(p, where) and not matches(p, where_not)]
        for path, line, match in search_code(tree, paths, pattern):
            line += match.group().count("\n")
            if path not in allowed:
                yield path, line, f"assigned outside {' and '.join(allowed)}: {why}"
                continue
            writer = function_at(tree, path, line)
            if writers.setdefault(path, writer) != writer:
                yield path, line, f"assigned in {writer} and in {writers[path]}: {why}"


# ---- Words and paths -------------------------------------------------------------------------------------------------

# Spelled so that this file does not find itself.
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK")) + r")\b")
HOME_PATH = re.compile(r"(?<![\w.~$})*-])/(home|root|work|Users|mnt/c)/\w")


def rule_unfinished(tree):
    for path in tree.paths:
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            found = UNFINISHED.search(line)
            if found:
                yield path, number, f"{found.group()}: finish it, or say what does not hold yet and why"


def rule_home_paths(tree):
    for path in tree.paths:
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            found = HOME_PATH.search(line)
            if found:
                yield path, number, f"a path of one machine: {found.group()}..."


# ---- Folders and build files -----------------------------------------------------------------------------------------

def rule_readmes(tree):
    for folder in sorted({p.rsplit("/", 1)[0] for p in tree.paths if pathlib.PurePosixPath(p).suffix in CODE_SUFFIXES}):
        if folder + "/README.md" not in tree.paths:
            yield folder, 1, "has sources and no README.md"


def sources_of_build(build):
    """Resolved paths of the sources of every target of a configured build folder."""
    targets = json.loads(pathlib.Path(build, "meson-info", "intro-targets.json").read_text(encoding="utf-8"))
    parts = [part for target in targets for part in target.get("target_sources", [])]
    return {os.path.realpath(source) for part in parts for source in part.get("sources", [])}


def is_named_in_build_file(tree, path):
    """Quoted, with its suffix, in a meson.build of its folder or above."""
    folder = pathlib.PurePosixPath(path).parent
    while True:
        build_file = (folder / "meson.build").as_posix()
        relative = pathlib.PurePosixPath(path).relative_to(folder).as_posix()
        if build_file in tree.paths and f"'{relative}'" in tree.text(build_file):
            return True
        if folder == pathlib.PurePosixPath("."):
            return False
        folder = folder.parent


def dead_files(tree, build=None):
    """A source that no target has and no build file names. Some are named only: another option builds them."""
    built = sources_of_build(build) if build else set()
    for path in tree.c_files(".c", ".cu"):
        if os.path.realpath(tree.root / path) not in built and not is_named_in_build_file(tree, path):
            yield path, 1, "no target builds it and no meson.build names it"


RULES = [rule_includes, rule_guards, rule_file_length, rule_function_length, rule_function_brace,
         rule_banned_calls, rule_single_writer, rule_unfinished, rule_home_paths, rule_readmes]
