#!/usr/bin/env python3
"""Holds kvtier sim against kvtier run on this machine: calibrates it, runs three workloads that stall for seconds over
paced links, simulates them with --links, and prints hits, reused tokens and stall seconds beside each other.

    tools/sim/compare.py KVTIER DIRECTORY

DIRECTORY is where the store's files go; what is made there is removed. Takes about a minute and a half. Exit status 0
when hits are equal, reused tokens within 1 % and stall seconds within 10 %; 1 when not; 2 for wrong use.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

CHAT = "--workload chat --requests 40 --shape layers=8,kv_heads=2,head_dim=64,dtype=bf16 --verify off --prefetch demand"
LONGDOC = "--workload longdoc --requests 40 --shape layers=4,kv_heads=2,head_dim=64,dtype=bf16 --verify off"
WORKLOADS = [
    ("chats over a slow host link",
     CHAT + " --hbm 32MiB --host 256MiB --link-hbm 0.03 --step-ms 4 --batch 4"),
    ("documents, two at once",
     LONGDOC + " --hbm 60MiB --host 128MiB --link-hbm 0.02 --step-ms 5 --batch 2 --prefill-chunk 512"),
    ("chats over a slow disk",
     CHAT + " --hbm 24MiB --host 24MiB --nvme {nvme}:1GiB --link-hbm 0.1 --link-nvme 0.03 --step-ms 2 --batch 2"
     " --arrival sequential"),
]
REUSED_WITHIN, STALLS_WITHIN = 0.01, 0.10


def report(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}")
    return json.loads(done.stdout)


def hits(result):
    return [tier["hits"] for tier in result["tiers"]]


def compare(kvtier, links, folder, name, words):
    """Prints one line; True when everything holds."""
    store = os.path.join(folder, "kv")
    run = report([kvtier, "run", *words.format(nvme=store).split(), "--json"])
    sim = report([kvtier, "sim", *words.format(nvme="x").split(), "--links", links, "--json"])["results"][0]
    reused, stalls = sim["tokens"]["reused"] / run["tokens"]["reused"], (
        sim["steps"]["stall_seconds"] / run["steps"]["stall_seconds"])
    holds = hits(run) == hits(sim) and abs(reused - 1) <= REUSED_WITHIN and abs(stalls - 1) <= STALLS_WITHIN
    print(f"{name:30}  hits {hits(run)} run, {hits(sim)} sim;  reused {run['tokens']['reused']} run, sim x {reused:.4f};  "
          f"stalls {run['steps']['stall_seconds']:.3f} s run, sim x {stalls:.3f}  {'ok' if holds else 'NO'}", flush=True)
    return holds


def main():
    if len(sys.argv) != 3 or not os.access(sys.argv[1], os.X_OK) or not os.path.isdir(sys.argv[2]):
        sys.exit(__doc__) if len(sys.argv) == 2 and sys.argv[1] == "--help" else None
        print("compare.py: needs the program and a directory: compare.py KVTIER DIRECTORY", file=sys.stderr)
        return 2
    kvtier = os.path.abspath(sys.argv[1])
    folder = tempfile.mkdtemp(prefix="kvtier-compare-", dir=sys.argv[2])
    try:
        links = os.path.join(folder, "links.json")
        report([kvtier, "bench", "--calibrate", links, "--dir", folder, "--json"])
        outcomes = [compare(kvtier, links, folder, name, words) for name, words in WORKLOADS]
    finally:
        shutil.rmtree(folder)
    return 0 if all(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
