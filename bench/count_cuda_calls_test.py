"""Tests of count_cuda_calls.py, with a program in place of adder that says what was called."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

FOLDER = Path(__file__).parent

# Writes what the library would: `PER_TOKEN` is a call for each token, `EVENTS` what is timed.
ADDER = f"""#!{sys.executable}
import json, os, sys
arguments = sys.argv[1:]
assert arguments[:3] == ["generate", "--device", "cuda"] and "--ignore-eos" in arguments
tokens = int(arguments[arguments.index("-n") + 1])
assert os.environ["CUDA_INJECTION64_PATH"].endswith("libcuda_calls.so")
assert os.environ["LD_LIBRARY_PATH"].split(":")[0] == "cupti"
calls = {{"cuMemcpyHtoD_v2": 7, "cuGraphLaunch": 1, "cuStreamSynchronize": 2}}
if os.environ.get("PER_TOKEN"):
    calls[os.environ["PER_TOKEN"]] = calls.get(os.environ["PER_TOKEN"], 0) + tokens
names = os.environ.get("EVENTS", "cuStreamSynchronize cuGraphLaunch cuStreamSynchronize").split()
events = [dict(call=name, at_s=i * 2.0, for_s=0.5) for i, name in enumerate(names)]
with open(os.environ["ADDER_CUDA_CALLS"], "w") as out:
    json.dump(dict(calls=calls, events=events), out)
print(json.dumps(dict(ids=[1] * tokens, stats=dict(decode_tokens_per_s=100.0))))
"""


class CountCudaCalls(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.adder = self.folder / "adder"
        self.adder.write_text(ADDER)
        self.adder.chmod(self.adder.stat().st_mode | stat.S_IXUSR)
        self.library = self.folder / "libcuda_calls.so"
        self.library.write_text("")

    def count(self, *options, **environment):
        """Standard error, and the report if there is one."""
        out = self.folder / "calls.json"
        done = subprocess.run(
            [sys.executable, str(FOLDER / "count_cuda_calls.py"), str(self.adder),
             str(self.library), "--cupti", "cupti", "--json", str(out), *options],
            capture_output=True, text=True,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | environment)
        self.assertEqual(done.returncode == 0, done.stderr == "", done.stderr)
        return done.stderr, json.loads(out.read_text()) if out.exists() else None

    def test_no_call_belongs_to_a_token(self):
        error, report = self.count("--tokens", "30")
        self.assertEqual(error, "")
        self.assertEqual(report["summary"], {
            "tokens": [30, 300], "calls": [10, 10], "waits": [2, 2], "decode_s": 3.0,
            "first_wait_after_launch_s": 2.0, "different_calls": {}, "calls_per_token": 0})
        self.assertEqual(report["runs"][1]["waits_after_launch"],
                         [{"call": "cuStreamSynchronize", "at_s": 2.0, "for_s": 0.5}])

    def test_a_call_for_each_token_is_named(self):
        error, report = self.count("--tokens", "30", PER_TOKEN="cuStreamSynchronize")
        self.assertEqual(error, "count_cuda_calls: calls grow with the number of tokens: "
                                "cuStreamSynchronize\n")
        self.assertEqual(report["summary"]["different_calls"], {"cuStreamSynchronize": [32, 302]})
        self.assertEqual(report["summary"]["calls_per_token"], 1)

    def test_what_reaches_no_device_is_counted_and_allowed(self):
        error, report = self.count(PER_TOKEN="cuCtxGetCurrent")
        self.assertEqual(error, "")
        self.assertEqual(report["summary"]["different_calls"], {"cuCtxGetCurrent": [300, 3000]})

    def test_what_is_wrong_is_said(self):
        self.assertIn("no graph was launched", self.count(EVENTS="cuStreamSynchronize")[0])
        self.assertIn("--tokens is 500, expected 1 to 409", self.count("--tokens", "500")[0])
        self.library.unlink()
        self.assertIn("libcuda_calls.so is no file", self.count()[0])


if __name__ == "__main__":
    unittest.main()
