#!/usr/bin/env python3
"""Writes the Python module that describes the public C headers to cffi: their declarations are read, not repeated.

    make_abi.py --name kvtier._abi --out _abi.py HEADER.h...

The headers are given in the order in which they need each other. What cffi's parser does not know is taken out first:
comments, includes and guards, what only C++ or a compiler wants to know; the X-macro of the statuses is spelled out.
"""
import argparse
import pathlib
import re
import sys

import cffi

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
STATUS = re.compile(r"X\((\w+), (-?\d+), \"[^\"]*\"\)")
STATUS_MACRO = re.compile(r"#define KVT_STATUS_LIST\(X\)(?:[^\n]*\\\n)*[^\n]*\n")
STATUS_ENUM = re.compile(r"enum kvt_status \{.*?\};", re.DOTALL)
CPLUSPLUS = re.compile(r"#ifdef __cplusplus\n.*?#endif\n", re.DOTALL)
NUMBER = re.compile(r"#define (\w+) \(?(0x[0-9a-fA-F]+|\d+)[uUlL]*\)?\s*$")


def declarations(text):
    """The declarations of one header, as cffi reads them."""
    text = COMMENT.sub(" ", text)
    statuses = STATUS.findall(text)
    text = CPLUSPLUS.sub("", STATUS_MACRO.sub("", text))
    if statuses:
        values = ", ".join(f"KVT_{name} = {value}" for name, value in statuses)
        text = STATUS_ENUM.sub(f"enum kvt_status {{ {values} }};", text)
    text = re.sub(r"\b(KVT_API|KVT_NODISCARD)\b(?!\s*__attribute__)", "", "\n".join(kept_lines(text)))
    return text


def kept_lines(text):
    """All lines but the preprocessor's; of those, the plain numbers, which are sizes of arrays."""
    for line in text.splitlines():
        if not line.lstrip().startswith("#"):
            yield line
        elif number := NUMBER.match(line.strip()):
            yield f"#define {number.group(1)} {number.group(2)}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--name", required=True, help="full name of the module")
    parser.add_argument("--out", required=True, help="file to write")
    parser.add_argument("headers", nargs="+", type=pathlib.Path)
    options = parser.parse_args()
    ffi = cffi.FFI()
    for header in options.headers:
        try:
            ffi.cdef(declarations(header.read_text(encoding="utf-8")))
        except (cffi.CDefError, cffi.FFIError) as error:
            print(f"{header}: cffi cannot read it: {error}", file=sys.stderr)
            return 1
    ffi.set_source(options.name, None)
    ffi.emit_python_code(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
