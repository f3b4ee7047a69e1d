#!/usr/bin/env python3
"""Writes tiny models as GGUF files, with llama.cpp's own package `gguf` and its names.

    python gguf_of.py NAME...    tests/models/tiny/NAME as tests/models/gguf/NAME.gguf, weights in bf16

What llama.cpp's converter does to each architecture is written out below: experts are stacked, q and k of what shares Llama's
graph have the two halves of each head interleaved, gpt-oss' experts are turned upright or keep their MXFP4, Gemma 4's have gate and up in one stack, Gemma 3n's matrices of streams are stacked, delta nets are changed by `delta_net`, LFM2's convolutions lose an axis of 1, and multipliers, windows and the scaling of rotary embeddings have keys. Version that made the committed files: gguf 0.19.0.
"""

import json
import re
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

MODELS = Path(__file__).resolve().parent.parent / "models"
ARCHITECTURES = {
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "qwen3_vl_text": gguf.MODEL_ARCH.QWEN3VL,
    "qwen3_vl_moe_text": gguf.MODEL_ARCH.QWEN3VLMOE,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "gemma3n_text": gguf.MODEL_ARCH.GEMMA3N,
    "gemma4_text": gguf.MODEL_ARCH.GEMMA4,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2_moe": gguf.MODEL_ARCH.LFM2MOE,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
    "glm4_moe_lite": gguf.MODEL_ARCH.DEEPSEEK2,
    "qwen3_next": gguf.MODEL_ARCH.QWEN3NEXT,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "qwen3_5_moe_text": gguf.MODEL_ARCH.QWEN35MOE,
}
LIKE_LLAMA = {gguf.MODEL_ARCH.LLAMA, gguf.MODEL_ARCH.GRANITE, gguf.MODEL_ARCH.MISTRAL3}
# Norms whose names the map has for other architectures, too.
GLM4_NORMS = {
    "post_self_attn_layernorm": "post_attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "post_mlp_layernorm": "post_ffw_norm",
}
# What a head that predicts the token behind the next one has in front of its layer and behind it: names of later versions of `gguf`.
NEXTN = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}
# Vectors that have the name of the matrix that they belong to.
GEMMA4_SCALES = {"router.scale": "ffn_gate_inp", "router.per_expert_scale": "ffn_down_exps"}
# How transformers names an expert's matrices, and what a stack of them is called in the name map.
EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight")


def write(name):
    folder = MODELS / "tiny" / name
    config = json.loads((folder / "config.json").read_text())
    deepstack = len(config.get("vision_config", {}).get("deepstack_visual_indexes", []))
    config |= config.get("text_config", {})
    architecture = ARCHITECTURES[config["model_type"]]
    stored = load_file(folder / "model.safetensors")
    # A head that predicts the token behind the next one is a layer behind the others.
    further = int(any(name.startswith("mtp.") for name in stored))
    layers = config["num_hidden_layers"] + further
    names = gguf.get_tensor_name_map(architecture, layers)
    writer = gguf.GGUFWriter(MODELS / "gguf" / f"{name}.gguf", gguf.MODEL_ARCH_NAMES[architecture])
    heads = config["num_attention_heads"]
    writer.add_block_count(layers)
    if further:
        writer.add_nextn_predict_layers(further)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    is_lfm2 = config["model_type"] in ("lfm2", "lfm2_moe")
    is_gemma4 = config["model_type"] == "gemma4_text"
    if not is_gemma4:
        writer.add_feed_forward_length(lfm2_feed_forward(config) if config["model_type"] == "lfm2" else config["intermediate_size"])
    writer.add_head_count(heads)
    if is_lfm2:
        # A layer without heads of keys has a convolution.
        attention = config.get("full_attn_idxs") or [
            layer for layer, kind in enumerate(config["layer_types"]) if kind != "conv"
        ]
        writer.add_head_count_kv([config["num_key_value_heads"] * (layer in attention) for layer in range(config["num_hidden_layers"])])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    elif "kv_lora_rank" in config:
        add_latent(writer, config)
    elif is_gemma4:
        add_gemma4(writer, config)
    else:
        if config["model_type"] == "gemma3n_text":
            add_gemma3n(writer, config)
        writer.add_head_count_kv(config["num_key_value_heads"])
    if "head_dim" in config and not is_gemma4:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config.get("norm_eps") or config["rms_norm_eps"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    writer.add_rope_freq_base(config.get("rope_theta") or (rope.get("full_attention") or rope)["rope_theta"])
    add_scaling(writer, rope, of_deepseek="kv_lora_rank" in config)
    if config["model_type"] == "glm4":
        writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    if "linear_num_key_heads" in config:
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
        writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
        writer.add_full_attention_interval(config.get("full_attention_interval", 4))
        share = rope.get("partial_rotary_factor") or config["partial_rotary_factor"]
        writer.add_rope_dimension_count(int(config["head_dim"] * share))
        if config["model_type"] != "qwen3_next":
            writer.add_rope_dimension_sections([11, 11, 10, 0])
    if "mrope_section" in rope and deepstack:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
        writer.add_num_deepstack_layers(deepstack)
    if config["model_type"] == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if config["model_type"] == "olmo3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if config["model_type"] == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if config.get("enable_moe_block"):
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["top_k_experts"])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(config.get("num_local_experts") or config.get("num_experts") or config["n_routed_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if "n_shared_experts" in config:
        writer.add_expert_shared_count(config["n_shared_experts"])
    if config["model_type"] == "glm4_moe":
        writer.add_rope_dimension_count(int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"]))
    if "routed_scaling_factor" in config:
        if config.get("n_group", 1) > 1:
            writer.add_expert_group_count(config["n_group"])
            writer.add_expert_group_used_count(config["topk_group"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        is_softmax = config["model_type"] == "deepseek_v2"
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if is_softmax else gguf.ExpertGatingFuncType.SIGMOID)
        dense = config.get("num_dense_layers", config.get("first_k_dense_replace"))
        writer.add_leading_dense_block_count(config["mlp_layer_types"].count("dense") if dense is None else dense)
    tensors = behind_the_layers(stored, config["num_hidden_layers"])
    if deepstack:
        tensors = text_of_qwen3_vl(tensors)
    tensors = upright(tensors) if config["model_type"] == "gpt_oss" else canonical(tensors)
    if "linear_num_key_heads" in config:
        tensors = delta_net(tensors, config)
    if "kv_lora_rank" in config:
        tensors = latent(tensors, config)
    if config["model_type"] == "gemma3n_text":
        tensors = gemma3n(tensors)
    if is_gemma4:
        tensors = gemma4(tensors, load_file(folder / "model.safetensors"))
        writer.add_tensor("rope_freqs.weight", unrotated(config))
    for source, tensor in sorted(tensors.items()):
        if architecture in LIKE_LLAMA and re.search(r"\.(q|k)_proj\.", source):
            tensor = interleaved(tensor, heads if ".q_proj." in source else config["num_key_value_heads"])
        # By what experts are chosen.
        source = source.replace("expert_bias.weight", "expert_bias.bias")
        source = source.replace("e_score_correction_bias.weight", "e_score_correction.bias")
        target = names.get_name(source, try_suffixes=(".weight", ".bias"))
        scaled = GEMMA4_SCALES.get(source.removesuffix(".weight").split(".", 3)[-1])
        target = f"blk.{source.split('.')[2]}.{scaled}.scale" if scaled else target
        norm = source.split(".")[-2]
        if config["model_type"] == "glm4" and norm in GLM4_NORMS:
            target = f"blk.{source.split('.')[2]}.{GLM4_NORMS[norm]}.weight"
        part = source.removesuffix(".weight").split(".", 3)[-1]
        target = f"blk.{source.split('.')[2]}.nextn.{NEXTN[part]}.weight" if part in NEXTN else target
        assert target, f"{source} has no name in GGUF"
        values = tensor.float().numpy()
        if source.endswith("conv.conv.weight"):
            values = values.squeeze(1)
        if values.ndim == 2 and values.shape[0] == 1:
            values = values[0]
        if tensor.dtype == torch.uint8:
            kind = gguf.GGMLQuantizationType.MXFP4
            writer.add_tensor(target, tensor.contiguous().numpy(), raw_dtype=kind)
            continue
        kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 or source.endswith(("bias", "conv1d.weight", "conv.conv.weight")) else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(values), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def behind_the_layers(tensors, layers):
    """The tensors of a head that predicts the token behind the next one, by the names that llama.cpp's converter gives them."""
    parts = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "shared_head.norm"}
    found = {}
    for name, tensor in tensors.items():
        head, _, part = name.partition("mtp.")
        if not head and part.startswith("layers.0."):
            name = f"model.layers.{layers}.{part.removeprefix('layers.0.')}"
        elif not head and part:
            name = f"model.layers.{layers}.{parts[part.removesuffix('.weight')]}.weight"
        found[name] = tensor
    return found


def text_of_qwen3_vl(tensors):
    """The text model's tensors by the names of a Qwen 3, stacks of experts upright."""
    text = {name.replace("language_model.", ""): tensor for name, tensor in tensors.items() if ".visual." not in name}
    return {name: tensor.transpose(1, 2) if ".experts." in name else tensor for name, tensor in text.items()}


def add_gemma4(writer, config):
    """Layers that attend to all tokens have keys of their own, and layers without a cache a wider MLP."""
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    own = len(slides) - config["num_kv_shared_layers"]
    wider = 2 if config.get("use_double_wide_mlp") else 1
    writer.add_feed_forward_length([config["intermediate_size"] * (1 if layer < own else wider) for layer in range(len(slides))])
    counts = config["num_key_value_heads"], config.get("num_global_key_value_heads")
    writer.add_head_count_kv([counts[not slid] for slid in slides] if counts[1] else counts[0])
    writer.add_key_length(config["global_head_dim"])
    writer.add_value_length(config["global_head_dim"])
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(config["global_head_dim"])
    writer.add_rope_dimension_count_swa(config["head_dim"])
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(slides)
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_gemma3n(writer, config):
    """Layers have widths of their own, and the quantile of the share of their gates that become 0."""
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_altup_active_idx(config["altup_active_idx"])
    writer.add_altup_num_inputs(config["altup_num_inputs"])
    shares = torch.tensor(config["activation_sparsity_pattern"], dtype=torch.float32)
    writer.add_activation_sparsity_scale(torch.distributions.normal.Normal(0, 1).icdf(shares).tolist())


def gemma3n(tensors):
    """The matrices of streams in two stacks. The converter adds rows of zeros to the second embedding, for tokens that are no text; here it
    is as in the folder."""
    found, stacks = {}, {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(model\.altup_(?:unembed_)?projections)\.(\d+)\.weight", name)
        if match:
            stacks.setdefault(match[1], {})[int(match[2])] = tensor
        else:
            found[name] = tensor
    return found | {f"{name}.weight": torch.stack([of[index] for index in sorted(of)]) for name, of in stacks.items()}


def gemma4(tensors, folder):
    """Experts' gate and up stay in one stack."""
    found = {name: tensor for name, tensor in tensors.items() if not re.search(r"\.experts\.(gate|up)_proj\.", name)}
    return found | {f"{name}.weight": tensor for name, tensor in folder.items() if name.endswith("gate_up_proj")}


def unrotated(config):
    """Divisors of the frequencies of layers that attend to all tokens: so large that no other pair is rotated."""
    pairs = config["global_head_dim"] // 2
    rotated = int(config["rope_parameters"]["full_attention"]["partial_rotary_factor"] * pairs)
    return np.array([1.0] * rotated + [1e30] * (pairs - rotated), dtype=np.float32)


def lfm2_feed_forward(config):
    """Two thirds of what is written, times a factor, rounded up."""
    size = int(config["block_ffn_dim_multiplier"] * (2 * config["intermediate_size"] // 3))
    return -(-size // config["block_multiple_of"]) * config["block_multiple_of"]


def add_latent(writer, config):
    """The attention that llama.cpp computes, over one head of keys, and the sizes of the model's heads beside it; before April 2025,
    those of the model alone."""
    key_dim = config["qk_nope_head_dim"] + config["qk_rope_head_dim"]
    older = is_older(config)
    writer.add_head_count_kv(config["num_key_value_heads"] if older else 1)
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(key_dim if older else config["kv_lora_rank"] + config["qk_rope_head_dim"])
    writer.add_value_length(config["v_head_dim"] if older else config["kv_lora_rank"])
    if not older:
        writer.add_key_length_mla(key_dim)
        writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])


def is_older(config):
    """Whether a model is written as before April 2025: most files of DeepSeek V2 are."""
    return config["model_type"] == "deepseek_v2"


def latent(tensors, config):
    """Each head's matrices of keys, transposed, and of values, apart; before April 2025, as in the folder."""
    if is_older(config):
        return tensors
    found = {}
    for name, tensor in tensors.items():
        if ".kv_b_proj." not in name:
            found[name] = tensor
            continue
        heads = tensor.unflatten(0, (config["num_attention_heads"], -1))
        keys, values = heads.split([config["qk_nope_head_dim"], config["v_head_dim"]], dim=1)
        found[name.replace("kv_b_proj", "k_b_proj")] = keys.transpose(1, 2)
        found[name.replace("kv_b_proj", "v_b_proj")] = values
    return found


def add_scaling(writer, rope, of_deepseek=False):
    if (rope.get("rope_type") or rope.get("type")) != "yarn":
        return
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if "attention_factor" in rope:
        writer.add_rope_scaling_attn_factors(rope["attention_factor"])
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"] * (0.1 if of_deepseek else 1.0))
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def canonical(tensors):
    """All tensors, those of experts stacked and named as in the name map."""
    found, experts = {}, {}
    for name, tensor in tensors.items():
        match = EXPERT.fullmatch(name)
        if match:
            experts.setdefault((match[1], match[3]), {})[int(match[2])] = tensor
        elif name.endswith("experts.down_proj"):
            found[f"{name}.weight"] = tensor
        elif name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            block = name.removesuffix(".gate_up_proj")
            found |= {f"{block}.gate_proj.weight": gate, f"{block}.up_proj.weight": up}
        else:
            found[name + ("" if "." in name[-7:] else ".weight")] = tensor
    numbered = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
    for (block, part), of_expert in experts.items():
        # The map has numbers in Mixtral's blocks alone.
        part = part if "block_sparse_moe" in block else numbered.get(part, part)
        found[f"{block}.experts.{part}.weight"] = torch.stack([of_expert[expert] for expert in sorted(of_expert)])
    return found


def upright(tensors):
    """gpt-oss' tensors: stacks of experts (experts, outputs, inputs) or as ggml's MXFP4, gate and up apart, sinks with a suffix."""
    found = {}
    for name, tensor in tensors.items():
        block, _, part = name.partition(".experts.")
        if name.endswith("_scales"):
            continue
        if name.endswith("_blocks"):
            tensor = mxfp4(tensor, tensors[name.replace("_blocks", "_scales")])
        elif part and not name.endswith("_bias"):
            tensor = tensor.transpose(1, 2)
        kind = "bias" if name.endswith("_bias") else "weight"
        if part.startswith("gate_up_proj"):
            found[f"{block}.experts.gate_proj.{kind}"] = tensor[:, 0::2]
            found[f"{block}.experts.up_proj.{kind}"] = tensor[:, 1::2]
        elif part:
            found[f"{block}.experts.down_proj.{kind}"] = tensor
        else:
            found[name + (".weight" if name.endswith("sinks") else "")] = tensor
    return found


def delta_net(tensors, config):
    """Rates of decay are stored as they are used, norms of 1 + weight with the 1; Qwen3-Next's q, k and v are taken apart from z, and
    Qwen 3.5's heads of values lie in tiles: the first of every key head, then the second of every one."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim, shared = config["linear_key_head_dim"], config["linear_value_head_dim"], values // keys

    def tiled(rows, width):
        return rows.reshape(keys, shared, width, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)

    def tiled_values(rows, width=value_dim):
        plain = rows.shape[0] - values * width
        return torch.cat([rows[:plain], tiled(rows[plain:], width)])

    found = {}
    for name, tensor in tensors.items():
        part = name.split("linear_attn.")[-1]
        if part.startswith("A_log"):
            name, tensor = name.removesuffix(".weight"), -tensor.float().exp()
        elif part.startswith("dt_bias"):
            name = name.replace("dt_bias.weight", "dt_proj.bias").replace("dt_bias", "dt_proj.bias")
        elif part == "conv1d.weight":
            tensor = tensor.squeeze(1).float()
        elif name.endswith("norm.weight") and part != "norm.weight":
            tensor = tensor.float() + 1
        if part == "in_proj_qkvz.weight":
            split = [key_dim, key_dim, shared * value_dim, shared * value_dim]
            q, k, v, z = (rows.flatten(0, 1) for rows in tensor.unflatten(0, (keys, -1)).split(split, dim=1))
            found[name.replace("qkvz", "qkv")] = torch.cat([q, k, v])
            found[name.replace("qkvz", "z")] = z
            continue
        if config["model_type"] != "qwen3_next" and "linear_attn." in name:
            if part in ("in_proj_qkv.weight", "in_proj_z.weight", "conv1d.weight"):
                tensor = tiled_values(tensor)
            elif part == "out_proj.weight":
                tensor = tiled_values(tensor.T).T
            elif part != "norm.weight":
                tensor = tiled_values(tensor, 1)
        found[name] = tensor
    return found


def mxfp4(blocks, scales):
    """Blocks of ggml: the exponent, then 16 bytes, of which byte i has the codes of inputs i (low bits) and i + 16."""
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2)
    halves = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat([scales[..., None], halves], dim=-1).flatten(-2).contiguous()


def interleaved(tensor, heads):
    """As llama.cpp's converter permutes q and k of Llama."""
    return tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:]).swapaxes(1, 2).reshape(tensor.shape)


for name in sys.argv[1:]:
    write(name)
