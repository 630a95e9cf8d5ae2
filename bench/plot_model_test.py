"""Tests of plot_model.py."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

import plot_model as plot

FOLDER = Path(__file__).parent
SVG = "{http://www.w3.org/2000/svg}"


def decode(model, position, speed, batch=1):
    return {"model": model, "what": "decode", "batch": batch, "position": position,
            "tokens_per_s": speed}


REPORT = {
    "device": {"name": "GPU <1>"}, "summary": {"commit": "abc"},
    "rows": [decode("a & b", 16, 400.0), decode("a & b", 1000, 404.0),
             decode("a & b", 1000000, 398.0), decode("c", 16, 3000.0), decode("c", 1000, 3100.0),
             decode("once", 16, 1.0), decode("a & b", 0, 9e9, batch=64),
             {"model": "c", "what": "prefill", "tokens": 512}],
}


class Plot(unittest.TestCase):
    def test_lines(self):
        root = ElementTree.fromstring(plot.svg_of(REPORT))
        lines = root.findall(f".//{SVG}polyline")
        self.assertEqual([line.get("class") for line in lines], ["adder", "triton"])
        points = [[tuple(map(float, p.split(","))) for p in line.get("points").split()]
                  for line in lines]
        self.assertEqual([len(line) for line in points], [3, 2])
        for line in points:
            self.assertEqual(line, sorted(line))
        self.assertLess(points[1][0][1], points[0][0][1])  # faster is higher
        self.assertLess(abs(points[0][0][1] - points[0][2][1]), 2)
        labels = [t.text for t in root.iter(f"{SVG}text") if "label" in (t.get("class") or "")]
        self.assertEqual(labels, ["a & b", "c"])

    def test_counts(self):
        self.assertEqual([plot.count(n) for n in (16, 1000, 1500, 1000000)],
                         ["16", "1k", "1,500", "1M"])

    def test_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.json"
            path.write_text(json.dumps(REPORT))
            command = [sys.executable, "-B", str(FOLDER / "plot_model.py"), str(path)]
            subprocess.run(command, check=True)
            self.assertIn("GPU &lt;1&gt;", path.with_suffix(".svg").read_text())
            path.write_text(json.dumps(REPORT | {"rows": []}))
            failed = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(failed.returncode, 1)
            self.assertIn("no model was decoded at two positions", failed.stderr)


if __name__ == "__main__":
    unittest.main()
