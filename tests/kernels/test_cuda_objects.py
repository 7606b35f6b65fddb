#!/usr/bin/env python3
"""Every CUDA object holds machine code for each architecture that the build was asked for, and PTX of the last.

    tests/kernels/test_cuda_objects.py --arch 80 --arch 90 --arch 100 FILE.cu.o...

Reads the fat binaries inside the objects: a header (magic, version, size), then an entry for each image with its kind
(1 PTX, 2 machine code) and its architecture. Without objects (a build without nvcc) it says so and is skipped.
"""
import argparse
import pathlib
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
PTX, CODE = 1, 2
SKIPPED = 77


def images(data):
    """(kind, architecture) of every image in an object."""
    start = data.find(MAGIC)
    while start >= 0:
        _, _, header_bytes, size = struct.unpack_from("<IHHQ", data, start)
        at, end = start + header_bytes, start + header_bytes + size
        while at < end:
            kind, _, entry_header, entry_bytes = struct.unpack_from("<HHIQ", data, at)
            yield kind, struct.unpack_from("<I", data, at + 28)[0]
            at += entry_header + entry_bytes
        start = data.find(MAGIC, end)


def problems_of(data, architectures):
    found = set(images(data))
    missing = [f"no machine code for sm_{arch}" for arch in architectures if (CODE, arch) not in found]
    if (PTX, architectures[-1]) not in found:
        missing.append(f"no PTX for compute_{architectures[-1]}")
    return missing


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", action="append", required=True, type=lambda text: int(text.rstrip("af")))
    parser.add_argument("objects", nargs="*")
    options = parser.parse_args()
    if not options.objects:
        print("skipped: this build has no nvcc, so no .cu was compiled")
        return SKIPPED
    failed = False
    for path in map(pathlib.Path, options.objects):
        problems = problems_of(path.read_bytes(), options.arch)
        failed = failed or bool(problems)
        name = path.name.replace(".cu.o", "").replace(".", "_")
        print("".join(f"  {problem}\n" for problem in problems), end="")
        print(f"[  {'FAILED' if problems else '    OK'}  ] {name}_is_compiled_for_every_architecture")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
