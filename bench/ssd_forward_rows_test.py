"""Tests of shapes, floors, rows and the summary of the comparison."""

import unittest

import ssd_forward_rows as table

RATES = {"copy_gb_per_s": 4300, "matmul_tflop_per_s": 790}


def result_of(case, median_s=1e-4, **fields):
    return {"op": "ssd_forward", "shape": case.shape, "median_s": median_s, "p10_s": 0.9 * median_s,
            "p90_s": 1.1 * median_s, "error": 1e-3, "allowed_error": 4e-3} | fields


def reply_of(rotated_ms, chunk_size=128, flushed_ms=None):
    around = {name: [0.9 * ms, ms, 1.1 * ms] for name, ms in
              (("rotated_ms", rotated_ms), ("flushed_ms", flushed_ms or 2 * rotated_ms))}
    return {"chunk_size": chunk_size, "wall_ms": 0.5, **around}


def failed_reply(chunk_size):
    return {"chunk_size": chunk_size, "error": "illegal memory access"}


class Floors(unittest.TestCase):
    def test_floor_is_the_larger_of_copy_and_matmul(self):
        # By hand, with T = 4 · 16384.
        short, wide = table.Case(4, 16384, 8, 64, 64), table.Case(4, 16384, 8, 64, 512)
        self.assertEqual(short.bytes, 65536 * (8 * 258 + 256) + 8 * 4 * 8 * 64 * 64)
        self.assertEqual(wide.flops, 65536 * (128 * 512 + 8 * 128 * 64 + 4 * 8 * 512 * 64))
        ms, limit = table.floor_of(short, RATES)
        self.assertEqual((round(ms, 4), limit), (0.0356, "copy"))
        ms, limit = table.floor_of(wide, RATES)
        self.assertEqual((round(ms, 4), limit), (0.0979, "matmul"))

    def test_groups_count_once_each(self):
        one, two = (table.Case(1, 100, 8, 64, 128, ngroups=n) for n in (1, 2))
        self.assertEqual(two.bytes - one.bytes, 100 * 4 * 128)
        self.assertEqual(two.flops - one.flops, 100 * 128 * 128)

    def test_the_higher_rate_of_each_counts(self):
        rates = table.best_rates({
            "adder": {"copy_gb_per_s": 4200, "matmul_tflop_per_s": 800},
            "torch": {"copy_gb_per_s": 4300, "matmul_tflop_per_s": 700}})
        self.assertEqual(rates, {"copy_gb_per_s": 4300, "matmul_tflop_per_s": 800})
        with self.assertRaisesRegex(table.Failure, "no matmul_tflop_per_s was measured"):
            table.best_rates({"adder": {"copy_gb_per_s": 1, "matmul_tflop_per_s": None}})


class Shapes(unittest.TestCase):
    def test_every_case_finds_its_result(self):
        cases = table.grid_cases() + table.model_cases()
        self.assertEqual(len(cases), 41)
        results = table.own_results({"results": [result_of(case) for case in cases]})
        self.assertEqual(list(results), [case.key for case in cases])

    def test_other_words_and_orders(self):
        self.assertEqual(table.parse_shape("mamba2-2.7b: batch 8, seqlen 4096, nheads 80, headdim "
                                           "64, dstate 128, dt_bias, softplus, bf16"),
                         table.MAMBA2_2P7B.key)
        self.assertEqual(table.parse_shape("bf16, dstate 3, ngroups 2, headdim 4, nheads 5, "
                                           "seqlen 6, batch 7"), (7, 6, 5, 4, 3, 2))

    def test_what_is_not_compared(self):
        shape = table.MAMBA2_2P7B.shape
        for text in ("", "8 x 4096 tokens", shape.replace("dstate", "state"), shape + ", f32",
                     shape + ", gated", "packed, " + shape):
            self.assertIsNone(table.parse_shape(text), text)
        other = result_of(table.MAMBA2_2P7B) | {"op": "compute_out"}
        self.assertEqual(table.own_results({"results": [other]}), {})

    def test_bad_results(self):
        twice = [result_of(table.MAMBA2_2P7B)] * 2
        with self.assertRaisesRegex(table.Failure, "are for the same shape, expected one"):
            table.own_results({"results": twice})
        with self.assertRaisesRegex(table.Failure, "batch 8, .* has no positive median_s"):
            table.own_results({"results": [result_of(table.MAMBA2_2P7B, median_s=0)]})


class Rows(unittest.TestCase):
    case = table.Case(4, 16384, 8, 64, 64)

    def test_both(self):
        result = result_of(self.case, 5e-5, wall_s=6e-5)
        replies = [reply_of(0.4), reply_of(0.3, 256, flushed_ms=0.25)]
        row = table.join(self.case, result, replies, RATES)
        self.assertAlmostEqual(row["ours_ms"], 0.05)
        self.assertAlmostEqual(row["ours_wall_ms"], 0.06)
        self.assertEqual((row["triton_ms"], row["triton_chunk_size"], row["triton_method"]),
                         (0.25, 256, "flushed"))
        self.assertAlmostEqual(row["speedup"], 5)
        self.assertAlmostEqual(row["ratio_to_floor"], 0.05 / row["floor_ms"])
        self.assertEqual((row["error"], row["triton_error"]), (1e-3, None))

    def test_triton_fails_with_one_chunk_size_or_both(self):
        result = result_of(self.case)
        row = table.join(self.case, result, [failed_reply(128), reply_of(0.3, 256)], RATES)
        self.assertEqual((row["triton_ms"], row["triton_error"]), (0.3, None))
        row = table.join(self.case, result, [failed_reply(128), failed_reply(256)], RATES)
        self.assertEqual((row["triton_ms"], row["speedup"]), (None, None))
        self.assertEqual(row["triton_error"], "chunk 128: illegal memory access; "
                                              "chunk 256: illegal memory access")
        self.assertIn("failed", table.table_of([row]))

    def test_one_alone(self):
        ours = table.join(self.case, result_of(self.case), [], RATES)
        theirs = table.join(self.case, None, [reply_of(1)], RATES)
        self.assertEqual(ours.keys(), theirs.keys())
        self.assertEqual((ours["triton_ms"], ours["speedup"]), (None, None))
        self.assertEqual((theirs["ours_ms"], theirs["speedup"], theirs["ratio_to_floor"]),
                         (None, None, None))
        self.assertEqual(table.table_of([ours, theirs]).count("\n"), 3)

    def test_summary(self):
        cases = [table.Case(4, seqlen, 8, 64, 64) for seqlen in (8192, 16384, 32768)]
        ratios, speedups = (9, 1.5, 1.25), (2, 8, None)
        rows = []
        for case, ratio, speedup in zip(cases, ratios, speedups, strict=True):
            ms = ratio * table.floor_of(case, RATES)[0]
            replies = [reply_of(speedup * ms)] if speedup else [failed_reply(128)]
            rows.append(table.join(case, result_of(case, ms * 1e-3), replies, RATES))
        layer = table.join(table.MAMBA2_2P7B, result_of(table.MAMBA2_2P7B, 2.5e-4), [], RATES)
        summary = table.summary_of(rows, [layer], RATES)
        for name, value in {"grid_cells": 36, "grid_cells_measured": 3, "grid_cells_compared": 2,
                            "min_speedup_vs_triton": 2, "geomean_speedup_vs_triton": 4,
                            "max_ratio_to_floor_from_16k": 1.5, "mamba2_2p7b_8x4096_ms": 0.25,
                            **RATES}.items():
            self.assertAlmostEqual(summary[name], value, msg=name)

    def test_summary_of_nothing(self):
        summary = table.summary_of([], [], RATES)
        self.assertIsNone(summary["min_speedup_vs_triton"])
        self.assertIsNone(summary["geomean_speedup_vs_triton"])
        self.assertIsNone(summary["mamba2_2p7b_8x4096_ms"])


if __name__ == "__main__":
    unittest.main()
