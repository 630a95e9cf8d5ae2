"""Times mamba_ssm's Triton SSD forward: a process that compare_ssd_forward.py starts and reads.

usage: mamba_ssd_forward.py FOLDER < REQUEST

FOLDER holds a mamba_ssm package. REQUEST is one JSON object: "seconds" to spend on each figure,
"jobs", and the flags "rates" (measure the device's first) and "compile_only" (compile what the
jobs need, time nothing). A job has the fields of a Case, "chunk_size", "copies" (of its arguments
to rotate among, null for a number that its bytes decide) and "tune" (choose tiles anew for this
size). Every answer is one JSON line on standard output: "versions", "rates", then one with "job"
for each job. A CUDA error leaves a process without its device, so the first failure ends this one.
"""

import json
import os
import sys
import time

import torch
import torch.nn.functional as F
import triton
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.testing import do_bench

DEVICE = "cuda"
FLUSH_BYTES = 256 * 2**20  # well above any L2 cache
LEAST_REPLAYS = 5
MOST_REPLAYS = 2000


def percentiles(times):
    """The 10th, 50th and 90th percentile."""
    times = sorted(times)
    return [times[int(fraction * (len(times) - 1))] for fraction in (0.1, 0.5, 0.9)]


def device_ms(body, seconds, before=None):
    """Device milliseconds of each of many calls of `body`, with `before` ahead of each."""

    def measure(count):
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for start, end in events:
            if before:
                before()
            start.record()
            body()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in events]

    once_ms = max(measure(2)[-1], 1e-4)  # the first may still put its instructions on the device
    return measure(min(max(int(seconds * 1e3 / once_ms), LEAST_REPLAYS), MOST_REPLAYS))


def captured(calls):
    """A CUDA graph of calls, and their results, which keep memory of their own."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call() for call in calls]
    return graph, results


def rotated_ms(calls, seconds):
    """Per call, of replays of a graph of calls on copies that together exceed the L2 cache."""
    graph, results = captured(calls)
    times = percentiles(device_ms(graph.replay, seconds))
    del results
    return [ms / len(calls) for ms in times]


def flushed_ms(call, seconds):
    """Of replays of a graph of one call, with the L2 cache overwritten before each."""
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=DEVICE)
    graph, results = captured([call])
    times = percentiles(device_ms(graph.replay, seconds, before=flush.zero_))
    del results
    return times


def wall_ms(calls, seconds):
    """Per call, the host's time for launching call after call and waiting for the last."""
    times = []
    end = time.perf_counter() + seconds
    while len(times) < LEAST_REPLAYS or time.perf_counter() < end:
        start = time.perf_counter()
        for call in calls:
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3 / len(calls))
    return percentiles(times)[1]


def arguments_of(job):
    """Random arguments of one call."""
    batch, seqlen, nheads, headdim = (job[name]
                                      for name in ("batch", "seqlen", "nheads", "headdim"))

    def normal(*shape):
        return torch.randn(shape, dtype=torch.bfloat16, device=DEVICE)

    group = (batch, seqlen, job["ngroups"], job["dstate"])
    arguments = {
        "x": F.silu(normal(batch, seqlen, nheads, headdim), inplace=True),
        "A": -1 - 15 * torch.rand(nheads, device=DEVICE),
        "B": F.silu(normal(*group), inplace=True),
        "C": F.silu(normal(*group), inplace=True),
        "D": torch.randn(nheads, device=DEVICE),
        "chunk_size": job["chunk_size"],
    }
    dt = normal(batch, seqlen, nheads)
    if not job["model"]:
        zeros = torch.zeros(batch, nheads, headdim, job["dstate"], device=DEVICE)
        return arguments | {"dt": F.softplus(dt), "initial_states": zeros}
    # As models are initialized: softplus(dt_bias) between 0.001 and 0.1, evenly in its logarithm.
    first = 1e-3 * 100 ** torch.rand(nheads, device=DEVICE)
    bias = first + torch.log(-torch.expm1(-first))
    return arguments | {"dt": dt, "dt_bias": bias, "dt_softplus": True}


def bytes_of(arguments):
    return sum(value.nbytes for value in arguments.values() if isinstance(value, torch.Tensor))


def copies_beyond_cache(arguments):
    """As many copies as make a call find none of its arguments in the L2 cache."""
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    cache = 4 * device.L2_cache_size
    return min(max(-(-cache // bytes_of(arguments)), 2), 512)


class Mamba:
    """mamba_ssm's forward, and the tuners of its kernels."""

    def __init__(self, folder):
        sys.path.insert(0, folder)
        from mamba_ssm.ops.triton import ssd_combined

        self.forward = ssd_combined._mamba_chunk_scan_combined_fwd
        self.tuners = []
        for name, module in list(sys.modules.items()):
            if not name.startswith("mamba_ssm."):
                continue
            for value in vars(module).values():
                while isinstance(value, (Autotuner, Heuristics)):  # decorators of one another
                    if isinstance(value, Autotuner):
                        self.tuners.append(value)
                    value = value.fn
        for tuner in self.tuners:
            # A quarter of the usual repetitions of each of the 42 configurations.
            tuner._do_bench = lambda call, quantiles: do_bench(call, warmup=5, rep=25,
                                                               quantiles=quantiles)

    def call(self, arguments):
        """The two results; what is in between is freed."""
        results = self.forward(**arguments)
        return results[0], results[5]

    def measure(self, job, seconds, compile_only):
        if job["tune"]:
            for tuner in self.tuners:
                tuner.cache.clear()
        sets = [arguments_of(job)]
        results = self.call(sets[0])
        torch.cuda.synchronize()
        if compile_only:
            return {}
        for name, result in zip(("y", "the state"), results, strict=True):
            if not torch.isfinite(result).all():
                raise RuntimeError(f"{name} holds values that are not finite")
        del results
        copies = job["copies"] or copies_beyond_cache(sets[0])
        while len(sets) < copies:
            sets.append(arguments_of(job))
        calls = [lambda arguments=one: self.call(arguments) for one in sets]
        return {
            "copies": copies,
            "rotated_ms": rotated_ms(calls, seconds),
            "flushed_ms": flushed_ms(calls[0], seconds),
            "wall_ms": wall_ms(calls, seconds),
        }


def measure_rates(seconds):
    """The fastest tenth of large copies and of large products of random matrices in bf16."""
    n = 8192
    a, b = (torch.randn(n, n, dtype=torch.bfloat16, device=DEVICE) for _ in range(2))
    product = torch.empty_like(a)
    matmul_ms = percentiles(device_ms(lambda: torch.mm(a, b, out=product), seconds))[0]
    source = torch.full((2**31,), 90, dtype=torch.uint8, device=DEVICE)
    copy = torch.empty_like(source)
    copy_ms = percentiles(device_ms(lambda: copy.copy_(source), seconds))[0]
    return {"copy_gb_per_s": 2 * source.nbytes / copy_ms * 1e-6,
            "matmul_tflop_per_s": 2 * n**3 / matmul_ms * 1e-9}


def main():
    folder = sys.argv[1]
    # Nothing but answers goes to standard output, whatever the kernels' compiler may print.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(fields):
        print(json.dumps(fields), file=answers, flush=True)

    request = json.load(sys.stdin)
    mamba = Mamba(folder)
    torch.manual_seed(0)
    answer({"versions": {"torch": torch.__version__, "torch_cuda": torch.version.cuda,
                         "triton": triton.__version__,
                         "device": torch.cuda.get_device_name()}})
    if request["rates"]:
        answer({"rates": measure_rates(request["seconds"])})
    for index, job in enumerate(request["jobs"]):
        try:
            figures = mamba.measure(job, request["seconds"], request["compile_only"])
        except Exception as error:  # whatever it is: it is this job's result
            text = str(error).strip().splitlines() or ["no message"]
            answer({"job": index, "error": f"{type(error).__name__}: {text[0][:200]}"})
            os._exit(1)  # without clean-up, which may hang after a CUDA error
        answer({"job": index, **figures})
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
