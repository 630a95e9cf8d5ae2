#!/usr/bin/env python3
"""Times Adder and llama.cpp on the same GGUF files, in turns: prefill, decode, loading and memory.

The models have published shapes and random weights (see make_gguf.py) and are written to the work
folder, unless they are there. Each round runs both programs, and the next round the other way
round. A figure is the median of the rounds. llama.cpp's are those of its own llama-bench.
"""

import argparse
import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path

import llama_cpp
import llama_cpp_rows as table
import make_gguf
from adder_report import Failure, report_of

MODELS = ("mamba2-130m", "mamba2-370m", "mamba-130m")
FORMATS = ("f32", "bf16", "q8_0", "q4_0")


def say(text):
    print(text, file=sys.stderr, flush=True)


def list_of(choices):
    """A parser of lists such as f32,bf16."""
    def parse(text):
        out = text.split(",")
        for word in out:
            if word not in choices:
                raise argparse.ArgumentTypeError(
                    f"'{word}' is none of {', '.join(choices)}")
        return out
    return parse


def count(text):
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no whole number from 1 on")
    return int(text)


def counts(text):
    return [count(word) for word in text.split(",")]


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  bench/compare_llama_cpp.py build/release/adder --work /tmp/llama "
               "--json bench/results/cpu-2core/model.json")
    parser.add_argument("adder", type=Path, help="the program to run")
    parser.add_argument("--llama", type=Path, metavar="PATH",
                        help="llama-bench, or a checkout of llama.cpp to build it from (default: "
                             f"the sources in the package {llama_cpp.PACKAGE}, by pip)")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER",
                        help="for models and for what is built; what is there already is used")
    parser.add_argument("--json", type=Path, required=True, help="file to write the results to")
    parser.add_argument("--model", type=list_of(make_gguf.SHAPES), default=MODELS,
                        metavar="NAME,...", help=f"shapes (default: {','.join(MODELS)})")
    parser.add_argument("--format", type=list_of(make_gguf.FORMATS), default=FORMATS,
                        metavar="NAME,...", help=f"of the weights (default: {','.join(FORMATS)})")
    parser.add_argument("--prefill", type=counts, default=[512, 2048], metavar="N,...",
                        help="lengths of prompts (default: 512,2048)")
    parser.add_argument("--decode", type=count, default=64, metavar="N",
                        help="tokens to decode (default: 64)")
    parser.add_argument("--rounds", type=count, default=5, metavar="N",
                        help="runs of each program on each file (default: 5)")
    parser.add_argument("--threads", type=count, default=len(os.sched_getaffinity(0)),
                        metavar="N", help="of each program (default: all cores)")
    return parser.parse_args()


class Comparison:
    """Both programs' figures so far, and the file that they are written to."""

    def __init__(self, options, bench):
        self.options = options
        self.bench = bench
        self.machines = []
        self.rows = []
        self.adder = {}
        self.versions = {
            "llama_cpp_python": llama_cpp.package_version(options.llama, options.work),
            "llama_cpp_commit": None,
        }

    def measure_machine(self):
        report = report_of(self.options.adder, ["machine"],
                           ["--threads", str(self.options.threads)], device="cpu", quiet=True)
        self.machines.append(report["machine"])
        self.adder = report["adder"]

    def run_adder(self, file):
        # Each prompt comes twice, and the first time warms up, as llama-bench does it.
        prefill = ",".join(f"{tokens},{tokens}" for tokens in self.options.prefill)
        return table.own_figures(report_of(
            self.options.adder, ["model"],
            ["--model", str(file), "--prefill", prefill, "--repeat", "1", "--decode",
             str(self.options.decode), "--threads", str(self.options.threads)],
            device="cpu", quiet=True))

    def run_llama(self, file):
        figures = llama_cpp.figures_of(self.bench, file, self.options.threads,
                                       self.options.prefill, self.options.decode)
        self.versions["llama_cpp_commit"] = figures["commit"]
        return figures

    def compare(self, model, format_name, file):
        self.measure_machine()
        ours, theirs = [], []
        for round_index in range(self.options.rounds):
            turns = [lambda: ours.append(self.run_adder(file)),
                     lambda: theirs.append(self.run_llama(file))]
            for take_turn in turns if round_index % 2 == 0 else turns[::-1]:
                take_turn()
            say(f"{file.name}, round {round_index + 1} of {self.options.rounds}: "
                + ", ".join(f"{what} {tokens} {theirs[-1]['seconds'][what, tokens] / seconds:.2f}x"
                            for (what, tokens), seconds in ours[-1]["seconds"].items())
                + f"; llama.cpp had {100 * theirs[-1]['cpu']:.0f} % of the cores")
        self.rows += table.rows_of(model, format_name, file.stat().st_size, ours, theirs)

    def write(self):
        """Writes the file anew; what is not measured yet is null in the summary."""
        machine = table.peaks_of(self.machines)
        rows = table.with_shares(self.rows, machine)
        report = {
            "schema": 1,
            "kind": "comparison",
            "with": "llama.cpp",
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "adder": self.adder,
            "machine": machine,
            "summary": table.summary_of(rows) | {
                "peaks": {name: value for name, value in machine.items() if "_per_s" in name},
                "threads": self.options.threads,
                "rounds": self.options.rounds,
                "versions": {"adder": self.adder.get("version")} | self.versions,
                "commit": self.adder.get("commit"),
            },
            "rows": rows,
        }
        file = self.options.json
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(file.name + ".partial")
        partial.write_text(json.dumps(report, indent=1) + "\n")
        os.replace(partial, file)
        return report


def main():
    options = parse_arguments()
    options.work.mkdir(parents=True, exist_ok=True)
    comparison = Comparison(options, llama_cpp.bench_of(options.llama, options.work))
    for model in options.model:
        for format_name in options.format:
            file = options.work / f"{model}-{format_name}.gguf"
            if not file.exists():
                say(f"writing {file}")
                # In a process of its own, since this one has to stay small (see llama_cpp.run).
                llama_cpp.run_tool(sys.executable, make_gguf.__file__, model, format_name, file)
            comparison.compare(model, format_name, file)
            comparison.write()
    comparison.measure_machine()
    report = comparison.write()
    print(table.table_of(report["rows"]))
    for name, value in report["summary"].items():
        print(f"{name}: {json.dumps(value)}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"compare_llama_cpp: {failure}")
    except OSError as error:
        sys.exit(f"compare_llama_cpp: {error.filename}: {error.strerror}")
