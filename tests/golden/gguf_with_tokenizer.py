#!/usr/bin/env python3
"""Writes the trained Gemma 3 of tests/models as one GGUF file with tokenizer and chat template, as people download them.

    python gguf_with_tokenizer.py    tests/models/gemma3-2m-draft as tests/models/gemma3-2m-draft.Q8_0.gguf

Names, keys and blocks of Q8_0 are those of llama.cpp's own package `gguf`. Norms are stored with 1 added, as llama.cpp's converter does for Gemma.
Versions that made the committed file: gguf 0.19.0, numpy 2.4.6.
"""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf.utility import SafetensorsLocal

MODELS = Path(__file__).resolve().parent.parent / "models"
SOURCE = MODELS / "gemma3-2m-draft"
KINDS = gguf.GGMLQuantizationType


def main():
    config = json.loads((SOURCE / "config.json").read_text())
    writer = gguf.GGUFWriter(MODELS / "gemma3-2m-draft.Q8_0.gguf", "gemma3")
    writer.add_name("gemma3-2m-draft")
    writer.add_license("apache-2.0")
    add_sizes(writer, config)
    add_tokenizer(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA3, config["num_hidden_layers"])
    for name, tensor in sorted(SafetensorsLocal(SOURCE / "model.safetensors").tensors.items()):
        values = floats(tensor)
        kind = KINDS.F32 if values.ndim == 1 else KINDS.Q8_0
        values = values + 1 if values.ndim == 1 else values
        target = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(target, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_sizes(writer, config):
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["full_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def add_tokenizer(writer):
    """Byte-level BPE with GPT-2's pattern."""
    tokenizer = json.loads((SOURCE / "tokenizer.json").read_text())
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["id"] for token in tokenizer["added_tokens"]}
    kinds = [gguf.TokenType.CONTROL if id in special else gguf.TokenType.NORMAL for id in range(len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(tokens.index("<bos>"))
    writer.add_eos_token_id(tokens.index("<eos>"))
    writer.add_pad_token_id(tokens.index("<pad>"))
    writer.add_add_bos_token(True)
    writer.add_chat_template((SOURCE / "chat_template.jinja").read_text())


def floats(tensor):
    """The values of a bf16 tensor."""
    halves = np.frombuffer(tensor.mmap_bytes(), dtype="<u2")
    return (halves.astype("<u4") << 16).view("<f4").reshape(tensor.shape)


main()
