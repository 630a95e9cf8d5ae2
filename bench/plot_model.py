#!/usr/bin/env python3
"""Draws how fast models of a report of model_gpu.py decode far into a text: tokens per second over
the tokens that went before, as SVG."""

import argparse
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from plot_ssd_forward import LABEL_GAP, document, spread, text

WIDTH, HEIGHT = 760, 470
LEFT, TOP, PANEL_WIDTH, PANEL_HEIGHT = 76, 110, 540, 290
CLASSES = ("adder", "triton", "floor")  # colours of the lines, in the order of the rows


def count(number):
    """1000000 as "1M", 16 as "16"."""
    for scale, unit in ((10**6, "M"), (10**3, "k")):
        if number >= scale and number % scale == 0:
            return f"{number // scale:,}{unit}"
    return f"{number:,}"


def lines_of(report):
    """For each model with figures at two positions or more: [(position, tokens/s), ...]."""
    lines = {}
    for row in report["rows"]:
        if row.get("what") == "decode" and row["batch"] == 1 and row["position"] > 0:
            lines.setdefault(row["model"], {}).setdefault(row["position"], row["tokens_per_s"])
    return {model: sorted(points.items()) for model, points in lines.items() if len(points) > 1}


class Axes:
    """Where a position and a speed are in the panel, both on logarithmic scales."""

    def __init__(self, lines):
        positions = [position for line in lines.values() for position, _ in line]
        speeds = [speed for line in lines.values() for _, speed in line]
        self.x_ends = (math.log10(min(positions)), math.log10(max(positions)))
        # Whole decades, so that a flat line looks flat.
        self.y_ends = (math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds))))
        if self.y_ends[0] == self.y_ends[1]:
            self.y_ends = (self.y_ends[0], self.y_ends[1] + 1)

    def x(self, position):
        low, high = self.x_ends
        return PANEL_WIDTH * (math.log10(position) - low) / (high - low)

    def y(self, speed):
        low, high = self.y_ends
        return PANEL_HEIGHT * (high - math.log10(speed)) / (high - low)


def frame_of(axes):
    out = []
    for power in range(axes.y_ends[0], axes.y_ends[1] + 1):
        y = axes.y(10.0**power)
        out.append(f'<line class="rule" x1="0" x2="{PANEL_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(text(-8, y + 4, count(10**power) if power >= 0 else f"{10.0**power:g}",
                        "quiet end"))
    for power in range(math.ceil(axes.x_ends[0]), math.floor(axes.x_ends[1]) + 1):
        x = axes.x(10.0**power)
        out.append(f'<line class="frame" x1="{x:.1f}" x2="{x:.1f}" y1="{PANEL_HEIGHT}" '
                   f'y2="{PANEL_HEIGHT + 6}"/>')
        out.append(text(x, PANEL_HEIGHT + 21, count(10**power), "quiet middle"))
    out.append(f'<line class="frame" x1="0" x2="{PANEL_WIDTH}" y1="{PANEL_HEIGHT}" '
               f'y2="{PANEL_HEIGHT}"/>')
    return out


def curves_of(axes, lines):
    out, ends = [], []
    for name, (model, line) in zip(CLASSES, lines.items()):
        points = [(axes.x(position), axes.y(speed)) for position, speed in line]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(f'<polyline class="{name}" points="{joined}"/>')
        out += [f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{escape(model)} '
                f'after {count(position)} tokens: {speed:,.0f} tokens/s</title></circle>'
                for (x, y), (position, speed) in zip(points, line)]
        ends.append((name, model, points[-1][1]))
    heights = spread([end[2] for end in ends], LABEL_GAP)
    for (name, model, _), y in zip(ends, heights, strict=True):
        out.append(text(PANEL_WIDTH + 10, y + 4, model, f"label {name}"))
    return out


def svg_of(report):
    lines = lines_of(report)
    if not lines:
        raise ValueError("no model was decoded at two positions")
    axes = Axes(lines)
    title = f"Decoding on {report['device']['name']}"
    what = "Tokens per second of one sequence, bf16, over the tokens that went before."
    return document(WIDTH, HEIGHT, title, [what], [
        f'<g transform="translate({LEFT},{TOP})">', *frame_of(axes), *curves_of(axes, lines),
        "</g>", text(20, HEIGHT - 16, f"Adder {report['summary']['commit']}", "quiet")])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: bench/plot_model.py bench/results/h200/model.json")
    parser.add_argument("json", type=Path, help="what model_gpu.py wrote")
    parser.add_argument("svg", type=Path, nargs="?", help="default: the same name, ending in .svg")
    options = parser.parse_args()
    try:
        svg = svg_of(json.loads(options.json.read_text()))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"plot_model: {options.json} is no report of model_gpu.py that can be drawn: "
                 f"{error!r}")
    (options.svg or options.json.with_suffix(".svg")).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
