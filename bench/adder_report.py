"""What `adder bench` measures, for scripts."""

import json
import subprocess
import tempfile
from pathlib import Path


class Failure(Exception):
    """What went wrong, in one sentence for the user."""


def report_of(adder, benchmark, options, device="cuda", quiet=False):
    """The report of `adder bench` on the device; benchmark: such as ["op", "linear"]."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "adder.json"
        command = [str(adder), "bench", *benchmark, "--device", device, *options, "--json",
                   str(file)]
        try:
            code = subprocess.run(command, stdout=subprocess.DEVNULL if quiet else None).returncode
        except OSError as error:
            raise Failure(f"{adder} does not run: {error.strerror}") from error
        if code != 0:
            raise Failure(f"{adder} bench {' '.join(benchmark)} exited with {code}, expected 0")
        try:
            return json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise Failure(f"{adder} left no report that can be read: {error}") from error
