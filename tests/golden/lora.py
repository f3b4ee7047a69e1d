#!/usr/bin/env python3
"""Makes the adapters under tests/models/lora, and their goldens, with PEFT.

    python lora.py            all of CASES
    python lora.py NAME...    only these

Each folder is an adapter of the tiny model of the same name, or of its `base`, as PEFT's `save_pretrained` writes it, and golden.safetensors, as
`make.py` makes them, of the model into which PEFT has merged it, in float32.

Versions that made the committed files: those of `make.py`, transformers 5.24.0 (5.23.0 from qwen3-moe-modules on), PEFT 0.21.2.
"""

import json
import shutil
import sys

import torch
from make import MODELS, load_float32, save_golden
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES = {
    # Stacks of (outputs, inputs), with a projection beside them; of another name; transposed ones, whose outputs of gate and up alternate, also of a
    # model whose experts are MXFP4.
    "qwen3-moe": dict(target_modules=["q_proj"], target_parameters=STACKS, alpha_pattern={STACKS[1]: 3}),
    "gemma4-moe": dict(target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    "gpt-oss": dict(target_parameters=STACKS),
    "gpt-oss-mxfp4": dict(target_parameters=STACKS[:1]),
    # PEFT makes stacks of these, and patterns of twice the rank and alpha for gate and up.
    "qwen3-moe-modules": dict(base="qwen3-moe", target_modules=["gate_proj", "up_proj", "down_proj"]),
    # Latent attention: kv_b_proj is a matrix for each head's keys, transposed, and one for its values.
    "deepseek-v2": dict(target_modules="all-linear"),
    # PEFT saves these modules' own weights, too.
    "llama2-linear-rope": dict(target_modules=["q_proj", "lm_head", "embed_tokens"]),
    # Modules of a vision tower that the compiler leaves out; a text has no part of it.
    "mistral3-multimodal": dict(target_modules=r".*(vision_tower|language_model).*\.(q_proj|o_proj)"),
}
GREEDY = 12


def make_case(name, base, rest):
    base = MODELS / "tiny" / base
    folder = MODELS / "lora" / name
    shutil.rmtree(folder, ignore_errors=True)
    generator = torch.Generator().manual_seed(len(name))
    model = get_peft_model(load_float32(base), LoraConfig(r=2, lora_alpha=4, **{"target_modules": []} | rest))
    for parameter in (parameter for name, parameter in model.named_parameters() if ".lora_" in name):
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.2
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / "adapter_model.safetensors"
    # The model's own weights are saved in its type.
    tensors = {name: tensor if ".lora_" in name else tensor.bfloat16() for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})
    file.chmod(0o644)
    file = folder / "adapter_config.json"
    config = json.loads(file.read_text()) | {"base_model_name_or_path": base.name}
    # PEFT writes sets.
    for targets in ("target_modules", "target_parameters"):
        if isinstance(config[targets], list):
            config[targets].sort()
    file.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    ids = load_file(base / "golden.safetensors")["tokens"].long()
    save_golden(folder, model.merge_and_unload(), ids, GREEDY)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        rest = dict(CASES[case])
        make_case(case, rest.pop("base", case), rest)
