#!/usr/bin/env python3
"""Writes the seed inputs of the fuzz target gguf.

The seeds are committed; run this (it needs the `gguf` package and NumPy) only to change them.
"""

from pathlib import Path

import gguf
import numpy

FOLDER = Path(__file__).parent / "gguf"
FOLDER.mkdir(exist_ok=True)
SPACE = "\u2581"


def writer(name, architecture):
    return gguf.GGUFWriter(FOLDER / name, architecture)


def finish(out):
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def add_gpt2_tokenizer(out, pre):
    tokens = ["<|e|>", "I", "t", "\u0120", "w", "a", "s", "\u0120w", "as", "\u0120was", "1", "2",
              "\u00c3", "\u00a9", "[PAD14]", "[PAD15]"]
    types = [3] + [1] * 13 + [5] * 2
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre(pre)
    out.add_token_list(tokens)
    out.add_token_types(types)
    out.add_token_merges(["\u0120 w", "a s", "\u0120w as"])
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    out.add_add_bos_token(True)


def add_llama_tokenizer(out):
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", SPACE, "a", "t", "w", "s", "as", SPACE + "w",
              SPACE + "was", "I", "It", "e", "."]
    types = [2, 3, 3, 6] + [1] * 12
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([0.0] * 4 + [-float(i // 2) for i in range(12)])
    out.add_token_types(types)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_unk_token_id(0)


def add_sizes(out, d_model, d_inner, d_state, rank):
    out.add_embedding_length(d_model)
    out.add_block_count(1)
    out.add_ssm_conv_kernel(2)
    out.add_ssm_inner_size(d_inner)
    out.add_ssm_state_size(d_state)
    out.add_ssm_time_step_rank(rank)
    out.add_layer_norm_rms_eps(1e-5)


def add(out, name, shape, kind=None):
    values = numpy.linspace(-1, 1, int(numpy.prod(shape)), dtype=numpy.float32).reshape(shape)
    if kind is None:
        out.add_tensor(name, values)
    elif kind == gguf.GGMLQuantizationType.Q4_K:
        blocks = numpy.full((*shape[:-1], shape[-1] // 256 * 144), 0x21, dtype=numpy.uint8)
        out.add_tensor(name, blocks, raw_dtype=kind)
    else:
        out.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def mamba2(name, tokenizer, kind):
    out = writer(name, "mamba2")
    add_sizes(out, 32, 32, 2, 2)
    out.add_ssm_group_count(1)
    tokenizer(out)
    add(out, "token_embd.weight", (16, 32), kind)
    add(out, "output_norm.weight", (32,))
    add(out, "blk.0.attn_norm.weight", (32,))
    add(out, "blk.0.ssm_in.weight", (70, 32), kind)
    add(out, "blk.0.ssm_conv1d.weight", (36, 2))
    add(out, "blk.0.ssm_conv1d.bias", (36,))
    add(out, "blk.0.ssm_dt.bias", (2,))
    add(out, "blk.0.ssm_a", (2, 1))
    add(out, "blk.0.ssm_d", (2, 1))
    add(out, "blk.0.ssm_norm.weight", (1, 32))
    add(out, "blk.0.ssm_out.weight", (32, 32), kind)
    finish(out)


def mamba1(name, falcon):
    out = writer(name, "mamba")
    add_sizes(out, 4, 8, 2, 1)
    out.add_ssm_dt_b_c_rms(falcon)
    out.add_vocab_size(6)
    add(out, "token_embd.weight", (6, 4))
    add(out, "output_norm.weight", (4,))
    add(out, "output.weight", (6, 4))
    add(out, "blk.0.attn_norm.weight", (4,))
    add(out, "blk.0.ssm_in.weight", (16, 4))
    add(out, "blk.0.ssm_conv1d.weight", (8, 2))
    add(out, "blk.0.ssm_conv1d.bias", (8,))
    add(out, "blk.0.ssm_x.weight", (5, 8))
    add(out, "blk.0.ssm_dt.weight", (8, 1))
    add(out, "blk.0.ssm_dt.bias", (8,))
    add(out, "blk.0.ssm_a", (8, 2))
    add(out, "blk.0.ssm_d", (8,))
    add(out, "blk.0.ssm_out.weight", (4, 8))
    finish(out)


kinds = gguf.GGMLQuantizationType
mamba2("mamba2-q8_0.gguf", lambda out: add_gpt2_tokenizer(out, "olmo"), kinds.Q8_0)
mamba2("mamba2-q5_1.gguf", add_llama_tokenizer, kinds.Q5_1)
mamba1("mamba.gguf", False)
mamba1("falcon-mamba.gguf", True)
for pre in ("default", "llama-bpe"):
    vocabulary = writer(f"vocabulary-{pre}.gguf", "mamba")
    add_gpt2_tokenizer(vocabulary, pre)
    finish(vocabulary)
blocks = writer("blocks.gguf", "none")
blocks.add_array("numbers", [1, 2, 3])
for kind, width in ((kinds.Q4_0, 32), (kinds.Q4_1, 32), (kinds.Q5_0, 32), (kinds.Q4_K, 256)):
    add(blocks, f"t{kind}", (2, width), kind)
finish(blocks)
