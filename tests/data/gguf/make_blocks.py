#!/usr/bin/env python3
"""Writes blocks.bin: random blocks of every format and their values as the `gguf` package (0.17 or
later, with NumPy) has them.

For each format, in the order of FORMATS: three blocks, then their values as float32. Scales are
small float16 numbers so that no value is infinite, but for one block with a subnormal scale; all
other bytes are random. The file is committed; run this only to change it.
"""

from pathlib import Path

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Offsets of the float16 numbers of a block.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208]}
BLOCKS = 3

generator = numpy.random.default_rng(1)
out = bytearray()
for name in FORMATS:
    kind = GGMLQuantizationType[name]
    _, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (BLOCKS, block_bytes), dtype=numpy.uint8)
    for offset in HALVES[name]:
        scales = generator.uniform(-0.1, 0.1, BLOCKS).astype(numpy.float16)
        scales[-1] = numpy.float16(3e-7)
        blocks[:, offset : offset + 2] = scales.view(numpy.uint8).reshape(BLOCKS, 2)
    out += blocks.tobytes() + dequantize(blocks, kind).astype("<f4").tobytes()
(Path(__file__).parent / "blocks.bin").write_bytes(out)
