"""Tests of the comparison with llama.cpp, with scripts in the place of both programs."""

import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import llama_cpp_rows as table

FOLDER = Path(__file__).parent

# Each call is noted, and the n-th of a program takes n times as long. Adder's prompts take 1 ms per
# token, but twice that when they warm up, and its tokens 10 ms on the mean; its files tell the
# format, and those of f32 take twice as long.
ADDER = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
def option(name):
    return arguments[arguments.index(name) + 1]
assert option("--device") == "cpu" and option("--threads") == "2", arguments
with open(os.environ["CALLS"], "a") as calls:
    print("adder", arguments[1], file=calls)
count = open(os.environ["CALLS"]).read().count("adder " + arguments[1])
report = dict(adder=dict(version="1", commit="abc"),
              machine=dict(cpu="a CPU", threads=2, dram_read_gb_per_s=10.0 + count,
                           linear_gflop_per_s=100.0 - count))
if arguments[1] == "model":
    if "mamba-130m" in option("--model"):
        sys.exit("adder: cannot read it")
    slow = (2 if "f32" in option("--model") else 1) * ((count - 1) % 3 + 1)
    prefill, seen = [], set()
    for n in map(int, option("--prefill").split(",")):
        s = 1e-3 * n * slow * (1 if n in seen else 2)
        prefill.append(dict(tokens=n, median_s=s, flops=n * 1e6))
        seen.add(n)
    decode = [dict(tokens=int(option("--decode")), median_s=1.0, mean_s=0.01 * slow, bytes=26e6)]
    assert option("--repeat") == "1"
    report["model"] = dict(dtype="int8")
    report["results"] = dict(prefill=prefill, decode=decode, load_s=0.25, first_token_s=0.5,
                             peak_rss_bytes=1000 + count)
with open(option("--json"), "w") as out:
    json.dump(report, out)
print("a table")
"""
# Three times as long for prompts of 512, 2.5 times for others, 4 times for tokens; in each round.
LLAMA = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
def option(name):
    return arguments[arguments.index(name) + 1]
first = "--no-warmup" in arguments
if not first:
    with open(os.environ["CALLS"], "a") as calls:
        print("llama", file=calls)
slow = (open(os.environ["CALLS"]).read().count("llama") - 1) % 3 + 1
for n in map(int, option("-p").split(",")):
    if n:
        ns = n * slow * (3 if n == 512 else 2.5) * 10**6
        print(json.dumps(dict(n_prompt=n, n_gen=0, samples_ns=[ns], build_commit="c0ffee")))
n = int(option("-n"))
if n:
    print(json.dumps(dict(n_prompt=0, n_gen=n, samples_ns=[4e7 * slow * n], build_commit="c0ffee")))
"""


def figures_of(prefill, decode, bytes_held=1):
    return {"seconds": {("prefill", 512): prefill, ("decode", 64): decode},
            "work": {("prefill", 512): {"flops": 1e9}, ("decode", 64): {"bytes": 1e8}},
            "dtype": "int4", "load_s": 0.5, "first_token_s": 2.0, "peak_rss_bytes": bytes_held,
            "cpu": 0.9 - bytes_held / 10}


class Rows(unittest.TestCase):
    def test_medians_and_extremes(self):
        out = table.comparison_of([1.0, 2.0, 4.0], [6.0, 4.0, 5.0])
        self.assertEqual((out["ours_ms"], out["ours_min_ms"], out["ours_max_ms"]),
                         (2000, 1000, 4000))
        self.assertEqual((out["llama_ms"], out["speedup"]), (5000, 2.5))
        self.assertEqual((out["min_speedup"], out["max_speedup"]), (1.25, 6))
        with self.assertRaises(ValueError):
            table.comparison_of([1.0], [1.0, 2.0])

    def test_rows(self):
        prefill, decode, load = table.rows_of("m", "q4_0", 7, [figures_of(0.5, 0.1, 3),
                                                               figures_of(0.5, 0.1, 2)],
                                              [figures_of(2.0, 0.3, 4), figures_of(2.0, 0.3, 5)])
        self.assertEqual((prefill["what"], prefill["tokens"], prefill["speedup"]),
                         ("prefill", 512, 4))
        self.assertEqual({row["ours_dtype"] for row in (prefill, decode, load)}, {"int4"})
        self.assertEqual((prefill["ours_tokens_per_s"], prefill["llama_tokens_per_s"]), (1024, 256))
        self.assertAlmostEqual(decode["llama_tokens_per_s"], 1 / 0.3)
        self.assertEqual((load["what"], load["file_bytes"], load["ours_load_ms"], load["speedup"]),
                         ("load", 7, 500, 1))
        self.assertAlmostEqual(load["llama_cpu"], 0.45)
        self.assertEqual((load["ours_peak_rss_bytes"], load["llama_peak_rss_bytes"]), (3, 5))
        shares = table.with_shares([prefill, decode, load],
                                   {"dram_read_gb_per_s": 4, "linear_gflop_per_s": 10})
        self.assertAlmostEqual(shares[0]["of_gemm_rate"], 0.2)
        self.assertAlmostEqual(shares[1]["of_bandwidth"], 0.25)
        self.assertNotIn("of_gemm_rate", shares[2])

    def test_the_summary_takes_the_least(self):
        def row(model, format_name, what, **figures):
            return {"model": model, "format": format_name, "what": what} | figures

        summary = table.summary_of([
            row("mamba2-130m", "f32", "prefill", speedup=4, of_gemm_rate=0.5),
            row("mamba2-130m", "f32", "prefill", speedup=3, of_gemm_rate=0.6),
            row("mamba2-130m", "q4_0", "prefill", speedup=2, of_gemm_rate=0.4),
            row("mamba2-130m", "q8_0", "decode", speedup=7, of_bandwidth=0.8),
            row("mamba2-130m", "f32", "decode", speedup=6, of_bandwidth=0.9),
            row("mamba2-370m", "f32", "prefill", speedup=1, of_gemm_rate=0.1),
            row("mamba-130m", "f32", "prefill", speedup=9, of_gemm_rate=0.1),
            row("mamba-130m", "q8_0", "prefill", speedup=8, of_gemm_rate=0.1),
            row("mamba-130m", "q8_0", "load", speedup=1, llama_cpu=0.9),
            row("mamba-130m", "f32", "load", speedup=1, llama_cpu=0.8)])
        self.assertEqual(summary, {
            "mamba2_130m_prefill_speedup_f32": 3, "mamba2_130m_prefill_speedup_bf16": None,
            "mamba2_130m_prefill_speedup_int8": None, "mamba2_130m_prefill_speedup_q4": 2,
            "mamba2_130m_decode_speedup_f32": 6, "mamba2_130m_decode_speedup_bf16": None,
            "mamba2_130m_decode_speedup_int8": 7, "mamba2_130m_decode_speedup_q4": None,
            "mamba_130m_prefill_speedup": 8, "decode_of_bandwidth": 0.8,
            "prefill_of_gemm_rate": 0.5, "llama_cpu": 0.8})

    def test_peaks_are_the_best_that_was_measured(self):
        self.assertEqual(table.peaks_of([{"cpu": "a", "dram_read_gb_per_s": 1, "threads": 2},
                                         {"cpu": "a", "dram_read_gb_per_s": 3, "threads": 2},
                                         {"cpu": "a", "dram_read_gb_per_s": 2, "threads": 2}]),
                         {"cpu": "a", "dram_read_gb_per_s": 3, "threads": 2})


class Command(unittest.TestCase):
    def compare(self, *options):
        """The process that ended, the calls of both programs, and the file that was written."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for program, text in (("adder", ADDER), ("llama-bench", LLAMA)):
                (folder / program).write_text(text)
                (folder / program).chmod(0o755)
            for model in ("mamba2-130m-f32", "mamba2-130m-q4_0", "mamba-130m-f32"):
                (folder / f"{model}.gguf").write_bytes(b"12345")
            calls, out = folder / "calls", folder / "deep/out.json"
            done = subprocess.run(
                [sys.executable, "-B", FOLDER / "compare_llama_cpp.py", folder / "adder",
                 "--llama", folder / "llama-bench", "--work", folder, "--json", out,
                 "--threads", "2", "--rounds", "3", *options],
                capture_output=True, text=True, env=os.environ | {"CALLS": str(calls)})
            return (done, calls.read_text().splitlines() if calls.exists() else [],
                    json.loads(out.read_text()) if out.exists() else None)

    def test_everything(self):
        done, calls, written = self.compare("--model", "mamba2-130m", "--format", "f32,q4_0")
        self.assertEqual(done.returncode, 0, done.stderr)
        one_file = ["adder machine", "adder model", "llama", "llama", "adder model", "adder model",
                    "llama"]
        self.assertEqual(calls, one_file * 2 + ["adder machine"])
        summary = written["summary"]
        for key, value in (("prefill_speedup_f32", 1.25), ("prefill_speedup_q4", 2.5),
                           ("decode_speedup_f32", 2), ("decode_speedup_q4", 4)):
            self.assertAlmostEqual(summary[f"mamba2_130m_{key}"], value)
        self.assertIsNone(summary["mamba_130m_prefill_speedup"])
        # The second rounds count: 26 MB in 40 ms of 13 GB/s, and 1 MFLOP in 4 ms of 99 GFLOP/s.
        self.assertEqual(summary["peaks"], {"dram_read_gb_per_s": 13, "linear_gflop_per_s": 99})
        self.assertAlmostEqual(summary["decode_of_bandwidth"], 0.05)
        self.assertAlmostEqual(summary["prefill_of_gemm_rate"], 1 / (4 * 99))
        self.assertEqual(summary["commit"], "abc")
        self.assertEqual(summary["versions"], {"adder": "1", "llama_cpp_python": None,
                                               "llama_cpp_commit": "c0ffee"})
        self.assertEqual([(row["format"], row["what"]) for row in written["rows"]],
                         [(name, what) for name in ("f32", "q4_0")
                          for what in ("prefill", "prefill", "decode", "load")])
        load = written["rows"][-1]
        self.assertEqual((load["file_bytes"], load["ours_peak_rss_bytes"]), (5, 1006))
        self.assertTrue(math.isfinite(load["speedup"]) and load["llama_peak_rss_bytes"] > 1e6)
        self.assertEqual(done.stdout.count("mamba2-130m q4_0"), 5)
        self.assertNotIn("a table", done.stdout)
        self.assertEqual(done.stderr.count("\n"), 6)

    def test_what_was_measured_before_a_failure_is_kept(self):
        done, _, written = self.compare("--model", "mamba2-130m,mamba-130m", "--format", "f32")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr.splitlines()[-1],
                         "^compare_llama_cpp: .*adder bench model exited with 1, expected 0$")
        self.assertEqual([row["model"] for row in written["rows"]], ["mamba2-130m"] * 4)

    def test_wrong_usage(self):
        for options, message in ((["--model", "mamba3"], "'mamba3' is none of mamba-130m,"),
                                 (["--format", "f32,q3"], "'q3' is none of f32, bf16, q8_0, q4_0"),
                                 (["--rounds", "0"], "'0' is no whole number"),
                                 (["--prefill", "512,x"], "'x' is no whole number")):
            done, calls, written = self.compare(*options)
            self.assertEqual((done.returncode, calls, written), (2, [], None))
            self.assertIn(message, done.stderr)

    def test_a_path_that_is_no_llama_cpp(self):
        done, _, written = self.compare("--llama", "/nowhere/llama")
        self.assertEqual((done.returncode, written), (1, None))
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertTrue(done.stderr.startswith("compare_llama_cpp: /nowhere/llama is no "))


if __name__ == "__main__":
    unittest.main()
