#!/usr/bin/env python3
"""Writes a GGUF file with random weights in the shape of a published Mamba model, for benchmarks.

Tensors have the types that llama.cpp's converter and quantizer give them: vectors, convolutions, A
and D are float32; in a q4_0 file the embedding, which is the head too, is Q6_K, and a matrix whose
rows are no whole number of blocks is float16. The weights mean nothing, but activations and states
stay as large as in a trained model. The same model, format and seed give the same file.
"""

import argparse
import os
import random
import struct
import sys
from dataclasses import dataclass
from math import expm1, log, log2, prod
from pathlib import Path

from adder_report import Failure

ALIGNMENT = 32
CHUNK = 1 << 18  # blocks that are made at once

# What GGUF counts as: types of metadata, of tensors, and of whole files.
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9


@dataclass(frozen=True)
class Type:
    """A tensor type: its number in files, and the elements and bytes of a block."""
    number: int
    elements: int
    bytes: int


F32 = Type(0, 1, 4)
F16 = Type(1, 1, 2)
Q4_0 = Type(2, 32, 18)
Q8_0 = Type(8, 32, 34)
Q6_K = Type(14, 256, 210)
BF16 = Type(30, 1, 2)

# The type of matrices, and the number of the file's format.
FORMATS = {"f32": (F32, 0), "bf16": (BF16, 32), "q8_0": (Q8_0, 7), "q4_0": (Q4_0, 2)}


@dataclass(frozen=True)
class Shape:
    """The sizes of a published model; dt_rank is 0 for Mamba-2, headdim for Mamba-1."""
    architecture: str
    d_model: int
    n_layer: int
    vocab_size: int
    d_state: int
    headdim: int = 0
    dt_rank: int = 0
    d_conv: int = 4

    @property
    def d_inner(self):
        return 2 * self.d_model

    @property
    def time_step_rank(self):
        """What GGUF calls so: the rank of dt's projection, and for Mamba-2 the number of heads."""
        return self.dt_rank or self.d_inner // self.headdim


def mamba1(d_model, n_layer):
    return Shape("mamba", d_model, n_layer, 50280, d_state=16, dt_rank=(d_model + 15) // 16)


def mamba2(d_model, n_layer):
    return Shape("mamba2", d_model, n_layer, 50288, d_state=128, headdim=64)


# Gu and Dao 2023, section E.2.3; Dao and Gu 2024, section D.2.
SHAPES = {
    "mamba-130m": mamba1(768, 24),
    "mamba-370m": mamba1(1024, 48),
    "mamba-790m": mamba1(1536, 48),
    "mamba-1.4b": mamba1(2048, 48),
    "mamba-2.8b": mamba1(2560, 64),
    "mamba2-130m": mamba2(768, 24),
    "mamba2-370m": mamba2(1024, 48),
    "mamba2-780m": mamba2(1536, 48),
    "mamba2-1.3b": mamba2(2048, 48),
    "mamba2-2.7b": mamba2(2560, 64),
}


def is_matrix(name, dims):
    """Whether a tensor is multiplied with as a matrix, which is what formats are about."""
    return (len(dims) == 2 and name.endswith(".weight") and "_norm" not in name
            and "conv1d" not in name)


def type_of(name, dims, format_name):
    """The type of a tensor; dims has the length of a row first."""
    matrix, _ = FORMATS[format_name]
    if not is_matrix(name, dims):
        return F32
    if matrix is Q4_0 and name == "token_embd.weight":
        return Q6_K if dims[0] % Q6_K.elements == 0 else Q8_0
    return F16 if dims[0] % matrix.elements else matrix


def tensors_of(shape):
    """Name and dims of every tensor, the length of a row first."""
    d_inner, rank = shape.d_inner, shape.time_step_rank
    out = [("token_embd.weight", (shape.d_model, shape.vocab_size)),
           ("output_norm.weight", (shape.d_model,))]
    if shape.dt_rank:
        convolved = d_inner
        layer = [("ssm_in.weight", (shape.d_model, 2 * d_inner)),
                 ("ssm_x.weight", (d_inner, rank + 2 * shape.d_state)),
                 ("ssm_dt.weight", (rank, d_inner)),
                 ("ssm_dt.bias", (d_inner,)),
                 ("ssm_a", (shape.d_state, d_inner)),
                 ("ssm_d", (d_inner,))]
    else:
        convolved = d_inner + 2 * shape.d_state
        layer = [("ssm_in.weight", (shape.d_model, d_inner + convolved + rank)),
                 ("ssm_dt.bias", (rank,)),
                 ("ssm_a", (1, rank)),
                 ("ssm_d", (1, rank)),
                 ("ssm_norm.weight", (d_inner, 1))]
    layer += [("attn_norm.weight", (shape.d_model,)),
              ("ssm_conv1d.weight", (shape.d_conv, convolved)),
              ("ssm_conv1d.bias", (convolved,)),
              ("ssm_out.weight", (d_inner, shape.d_model))]
    for index in range(shape.n_layer):
        out += [(f"blk.{index}.{name}", dims) for name, dims in layer]
    return out


# ---- random contents ----------------------------------------------------------------------------


def small_values(name, dims, rng):
    """A tensor that is no matrix, as models begin: time steps of 0.001 to 0.1, A of -16 to -1."""
    count = prod(dims)
    if name.endswith(("_norm.weight", "ssm_d")):
        return [1.0] * count
    if name.endswith("ssm_a"):
        if dims[0] > 1:
            return [-float(1 + i % dims[0]) for i in range(count)]
        return [-rng.uniform(1, 16) for _ in range(count)]
    if name.endswith("ssm_dt.bias"):
        # softplus(bias) is the time step.
        return [log(expm1(10 ** rng.uniform(-3, -1))) for _ in range(count)]
    return [rng.uniform(-0.5, 0.5) for _ in range(count)]


def set_bits(data, offset, step, bits, value):
    """Gives every step-th byte from offset on the value's bits, where `bits` has ones."""
    data[offset::step] = data[offset::step].translate(
        bytes(byte & ~bits | value & bits for byte in range(256)))


def set_exponent(data, size, width, exponent):
    """Gives all of these little-endian floats of `size` bytes, whose exponents have `width` bits,
    the same exponent."""
    field = exponent + (1 << (width - 1)) - 1
    word = field << (8 * size - 1 - width)
    mask = ((1 << width) - 1) << (8 * size - 1 - width)
    for offset in (size - 2, size - 1):
        set_bits(data, offset, size, mask >> 8 * offset & 0xFF, word >> 8 * offset & 0xFF)


def set_scale(data, kind, offset, value, bits=0xFFFF):
    """Puts a float16 at the offset of each block."""
    low, high = struct.pack("<e", value)
    set_bits(data, offset, kind.bytes, bits & 0xFF, low)
    set_bits(data, offset + 1, kind.bytes, bits >> 8, high)


def random_blocks(kind, count, deviation, rng):
    """Blocks of random weights, whose root mean square is about the deviation."""
    data = bytearray(rng.randbytes(count * kind.bytes))
    if kind is Q8_0:  # a scale, 32 x int8, of which quantizers leave out -128
        set_scale(data, kind, 0, deviation / 73.6)
        return data.translate(bytes(0x81 if byte == 0x80 else byte for byte in range(256)))
    if kind is Q4_0:  # a scale of either sign, 32 x 4 bits from -8 to 7
        set_scale(data, kind, 0, deviation / 4.64, bits=0x7FFF)
    elif kind is Q6_K:  # 256 x 6 bits from -32 to 31, 16 x int8, a scale of either sign
        for offset in range(192, 208):
            set_bits(data, offset, kind.bytes, 0xFF, 64)
        set_scale(data, kind, 208, deviation / (64 * 18.5), bits=0x7FFF)
    else:  # either sign, from a power of two to the next
        set_exponent(data, kind.bytes, 5 if kind is F16 else 8, round(log2(deviation / 1.53)))
    return data


def contents_of(name, dims, kind, rng):
    """The bytes of a tensor, piece by piece."""
    if not is_matrix(name, dims):
        values = small_values(name, dims, rng)
        yield struct.pack(f"<{len(values)}f", *values)
        return
    left = prod(dims) // kind.elements
    while left:
        count = min(left, CHUNK)
        yield random_blocks(kind, count, dims[0] ** -0.5, rng)
        left -= count


# ---- metadata -----------------------------------------------------------------------------------


def vocabulary(size):
    """Tokens and merges of byte pair encoding: the end of text, the 256 bytes, and pairs of them.

    Bytes are written in GPT-2's alphabet: printable characters stand for themselves, others for
    those from 256 on.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    pairs = [(a, b) for a in alphabet for b in alphabet][:size - 257]
    return (["<|endoftext|>", *alphabet, *(a + b for a, b in pairs)],
            [f"{a} {b}" for a, b in pairs])


def metadata_of(name, shape, format_name):
    """Key, type and value of each entry; for arrays the type is (ARRAY, type of an element)."""
    tokens, merges = vocabulary(shape.vocab_size)
    arch = shape.architecture
    out = [
        ("general.architecture", STRING, arch),
        ("general.name", STRING, f"random {name}"),
        ("general.file_type", UINT32, FORMATS[format_name][1]),
        ("general.quantization_version", UINT32, 2),
        ("general.alignment", UINT32, ALIGNMENT),
        (f"{arch}.context_length", UINT32, 1 << 20),
        (f"{arch}.embedding_length", UINT32, shape.d_model),
        (f"{arch}.feed_forward_length", UINT32, 0),
        (f"{arch}.attention.head_count", UINT32, 0),
        (f"{arch}.block_count", UINT32, shape.n_layer),
        (f"{arch}.ssm.conv_kernel", UINT32, shape.d_conv),
        (f"{arch}.ssm.inner_size", UINT32, shape.d_inner),
        (f"{arch}.ssm.state_size", UINT32, shape.d_state),
        (f"{arch}.ssm.time_step_rank", UINT32, shape.time_step_rank),
        (f"{arch}.attention.layer_norm_rms_epsilon", FLOAT32, 1e-5),
    ]
    if shape.headdim:
        out.append((f"{arch}.ssm.group_count", UINT32, 1))
    return out + [
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "mpt"),
        ("tokenizer.ggml.tokens", (ARRAY, STRING), tokens),
        ("tokenizer.ggml.token_type", (ARRAY, INT32), [3] + [1] * (len(tokens) - 1)),
        ("tokenizer.ggml.merges", (ARRAY, STRING), merges),
        ("tokenizer.ggml.bos_token_id", UINT32, 0),
        ("tokenizer.ggml.eos_token_id", UINT32, 0),
    ]


def encoded(kind, value):
    """A value as GGUF has it."""
    if isinstance(kind, tuple):
        return struct.pack("<IQ", kind[1], len(value)) + b"".join(
            encoded(kind[1], element) for element in value)
    if kind == STRING:
        text = value.encode()
        return struct.pack("<Q", len(text)) + text
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[kind], value)


def padding(position):
    return b"\0" * (-position % ALIGNMENT)


def write(name, shape, format_name, file, seed=1):
    """Writes the model as `format_name`, a key of FORMATS, to `file`; another file of this name is
    replaced once all is written."""
    metadata = metadata_of(name, shape, format_name)
    tensors = [(tensor, dims, type_of(tensor, dims, format_name))
               for tensor, dims in tensors_of(shape)]
    head = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)))
    for key, kind, value in metadata:
        number = kind[0] if isinstance(kind, tuple) else kind
        head += encoded(STRING, key) + struct.pack("<I", number) + encoded(kind, value)
    offset = 0
    for tensor, dims, kind in tensors:
        head += encoded(STRING, tensor)
        head += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind.number, offset)
        size = prod(dims) // kind.elements * kind.bytes
        offset += size + len(padding(size))
    rng = random.Random(seed)
    file = Path(file)
    partial = file.with_name(file.name + ".partial")
    with partial.open("wb") as out:
        out.write(head + padding(len(head)))
        for tensor, dims, kind in tensors:
            for piece in contents_of(tensor, dims, kind, rng):
                out.write(piece)
            out.write(padding(out.tell()))
    os.replace(partial, file)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  bench/make_gguf.py mamba2-130m q4_0 /tmp/mamba2-130m-q4_0.gguf")
    parser.add_argument("shape", choices=SHAPES, metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("format", choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("file", type=Path, help="the file to write")
    parser.add_argument("--seed", type=int, default=1, help="of the random weights (default: 1)")
    options = parser.parse_args()
    try:
        write(options.shape, SHAPES[options.shape], options.format, options.file, options.seed)
    except OSError as error:
        raise Failure(f"{options.file} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    try:
        main()
    except Failure as failure:
        sys.exit(f"make_gguf: {failure}")
