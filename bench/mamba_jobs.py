"""Has mamba_ssm timed by mamba_ssd_forward.py, in processes that may die."""

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from adder_report import Failure
from ssd_forward_rows import CHUNK_SIZES, DSTATES

WORKER = Path(__file__).with_name("mamba_ssd_forward.py")
PACKAGES = ("torch", "triton", "einops", "packaging")
# Shapes at which the grid's kernels choose their tiles, and the shapes that then use these.
TUNED_AT = {4096: (1024, 2048, 4096, 8192), 65536: (16384, 32768, 65536, 131072, 262144)}
SILENCE_S = 240  # longest a job may take; one with every kernel still to compile is the longest
COMPILE_S = 400
PROCESSES = 8


def missing(mamba):
    """What is not there of that which times mamba_ssm; empty if all is."""
    if mamba is None:
        return "no folder with mamba_ssm was given"
    file = mamba / "mamba_ssm/ops/triton/ssd_combined.py"
    if not file.is_file():
        return f"{file} is missing"
    packages = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    return f"{sys.executable} has no package {', '.join(packages)}" if packages else ""


def version_of(mamba):
    """mamba_ssm's version, from its sources or from what pip keeps beside them."""
    init = mamba / "mamba_ssm/__init__.py"
    text = init.read_text() if init.exists() else ""
    found = re.search(r"__version__\s*=\s*['\"]([^'\"]+)", text)
    if found:
        return found[1]
    installed = sorted(mamba.glob("mamba_ssm-*.dist-info"))
    return installed[-1].name.split("-")[1].removesuffix(".dist") if installed else "unknown"


def copy_kernels(mamba, folder):
    """Copies what the Triton kernels need, without the imports of mamba_ssm/__init__.py."""
    for part in ("ops", "utils"):
        shutil.copytree(mamba / "mamba_ssm" / part, folder / "mamba_ssm" / part)
    (folder / "mamba_ssm/__init__.py").write_text("")


def jobs_of(cases, results):
    """What to time mamba_ssm at, those first that choose tiles for the ones after them."""
    ordered = []
    for dstate in DSTATES:
        for chunk_size in CHUNK_SIZES:
            for at, seqlens in TUNED_AT.items():
                group = [case for case in cases if not case.model and case.dstate == dstate and
                         case.seqlen in seqlens]
                group.sort(key=lambda case, at=at: case.seqlen != at)
                ordered += [(case, chunk_size, case is group[0]) for case in group]
    ordered += [(case, chunk_size, True) for case in cases if case.model
                for chunk_size in CHUNK_SIZES]
    return [{**asdict(case), "chunk_size": chunk_size, "tune": tune,
             "copies": results.get(case.key, {}).get("copies")}
            for case, chunk_size, tune in ordered]


def start_worker(folder, request, errors=None, command=(sys.executable, WORKER)):
    process = subprocess.Popen([*command, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=errors, text=True)
    try:
        json.dump(request, process.stdin)
        process.stdin.close()
    except BrokenPipeError:  # it ended already; its exit status will tell
        pass
    return process


def ending_of(code):
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"


def lines_of(process, silence_s):
    """The lines it prints; it is killed once it has printed none for `silence_s`."""
    while True:
        timer = threading.Timer(silence_s, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if not line.endswith("\n"):  # the end, perhaps in the middle of a line
            return
        yield line


def run_jobs(jobs, start, on_answer):
    """Calls on_answer with every answer of workers that `start(jobs, first)` starts.

    An answer to a job has its index in `jobs`. A worker ends at the first job that fails; another
    one goes on behind it. One that dies at a job without a word gets an answer in its place.
    """
    pending = list(range(len(jobs)))
    began = False
    while pending:
        batch = pending
        failed = False
        with start([jobs[index] for index in batch], not began) as process:
            for line in lines_of(process, SILENCE_S):
                answer = json.loads(line)
                began = True
                if "job" in answer:
                    failed = "error" in answer
                    answer["job"] = batch[answer["job"]]
                    pending = [index for index in pending if index != answer["job"]]
                on_answer(answer)
        ending = ending_of(process.returncode)
        if not began:
            raise Failure(f"timing mamba_ssm ended {ending} before its first answer")
        if pending and not failed:
            on_answer({"job": pending[0], "error": f"the process ended {ending}"})
            pending = pending[1:]


def compile_kernels(folder, jobs):
    """Compiles what the jobs need in several processes, into Triton's cache of kernels."""
    tuned = [job for job in jobs if job["tune"]]
    shares = [share for first in range(PROCESSES) if (share := tuned[first::PROCESSES])]

    def compile_share(share):
        request = {"seconds": 0, "rates": False, "compile_only": True, "jobs": share}
        with start_worker(folder, request, subprocess.DEVNULL) as process:
            for _ in lines_of(process, COMPILE_S):
                pass  # what does not compile now fails again when it is timed

    with ThreadPoolExecutor(len(shares)) as pool:
        list(pool.map(compile_share, shares))
