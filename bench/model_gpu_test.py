"""Tests of model_gpu.py, with a program in place of adder that writes reports of its shape."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import model_gpu

FOLDER = Path(__file__).parent

# Writes a report: milliseconds are the number of tokens, or the batch.
ADDER = f"""#!{sys.executable}
import json, sys
arguments = sys.argv[1:]
def option(name, default):
    return arguments[arguments.index(name) + 1] if name in arguments else default
def figure(ms, **more):
    return dict(more, median_s=ms / 1e3, p10_s=ms / 1e3, p90_s=ms / 1e3, tokens_per_s=1.0,
                bound="copy", percent_of_bound=50.0)
if arguments[:2] == ["bench", "op"]:
    results = [figure(0.5, shape=option("--shape", ""))]
else:
    decode = [figure(1.0, batch=1, tokens=256, position=16, host_cpu=0.03)]
    if "--position" in arguments:
        decode.append(figure(1.25, batch=1, tokens=256, position=int(option("--position", ""))))
    decode += [figure(float(b), batch=int(b), tokens=256, position=0)
               for b in option("--batch", "").split(",") if b]
    results = dict(prefill=[figure(float(t), tokens=int(t))
                            for t in option("--prefill", "").split(",")],
                   decode=decode, device_bytes=7)
device = dict(copy_gb_per_s=4000.0, matrix_tflop_per_s=900.0, driver="13.0", runtime="13.0")
with open(option("--json", ""), "w") as out:
    json.dump(dict(adder=dict(version="1", commit="abc"), machine={{}}, device=device,
                   results=results), out)
"""


class ModelGpu(unittest.TestCase):
    def test_summary(self):
        with tempfile.TemporaryDirectory() as folder:
            adder = Path(folder) / "adder"
            adder.write_text(ADDER)
            adder.chmod(adder.stat().st_mode | stat.S_IXUSR)
            out = Path(folder) / "model.json"
            subprocess.run([sys.executable, str(FOLDER / "model_gpu.py"), str(adder), "--json",
                            str(out)], check=True, capture_output=True,
                           env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
            result = json.loads(out.read_text())
        summary = result["summary"]
        self.assertEqual(summary["decode_2p7b_b1_ms"], 1.0)
        self.assertEqual(summary["decode_2p7b_b64_of_floor"], 0.5)
        self.assertEqual(summary["prefill_2p7b_8192_ms"], 8192)
        self.assertEqual(summary["selective_scan_fwd_ms"], 0.5)
        self.assertEqual(summary["decode_2p7b_at_1000000_over_1000"], 1.0)
        self.assertEqual(summary["rates"]["copy_gb_per_s"], 4000)
        self.assertEqual(summary["host_cpu_2p7b"], 0.03)
        self.assertEqual(summary["commit"], "abc")
        rows = [row for row in result["rows"] if row.get("what") == "prefill"]
        self.assertEqual(len(rows), 9)  # of three models, none of those that go far
        self.assertNotIn("position", rows[0])
        self.assertEqual(rows[0]["device_bytes"], 7)

    def test_a_program_that_fails_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            failed = subprocess.run([sys.executable, "-B", str(FOLDER / "model_gpu.py"), "/bin/false",
                                     "--json", str(Path(folder) / "model.json")],
                                    capture_output=True, text=True)
        self.assertEqual(failed.returncode, 1)
        self.assertEqual(failed.stderr, "model_gpu: /bin/false bench model exited with 1, expected 0\n")

    def test_what_is_missing_is_none(self):
        self.assertIsNone(model_gpu.find([{"ms": 1, "batch": 2}], "ms", batch=1))


if __name__ == "__main__":
    unittest.main()
