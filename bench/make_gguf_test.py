"""Tests of make_gguf.py: small models are written, read back here and looked at."""

import io
import math
import struct
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import make_gguf
from make_gguf import BF16, F16, F32, Q4_0, Q6_K, Q8_0

FOLDER = Path(__file__).parent
TYPES = {kind.number: kind for kind in (F32, F16, BF16, Q4_0, Q6_K, Q8_0)}
SMALL = {
    "mamba": make_gguf.Shape("mamba", 256, 2, 300, d_state=16, dt_rank=16),
    "mamba2": make_gguf.Shape("mamba2", 256, 2, 300, d_state=128, headdim=64),
}


class Reader:
    """A GGUF file: metadata, and (dims, type, bytes) of tensors by name."""

    def __init__(self, data):
        self.stream = io.BytesIO(data)
        magic, version, tensors, entries = self.take("<4sIQQ")
        assert (magic, version) == (b"GGUF", 3)
        self.metadata = {}
        for _ in range(entries):
            key = self.text()
            self.metadata[key] = self.value(self.take("<I")[0])
        places = []
        for _ in range(tensors):
            name, (count,) = self.text(), self.take("<I")
            dims = self.take(f"<{count}Q")
            places.append((name, dims, *self.take("<IQ")))
        start = self.stream.tell() + -self.stream.tell() % 32
        self.tensors = {}
        self.end = start
        for name, dims, number, offset in places:
            kind = TYPES[number]
            size = math.prod(dims) // kind.elements * kind.bytes
            # One after another, each at a multiple of 32.
            assert start + offset == self.end + -self.end % 32, name
            self.end = start + offset + size
            self.tensors[name] = (dims, kind, data[start + offset:self.end])

    def take(self, form):
        return struct.unpack(form, self.stream.read(struct.calcsize(form)))

    def text(self):
        return self.stream.read(self.take("<Q")[0]).decode()

    def value(self, kind):
        if kind == 9:
            element, count = self.take("<IQ")
            return [self.value(element) for _ in range(count)]
        if kind == 8:
            return self.text()
        return self.take({4: "<I", 5: "<i", 6: "<f"}[kind])[0]


def values_of(kind, data):
    """The weights that the bytes stand for."""
    blocks = [data[at:at + kind.bytes] for at in range(0, len(data), kind.bytes)]
    if kind is F32:
        return [value for value, in struct.iter_unpack("<f", data)]
    if kind is F16:
        return [value for value, in struct.iter_unpack("<e", data)]
    if kind is BF16:
        return [struct.unpack("<f", b"\0\0" + block)[0] for block in blocks]
    out = []
    for block in blocks:
        if kind is Q8_0:
            scale, *values = struct.unpack("<e32b", block)
        elif kind is Q4_0:
            scale, *packed = struct.unpack("<e16B", block)
            values = [byte % 16 - 8 for byte in packed] + [byte // 16 - 8 for byte in packed]
        else:
            low, high, scales = block[:128], block[128:192], struct.unpack("<16be", block[192:])
            scale = scales[16]
            values = []
            for half in range(2):
                for part in range(4):
                    for i in range(32):
                        nibble = low[64 * half + 32 * (part % 2) + i] >> 4 * (part // 2) & 15
                        value = nibble | (high[32 * half + i] >> 2 * part & 3) << 4
                        group = 8 * half + 2 * part + i // 16
                        values.append(scales[group] * (value - 32))
        out += [scale * value for value in values]
    return out


def write(name, format_name, seed=1):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        make_gguf.write(name, SMALL[name], format_name, file, seed)
        data = file.read_bytes()
        assert [path.name for path in Path(folder).iterdir()] == ["model.gguf"]
    return data


class Files(unittest.TestCase):
    def test_types(self):
        for format_name, matrix in (("f32", F32), ("bf16", BF16), ("q8_0", Q8_0), ("q4_0", Q4_0)):
            for name in SMALL:
                tensors = Reader(write(name, format_name)).tensors
                kinds = {tensor: kind for tensor, (_, kind, _) in tensors.items()}
                self.assertIs(kinds["blk.1.ssm_in.weight"], matrix)
                self.assertIs(kinds["blk.0.ssm_out.weight"], matrix)
                self.assertIs(kinds["token_embd.weight"], Q6_K if matrix is Q4_0 else matrix)
                small = ["output_norm.weight"] + [
                    f"blk.1.{leaf}" for leaf in ("attn_norm.weight", "ssm_conv1d.weight",
                                                 "ssm_conv1d.bias", "ssm_dt.bias", "ssm_a",
                                                 "ssm_d")]
                if name == "mamba2":
                    small.append("blk.1.ssm_norm.weight")
                else:
                    self.assertIs(kinds["blk.1.ssm_x.weight"], matrix)
                    # Its rows have 16 elements, too few for a block.
                    self.assertIs(kinds["blk.1.ssm_dt.weight"],
                                  F16 if matrix.elements > 1 else matrix)
                for tensor in small:
                    self.assertIs(kinds[tensor], F32, tensor)

    def test_an_embedding_without_blocks_of_256_has_8_bits(self):
        self.assertIs(make_gguf.type_of("token_embd.weight", (800, 10), "q4_0"), Q8_0)

    def test_weights_have_the_deviation_of_their_rows(self):
        for name in SMALL:
            for format_name in make_gguf.FORMATS:
                data = write(name, format_name)
                reader = Reader(data)
                self.assertEqual(reader.end + -reader.end % 32, len(data))
                for tensor in ("blk.0.ssm_in.weight", "token_embd.weight", "blk.1.ssm_dt.weight"):
                    if tensor not in reader.tensors:
                        continue
                    dims, kind, contents = reader.tensors[tensor]
                    values = values_of(kind, contents)
                    self.assertEqual(len(values), math.prod(dims))
                    mean = sum(values) / len(values)
                    deviation = math.sqrt(sum(value * value for value in values) / len(values))
                    where = f"{name} {format_name} {tensor}"
                    # Powers of two are as near as 2 ** 0.5; noise of the mean is 1 / 64 at most.
                    self.assertLess(abs(math.log2(deviation * dims[0] ** 0.5)), 0.51, where)
                    self.assertLess(abs(mean), 0.08 * deviation, where)
                    self.assertLess(max(map(abs, values)), 3 * deviation, where)
                    self.assertGreater(len(set(values)), 15, where)

    def test_what_is_not_a_matrix(self):
        tensors = Reader(write("mamba", "q8_0")).tensors
        a = values_of(F32, tensors["blk.0.ssm_a"][2])
        self.assertEqual(a[:17], [*range(-1, -17, -1), -1])
        steps = [math.log1p(math.exp(bias))
                 for bias in values_of(F32, tensors["blk.0.ssm_dt.bias"][2])]
        self.assertTrue(0.00099 < min(steps) < 0.003 and 0.03 < max(steps) < 0.101, steps)
        a = values_of(F32, Reader(write("mamba2", "f32")).tensors["blk.0.ssm_a"][2])
        self.assertTrue(all(-16 <= value <= -1 for value in a), a)

    def test_metadata(self):
        metadata = Reader(write("mamba2", "q4_0")).metadata
        self.assertEqual(metadata["general.architecture"], "mamba2")
        self.assertEqual(metadata["general.file_type"], 2)
        self.assertEqual([metadata[f"mamba2.ssm.{key}"] for key in
                          ("conv_kernel", "inner_size", "state_size", "time_step_rank",
                           "group_count")], [4, 512, 128, 8, 1])
        self.assertEqual(Reader(write("mamba", "f32")).metadata["mamba.ssm.time_step_rank"], 16)
        tokens = metadata["tokenizer.ggml.tokens"]
        self.assertEqual((len(tokens), len(set(tokens))), (300, 300))
        self.assertEqual(len(metadata["tokenizer.ggml.token_type"]), 300)
        self.assertEqual(metadata["tokenizer.ggml.merges"],
                         [f"{token[0]} {token[1]}" for token in tokens[257:]])
        self.assertEqual(sorted(tokens[1:257])[0], "!")
        self.assertIn("\u0120", tokens[1:257])  # the space

    def test_the_seed_decides(self):
        self.assertEqual(write("mamba2", "bf16"), write("mamba2", "bf16"))
        self.assertNotEqual(write("mamba2", "bf16"), write("mamba2", "bf16", seed=2))


class Shapes(unittest.TestCase):
    def test_parameters_of_published_models(self):
        for name, millions in (("mamba-130m", 129), ("mamba-2.8b", 2768), ("mamba2-130m", 129),
                               ("mamba2-370m", 368), ("mamba2-2.7b", 2703)):
            count = sum(math.prod(dims) for _, dims in make_gguf.tensors_of(make_gguf.SHAPES[name]))
            self.assertEqual(round(count / 1e6), millions, name)

    def test_every_vocabulary_is_large_enough(self):
        for shape in make_gguf.SHAPES.values():
            tokens, _ = make_gguf.vocabulary(shape.vocab_size)
            self.assertEqual(len(tokens), shape.vocab_size)


class Command(unittest.TestCase):
    def run_command(self, *words):
        return subprocess.run([sys.executable, "-B", FOLDER / "make_gguf.py", *words],
                              capture_output=True, text=True)

    def test_failures(self):
        done = self.run_command("mamba2-130m", "q4_0", "/nowhere/model.gguf")
        self.assertEqual((done.returncode, done.stderr),
                         (1, "make_gguf: /nowhere/model.gguf cannot be written: "
                             "No such file or directory\n"))
        self.assertEqual(self.run_command("mamba3", "q4_0", "x").returncode, 2)
        self.assertEqual(self.run_command("mamba2-130m", "q3", "x").returncode, 2)


if __name__ == "__main__":
    unittest.main()
