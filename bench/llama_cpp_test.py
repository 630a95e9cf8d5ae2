"""Tests of llama_cpp.py, with scripts in the place of llama-bench, pip and cmake."""

import os
import sys
import tarfile
import tempfile
import textwrap
import unittest
from pathlib import Path
from unittest import mock

import llama_cpp
from adder_report import Failure

# Prompts take a second per token, tokens after them two, and what warms up is not told.
BENCH = f"""#!{sys.executable}
import json, sys, time
arguments = sys.argv[1:]
def option(name):
    return arguments[arguments.index(name) + 1]
assert option("-t") == "3" and option("-r") == "1" and option("-o") == "jsonl", arguments
if option("-m") == "broken.gguf":
    print("loading", file=sys.stderr)
    print("no such tensor", file=sys.stderr)
    sys.exit(4)
if option("-m") == "silent.gguf":
    sys.exit(0)
if option("-m") == "odd.gguf":
    print("[")
    sys.exit(0)
time.sleep(0.05)
held = bytearray(300_000_000 if "--no-warmup" not in arguments else 1)
for n in map(int, option("-p").split(",")):
    if n:
        print(json.dumps(dict(n_prompt=n, n_gen=0, samples_ns=[n * 10**9], build_commit="c0ffee")))
if int(option("-n")):
    n = int(option("-n"))
    print(json.dumps(dict(n_prompt=0, n_gen=n, samples_ns=[2 * n * 10**9], build_commit="c0ffee")))
"""


def program(folder, text, name="program"):
    file = Path(folder) / name
    file.write_text(text)
    file.chmod(0o755)
    return file


class Running(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.bench = program(self.folder.name, BENCH)

    def test_figures(self):
        figures = llama_cpp.figures_of(self.bench, "model.gguf", 3, [512, 2048], 64)
        self.assertEqual(figures["seconds"],
                         {("prefill", 512): 512, ("prefill", 2048): 2048, ("decode", 64): 2})
        self.assertEqual(figures["commit"], "c0ffee")
        self.assertGreater(figures["first_token_s"], 0)
        # It sleeps for most of its time, and has one thread of three.
        self.assertTrue(0 < figures["cpu"] < 0.33, figures["cpu"])
        # Of the process that was measured, not of the one that only loads.
        self.assertGreater(figures["peak_rss_bytes"], 300_000_000)
        alone = llama_cpp.run(self.bench, "model.gguf", 3, [16], warm_up=False)
        self.assertLess(alone["peak_rss_bytes"], 300_000_000)

    def test_failures(self):
        for file, message in (("broken.gguf", "exited with 4 for broken.gguf, expected 0: no such"),
                              ("silent.gguf", "no figure for a prompt of 512 and 0 tokens"),
                              ("odd.gguf", "answered what cannot be read")):
            with self.assertRaisesRegex(Failure, message):
                llama_cpp.figures_of(self.bench, file, 3, [512], 64)
        with self.assertRaisesRegex(Failure, "does not run: No such file"):
            llama_cpp.run("/nowhere/llama-bench", "model.gguf", 3, [512])


class Finding(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.work = self.folder / "work"
        self.work.mkdir()
        # cmake notes how it was called, and its second call leaves the program.
        program(self.folder, textwrap.dedent(f"""\
            #!{sys.executable}
            import pathlib, sys
            with open({str(self.folder / "calls")!r}, "a") as calls:
                print(*sys.argv[1:], file=calls)
            if sys.argv[1] == "--build":
                (pathlib.Path(sys.argv[2]) / "bin").mkdir(parents=True, exist_ok=True)
                (pathlib.Path(sys.argv[2]) / "bin/llama-bench").touch()
            """), "cmake")
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        patch = mock.patch.dict(os.environ, PATH=path)
        patch.start()
        self.addCleanup(patch.stop)

    def checkout(self, *parts):
        folder = self.folder.joinpath(*parts)
        (folder / "tools/llama-bench").mkdir(parents=True)
        (folder / "tools/llama-bench/CMakeLists.txt").touch()
        return folder

    def test_a_program_is_itself(self):
        bench = program(self.folder, BENCH)
        self.assertEqual(llama_cpp.bench_of(bench, self.work), bench)

    def test_sources_are_built_each_in_a_folder_of_their_own(self):
        one = self.checkout("one")
        other = self.checkout("package/vendor/llama.cpp")
        built = [llama_cpp.bench_of(path, self.work)
                 for path in (one, self.folder / "package", one)]
        self.assertTrue(all(bench.exists() and self.work in bench.parents for bench in built))
        self.assertEqual(built[0], built[2])
        self.assertNotEqual(built[0], built[1])
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual(len(calls), 6)
        self.assertTrue(calls[2].startswith(f"-S {other} -B {built[1].parent.parent} "), calls[2])
        self.assertIn("-DGGML_NATIVE=ON", calls[2])
        self.assertIn("--target llama-bench", calls[3])

    def test_the_package_is_downloaded_once(self):
        package = self.checkout("llama_cpp_python-1.2.3/vendor/llama.cpp").parent.parent
        (package / "PKG-INFO").write_text("Metadata-Version: 2.1\nVersion: 1.2.3\n\nVersion: 9\n")
        calls = []

        def run_tool(*command, cwd=None):
            calls.append(command[0])
            if "pip" in command:
                with tarfile.open(Path(cwd) / "llama_cpp_python-1.2.3.tar.gz", "w:gz") as archive:
                    archive.add(package, package.name)
            elif command[1] == "--build":
                (Path(command[2]) / "bin").mkdir(parents=True, exist_ok=True)
                (Path(command[2]) / "bin/llama-bench").touch()

        self.assertIsNone(llama_cpp.package_version(None, self.work))
        with mock.patch.object(llama_cpp, "run_tool", run_tool):
            for _ in range(2):
                self.assertTrue(llama_cpp.bench_of(None, self.work).exists())
        self.assertEqual(calls, [sys.executable, "cmake", "cmake", "cmake", "cmake"])
        self.assertEqual(llama_cpp.package_version(None, self.work), "1.2.3")
        self.assertEqual(llama_cpp.package_version(package, self.work), "1.2.3")
        self.assertIsNone(llama_cpp.package_version(self.folder, self.work))

    def test_failures(self):
        with self.assertRaisesRegex(Failure, "has no tools/llama-bench, expected the program"):
            llama_cpp.bench_of(self.folder, self.work)
        with self.assertRaisesRegex(Failure, "'false' exited with 1, expected 0"):
            llama_cpp.run_tool("false")
        with self.assertRaisesRegex(Failure, "/nowhere/cmake does not run: No such file"):
            llama_cpp.run_tool("/nowhere/cmake")


if __name__ == "__main__":
    unittest.main()
