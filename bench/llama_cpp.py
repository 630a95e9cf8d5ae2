"""llama.cpp's benchmark: finding or building it, running it, and what it says."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from adder_report import Failure

PACKAGE = "llama-cpp-python"
# Nothing but the benchmark, for the processor that builds it.
BUILD_OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF",
                 "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF",
                 "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF")
# As many as `adder bench model` feeds until its first token.
FIRST_PROMPT_TOKENS = 16


# ---- finding and building -----------------------------------------------------------------------


def run_tool(*command, cwd=None):
    command = [str(word) for word in command]
    try:
        code = subprocess.run(command, cwd=cwd, stdout=sys.stderr).returncode
    except OSError as error:
        raise Failure(f"{command[0]} does not run: {error.strerror}") from error
    if code != 0:
        raise Failure(f"'{' '.join(command)}' exited with {code}, expected 0")


def downloaded(work):
    """The folder of the package's sources in `work`, where pip puts them if they are not there."""
    folder = work / PACKAGE
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=work) as name:
            run_tool(sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:",
                     "--no-deps", PACKAGE, cwd=name)
            archive = next(Path(name).glob("*.tar.gz"), None)
            if archive is None:
                raise Failure(f"pip left no source package of {PACKAGE}, expected a .tar.gz")
            shutil.unpack_archive(archive, Path(name) / "unpacked")
            os.replace(next((Path(name) / "unpacked").iterdir()), folder)
    return folder


def build(sources, work):
    """Builds llama-bench of these sources, in a folder of `work` that belongs to them."""
    name = hashlib.sha256(str(sources.resolve()).encode()).hexdigest()[:12]
    folder = work / f"llama.cpp-{name}"
    ninja = ["-G", "Ninja"] if shutil.which("ninja") else []
    run_tool("cmake", "-S", sources, "-B", folder, *ninja, *BUILD_OPTIONS)
    run_tool("cmake", "--build", folder, "--target", "llama-bench", "--parallel",
             len(os.sched_getaffinity(0)))
    return folder / "bin/llama-bench"


def bench_of(path, work):
    """llama-bench: `path` itself, or built in `work` from the sources at `path`: a checkout of
    llama.cpp, a folder of the package that holds one, or for None that package downloaded."""
    if path is None:
        path = downloaded(work)
    if path.is_file():
        return path
    for sources in (path, path / "vendor/llama.cpp"):
        if (sources / "tools/llama-bench/CMakeLists.txt").exists():
            return build(sources, work)
    raise Failure(f"{path} is no llama-bench and has no tools/llama-bench, expected the program, "
                  f"a checkout of llama.cpp or the sources of {PACKAGE}")


def package_version(path, work):
    """The version of the package that the sources are of, or None."""
    info = (work / PACKAGE if path is None else path) / "PKG-INFO"
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("Version: "):
                return line.removeprefix("Version: ")
    return None


# ---- running ------------------------------------------------------------------------------------


def run(bench, file, threads, prefill=(), decode=0, warm_up=True):
    """Runs each test once, after one to warm up. Returns the seconds by (tokens of the prompt,
    tokens after it), those from the start of the process until the first reply, the most bytes of
    memory that it held, its processor time over that of as many cores as it has threads, and the
    commit that it was built from."""
    command = [str(bench), "-m", str(file), "-t", str(threads), "-r", "1", "-o", "jsonl",
               "-p", ",".join(map(str, prefill)) or "0", "-n", str(decode)]
    if not warm_up:
        command.append("--no-warmup")
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        start = time.monotonic()
        first_s = None
        try:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        except OSError as error:
            raise Failure(f"{bench} does not run: {error.strerror}") from error
        lines = []
        with process.stdout:
            for line in process.stdout:
                first_s = first_s or time.monotonic() - start
                lines.append(line)
        # Unlike Popen.wait, it tells what this child used, not all of them together; of memory at
        # least what the process that started it held.
        _, status, usage = os.wait4(process.pid, 0)
        cores_s = threads * (time.monotonic() - start)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["it said nothing"])[-1]
            raise Failure(f"{bench} exited with {process.returncode} for {file}, expected 0: "
                          f"{last}")
    try:
        replies = [json.loads(line) for line in lines]
        figures = {(reply["n_prompt"], reply["n_gen"]): seconds_of(reply) for reply in replies}
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise Failure(f"{bench} answered what cannot be read, expected JSON lines with n_prompt, "
                      f"n_gen and samples_ns: {error}") from error
    for test in [(tokens, 0) for tokens in prefill] + [(0, decode)] * (decode > 0):
        if test not in figures:
            raise Failure(f"{bench} has no figure for a prompt of {test[0]} and {test[1]} tokens "
                          f"after it")
    return {"seconds": figures, "first_s": first_s, "peak_rss_bytes": 1024 * usage.ru_maxrss,
            "cpu": (usage.ru_utime + usage.ru_stime) / cores_s,
            "commit": replies[0].get("build_commit")}


def seconds_of(reply):
    """Of the whole prompt, or of one decoded token."""
    return 1e-9 * reply["samples_ns"][0] / max(reply["n_gen"], 1)


def figures_of(bench, file, threads, prefill, decode):
    """What Adder's report has too: seconds by (what, tokens), of loading, and memory."""
    measured = run(bench, file, threads, prefill, decode)
    first = run(bench, file, threads, (FIRST_PROMPT_TOKENS,), warm_up=False)
    figures = {("prefill", tokens): measured["seconds"][tokens, 0] for tokens in prefill}
    figures["decode", decode] = measured["seconds"][0, decode]
    return {"seconds": figures, "first_token_s": first["first_s"],
            **{name: measured[name] for name in ("peak_rss_bytes", "cpu", "commit")}}
