#!/usr/bin/env python3
"""Writes the seed inputs of the fuzz targets safetensors, torch_zip and checkpoint_config.

The seeds are committed; run this (it needs PyTorch) only to change them.
"""

import json
import struct
import zipfile
from pathlib import Path

import torch

FOLDER = Path(__file__).parent


def write_safetensors(name, header, data):
    text = json.dumps(header, separators=(",", ":")).encode()
    path = FOLDER / "safetensors" / name
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def save(name, value):
    """What torch.save writes, and its pickle alone."""
    path = FOLDER / "torch_zip" / name
    torch.save(value, path)
    with zipfile.ZipFile(path) as archive:
        pickle = next(entry for entry in archive.namelist() if entry.endswith("/data.pkl"))
        path.with_suffix(".pkl").write_bytes(archive.read(pickle))


def write_config(name, config):
    (FOLDER / "checkpoint_config" / name).write_text(json.dumps(config, indent=1) + "\n")


for target in ("safetensors", "torch_zip", "checkpoint_config"):
    (FOLDER / target).mkdir(exist_ok=True)

write_safetensors(
    "two",
    {
        "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "b": {"dtype": "U8", "shape": [1, 3], "data_offsets": [8, 11]},
    },
    b"abcdefghijk",
)
write_safetensors(
    "metadata",
    {
        "__metadata__": {"format": "pt"},
        "e": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [4, 4]},
        "s": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]},
    },
    b"1234",
)

base = torch.arange(4, dtype=torch.float32).reshape(2, 2)
save("views.bin", {"base": base, "transposed": base.t(), "row": base[1]})
save("parameter.bin", {"p": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))})
linear = torch.nn.Linear(2, 1)
torch.nn.init.constant_(linear.weight, 0.5)
torch.nn.init.constant_(linear.bias, -2.0)
save("state_dict.bin", linear.half().state_dict())

huggingface = {
    "model_type": "mamba2",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "vocab_size": 16,
    "state_size": 4,
    "expand": 2,
    "head_dim": 4,
    "num_heads": 4,
    "n_groups": 1,
    "chunk_size": 16,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
    "hidden_act": "silu",
    "layer_norm_epsilon": 1e-5,
    "rms_norm": True,
    "time_step_limit": [0.0, float("inf")],
    "tie_word_embeddings": False,
    "eos_token_id": [0, 1],
    "bos_token_id": 0,
}
write_config("mamba2.json", huggingface)
write_config(
    "falcon_mamba.json",
    {
        "model_type": "falcon_mamba",
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "vocab_size": 16,
        "state_size": 4,
        "expand": 16,
        "intermediate_size": 16,
        "time_step_rank": "auto",
        "conv_kernel": 4,
        "layer_norm_epsilon": 1e-5,
        "mixer_rms_eps": 1e-6,
        "tie_word_embeddings": False,
    },
)
write_config(
    "state_spaces.json",
    {
        "d_model": 8,
        "d_intermediate": 0,
        "n_layer": 1,
        "vocab_size": 13,
        "ssm_cfg": {
            "layer": "Mamba2",
            "d_state": 4,
            "headdim": 4,
            "ngroups": 1,
            "d_ssm": 16,
            "dt_limit": [0.01, {"__float__": "Infinity"}],
        },
        "attn_layer_idx": [],
        "rms_norm": True,
        "pad_vocab_size_multiple": 16,
        "tie_embeddings": False,
    },
)
write_config("index.json", {"metadata": {}, "weight_map": {"a": "model-1.safetensors"}})
