#!/usr/bin/env python3
"""Searches for shapes whose logits differ from transformers': those of `make.py`, with other sizes, flags and tokens.

    python random_shapes.py UNICORN_COMPILE UNICORN_RUN ROUNDS [PART OF A NAME]...
    python random_shapes.py UNICORN_COMPILE UNICORN_RUN ROUNDS --target nvidia --weights int4 --chunk 1

Each round changes each of make.py's text models whose name has one of the parts (all, without any), draws weights, and lets transformers
write the folder's config.json again every other time: its own form is another one. What transformers refuses is no shape, and is left out.
Limits are those of the tests, a relative error of 5e-3 with f16 weights, which is what is compiled unless `--weights` says otherwise; INT4 is compared with transformers'
logits of the weights that `--export-dequantized` writes. The device is llvmpipe unless `UNICORN_DEVICE` names another one. Folders of shapes that differ stay under `random-shapes/` in the
folder for temporary files, with the commands that show it; the status is then 1.
"""

import argparse
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig
from transformers.utils import logging

import make

LIMITS = {"f16": 5e-3, "int8": 3e-2, "int4": 3e-2}
# How sure of its choice a router is for every token, so that roundings of f16 do not decide.
MARGIN = {"softmax": 0.02, "sigmoid": 0.003}
KEPT = Path(tempfile.gettempdir()) / "random-shapes"

WIDTHS = range(40, 201, 8)
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")
# Fields that are changed where a config has them as a number above 0, and to what.
SIZES = {
    "vocab_size": (131, 257, 300, 509, 1003),
    "intermediate_size": WIDTHS,
    "moe_intermediate_size": WIDTHS,
    "shared_expert_intermediate_size": WIDTHS,
    "sliding_window": (2, 3, 5, 8, 12, 17, 31, 40),
    "rope_theta": (1e4, 5e5, 1e6),
    "rms_norm_eps": (1e-6, 1e-5, 1e-3),
    "norm_eps": (1e-6, 1e-5, 1e-3),
    "routed_scaling_factor": (1.0, 1.5, 2.5),
    "q_lora_rank": (24, 40, 72),
    "kv_lora_rank": (16, 40, 56, 96),
    "qk_nope_head_dim": (8, 24, 40, 64),
    "v_head_dim": (8, 24, 40, 64),
    "laurel_rank": (5, 13, 33, 64),
    "linear_key_head_dim": (8, 20, 36, 64),
    "linear_value_head_dim": (8, 10, 24, 64),
    "linear_conv_kernel_dim": (2, 3, 4, 5),
    "conv_L_cache": (2, 3, 4, 5),
    "query_pre_attn_scalar": (24, 64, 168),
    "final_logit_softcapping": (3.0, 30.0),
    "logits_scaling": (1.0, 3.0, 8.0),
    "residual_multiplier": (0.22, 0.5, 1.0),
    "embedding_multiplier": (1.0, 6.0, 12.0),
}
# No published model with one of these has biases in its attention, and none is compiled.
WITHOUT_BIAS = {"linear_num_key_heads", "kv_lora_rank"}
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "norm_topk_prob", "use_qk_norm")


def main(options):
    names = [name for name, case in make.CASES.items() if is_text(case["config"])]
    names = [name for name in names if not options.parts or any(part in name for part in options.parts)]
    different = 0
    for number in range(options.rounds):
        for name in names:
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-{number}-"))
            found = try_shape(folder, name, number, options)
            print(f"{name} {number}: {found}", flush=True)
            if found.startswith(("differs", "refused")):
                different += 1
                shutil.copytree(folder, KEPT / f"{name}-{number}", dirs_exist_ok=True)
            shutil.rmtree(folder)
    print(f"{different} differ" + (f": {KEPT}" if different else ""))
    return int(different > 0)


def is_text(config):
    return "vision_config" not in config and "quantization_config" not in config


def try_shape(folder, name, number, options):
    """What came of one shape, in a line."""
    draw = random.Random(f"{name} {number}")
    config = changed(draw, make.CASES[name]["config"])
    make.write_json(folder / "config.json", config)
    make.write_tokenizer(folder, config["vocab_size"])
    try:
        make.write_weights(folder, draw.randrange(1 << 30), torch.bfloat16, stacked=draw.random() < 0.5)
        if number % 2:
            rewritten = AutoConfig.from_pretrained(folder)
            rewritten.architectures = config["architectures"]
            rewritten.save_pretrained(folder)
        tokens, logits = golden(draw, folder, config)
    except Exception as error:  # noqa: BLE001: whatever transformers finds wrong with a config
        return f"no shape of transformers, {type(error).__name__}"
    save_file({"tokens": tokens.to(torch.int32), "logits": logits}, folder / "golden.safetensors")
    artifact, exported, out = folder / "model.unicorn", folder / "exported", folder / "found.safetensors"
    compiled = [options.compiler, folder, "-o", artifact, "--weights", options.weights, "--target", options.target, "-q"]
    ran = [options.runner, "logits", artifact, "--target", options.target, "--tokens", folder / "golden.safetensors", "-o", out, "-q"]
    if options.weights == "int4":
        compiled += ["--export-dequantized", exported]
    if options.chunk:
        ran += ["--chunk", options.chunk]
    (folder / "commands.txt").write_text("".join(" ".join(map(str, command)) + "\n" for command in (compiled, ran)))
    for command in (compiled, ran):
        environment = {"UNICORN_DEVICE": "llvmpipe"} | os.environ
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=environment)
        if done.returncode:
            return f"refused: {done.stderr.strip()}"
    artifact.unlink()
    if exported.exists():
        with torch.no_grad():
            logits = make.logits_of(make.load_float32(exported), tokens).float()
    difference = load_file(out)["logits"] - logits
    if options.weights == "int4" and has_experts(config):
        # Integer activations may choose another one of two experts that are nearly as likely, and the row is that of another model.
        compared = (difference.norm(dim=1) / logits.norm(dim=1)).argsort()[: max(1, len(logits) * 9 // 10)]
        difference, logits = difference[compared], logits[compared]
    error = difference.norm() / logits.norm()
    return f"{'right' if error <= LIMITS[options.weights] else 'differs'}, {error:.1e}"


def changed(draw, config):
    """The config with other sizes and flags, where they are free of each other."""
    config = copy.deepcopy(config)
    for field, sizes in SIZES.items():
        if is_number(config.get(field)) and draw.random() < 0.7:
            config[field] = draw.choice(sizes)
    if is_number(config.get("vocab_size_per_layer_input")):
        config["vocab_size_per_layer_input"] = config["vocab_size"]
    for field in FLAGS:
        is_refused = field == "attention_bias" and not WITHOUT_BIAS.isdisjoint(config)
        if isinstance(config.get(field), bool) and not is_refused:
            config[field] = draw.random() < 0.5
    change_heads(draw, config)
    change_experts(draw, config)
    if "linear_num_key_heads" in config:
        config["linear_num_key_heads"] = draw.choice((1, 2, 3))
        config["linear_num_value_heads"] = config["linear_num_key_heads"] * draw.choice((1, 2, 3))
    if "mamba_d_head" in config:
        # transformers compares its sizes with the stream's width where no layer has a Mamba, too.
        config["mamba_n_heads"], config["mamba_d_head"] = config["mamba_expand"], config["hidden_size"]
    kinds = config.get("layer_types")
    if kinds and not config.get("num_kv_shared_layers"):
        config["layer_types"] = draw.sample(kinds, len(kinds))
    return config


def is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def has_experts(config):
    return any(is_number(config.get(field)) for field in EXPERT_COUNTS)


def change_heads(draw, config):
    scaling = str(config.get("rope_scaling") or config.get("rope_parameters"))
    if "short_factor" in scaling:
        # A factor for each pair of a head.
        return
    kv_heads = draw.choice((1, 1, 2, 3))
    heads = kv_heads * draw.choice([group for group in (1, 2, 3, 4, 5, 7) if kv_heads * group <= 8])
    config["num_attention_heads"] = heads
    # With a latent vector, each head has its own keys.
    config["num_key_value_heads"] = heads if "kv_lora_rank" in config else kv_heads
    config["hidden_size"] = heads * draw.choice((16, 24, 40))
    if "head_dim" in config and "mrope_section" not in scaling:
        config["head_dim"] = draw.choice((8, 16, 24, 40, 64, 96, 128))


def change_experts(draw, config):
    counts = [field for field in EXPERT_COUNTS if is_number(config.get(field))]
    if counts and (config.get("n_group") or 1) == 1:
        config[counts[0]] = draw.randint(3, 12)
        chosen = "top_k_experts" if "top_k_experts" in config else "num_experts_per_tok"
        config[chosen] = draw.randint(1, min(4, config[counts[0]] - 1))


def golden(draw, folder, config):
    """Tokens i32[T] and transformers' logits f32[T, vocab]."""
    generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
    length = draw.choice((1, 2, 13, 33, 48, 70))
    tokens = torch.randint(make.FIRST_ORDINARY_TOKEN, config["vocab_size"], (length,), generator=generator)
    model = make.load_float32(folder)
    if has_experts(config):
        has_bias = any(name.endswith(make.CHOICE_BIASES) for name, _ in model.named_buffers())
        tokens = tokens[:33]
        make.keep_apart(folder, tokens, MARGIN["sigmoid" if has_bias else "softmax"], generator)
    with torch.no_grad():
        return tokens, make.logits_of(model, tokens).float().contiguous()


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("compiler", type=Path)
    parser.add_argument("runner", type=Path)
    parser.add_argument("rounds", type=int)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--target", default="generic")
    parser.add_argument("--weights", default="f16", choices=LIMITS)
    parser.add_argument("--chunk", type=int, help="most tokens of a step")
    sys.exit(main(parser.parse_intermixed_args()))
