#!/usr/bin/env python3
"""Times whole models on one GPU: prefill, decode by batch, decode far into a text, and the scan of
Mamba-1, all with random weights in bf16 and in one run.

Every row is held against the rates of memory and of matrix products that the same program measured
on the same device right before.
"""

import argparse
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from adder_report import Failure, report_of

SCAN = "8 x 2048 tokens, d_inner 5120, dstate 16, bf16"
# Arguments of `bench model`; then those of the runs, one each, that decode far into a text.
MODELS = (
    ("mamba2-2.7b", ["--prefill", "512,2048,8192", "--decode", "256", "--batch", "16,64,128"]),
    ("mamba2-130m", ["--prefill", "512,2048,8192", "--decode", "512", "--batch", "16,64"]),
    ("mamba-130m", ["--prefill", "512,2048,8192", "--decode", "512", "--batch", "16,64"]),
)
POSITIONS = (1000, 30000, 1000000)


def rows_of(name, report):
    """A row for each figure of a model's report."""
    device_bytes = report["results"]["device_bytes"]
    rows = []
    for what in ("prefill", "decode"):
        for figure in report["results"][what]:
            row = {"model": name, "what": what}
            for key in ("tokens", "batch", "position"):
                if key in figure and (what == "decode" or key == "tokens"):
                    row[key] = figure[key]
            if "host_cpu" in figure:
                row["host_cpu"] = figure["host_cpu"]
            rows.append(row | {
                "ms": 1e3 * figure["median_s"],
                "p10_ms": 1e3 * figure["p10_s"],
                "p90_ms": 1e3 * figure["p90_s"],
                "tokens_per_s": figure["tokens_per_s"],
                "bound": figure["bound"],
                "of_bound": figure["percent_of_bound"] / 100,
                "device_bytes": device_bytes,
            })
    return rows


def find(rows, key, **wanted):
    """The figure of the first row that is as wanted, or None."""
    for row in rows:
        if all(row.get(k) == v for k, v in wanted.items()):
            return row.get(key)
    return None


def summary_of(rows, scan, reports):
    first = reports[0]
    big = {"model": "mamba2-2.7b"}
    decode = big | {"what": "decode", "batch": 1}
    near = find(rows, "ms", **decode, position=1000)
    far = find(rows, "ms", **decode, position=1000000)
    return {
        "decode_2p7b_b1_ms": find(rows, "ms", **decode),
        "decode_130m_b1_ms": find(rows, "ms", model="mamba2-130m", what="decode", batch=1),
        **{f"decode_2p7b_b{batch}_of_floor":
           find(rows, "of_bound", **big, what="decode", batch=batch) for batch in (16, 64, 128)},
        **{f"prefill_2p7b_{tokens}_ms": find(rows, "ms", **big, what="prefill", tokens=tokens)
           for tokens in (512, 2048, 8192)},
        "host_cpu_2p7b": find(rows, "host_cpu", **decode),
        "selective_scan_fwd_ms": 1e3 * scan["median_s"],
        "decode_2p7b_at_1000000_over_1000": far / near if near and far else None,
        "rates": {key: first["device"][key] for key in ("copy_gb_per_s", "matrix_tflop_per_s")},
        "versions": {key: first["device"][key] for key in ("driver", "runtime")}
                    | {"adder": first["adder"]["version"]},
        "commit": first["adder"]["commit"],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  bench/model_gpu.py build/release/adder --json "
               "bench/results/h200/model.json")
    parser.add_argument("adder", type=Path, help="the program to run")
    parser.add_argument("--json", type=Path, required=True, help="file to write the results to")
    arguments = parser.parse_args()
    rows = []
    reports = []

    def run(name, options):
        report = report_of(arguments.adder, ["model"],
                           ["--random", name, "--dtype", "bf16", *options])
        reports.append(report)
        return rows_of(name, report)

    for name, options in MODELS:
        rows += run(name, options)
    for name, _ in MODELS:
        for position in POSITIONS:
            # Its one prefill is the first of the process, and so says nothing.
            far = run(name, ["--prefill", "512", "--repeat", "1", "--decode", "256", "--position",
                             str(position)])
            rows += [row for row in far if row.get("position") == position]
    scan = report_of(arguments.adder, ["op", "selective_scan"], ["--shape", SCAN])["results"][0]
    rows.append({"op": "selective_scan", "shape": SCAN, "ms": 1e3 * scan["median_s"],
                 "bound": scan["bound"], "of_bound": scan["percent_of_bound"] / 100})
    result = {"schema": 1, "kind": "model_gpu",
              "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "machine": reports[0]["machine"], "device": reports[0]["device"],
              "summary": summary_of(rows, scan, reports), "rows": rows}
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"model_gpu: {failure}")
