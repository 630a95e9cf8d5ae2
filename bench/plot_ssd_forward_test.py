"""Tests of the plot."""

import itertools
import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.etree import ElementTree

import plot_ssd_forward as plot
import ssd_forward_rows as table
from ssd_forward_rows_test import RATES, reply_of, result_of

FOLDER = Path(__file__).parent
SVG = "{http://www.w3.org/2000/svg}"


class Plot(unittest.TestCase):
    def report(self, triton=True):
        rows = []
        for case in table.grid_cases():
            floor_ms = table.floor_of(case, RATES)[0]
            replies = [reply_of(8 * floor_ms)] if triton else []
            rows.append(table.join(case, result_of(case, 1.5e-3 * floor_ms), replies, RATES))
        summary = table.summary_of(rows, [], RATES) | {"versions": {"triton": "3 & more"}}
        return {"device": {"name": "GPU <1>"}, "rows": rows, "summary": summary}

    def test_lines(self):
        report = self.report()
        root = ElementTree.fromstring(plot.svg_of(report))
        lines = root.findall(f".//{SVG}polyline")
        self.assertEqual([line.get("class") for line in lines], ["triton", "floor", "adder"] * 4)
        for line in lines:
            points = [tuple(map(float, point.split(","))) for point in line.get("points").split()]
            self.assertEqual(len(points), 9)
            self.assertEqual(points, sorted(points))
            # More time is higher up, and all of it is in the panel.
            self.assertEqual([y for _, y in points], sorted((y for _, y in points), reverse=True))
            self.assertTrue(all(0 < x < plot.PANEL_WIDTH and 0 < y < plot.PANEL_HEIGHT
                                for x, y in points))
        words = [node.text for node in root.iter(f"{SVG}text")]
        self.assertEqual(words.count("Adder"), 4)
        self.assertIn("SSD forward on GPU <1>", words)
        self.assertIn("5.3× as fast as Triton, 1.5× the floor", words)
        self.assertIn("prefers-color-scheme: dark", root.find(f"{SVG}style").text)

    def test_heights_are_logarithms(self):
        axes = plot.Axes(self.report()["rows"])
        steps = [axes.y(ms) - axes.y(10 * ms) for ms in (0.01, 0.1, 1)]
        self.assertAlmostEqual(steps[0], steps[1])
        self.assertAlmostEqual(steps[1], steps[2])
        self.assertEqual([round(math.log10(tick)) for tick in axes.time_ticks()], [-2, -1, 0, 1])

    def test_a_missing_time_breaks_its_line(self):
        report = self.report()
        report["rows"][3]["triton_ms"] = None
        root = ElementTree.fromstring(plot.svg_of(report))
        lines = root.findall(f".//{SVG}polyline[@class='triton']")
        self.assertEqual([line.get("points").count(",") for line in lines], [3, 5, 9, 9, 9])

    def test_without_triton(self):
        root = ElementTree.fromstring(plot.svg_of(self.report(triton=False)))
        self.assertEqual(root.findall(f".//{SVG}polyline[@class='triton']"), [])
        self.assertNotIn("Triton", [node.text for node in root.iter(f"{SVG}text")])

    def test_one_length(self):
        report = self.report()
        report["rows"] = report["rows"][:1]
        ElementTree.fromstring(plot.svg_of(report))

    def test_labels_do_not_overlap(self):
        for positions in ([0, 100, 50], [10, 12, 11], [5, 5, 5], [0, 9, 20], [30, 20, 0], [1]):
            placed = plot.spread(positions, 10)
            order = sorted(range(len(positions)), key=lambda i: positions[i])
            for one, following in itertools.pairwise(order):
                self.assertGreaterEqual(placed[following] - placed[one], 10 - 1e-9, positions)
            self.assertAlmostEqual(sum(placed), sum(positions), msg=str(positions))
        self.assertEqual(plot.spread([0, 100, 50], 10), [0, 100, 50])

    def test_words(self):
        self.assertEqual([plot.duration(ms) for ms in (1e-5, 0.01, 0.25, 10, 2500)],
                         ["10 ns", "10 µs", "250 µs", "10 ms", "2.5 s"])
        self.assertEqual([plot.token_count(count) for count in (1024, 262144, 1000)],
                         ["1k", "256k", "1000"])
        self.assertEqual([plot.span(values) for values in ([1.23, 4.56], [2, 2.01], [9.5, 12.3])],
                         ["1.2–4.6×", "2.0×", "9.5–12×"])

    def test_command(self):
        with tempfile.TemporaryDirectory() as name:
            file = Path(name) / "ssd.json"
            file.write_text(json.dumps(self.report()))
            command = [sys.executable, "-B", FOLDER / "plot_ssd_forward.py", file]
            subprocess.run(command, check=True)
            ElementTree.parse(file.with_suffix(".svg"))
            file.write_text("{}")
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 1)
            self.assertIn("is not a report of compare_ssd_forward.py", done.stderr)


if __name__ == "__main__":
    unittest.main()
