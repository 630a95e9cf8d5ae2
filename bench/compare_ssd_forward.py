#!/usr/bin/env python3
"""Times ssd_forward of Adder and mamba_ssm's Triton version of it, one after the other on one GPU.

Both are timed on a grid of 36 shapes and at layers of Mamba-2 models, in bf16, by CUDA events
around replays of captured graphs. Of mamba_ssm the lowest time counts: of chunk sizes 128 and 256,
of rotating among copies of the arguments (as Adder is timed) and of overwriting the L2 cache before
each call. Its kernels choose their tiles at the first size they meet; here they choose twice for
each chunk size and dstate, at 4,096 and at 65,536 tokens a sequence. Without PyTorch, Triton or
mamba_ssm only Adder is timed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import mamba_jobs
import ssd_forward_rows as table
from adder_report import Failure, report_of


def say(text):
    print(text, file=sys.stderr, flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  bench/compare_ssd_forward.py build/release/adder ~/mamba "
               "--json bench/results/h200/ssd_forward.json")
    parser.add_argument("adder", type=Path, help="the program to run `bench op ssd_forward` of")
    parser.add_argument("mamba", type=Path, nargs="?", help="folder that holds mamba_ssm/")
    parser.add_argument("--json", type=Path, required=True, help="file to write the results to")
    parser.add_argument("--seconds", type=float, default=0.2, help="for each figure (default: 0.2)")
    parser.add_argument("--shape", default="", metavar="TEXT",
                        help="only shapes whose description contains this, such as 'dstate 128'")
    return parser.parse_args()


def driver_version():
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.split("\n")[0]
    except OSError:
        return ""


class Comparison:
    """Both programs' figures so far, and the file that they are written to."""

    def __init__(self, report, results, cases, file):
        device = report.get("device", {})
        self.report = report
        self.file = file
        self.cases = cases
        self.results = results
        self.rates = {"adder": {"copy_gb_per_s": device.get("copy_gb_per_s"),
                                "matmul_tflop_per_s": device.get("matrix_tflop_per_s")}}
        self.replies = []
        adder = report.get("adder", {})
        self.versions = {"adder": adder.get("version"), "commit": adder.get("commit"),
                         "driver": driver_version(), "driver_cuda": device.get("driver"),
                         "runtime_cuda": device.get("runtime")}

    def rows(self, rates, model):
        return [
            table.join(case, self.results.get(case.key),
                       [reply for reply in self.replies if table.key_of(reply) == case.key], rates)
            for case in self.cases if case.model == model
        ]

    def write(self):
        """Writes the file anew: what is not measured yet is null."""
        rates = table.best_rates(self.rates)
        rows, models = self.rows(rates, False), self.rows(rates, True)
        report = {
            "schema": 1,
            "kind": "comparison",
            "op": "ssd_forward",
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "adder": self.report.get("adder"),
            "machine": self.report.get("machine"),
            "device": self.report.get("device"),
            "summary": table.summary_of(rows, models, rates) | {"versions": self.versions},
            "rates": self.rates,
            "rows": rows,
            "models": models,
            "triton": self.replies,
        }
        self.file.parent.mkdir(parents=True, exist_ok=True)
        partial = self.file.with_name(self.file.name + ".partial")
        partial.write_text(json.dumps(report, indent=1) + "\n")
        os.replace(partial, self.file)
        return report

    def time_mamba(self, mamba, seconds):
        jobs = mamba_jobs.jobs_of(self.cases, self.results)
        self.versions["mamba_ssm"] = mamba_jobs.version_of(mamba)

        def take(answer):
            self.versions |= answer.get("versions", {})
            if "rates" in answer:
                self.rates["torch"] = answer["rates"]
            if "job" not in answer:
                return
            job = jobs[answer.pop("job")]
            fields = {name: job[name] for name in (*table.KEY, "chunk_size")}
            self.replies.append(fields | answer)
            figure = (answer["error"] if "error" in answer else
                      f"{min(answer['rotated_ms'][1], answer['flushed_ms'][1]):.4g} ms")
            say(f"mamba_ssm {job['batch']} x {job['seqlen']}, nheads {job['nheads']}, dstate "
                f"{job['dstate']}, chunk {job['chunk_size']}: {figure}")
            self.write()

        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            mamba_jobs.copy_kernels(mamba, folder)
            say("mamba_ssm: compiling kernels")
            mamba_jobs.compile_kernels(folder, jobs)

            def start(some, first):
                request = {"seconds": seconds, "rates": first, "compile_only": False, "jobs": some}
                return mamba_jobs.start_worker(folder, request)

            mamba_jobs.run_jobs(jobs, start, take)


def print_summary(report):
    print("\n" + table.table_of(report["rows"]))
    print(table.table_of(report["models"]))
    for name, value in report["summary"].items():
        print(f"{name}: {json.dumps(value)}")


def main():
    options = parse_arguments()
    shape = ["--shape", options.shape] if options.shape else []
    report = report_of(options.adder, ["op", "ssd_forward"],
                       ["--seconds", str(options.seconds), *shape])
    results = table.own_results(report)
    cases = table.grid_cases() + table.model_cases()
    if options.shape:
        cases = [case for case in cases if case.key in results]
    if not results.keys() & {case.key for case in cases}:
        raise Failure(f"{options.adder} has results for none of the shapes, expected some "
                            f"such as '{table.MAMBA2_2P7B.shape}'")
    comparison = Comparison(report, results, cases, options.json)
    comparison.write()
    absent = mamba_jobs.missing(options.mamba)
    if absent:
        say(f"compare_ssd_forward: mamba_ssm is not timed: {absent}")
    else:
        comparison.time_mamba(options.mamba, options.seconds)
    print_summary(comparison.write())
    unmeasured = [case.shape for case in cases if case.key not in results]
    if unmeasured:
        raise Failure(f"adder has no result for {len(unmeasured)} of {len(cases)} shapes, "
                            f"the first is '{unmeasured[0]}'")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"compare_ssd_forward: {failure}")
