"""Tests of the comparison as a command, without a GPU and without PyTorch."""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path
from xml.etree import ElementTree

import compare_ssd_forward
import mamba_jobs
import plot_ssd_forward as plot
import ssd_forward_rows as table
from ssd_forward_rows_test import failed_reply, reply_of, result_of

FOLDER = Path(__file__).parent


# Answers a job by its "do"; in the place of mamba_ssd_forward.py.
WORKER = """
import json, os, signal, sys
request = json.load(sys.stdin)
if sys.argv[1] == "mute":
    sys.exit(3)
print(json.dumps({"versions": {"torch": "1"}}), flush=True)
if request["first"]:
    print(json.dumps({"rates": {}}), flush=True)
for index, job in enumerate(request["jobs"]):
    if job == "die":
        print('{"job": ', end="", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "fail":
        print(json.dumps({"job": index, "error": "no"}), flush=True)
        os._exit(1)
    print(json.dumps({"job": index, "did": job}), flush=True)
"""


class Jobs(unittest.TestCase):
    def run_jobs(self, jobs, manner=""):
        answers, starts = [], []
        with tempfile.TemporaryDirectory() as folder:
            worker = Path(folder) / "worker.py"
            worker.write_text(WORKER)

            def start(some, first):
                starts.append(list(some))
                return mamba_jobs.start_worker(manner, {"jobs": some, "first": first},
                                               subprocess.DEVNULL, (sys.executable, worker))

            mamba_jobs.run_jobs(jobs, start, answers.append)
        return answers, starts

    def test_a_failure_costs_one_job_alone(self):
        jobs = ["a", "fail", "b", "die", "c", "fail"]
        answers, starts = self.run_jobs(jobs)
        self.assertEqual(starts, [jobs, jobs[2:], jobs[4:]])
        self.assertEqual(sum("rates" in answer for answer in answers), 1)
        told = [answer for answer in answers if "job" in answer]
        self.assertEqual([answer["job"] for answer in told], list(range(6)))
        self.assertEqual([told[index].get("did") for index in (0, 2, 4)], ["a", "b", "c"])
        self.assertEqual([told[index].get("error") for index in (1, 3, 5)],
                         ["no", "the process ended by SIGKILL", "no"])

    def test_a_silent_worker_is_killed(self):
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(list(mamba_jobs.lines_of(process, 0.1)), [])
        self.assertEqual(mamba_jobs.ending_of(process.returncode), "by SIGKILL")

    def test_a_worker_that_never_begins(self):
        with self.assertRaisesRegex(table.Failure, "with exit status 3 before its first answer"):
            self.run_jobs(["a"], "mute")

    def test_jobs_cover_every_case_and_tune_first(self):
        cases = table.grid_cases() + table.model_cases()
        jobs = mamba_jobs.jobs_of(cases, {cases[0].key: {"copies": 23}})
        wanted = sorted((case.key, chunk) for case in cases for chunk in (128, 256))
        self.assertEqual(sorted((table.key_of(job), job["chunk_size"]) for job in jobs), wanted)
        self.assertEqual([job["seqlen"] for job in jobs[:9]],
                         [4096, 1024, 2048, 8192, 65536, 16384, 32768, 131072, 262144])
        self.assertEqual([job["seqlen"] for job in jobs if job["tune"] and not job["model"]],
                         [4096, 65536] * 8)
        self.assertTrue(all(job["tune"] for job in jobs if job["model"]))
        self.assertEqual([job["copies"] for job in jobs[:2]], [None, 23])

    def test_the_package_and_its_version(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            self.assertIn("ssd_combined.py is missing", mamba_jobs.missing(folder))
            self.assertEqual(mamba_jobs.missing(None), "no folder with mamba_ssm was given")
            self.assertEqual(mamba_jobs.version_of(folder), "unknown")
            (folder / "mamba_ssm-2.3.2.post1.dist-info").mkdir()
            self.assertEqual(mamba_jobs.version_of(folder), "2.3.2.post1")
            for part in ("ops/triton", "utils"):
                (folder / "mamba_ssm" / part).mkdir(parents=True)
            (folder / "mamba_ssm/ops/triton/ssd_combined.py").write_text("")
            (folder / "mamba_ssm/__init__.py").write_text('__version__ = "2.4"\nimport nothing\n')
            self.assertEqual(mamba_jobs.version_of(folder), "2.4")
            mamba_jobs.copy_kernels(folder, folder / "copy")
            self.assertTrue((folder / "copy/mamba_ssm/ops/triton/ssd_combined.py").exists())
            self.assertEqual((folder / "copy/mamba_ssm/__init__.py").read_text(), "")


class Command(unittest.TestCase):
    """The whole command, with a script in the place of adder."""

    report = {
        "device": {"name": "a <GPU>", "copy_gb_per_s": 4300, "matrix_tflop_per_s": 790},
        "adder": {"version": "0", "commit": "c0ffee"},
        "results": [result_of(case) for case in table.grid_cases() + table.model_cases()],
    }

    def compare(self, report, *options, code=0):
        """Exit status, standard output, standard error and the file that was written."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "report.json").write_text(json.dumps(report))
            adder = folder / "adder"
            adder.write_text(textwrap.dedent(f"""\
                #!{sys.executable}
                import shutil, sys
                words = sys.argv[1:]
                assert words[:5] == ["bench", "op", "ssd_forward", "--device", "cuda"], words
                shutil.copy({str(folder / "report.json")!r}, words[words.index("--json") + 1])
                sys.exit({code})
                """))
            adder.chmod(0o755)
            out = folder / "deep/out.json"
            done = subprocess.run([sys.executable, "-B", FOLDER / "compare_ssd_forward.py", adder,
                                   "--json", out, *options], capture_output=True, text=True)
            written = json.loads(out.read_text()) if out.exists() else None
            return done.returncode, done.stdout, done.stderr, written

    def test_without_mamba(self):
        code, out, err, written = self.compare(self.report)
        self.assertEqual((code, err), (0, "compare_ssd_forward: mamba_ssm is not timed: no folder "
                                          "with mamba_ssm was given\n"))
        self.assertEqual((len(written["rows"]), len(written["models"])), (36, 5))
        self.assertTrue(all(row["ours_ms"] and not row["triton_ms"] for row in written["rows"]))
        self.assertEqual(written["summary"]["grid_cells_measured"], 36)
        self.assertEqual(written["summary"]["versions"]["commit"], "c0ffee")
        self.assertEqual(out.count("4 x 1024, nheads 8"), 4)
        ElementTree.fromstring(plot.svg_of(written))

    def test_some_shapes(self):
        few = self.report | {"results": self.report["results"][:2]}
        code, _, err, written = self.compare(few)
        self.assertEqual(code, 1)
        self.assertIn("has no result for 39 of 41 shapes", err)
        self.assertEqual(written["summary"]["grid_cells_measured"], 2)
        code, _, _, written = self.compare(few, "--shape", "dstate 64")
        self.assertEqual((code, len(written["rows"])), (0, 2))

    def test_failures(self):
        for report, options, status, message in (
                (self.report, {"code": 1}, 1, "exited with 1, expected 0\n"),
                (self.report | {"results": []}, {}, 1, "has results for none of the shapes"),
                (self.report | {"device": {}}, {}, 1, "no copy_gb_per_s was measured")):
            code, _, err, written = self.compare(report, **options)
            self.assertEqual((code, written), (status, None))
            self.assertTrue(err.startswith("compare_ssd_forward: ") and message in err, err)
            self.assertEqual(err.count("\n"), 1, err)

    def test_with_mamba(self):
        """Both tables, with answers in the place of workers."""
        def run_jobs(jobs, start, take):
            take({"versions": {"torch": "2", "triton": "3"}})
            take({"rates": {"copy_gb_per_s": 5000, "matmul_tflop_per_s": 600}})
            for index, job in enumerate(jobs):
                fails = job["dstate"] == 512 and job["model"]
                reply = failed_reply(0) if fails else reply_of(job["chunk_size"] / 1000)
                take({name: value for name, value in reply.items() if name != "chunk_size"} |
                     {"job": index})

        cases = table.grid_cases() + table.model_cases()
        saved = {name: getattr(mamba_jobs, name) for name in
                 ("run_jobs", "copy_kernels", "compile_kernels")}
        try:
            mamba_jobs.run_jobs = run_jobs
            mamba_jobs.copy_kernels = mamba_jobs.compile_kernels = lambda *arguments: None
            with tempfile.TemporaryDirectory() as folder:
                comparison = compare_ssd_forward.Comparison(
                    self.report, table.own_results(self.report), cases, Path(folder) / "out.json")
                with contextlib.redirect_stderr(io.StringIO()) as told:
                    comparison.time_mamba(Path(folder), 0.1)
                written = json.loads((Path(folder) / "out.json").read_text())
        finally:
            for name, function in saved.items():
                setattr(mamba_jobs, name, function)
        self.assertEqual(told.getvalue().count("\n"), 1 + 2 * 41)
        self.assertEqual(written["summary"]["grid_cells_compared"], 36)
        self.assertAlmostEqual(written["summary"]["min_speedup_vs_triton"], 1.28)
        self.assertEqual(written["summary"]["copy_gb_per_s"], 5000)
        self.assertEqual(written["summary"]["matmul_tflop_per_s"], 790)
        self.assertEqual(written["models"][-1]["triton_error"],
                         "chunk 128: illegal memory access; chunk 256: illegal memory access")
        self.assertEqual(len(written["triton"]), 82)
        self.assertEqual(written["summary"]["versions"]["triton"], "3")


if __name__ == "__main__":
    unittest.main()
