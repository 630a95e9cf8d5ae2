"""What compare_ssd_forward.py compares: the shapes, their floors, and one table out of two."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from adder_report import Failure

CHUNK_SIZES = (128, 256)  # of mamba_ssm; the better of the two counts
FLOOR_CHUNK = 128
DSTATES = (64, 128, 256, 512)
SEQLENS = tuple(2**log for log in range(10, 19))
LONG_FROM = 16384  # tokens a sequence from which launches no longer count

KEY = ("batch", "seqlen", "nheads", "headdim", "dstate", "ngroups")
OUR_TIMES = {"ours_ms": "median_s", "ours_p10_ms": "p10_s", "ours_p90_ms": "p90_s",
             "ours_wall_ms": "wall_s"}
TRITON_TIMES = ("triton_ms", "triton_p10_ms", "triton_p90_ms", "triton_wall_ms",
                "triton_chunk_size", "triton_method")


@dataclass(frozen=True)
class Case:
    """One shape, in bf16 and with D."""

    batch: int
    seqlen: int
    nheads: int
    headdim: int
    dstate: int
    ngroups: int = 1
    # A layer of a model: dt gets a bias and softplus. Otherwise dt is positive as it comes, and
    # there is an initial state of zeros.
    model: bool = False

    @property
    def key(self):
        return tuple(getattr(self, name) for name in KEY)

    @property
    def shape(self):
        return (f"batch {self.batch}, seqlen {self.seqlen}, nheads {self.nheads}, "
                f"headdim {self.headdim}, dstate {self.dstate}")

    @property
    def flops(self):
        """Of the causal algorithm in chunks of 128: C·Bᵀ once a group, the rest once a head."""
        inside = FLOOR_CHUNK * (self.ngroups * self.dstate + self.nheads * self.headdim)
        states = 4 * self.nheads * self.headdim * self.dstate
        return self.batch * self.seqlen * (inside + states)

    @property
    def bytes(self):
        """x, dt, B and C read once and y written once in bf16; a state in and one out in f32."""
        token = self.nheads * (4 * self.headdim + 2) + 4 * self.ngroups * self.dstate
        states = 8 * self.batch * self.nheads * self.headdim * self.dstate
        return self.batch * self.seqlen * token + states


def key_of(fields):
    """The key of the Case that a row or a reply is for."""
    return tuple(fields[name] for name in KEY)


def grid_cases():
    return [Case(4, seqlen, 8, 64, dstate) for dstate in DSTATES for seqlen in SEQLENS]


MAMBA2_2P7B = Case(8, 4096, 80, 64, 128, model=True)


def model_cases():
    return [
        MAMBA2_2P7B,
        Case(8, 4096, 24, 64, 128, model=True),
        Case(1, 1024, 80, 64, 128, model=True),
        Case(1, 16384, 80, 64, 128, model=True),
        # More elements in the states between chunks than 32 bits count.
        Case(1, 262144, 80, 64, 512, model=True),
    ]


def floor_of(case, rates):
    """The least milliseconds, and whether "copy" or "matmul" keeps them from being fewer."""
    copy_ms = case.bytes / rates["copy_gb_per_s"] * 1e-6
    matmul_ms = case.flops / rates["matmul_tflop_per_s"] * 1e-9
    return (copy_ms, "copy") if copy_ms > matmul_ms else (matmul_ms, "matmul")


def best_rates(sources):
    """The higher of each rate that the sources measured, so that no floor is too high."""
    rates = {}
    for name in ("copy_gb_per_s", "matmul_tflop_per_s"):
        found = [source[name] for source in sources.values() if source.get(name)]
        if not found:
            raise Failure(f"no {name} was measured, expected it among the device's peaks")
        rates[name] = max(found)
    return rates


NUMBERS = re.compile(rf"\b({'|'.join(KEY)}) (\d+)\b")
NOT_COMPARED = re.compile(r"\b(f16|f32|z|gate|gated|packed|seq_idx|cu_seqlens|remember)\b")


def parse_shape(text):
    """The key of the Case that a result of `adder bench op` is for, None if for none."""
    numbers = {"ngroups": 1} | {name: int(value) for name, value in NUMBERS.findall(text)}
    if NOT_COMPARED.search(text) or any(name not in numbers for name in KEY):
        return None
    return key_of(numbers)


def own_results(report):
    """Results of a report of `adder bench op ssd_forward` by the key of their Case."""
    results = {}
    for result in report.get("results", []):
        key = parse_shape(result.get("shape", "")) if result.get("op") == "ssd_forward" else None
        if key is None:
            continue
        if key in results:
            raise Failure(f"results '{results[key]['shape']}' and '{result['shape']}' are for the "
                          "same shape, expected one")
        if not result.get("median_s", 0) > 0:
            raise Failure(f"result '{result['shape']}' has no positive median_s")
        results[key] = result
    return results


def best_of(replies):
    """The reply with the lowest time among those for one case, and that time: (p10, median, p90).

    None if all failed. A reply is for one chunk size and holds times by two methods.
    """
    timed = [(reply[method], method, reply) for reply in replies
             for method in ("rotated_ms", "flushed_ms") if method in reply]
    if not timed:
        return None
    times, method, reply = min(timed, key=lambda one: one[0][1])
    p10, median, p90 = times
    wall = min(one["wall_ms"] for one in replies if "wall_ms" in one)
    return dict(zip(TRITON_TIMES, (median, p10, p90, wall, reply["chunk_size"],
                                   method.removesuffix("_ms")), strict=True))


def join(case, result, replies, rates):
    """One row: a result of ours (or None), and mamba_ssm's replies (or none) for one case."""
    row = {name: getattr(case, name) for name in KEY}
    floor_ms, limit = floor_of(case, rates)
    for name, source in OUR_TIMES.items():
        row[name] = result[source] * 1e3 if result and source in result else None
    triton = best_of(replies)
    row |= triton or dict.fromkeys(TRITON_TIMES)
    errors = [f"chunk {reply['chunk_size']}: {reply['error']}" for reply in replies
              if "error" in reply]
    row["triton_error"] = "; ".join(errors) if errors and not triton else None
    row["speedup"] = row["triton_ms"] / row["ours_ms"] if triton and result else None
    row["floor_ms"] = floor_ms
    row["floor_limit"] = limit
    row["ratio_to_floor"] = row["ours_ms"] / floor_ms if result else None
    row["error"] = result.get("error") if result else None
    row["allowed_error"] = result.get("allowed_error") if result else None
    return row


def summary_of(rows, models, rates):
    """The figures that matter; those of the grid count rows that have them, and say how many."""
    speedups = [row["speedup"] for row in rows if row["speedup"]]
    long_ratios = [row["ratio_to_floor"] for row in rows
                   if row["seqlen"] >= LONG_FROM and row["ratio_to_floor"]]
    layer = [row["ours_ms"] for row in models
             if key_of(row) == MAMBA2_2P7B.key]
    logs = [math.log(speedup) for speedup in speedups]
    return {
        "grid_cells": len(grid_cases()),
        "grid_cells_measured": sum(row["ours_ms"] is not None for row in rows),
        "grid_cells_compared": len(speedups),
        "min_speedup_vs_triton": min(speedups, default=None),
        "geomean_speedup_vs_triton": math.exp(sum(logs) / len(logs)) if logs else None,
        "max_ratio_to_floor_from_16k": max(long_ratios, default=None),
        "mamba2_2p7b_8x4096_ms": layer[0] if layer else None,
        **rates,
    }


def cell(value, unit=""):
    return "-" if value is None else f"{value:.4g}{unit}"


def table_of(rows):
    """Rows as text, one a line."""
    lines = [("shape", "ours", "Triton", "speedup", "floor", "of floor", "error")]
    for row in rows:
        shape = (f"{row['batch']} x {row['seqlen']}, nheads {row['nheads']}, "
                 f"dstate {row['dstate']}")
        lines.append((shape, cell(row["ours_ms"], " ms"),
                      "failed" if row["triton_error"] else cell(row["triton_ms"], " ms"),
                      cell(row["speedup"]), f"{row['floor_ms']:.4g} ms {row['floor_limit']}",
                      cell(row["ratio_to_floor"]), cell(row["error"])))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = "".join(
        "  ".join([line[0].ljust(widths[0])] +
                  [line[i].rjust(widths[i]) for i in range(1, len(line))]).rstrip() + "\n"
        for line in lines)
    failures = [f"Triton at {row['batch']} x {row['seqlen']}, nheads {row['nheads']}, dstate "
                f"{row['dstate']}: {row['triton_error']}\n" for row in rows if row["triton_error"]]
    return text + "".join(failures)
