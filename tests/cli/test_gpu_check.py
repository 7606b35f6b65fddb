#!/usr/bin/env python3
"""tools/gpu-check without a GPU: all of it on the emulated device, and what it refuses.

    tests/cli/test_gpu_check.py GPU_CHECK BUILD_FOLDER
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def run(script, *arguments):
    return subprocess.run([script, *arguments], capture_output=True, text=True, check=False, timeout=390)


def check(what, holds, shown=""):
    print(f"[{'      OK' if holds else '  FAILED'}  ] {what}")
    if not holds:
        print(shown)
    return holds


def main():
    script, build = sys.argv[1:]
    good = True
    for arguments, text in ((["--record", "--device", "emulated"], "--record"), (["--seconds", "1"], "--seconds"),
                            (["--no-build", "--build", "/nonexistent"], "--no-build")):
        done = run(script, *arguments)
        good &= check(f"{arguments[0]} is refused in one line", done.returncode == 2 and text in done.stderr
                      and len(done.stderr.splitlines()) == 1, done.stderr)

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "report.json")
        done = run(script, "--device", "emulated", "--no-build", "--build", build, "--json", str(path))
        shown = done.stdout + done.stderr
        good &= check("every check holds on the emulated device", done.returncode == 0, shown)
        report = json.loads(path.read_text(encoding="utf-8"))
        results = {stage["name"]: stage["result"] for stage in report["stages"]}
        good &= check("nothing failed, and what wants a GPU was skipped", report["failed"] == 0 and report["skipped"] >= 2
                      and results["checkkern under memcheck"] == "skipped", shown)
        good &= check("the kernels, the orders with their controls, run and bench are among them",
                      all(results.get(name) == "passed" for name in ("checkkern", "orders of streams, with controls",
                                                                     "control: stash before write", "kvtier run, stored",
                                                                     "kvtier bench copy")), shown)
        good &= check("each case of the bench has its ceiling", len(report["bench"]["cases"]) >= 14
                      and all(case["ceiling"] > 0 and case["value"] > 0 for case in report["bench"]["cases"]), shown)
        good &= check("it takes less than six minutes", report["seconds"] < 360, shown)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
