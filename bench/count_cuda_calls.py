#!/usr/bin/env python3
"""Counts the calls of the CUDA driver during two generations, one of ten times as many tokens as
the other: where both make the same calls, none belongs to a token, and the host neither starts
work nor waits while the device decodes.

LIBRARY is what a build with -DADDER_CUDA_CALLS=ON makes beside the program, libcuda_calls.so.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

from adder_report import Failure

TIMES = 10
# The device decodes so many tokens before the host must tell it to go on.
RING_TOKENS = 4096
# These ask and set what the calling thread knows of devices, and reach none.
OF_THE_HOST = ("cuCtxGetCurrent", "cuCtxGetDevice_v2", "cuCtxSetCurrent", "cuDeviceGet")


def generate(arguments, tokens):
    """What one generation called, and how long the tokens took from the first to the last."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "calls.json"
        model = ["-m", arguments.model] if arguments.model else []
        command = [str(arguments.adder), "generate", "--device", "cuda", *model, "--ids", "1",
                   "-n", str(tokens), "--seed", "1", "--ignore-eos", "--json"]
        paths = [str(arguments.cupti)] if arguments.cupti else []
        paths += [path for path in (os.environ.get("LD_LIBRARY_PATH"),) if path]
        environment = os.environ | {"CUDA_INJECTION64_PATH": str(arguments.library.resolve()),
                                    "ADDER_CUDA_CALLS": str(file)}
        if paths:
            environment["LD_LIBRARY_PATH"] = ":".join(paths)
        try:
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE)
        except OSError as error:
            raise Failure(f"{arguments.adder} does not run: {error.strerror}") from error
        if done.returncode != 0:
            raise Failure(f"{' '.join(command)} exited with {done.returncode}, expected 0")
        try:
            report = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise Failure(f"{arguments.library} left no report that can be read, expected the "
                          f"driver to load it: {error}") from error
        output = json.loads(done.stdout)
    if len(output["ids"]) != tokens:
        raise Failure(f"{arguments.adder} generated {len(output['ids'])} tokens, expected {tokens}")
    return run_of(tokens, tokens / output["stats"]["decode_tokens_per_s"], report)


def run_of(tokens, decode_s, report):
    """A row of the results; the last launch of a graph is that of the loop."""
    events = report["events"]
    launches = [i for i, event in enumerate(events) if event["call"].startswith("cuGraphLaunch")]
    if not launches:
        raise Failure("no graph was launched, expected the one that decodes")
    launch = events[launches[-1]]
    return {"tokens": tokens, "decode_s": decode_s, "calls": report["calls"],
            "waits": len(events) - len(launches),
            "waits_after_launch": [
                event | {"at_s": event["at_s"] - launch["at_s"]}
                for event in events[launches[-1] + 1:]]}


def difference_of(runs):
    """Calls that were not made equally often: name to the counts of both runs."""
    few, many = (run["calls"] for run in runs)
    return {name: [few.get(name, 0), many.get(name, 0)]
            for name in sorted(few | many) if few.get(name, 0) != many.get(name, 0)}


def summary_of(runs, difference):
    few, many = runs
    after = many["waits_after_launch"]
    return {"tokens": [few["tokens"], many["tokens"]],
            "calls": [sum(run["calls"].values()) for run in runs],
            "waits": [few["waits"], many["waits"]],
            "decode_s": many["decode_s"],
            "first_wait_after_launch_s": after[0]["at_s"] if after else None,
            "different_calls": difference,
            "calls_per_token": sum(name not in OF_THE_HOST for name in difference)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  bench/count_cuda_calls.py build/release/adder "
               "build/release/libcuda_calls.so --json bench/results/h200/cuda_calls.json")
    parser.add_argument("adder", type=Path, help="the program to run")
    parser.add_argument("library", type=Path, help="what counts, libcuda_calls.so")
    parser.add_argument("--json", type=Path, required=True, help="file to write the results to")
    parser.add_argument("--cupti", type=Path, metavar="FOLDER",
                        help="where CUPTI's library is, if not where the dynamic linker looks")
    parser.add_argument("--model", metavar="MODEL", help="of adder generate (default: its own)")
    parser.add_argument("--tokens", type=int, default=300, metavar="N",
                        help=f"of the first generation; the second has {TIMES} N (default: 300)")
    arguments = parser.parse_args()
    if not 1 <= arguments.tokens * TIMES < RING_TOKENS:
        raise Failure(f"--tokens is {arguments.tokens}, expected 1 to {RING_TOKENS // TIMES}: "
                      f"after {RING_TOKENS} tokens the host tells the device to go on")
    if not arguments.library.is_file():
        raise Failure(f"{arguments.library} is no file, expected libcuda_calls.so")
    runs = [generate(arguments, tokens) for tokens in (arguments.tokens, TIMES * arguments.tokens)]
    difference = difference_of(runs)
    result = {"schema": 1, "kind": "cuda_calls",
              "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
              "summary": summary_of(runs, difference), "runs": runs}
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["summary"], indent=1))
    wrong = [name for name in difference if name not in OF_THE_HOST]
    if wrong:
        raise Failure(f"calls grow with the number of tokens: {', '.join(wrong)}")


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"count_cuda_calls: {failure}")
