#!/usr/bin/env python3
"""What `kvtier run --metrics` writes and `kvtier top` shows, read by Prometheus' own strict OpenMetrics parser.

    tests/cli/test_metrics.py KVTIER

Skipped (exit status 77) where the parser is not installed (Debian: python3-prometheus-client).
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families
except ImportError:
    system_python = "/usr/bin/python3"  # Debian's packages are there, whatever comes first in PATH
    if os.path.realpath(sys.executable) != os.path.realpath(system_python) and os.path.exists(system_python):
        os.execv(system_python, [system_python, *sys.argv])
    print("skipped: no prometheus_client (Debian: python3-prometheus-client)")
    sys.exit(77)


def run(folder, program, *arguments):
    return subprocess.run([program, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def record(folder, program):
    """A run through all tiers; its report and its metrics as Prometheus reads them."""
    result = run(folder, program, "run", "--workload", "chat", "--requests", "24", "--hbm", "16MiB", "--host", "16MiB",
                 "--nvme", "kv:64MiB", "--nvme-writes-per-day", "1GiB", "--metrics", "metrics", "--json")
    report = json.loads(result.stdout)
    text = pathlib.Path(folder, "metrics").read_text(encoding="utf-8")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    return report, families


def value(families, family, sample, **labels):
    values = [s.value for s in families[family].samples if s.name == sample and s.labels == labels]
    assert len(values) == 1, f"{sample}{labels}: {len(values)} samples"
    return values[0]


def check_families(families):
    wrong = []
    for family in families.values():
        if not family.documentation:
            wrong.append(f"{family.name}: no HELP")
        if family.type == "unknown":
            wrong.append(f"{family.name}: no TYPE")
    return wrong


def check_report(report, families):
    """Counters at the end of the run are the report's."""
    wrong = []
    for tier in report["tiers"]:
        name = tier["name"]
        pairs = {
            "capacity_bytes": value(families, "kvtier_tier_capacity_bytes", "kvtier_tier_capacity_bytes", tier=name),
            "peak_bytes": value(families, "kvtier_tier_peak_bytes", "kvtier_tier_peak_bytes", tier=name),
            "evictions": value(families, "kvtier_tier_evictions", "kvtier_tier_evictions_total", tier=name),
            "hits": value(families, "kvtier_lookup_blocks", "kvtier_lookup_blocks_total", found=name),
            "bytes_in": value(families, "kvtier_tier_moved_bytes", "kvtier_tier_moved_bytes_total", tier=name,
                              direction="in"),
        }
        wrong += [f"{name} {field}: report {tier[field]}, metrics {metric}"
                  for field, metric in pairs.items() if tier[field] != metric]
    return wrong


def check_documentation(families):
    """docs/operations.md explains each family, and none that is not there."""
    page = pathlib.Path(__file__, "../../../docs/operations.md").resolve().read_text(encoding="utf-8")
    explained = set(re.findall(r"`(kvtier_\w+)`", page))
    return ([f"{name} is not in docs/operations.md" for name in sorted(families.keys() - explained)]
            + [f"{name} is in docs/operations.md and nowhere else" for name in sorted(explained - families.keys())])


def check_top(folder, program):
    wrong = []
    once = run(folder, program, "top", "metrics")
    for word in ("device", "host_to_device", "host_to_window", "records", "stalls"):
        if once.returncode != 0 or word not in once.stdout:
            wrong.append(f"top: exit status {once.returncode}, no {word!r} in {once.stdout!r}")
    samples = json.loads(run(folder, program, "top", "--json", "metrics").stdout)["samples"]
    if 'kvtier_tier_blocks{tier="host"}' not in samples:
        wrong.append("top --json: a sample is missing")
    return wrong


def check_refusals(folder, program):
    """One line and exit status 2, and nothing left behind."""
    wrong = []
    pathlib.Path(folder, "half").write_text("# TYPE kvtier_steps counter\nkvtier_steps_total 1\n", encoding="utf-8")
    before = sorted(os.listdir(folder))
    refused = [("top",), ("top", "missing"), ("top", "half"), ("top", "--interval", "1", "metrics"),
               ("top", "metrics", "more"), ("top", "--interval", "1ms", "metrics"),
               ("run", "--workload", "chat", "--requests", "1", "--metrics", "missing/metrics")]
    for arguments in refused:
        result = run(folder, program, *arguments)
        if result.returncode != 2 or result.stderr.count("\n") != 1 or result.stdout:
            wrong.append(f"{arguments}: exit status {result.returncode}, {result.stderr!r}")
    if sorted(os.listdir(folder)) != before:
        wrong.append("a refused command left something behind")
    return wrong


def main():
    program = os.path.realpath(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        report, families = record(folder, program)
        wrong = (check_families(families) + check_report(report, families) + check_documentation(families)
                 + check_top(folder, program) + check_refusals(folder, program))
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
