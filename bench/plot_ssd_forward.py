#!/usr/bin/env python3
"""Draws the figures that compare_ssd_forward.py wrote: time over sequence length, as SVG."""

import argparse
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 960, 850
PANEL_WIDTH, PANEL_HEIGHT = 348, 266
LEFTS, TOPS = (66, 530), (150, 510)
LABEL_GAP = 15  # px between the baselines of labels that would overlap
SERIES = (
    ("triton", "triton_ms", "Triton"),
    ("floor", "floor_ms", "floor"),
    ("adder", "ours_ms", "Adder"),
)
STYLE = """
  text { font: 13px system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; }
  .title { font-size: 20px; font-weight: 600; }
  .head { font-size: 15px; font-weight: 600; }
  .label { font-weight: 600; }
  .middle { text-anchor: middle; }
  .end { text-anchor: end; }
  polyline { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
  polyline.floor { stroke-width: 1.5; stroke-dasharray: 5 4; }
  .paper { fill: #ffffff; }
  text { fill: #1f2328; }
  .quiet { fill: #59636e; }
  .rule { stroke: #e4e7eb; }
  .frame { stroke: #b7bec6; }
  .adder { stroke: #0a5fd6; } text.adder, circle.adder { fill: #0a5fd6; stroke: none; }
  .triton { stroke: #b3470a; } text.triton, circle.triton { fill: #b3470a; stroke: none; }
  .floor { stroke: #6e7781; } text.floor, circle.floor { fill: #59636e; stroke: none; }
"""
DARK = """
  .paper { fill: #0d1117; }
  text { fill: #e6edf3; }
  .quiet { fill: #9198a1; }
  .rule { stroke: #21262d; }
  .frame { stroke: #4a525c; }
  .adder { stroke: #6cb0ff; } text.adder, circle.adder { fill: #6cb0ff; }
  .triton { stroke: #f29a5c; } text.triton, circle.triton { fill: #f29a5c; }
  .floor { stroke: #8b949e; } text.floor, circle.floor { fill: #9198a1; }
"""


def duration(ms):
    """0.01 as "10 µs"."""
    for scale, unit in ((1e-3, "s"), (1, "ms"), (1e3, "µs")):
        if ms * scale >= 1:
            return f"{ms * scale:.3g} {unit}"
    return f"{ms * 1e6:.3g} ns"


def token_count(count):
    """16384 as "16k"."""
    return f"{count // 1024}k" if count % 1024 == 0 else str(count)


def span(values, unit="×"):
    """"1.2–1.9×", of the two ends as they are printed."""
    ends = [f"{end:.1f}" if end < 10 else f"{end:.0f}" for end in (min(values), max(values))]
    return (ends[0] if ends[0] == ends[1] else "–".join(ends)) + unit


def spread(positions, gap):
    """Positions moved as little as it takes to be `gap` apart, in the same order."""
    order = sorted(range(len(positions)), key=lambda i: positions[i])
    blocks = []  # (sum of what each wants of the block's first, members)
    for i in order:
        block = [positions[i], [i]]
        while blocks:
            total, members = blocks[-1]
            if total / len(members) + gap * len(members) <= block[0] / len(block[1]):
                break
            blocks.pop()
            shift = gap * len(members) * len(block[1])
            block = [total + block[0] - shift, members + block[1]]
        blocks.append(block)
    out = [0.0] * len(positions)
    for total, members in blocks:
        for place, i in enumerate(members):
            out[i] = total / len(members) + gap * place
    return out


class Axes:
    """Where a sequence length and a time are in a panel at (left, top)."""

    def __init__(self, rows):
        seqlens = sorted({row["seqlen"] for row in rows})
        times = [row[name] for row in rows for _, name, _ in SERIES if row[name]]
        self.seqlens = seqlens
        first = math.log2(seqlens[0])
        self.x_ends = (first, max(math.log2(seqlens[-1]), first + 1))
        low, high = math.log10(min(times)), math.log10(max(times))
        margin = max(0.05 * (high - low), 0.1)
        self.y_ends = (low - margin, high + margin)

    def x(self, seqlen):
        low, high = self.x_ends
        return 10 + (PANEL_WIDTH - 20) * (math.log2(seqlen) - low) / (high - low)

    def y(self, ms):
        low, high = self.y_ends
        return PANEL_HEIGHT * (high - math.log10(ms)) / (high - low)

    def time_ticks(self):
        return [10.0**power for power in range(math.ceil(self.y_ends[0]),
                                               math.floor(self.y_ends[1]) + 1)]


def text(x, y, content, classes=""):
    kind = f' class="{classes}"' if classes else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}>{escape(content)}</text>'


def frame_of(axes):
    out = []
    for ms in axes.time_ticks():
        y = axes.y(ms)
        out.append(f'<line class="rule" x1="0" x2="{PANEL_WIDTH}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(text(-8, y + 4, duration(ms), "quiet end"))
    for i, seqlen in enumerate(axes.seqlens):
        x = axes.x(seqlen)
        length = 6 if i % 2 == 0 else 3
        out.append(f'<line class="frame" x1="{x:.1f}" x2="{x:.1f}" y1="{PANEL_HEIGHT}" '
                   f'y2="{PANEL_HEIGHT + length}"/>')
        if i % 2 == 0:
            out.append(text(x, PANEL_HEIGHT + 21, token_count(seqlen), "quiet middle"))
    out.append(f'<line class="frame" x1="0" x2="{PANEL_WIDTH}" y1="{PANEL_HEIGHT}" '
               f'y2="{PANEL_HEIGHT}"/>')
    return out


def lines_of(axes, rows):
    """The series as lines that break where a time is missing, with a label at each one's end."""
    out, ends = [], []
    for name, column, label in SERIES:
        runs = [[]]
        for row in rows:
            if row[column]:
                runs[-1].append((axes.x(row["seqlen"]), axes.y(row[column]), row))
            elif runs[-1]:
                runs.append([])
        runs = [run for run in runs if run]
        for run in runs:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in run)
            out.append(f'<polyline class="{name}" points="{points}"/>')
            if name != "floor":
                out += [f'<circle class="{name}" cx="{x:.1f}" cy="{y:.1f}" r="3"><title>{label}, '
                        f'{row["seqlen"]} tokens: {duration(row[column])}</title></circle>'
                        for x, y, row in run]
        if runs:
            ends.append((name, label, *runs[-1][-1][:2]))
    heights = spread([end[3] for end in ends], LABEL_GAP)
    for (name, label, x, _), y in zip(ends, heights, strict=True):
        out.append(text(x + 10, y + 4, label, f"label {name}"))
    return out


def remark_of(rows):
    """How a panel's figures compare."""
    speedups = [row["speedup"] for row in rows if row["speedup"]]
    ratios = [row["ratio_to_floor"] for row in rows if row["ratio_to_floor"]]
    parts = []
    if speedups:
        parts.append(f"{span(speedups)} as fast as Triton")
    if ratios:
        parts.append(f"{span(ratios)} the floor")
    return ", ".join(parts)


def panel(axes, left, top, dstate, rows):
    out = [f'<g transform="translate({left},{top})">',
           text(0, -32, f"dstate {dstate}", "head"), text(0, -13, remark_of(rows), "quiet")]
    return out + frame_of(axes) + lines_of(axes, rows) + ["</g>"]


def subtitles_of(report):
    row, summary, versions = report["rows"][0], report["summary"], report["summary"]["versions"]
    work = (f"Device time of one call over the tokens of a sequence: batch {row['batch']}, "
            f"{row['nheads']} heads of {row['headdim']}, bf16. Triton: the kernels of mamba_ssm.")
    floor = (f"Floor: the larger of bytes over {summary['copy_gb_per_s'] / 1e3:.2f} TB/s and flops "
             f"over {summary['matmul_tflop_per_s']:.0f} TFLOP/s, as measured in the same run.")
    names = [("Driver", "driver"), ("mamba_ssm", "mamba_ssm"), ("Triton", "triton"),
             ("Adder", "commit")]
    used = ", ".join(f"{label} {versions[name]}" for label, name in names if versions.get(name))
    return [work, floor], used


def document(width, height, title, subtitles, body):
    """An SVG file: what it is about, then its parts."""
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}@media (prefers-color-scheme: dark) {{{DARK}}}</style>",
        f'<rect class="paper" width="{width}" height="{height}" rx="8"/>',
        text(20, 38, title, "title"),
        *(text(20, 62 + 20 * i, line, "quiet") for i, line in enumerate(subtitles)),
        *body,
        "</svg>",
    ]) + "\n"


def svg_of(report):
    """The plot of a report's rows, one panel for each dstate."""
    rows = sorted(report["rows"], key=lambda row: (row["dstate"], row["seqlen"]))
    dstates = sorted({row["dstate"] for row in rows})
    axes = Axes(rows)
    device = (report.get("device") or {}).get("name", "a CUDA device")
    title = f"SSD forward on {device}"
    subtitles, used = subtitles_of(report)
    out = []
    places = [(left, top) for top in TOPS for left in LEFTS]
    for dstate, (left, top) in zip(dstates, places):
        out += panel(axes, left, top, dstate, [row for row in rows if row["dstate"] == dstate])
    out.append(text(20, HEIGHT - 16, used, "quiet"))
    return document(WIDTH, HEIGHT, title, subtitles, out)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="example: bench/plot_ssd_forward.py "
                                    "bench/results/h200/ssd_forward.json")
    parser.add_argument("json", type=Path, help="what compare_ssd_forward.py wrote")
    parser.add_argument("svg", type=Path, nargs="?", help="default: the same name, ending in .svg")
    options = parser.parse_args()
    try:
        report = json.loads(options.json.read_text())
        svg = svg_of(report)
    except (OSError, ValueError, KeyError, IndexError) as error:
        sys.exit(f"plot_ssd_forward: {options.json} is not a report of compare_ssd_forward.py: "
                 f"{error!r}")
    (options.svg or options.json.with_suffix(".svg")).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
