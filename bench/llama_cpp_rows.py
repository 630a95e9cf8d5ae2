"""Rows and summary of the comparison with llama.cpp."""

from statistics import median

# What summaries call the formats of files.
SHORT = {"f32": "f32", "bf16": "bf16", "q8_0": "int8", "q4_0": "q4"}


def own_figures(report):
    """Of a report of `adder bench model`, what llama_cpp.figures_of has of llama-bench.

    A prompt that was fed several times counts as the last time it was. Decoding counts as the mean
    over its tokens, since that is what llama-bench has."""
    results = report["results"]
    seconds, work = {}, {}
    for figure in results["prefill"]:
        seconds["prefill", figure["tokens"]] = figure["median_s"]
        work["prefill", figure["tokens"]] = {"flops": figure["flops"]}
    decode = results["decode"][0]
    seconds["decode", decode["tokens"]] = decode["mean_s"]
    work["decode", decode["tokens"]] = {"bytes": decode["bytes"]}
    return {"seconds": seconds, "work": work, "dtype": report["model"]["dtype"],
            **{name: results[name] for name in ("load_s", "first_token_s", "peak_rss_bytes")}}


def comparison_of(ours, theirs):
    """Of seconds in the rounds: medians, extremes, and how many times as fast ours is."""
    out = {}
    for name, values in (("ours", ours), ("llama", theirs)):
        out |= {f"{name}_ms": 1e3 * median(values), f"{name}_min_ms": 1e3 * min(values),
                f"{name}_max_ms": 1e3 * max(values)}
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return out | {"speedup": median(theirs) / median(ours), "min_speedup": min(ratios),
                  "max_speedup": max(ratios)}


def rows_of(model, format_name, file_bytes, ours, theirs):
    """A row for each prompt, for decoding and for loading, of the figures of each round."""
    same = {"model": model, "format": format_name, "ours_dtype": ours[0]["dtype"]}
    rows = []
    for what, tokens in ours[0]["seconds"]:
        row = same | {"what": what, "tokens": tokens}
        row |= comparison_of(*([figures["seconds"][what, tokens] for figures in rounds]
                               for rounds in (ours, theirs)))
        count = tokens if what == "prefill" else 1
        row |= {f"{name}_tokens_per_s": 1e3 * count / row[f"{name}_ms"]
                for name in ("ours", "llama")}
        rows.append(row | ours[0]["work"][what, tokens])
    row = same | {"what": "load", "file_bytes": file_bytes}
    row |= comparison_of(*([figures["first_token_s"] for figures in rounds]
                           for rounds in (ours, theirs)))
    row["llama_cpu"] = median(figures["cpu"] for figures in theirs)
    row["ours_load_ms"] = 1e3 * median(figures["load_s"] for figures in ours)
    for name, rounds in (("ours", ours), ("llama", theirs)):
        row[f"{name}_peak_rss_bytes"] = max(figures["peak_rss_bytes"] for figures in rounds)
    return [*rows, row]


def peaks_of(machines):
    """What was measured of the machine several times: the best of each rate."""
    return {name: max(machine[name] for machine in machines) if name.endswith("_per_s") else value
            for name, value in machines[0].items()}


def with_shares(rows, machine):
    """The rows with the share of the machine's rates that ours reached: of reading memory while
    decoding, and of float32 matrix products in prefill."""
    out = []
    for row in rows:
        seconds = 1e-3 * row["ours_ms"]
        if row["what"] == "decode":
            rate = 1e9 * machine["dram_read_gb_per_s"]
            row = row | {"of_bandwidth": row["bytes"] / seconds / rate}
        elif row["what"] == "prefill":
            rate = 1e9 * machine["linear_gflop_per_s"]
            row = row | {"of_gemm_rate": row["flops"] / seconds / rate}
        out.append(row)
    return out


def least(rows, key, **wanted):
    """The least figure of the rows that are as wanted, or None."""
    return min((row[key] for row in rows
                if all(row.get(name) == value for name, value in wanted.items())), default=None)


def summary_of(rows):
    """The least figures over prompts and, where the name has no format, over formats;
    prefill_of_gemm_rate is of float32 weights, llama_cpu of all files."""
    small = {"model": "mamba2-130m"}
    prefill, decode = small | {"what": "prefill"}, small | {"what": "decode"}
    return {
        **{f"mamba2_130m_prefill_speedup_{SHORT[name]}": least(rows, "speedup", **prefill,
                                                               format=name) for name in SHORT},
        **{f"mamba2_130m_decode_speedup_{SHORT[name]}": least(rows, "speedup", **decode,
                                                              format=name) for name in SHORT},
        "mamba_130m_prefill_speedup": least(rows, "speedup", model="mamba-130m", what="prefill"),
        "decode_of_bandwidth": least(rows, "of_bandwidth", **decode),
        "prefill_of_gemm_rate": least(rows, "of_gemm_rate", **prefill, format="f32"),
        "llama_cpu": least(rows, "llama_cpu", what="load"),
    }


def table_of(rows):
    """A line for each row: figures of both programs, and ours over theirs."""
    lines = [f"{'':<24}{'':<14}{'adder':>12}{'llama.cpp':>12}{'speedup':>9}  from   to"]
    for row in rows:
        if row["what"] == "load":
            what, figures = "first token", [f"{row[name]:.0f} ms" for name in
                                            ("ours_ms", "llama_ms")]
        else:
            what = f"{row['what']} {row['tokens']}"
            figures = [f"{row[name]:.1f} /s" for name in
                       ("ours_tokens_per_s", "llama_tokens_per_s")]
        name = f"{row['model']} {row['format']}"
        lines.append(f"{name:<24}{what:<14}{figures[0]:>12}{figures[1]:>12}{row['speedup']:>9.2f}"
                     f"{row['min_speedup']:>6.2f}{row['max_speedup']:>6.2f}")
        if row["what"] == "load":
            memory = [f"{row[name] / 1e6:.0f} MB" for name in
                      ("ours_peak_rss_bytes", "llama_peak_rss_bytes")]
            lines.append(f"{name:<24}{'peak memory':<14}{memory[0]:>12}{memory[1]:>12}")
    return "\n".join(lines)
