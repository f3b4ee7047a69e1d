#!/usr/bin/env python3
"""Makes the tiny models under tests/models/tiny that `CASES` names, and their goldens, with transformers and PyTorch.

    python make.py                     all of CASES
    python make.py NAME...             only these
    python make.py --golden-of FOLDER TEXT_FILE TOKENS
                                       only golden.safetensors, for a folder that has its weights and tokenizer
    python make.py --again FOLDER...   golden.safetensors again, for the tokens that it already holds
    python make.py --large-image FOLDER
                                       only large_image.safetensors, for a folder that has its weights

Each folder gets config.json (exactly the dictionary below), model.safetensors, tokenizer.json, tokenizer_config.json
and golden.safetensors: tokens i32[T], logits f32[T, vocab], greedy i32[n]. The logits come from reading the written
folder again, in float32 with eager attention, so they are those of the stored (rounded) weights.

Versions that made the committed files: Python 3.11.7, torch 2.15.0, transformers 5.23.0 (5.24.0 for those of FP8, with
accelerate 1.15.0, for those with experts, and for gemma4, olmo2, olmo3, granite, glm, glm4, ministral and mistral3;
5.23.0 for qwen3-vl-moe), safetensors 0.8.0.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, FineGrainedFP8Config, Mxfp4Config
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.utils import logging

MODELS = Path(__file__).resolve().parent.parent / "models"
TOKENIZER_PATTERN = MODELS / "tiny" / "llama-tied"
FIRST_ORDINARY_TOKEN = 3  # 0, 1 and 2 are <pad>, <bos> and <eos>

COMMON = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": 320, "rms_norm_eps": 1e-6}


def family(architecture, model_type, hidden, intermediate, layers, heads, kv_heads, **rest):
    """A config.json; `rest` adds to COMMON or replaces it."""
    return COMMON | {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 512,
    } | rest


# Each case: the config, how many tokens the golden has, how many are then continued greedily, the stored dtype.
# Configs are of the older form (rope_theta, rope_scaling, torch_dtype) and of the newer (rope_parameters, dtype) in
# turn, because both are in use.
CASES = {
    # The window is a third of the tokens, and there is no head_dim to read.
    "mistral-window": dict(
        tokens=48,
        greedy=16,
        config=family(
            "MistralForCausalLM", "mistral", 64, 176, 2, 4, 2,
            hidden_act="silu", sliding_window=16, rope_theta=10000.0, tie_word_embeddings=False,
            torch_dtype="bfloat16",
        ),
    ),
    # Small caps, so that leaving one out is seen; the attention scale is not that of head_dim.
    "gemma2-softcap": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Gemma2ForCausalLM", "gemma2", 64, 160, 3, 4, 2,
            head_dim=32, hidden_activation="gelu_pytorch_tanh", hidden_act="gelu_pytorch_tanh",
            query_pre_attn_scalar=24, attn_logit_softcapping=5.0, final_logit_softcapping=3.0, sliding_window=16,
            rope_theta=10000.0, attention_bias=False, torch_dtype="bfloat16",
        ),
    ),
    # Fused qkv_proj and gate_up_proj; 24 of the 32 dimensions of a head are rotated.
    "phi3-partial-rope": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Phi3ForCausalLM", "phi3", 96, 160, 2, 3, 1,
            hidden_act="silu", sliding_window=20, tie_word_embeddings=False, original_max_position_embeddings=512,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
            dtype="bfloat16",
        ),
    ),
    # All tokens and the continuation lie within the original context: short_factor.
    "phi3-longrope-short": dict(
        tokens=40,
        greedy=16,
        config=family(
            "Phi3ForCausalLM", "phi3", 64, 128, 2, 2, 2,
            hidden_act="silu", sliding_window=None, tie_word_embeddings=False, original_max_position_embeddings=64,
            rope_theta=10000.0, partial_rotary_factor=0.75, torch_dtype="bfloat16",
            rope_scaling={
                "type": "longrope",
                "short_factor": [1.0 + 0.05 * i for i in range(12)],
                "long_factor": [1.0 + 0.6 * i for i in range(12)],
            },
        ),
    ),
    # More tokens than the original context: long_factor for every position.
    "phi3-longrope-long": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Phi3ForCausalLM", "phi3", 64, 128, 2, 2, 1,
            hidden_act="silu", sliding_window=None, tie_word_embeddings=False, original_max_position_embeddings=32,
            rope_theta=10000.0, torch_dtype="bfloat16",
            rope_scaling={
                "type": "longrope",
                "short_factor": [1.0 + 0.05 * i for i in range(16)],
                "long_factor": [1.0 + 0.6 * i for i in range(16)],
            },
        ),
    ),
    # As Llama 2: every head has its own keys; the older name `type` of the scaling; stored as float16.
    "llama2-linear-rope": dict(
        tokens=48,
        greedy=16,
        dtype=torch.float16,
        config=family(
            "LlamaForCausalLM", "llama", 96, 176, 2, 4, 4,
            hidden_act="silu", rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 2.5},
            tie_word_embeddings=False, torch_dtype="float16",
        ),
    ),
    # No size is a multiple of 32.
    "llama-odd-sizes": dict(
        tokens=40,
        greedy=16,
        config=family(
            "LlamaForCausalLM", "llama", 200, 344, 1, 5, 1,
            head_dim=40, hidden_act="silu", vocab_size=1003, tie_word_embeddings=True, attention_bias=False,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, dtype="bfloat16",
        ),
    ),
    # A bias on all seven matrices of a layer; stored as float32.
    "llama-biases": dict(
        tokens=48,
        greedy=16,
        dtype=torch.float32,
        config=family(
            "LlamaForCausalLM", "llama", 64, 128, 2, 4, 2,
            head_dim=16, hidden_act="silu", attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
            rope_theta=10000.0, rope_scaling=None, torch_dtype="float32",
        ),
    ),
    # The tokens reach beyond the original context.
    "qwen3-yarn": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Qwen3ForCausalLM", "qwen3", 64, 160, 2, 4, 2,
            head_dim=32, hidden_act="silu", tie_word_embeddings=False, attention_bias=False, sliding_window=None,
            use_sliding_window=False, layer_types=["full_attention"] * 2, dtype="bfloat16",
            max_position_embeddings=128,
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
    ),
    # A config as transformers 4 wrote it: the layers' kinds follow from sliding_window_pattern, two rope bases, and
    # rope_scaling holds for the global layers only.
    "gemma3-older-config": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Gemma3ForCausalLM", "gemma3_text", 64, 128, 4, 2, 1,
            head_dim=32, hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=32, sliding_window=16,
            sliding_window_pattern=3, rope_theta=1000000.0, rope_local_base_freq=10000.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0}, attn_logit_softcapping=None,
            final_logit_softcapping=None, attention_bias=False, torch_dtype="bfloat16",
        ),
    ),
    # As sparse as the text part of Gemma 3 4B's config: heads, head_dim (256), the attention scale, the activation and
    # both rope bases are the family's defaults.
    "gemma3-defaults": dict(
        tokens=48,
        greedy=16,
        config={
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "vocab_size": 320,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 16,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "torch_dtype": "bfloat16",
        },
    ),
    # Queries and keys of the last of four layers are not rotated.
    "smollm3-no-rope": dict(
        tokens=48,
        greedy=16,
        config=family(
            "SmolLM3ForCausalLM", "smollm3", 64, 160, 4, 4, 2,
            hidden_act="silu", tie_word_embeddings=True, attention_bias=False, mlp_bias=False, use_sliding_window=False,
            sliding_window=None, no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, dtype="bfloat16",
        ),
    ),
    # Three of seven experts, their weights divided by their sum. Stacked as transformers 5 does.
    "qwen3-moe": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        stacked=True,
        config=family(
            "Qwen3MoeForCausalLM", "qwen3_moe", 72, 96, 2, 4, 2,
            head_dim=32, hidden_act="silu", tie_word_embeddings=False, attention_bias=False, sliding_window=None,
            use_sliding_window=False, num_experts=7, num_experts_per_tok=3, moe_intermediate_size=40,
            norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, dtype="bfloat16",
        ),
    ),
    # A layer without experts between two with; tensors of each expert.
    "qwen3-moe-dense-layer": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        config=family(
            "Qwen3MoeForCausalLM", "qwen3_moe", 64, 96, 3, 2, 1,
            head_dim=32, hidden_act="silu", tie_word_embeddings=True, attention_bias=False, sliding_window=None,
            use_sliding_window=False, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=32,
            norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[1], rope_theta=10000.0,
            torch_dtype="bfloat16",
        ),
    ),
    # Two of six, and one expert more for every token behind a gate; weights are shares of all; tensors of each expert.
    "qwen2-moe-shared": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        config=family(
            "Qwen2MoeForCausalLM", "qwen2_moe", 64, 96, 2, 4, 4,
            hidden_act="silu", tie_word_embeddings=False, use_sliding_window=False, num_experts=6,
            num_experts_per_tok=2, moe_intermediate_size=48, shared_expert_intermediate_size=80, norm_topk_prob=False,
            decoder_sparse_step=1, mlp_only_layers=[], rope_theta=10000.0, torch_dtype="bfloat16",
        ),
    ),
    # Three of seven, and one for every token of the size of two.
    "qwen2-moe-shared-twice": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        config=family(
            "Qwen2MoeForCausalLM", "qwen2_moe", 64, 96, 2, 4, 4,
            hidden_act="silu", tie_word_embeddings=False, use_sliding_window=False, num_experts=7,
            num_experts_per_tok=3, moe_intermediate_size=32, shared_expert_intermediate_size=64, norm_topk_prob=False,
            decoder_sparse_step=1, mlp_only_layers=[], rope_theta=10000.0, torch_dtype="bfloat16",
        ),
    ),
    # block_sparse_moe, w1 to w3; the size of an expert is no whole number of tiles of 8 rows.
    "mixtral": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        config=family(
            "MixtralForCausalLM", "mixtral", 64, 44, 2, 4, 2,
            hidden_act="silu", tie_word_embeddings=False, num_local_experts=5, num_experts_per_tok=2,
            sliding_window=None, rope_theta=10000.0, torch_dtype="bfloat16",
        ),
    ),
    # A norm over all heads of a query or key together.
    "olmoe": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        config=family(
            "OlmoeForCausalLM", "olmoe", 64, 48, 2, 4, 2,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, clip_qkv=None, num_experts=8,
            num_experts_per_tok=3, norm_topk_prob=False, rope_theta=10000.0, torch_dtype="bfloat16",
        ),
    ),
    # Norms behind attention and MLP alone, and over all heads of a query or key together.
    "olmo2": dict(
        tokens=40,
        greedy=12,
        config=family(
            "Olmo2ForCausalLM", "olmo2", 72, 112, 2, 4, 2,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, rope_theta=10000.0,
            torch_dtype="bfloat16",
        ),
    ),
    # Three of four layers see a window of a third of the tokens; the scaling holds for the fourth only.
    "olmo3": dict(
        tokens=48,
        greedy=12,
        config=family(
            "Olmo3ForCausalLM", "olmo3", 64, 96, 4, 4, 4,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, sliding_window=16,
            layer_types=["sliding_attention"] * 3 + ["full_attention"], rope_theta=500000.0,
            rope_scaling={
                "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 32,
                "beta_slow": 1, "attention_factor": 1.2079441541679836,
            },
            torch_dtype="bfloat16",
        ),
    ),
    # Multipliers of embedding, residual sums, scores and logits, all other than 1.
    "granite": dict(
        tokens=40,
        greedy=12,
        config=family(
            "GraniteForCausalLM", "granite", 80, 136, 2, 5, 1,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, mlp_bias=False, rope_theta=10000.0,
            embedding_multiplier=6.0, residual_multiplier=0.22, attention_multiplier=0.3, logits_scaling=2.0,
            torch_dtype="bfloat16",
        ),
    ),
    # Granite 4 without experts and without Mamba; gate and up are one matrix of another name.
    "granite4-dense": dict(
        tokens=40,
        greedy=12,
        config=family(
            "GraniteMoeHybridForCausalLM", "granitemoehybrid", 64, 96, 2, 4, 2,
            hidden_act="silu", tie_word_embeddings=True, attention_bias=False, num_local_experts=0,
            num_experts_per_tok=0, shared_intermediate_size=72, layer_types=["attention"] * 2,
            position_embedding_type="rope", embedding_multiplier=6.0, residual_multiplier=0.22,
            attention_multiplier=0.3, logits_scaling=2.0, rope_theta=10000.0,
            # No layer has a Mamba; published folders have its sizes, and llama.cpp's converter reads them.
            mamba_n_heads=4, mamba_d_head=32, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
            torch_dtype="bfloat16",
        ),
    ),
    # Half of each head is rotated, in pairs of neighbours; biases of q, k and v; gate and up are one matrix.
    "glm": dict(
        tokens=40,
        greedy=12,
        config=family(
            "GlmForCausalLM", "glm", 96, 104, 2, 4, 2,
            head_dim=24, hidden_act="silu", tie_word_embeddings=False, attention_bias=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            dtype="bfloat16",
        ),
    ),
    # Four norms a layer; half of each head is rotated, in pairs of neighbours; biases of q, k and v.
    "glm4": dict(
        tokens=40,
        greedy=12,
        config=family(
            "Glm4ForCausalLM", "glm4", 72, 104, 2, 4, 2,
            head_dim=24, hidden_act="silu", tie_word_embeddings=False, attention_bias=True,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            dtype="bfloat16",
        ),
    ),
    # Each other layer has a window.
    "ministral": dict(
        tokens=40,
        greedy=12,
        config=family(
            "MinistralForCausalLM", "ministral", 64, 96, 2, 4, 2,
            head_dim=24, hidden_act="silu", tie_word_embeddings=False, sliding_window=12,
            layer_types=["full_attention", "sliding_attention"],
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, dtype="bfloat16",
        ),
    ),
    # Queries grow twice within the tokens.
    "ministral3": dict(
        tokens=48,
        greedy=12,
        config=family(
            "Ministral3ForCausalLM", "ministral3", 64, 96, 2, 4, 2,
            head_dim=32, hidden_act="silu", tie_word_embeddings=True, sliding_window=None,
            rope_parameters={
                "rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 20,
                "max_position_embeddings": 512, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0,
                "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
            },
            dtype="bfloat16",
        ),
    ),
    # The text model of a multimodal one, beside a vision tower that is not read here.
    "mistral3-multimodal": dict(
        tokens=40,
        greedy=12,
        config={
            "architectures": ["Mistral3ForConditionalGeneration"],
            "model_type": "mistral3",
            "bos_token_id": 1,
            "vocab_size": 320,
            "image_token_index": 10,
            "spatial_merge_size": 2,
            "multimodal_projector_bias": False,
            "vision_feature_layer": -1,
            "projector_hidden_act": "gelu",
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
            "text_config": {
                "model_type": "mistral", "vocab_size": 320, "hidden_size": 72, "intermediate_size": 112,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24,
                "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "sliding_window": None,
                "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            },
            "vision_config": {
                "model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
                "num_attention_heads": 1, "image_size": 28, "patch_size": 14, "head_dim": 16,
            },
        },
    ),
    # A vision tower whose heads are no whole quads, means over squares of four patches, an image longer than half of the window.
    "gemma3-vision": dict(
        tokens=40,
        greedy=12,
        images=2,
        config={
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "vocab_size": 320,
            "boi_token_index": 300,
            "eoi_token_index": 301,
            "image_token_index": 302,
            "mm_tokens_per_image": 4,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "text_config": {
                "model_type": "gemma3_text", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "query_pre_attn_scalar": 16, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "sliding_window": 6,
                "layer_types": ["sliding_attention", "full_attention"], "eos_token_id": 2, "pad_token_id": 0,
            },
            "vision_config": {
                "model_type": "siglip_vision_model", "hidden_size": 40, "intermediate_size": 72,
                "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56, "patch_size": 14,
                "layer_norm_eps": 1e-5,
            },
        },
    ),
    # Images of any size: a learned grid of 6 × 6 positions, three rotated pairs for each of two axes, features of two layers of the tower
    # added behind the first two of three layers, and rotary pairs of three kinds.
    "qwen3-vl": dict(
        tokens=40,
        greedy=12,
        images=2,
        config={
            "architectures": ["Qwen3VLForConditionalGeneration"],
            "model_type": "qwen3_vl",
            "image_token_id": 302,
            "video_token_id": 303,
            "vision_start_token_id": 300,
            "vision_end_token_id": 301,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "text_config": {
                "model_type": "qwen3_vl_text", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "attention_bias": False,
                "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "rope_theta": 10000.0,
                "rope_scaling": {"rope_type": "default", "mrope_interleaved": True, "mrope_section": [4, 2, 2]},
            },
            "vision_config": {
                "model_type": "qwen3_vl", "depth": 3, "hidden_size": 48, "intermediate_size": 72, "num_heads": 4,
                "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "patch_size": 4, "spatial_merge_size": 2,
                "temporal_patch_size": 2, "out_hidden_size": 64, "num_position_embeddings": 36,
                "deepstack_visual_indexes": [0, 1],
            },
        },
        processor={
            "image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 640, "longest_edge": 2560},
            "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
        },
    ),
    # The text model of the mixture, whose folders have transposed stacks with gate before up; the tower is that of the other.
    "qwen3-vl-moe": dict(
        tokens=40,
        greedy=12,
        margin=0.35,
        config={
            "architectures": ["Qwen3VLMoeForConditionalGeneration"],
            "model_type": "qwen3_vl_moe",
            "image_token_id": 302,
            "video_token_id": 303,
            "vision_start_token_id": 300,
            "vision_end_token_id": 301,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
            "text_config": {
                "model_type": "qwen3_vl_moe_text", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                "hidden_act": "silu", "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "attention_bias": False,
                "decoder_sparse_step": 1, "moe_intermediate_size": 48, "num_experts": 7, "num_experts_per_tok": 3,
                "mlp_only_layers": [], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
                "rope_parameters": {
                    "rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True,
                    "mrope_section": [4, 2, 2],
                },
            },
            "vision_config": {
                "model_type": "qwen3_vl_moe_vision", "depth": 1, "hidden_size": 16, "intermediate_size": 24,
                "num_heads": 2, "hidden_act": "gelu_pytorch_tanh", "in_channels": 3, "patch_size": 2,
                "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": 64,
                "num_position_embeddings": 4, "deepstack_visual_indexes": [0],
            },
        },
    ),
    # A gated delta net in every other layer, whose values have more heads than keys and other sizes; the others have gated attention that
    # rotates a quarter of a head. 70 tokens: more than the 64 of a chunk.
    "qwen35-delta": dict(
        tokens=70,
        greedy=16,
        config=family(
            "Qwen3_5ForCausalLM", "qwen3_5_text", 60, 104, 2, 4, 2,
            head_dim=32, hidden_act="silu", tie_word_embeddings=True, attention_bias=False,
            linear_conv_kernel_dim=4, linear_key_head_dim=36, linear_value_head_dim=10, linear_num_key_heads=2,
            linear_num_value_heads=6, full_attention_interval=2,
            rope_parameters={
                "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                "mrope_interleaved": True, "mrope_section": [2, 1, 1],
            },
            dtype="bfloat16",
        ),
    ),
    # The same layers with rows of each key head together, and experts.
    # Short convolutions of three taps, then attention, twice; the intermediate size is rounded up from two thirds of what is written.
    "lfm2": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Lfm2ForCausalLM", "lfm2", 72, 200, 4, 4, 2,
            block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.1, block_multiple_of=8, conv_L_cache=3, conv_bias=False,
            norm_eps=1e-5, full_attn_idxs=[1, 3], tie_embedding=True, rope_theta=1000000.0, torch_dtype="bfloat16",
        ),
    ),
    # A dense layer before those with experts, which are chosen by sigmoids plus a bias.
    "lfm2-moe": dict(
        tokens=40,
        greedy=12,
        margin=0.05,
        config=family(
            "Lfm2MoeForCausalLM", "lfm2_moe", 72, 200, 4, 4, 2,
            conv_L_cache=3, conv_bias=False, norm_eps=1e-5, moe_intermediate_size=52, num_dense_layers=1, num_experts=6,
            num_experts_per_tok=2, norm_topk_prob=True, use_expert_bias=True, routed_scaling_factor=1.0,
            layer_types=["conv", "full_attention", "conv", "full_attention"], tie_embedding=True, rope_theta=1000000.0,
            torch_dtype="bfloat16",
        ),
    ),
    # Latent attention as in the Lite model: queries from the stream, and YaRN's factors in the scale of scores.
    "deepseek-v2": dict(
        tokens=48,
        greedy=12,
        margin=0.15,
        config=family(
            "DeepseekV2ForCausalLM", "deepseek_v2", 64, 96, 3, 4, 4,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, q_lora_rank=None, kv_lora_rank=40,
            qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=20, first_k_dense_replace=1, n_routed_experts=6,
            n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=44, norm_topk_prob=False,
            routed_scaling_factor=1.3, scoring_func="softmax", topk_method="greedy", n_group=1, topk_group=1, rope_theta=10000.0,
            rope_scaling={
                "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1,
                "mscale": 0.707, "mscale_all_dim": 0.707,
            },
            torch_dtype="bfloat16",
        ),
    ),
    # DeepSeek V2 (236B): experts of two of four groups, by each group's best, and queries from a vector of low rank.
    "deepseek-v2-groups": dict(
        tokens=40,
        greedy=12,
        margin=0.03,
        config=family(
            "DeepseekV2ForCausalLM", "deepseek_v2", 64, 96, 2, 4, 4,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, q_lora_rank=48, kv_lora_rank=32,
            qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=24, first_k_dense_replace=1, n_routed_experts=12,
            n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=44, norm_topk_prob=False,
            routed_scaling_factor=4.0, scoring_func="softmax", topk_method="group_limited_greedy", n_group=4, topk_group=2,
            rope_theta=10000.0,
            torch_dtype="bfloat16",
        ),
    ),
    # DeepSeek V3: experts of two of four groups, by the sums of each group's two best.
    "deepseek-v3": dict(
        tokens=48,
        greedy=12,
        margin=0.03,
        config=family(
            "DeepseekV3ForCausalLM", "deepseek_v3", 64, 96, 3, 4, 4,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, q_lora_rank=48, kv_lora_rank=40,
            qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=20, first_k_dense_replace=1, n_routed_experts=12,
            n_shared_experts=1, num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=True,
            routed_scaling_factor=1.5, scoring_func="sigmoid", topk_method="noaux_tc", n_group=4, topk_group=2,
            rope_theta=10000.0,
            rope_scaling={
                "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1,
                "mscale": 1.0, "mscale_all_dim": 1.0,
            },
            torch_dtype="bfloat16",
        ),
    ),
    # As DeepSeek publishes it: FP8 with a factor for each block of rows and columns, in all linear layers but the router.
    "deepseek-v3-fp8": dict(
        tokens=40,
        greedy=12,
        margin=0.03,
        config=family(
            "DeepseekV3ForCausalLM", "deepseek_v3", 64, 96, 2, 4, 4,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, q_lora_rank=48, kv_lora_rank=40,
            qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=20, first_k_dense_replace=1, n_routed_experts=8,
            n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True,
            routed_scaling_factor=1.5, scoring_func="sigmoid", topk_method="noaux_tc", n_group=2, topk_group=1,
            rope_theta=10000.0, torch_dtype="bfloat16",
            quantization_config={
                "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [8, 8],
            },
        ),
    ),
    # One factor for each matrix, as Mistral and NVIDIA publish them, and biases that are not quantised.
    "qwen2-fp8": dict(
        tokens=40,
        greedy=12,
        config=family(
            "Qwen2ForCausalLM", "qwen2", 96, 160, 2, 4, 2,
            hidden_act="silu", tie_word_embeddings=True, sliding_window=None, use_sliding_window=False, rope_theta=10000.0,
            torch_dtype="bfloat16",
            quantization_config={"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
        ),
    ),
    # GLM-4.5: the experts alone, with heads that are normed and half rotated.
    "glm4-moe": dict(
        tokens=40,
        greedy=12,
        margin=0.05,
        config=family(
            "Glm4MoeForCausalLM", "glm4_moe", 64, 96, 3, 4, 2,
            head_dim=24, hidden_act="silu", tie_word_embeddings=False, attention_bias=True, use_qk_norm=True,
            n_routed_experts=6, n_shared_experts=1, num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True,
            routed_scaling_factor=1.5, n_group=1, topk_group=1, first_k_dense_replace=1,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
            dtype="bfloat16",
        ),
    ),
    # GLM-4.7-Flash: queries from a vector of low rank, and values that are wider than keys.
    "glm4-moe-lite": dict(
        tokens=48,
        greedy=12,
        margin=0.05,
        config=family(
            "Glm4MoeLiteForCausalLM", "glm4_moe_lite", 64, 96, 3, 5, 5,
            hidden_act="silu", tie_word_embeddings=False, attention_bias=False, q_lora_rank=48, kv_lora_rank=32,
            qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=40, n_routed_experts=6, n_shared_experts=1,
            num_experts_per_tok=2, moe_intermediate_size=40, norm_topk_prob=True, routed_scaling_factor=1.8, n_group=1,
            topk_group=1, rope_interleave=True, first_k_dense_replace=1, mlp_layer_types=["dense", "sparse", "sparse"],
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
            dtype="bfloat16",
        ),
    ),
    "qwen3-next": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        config=family(
            "Qwen3NextForCausalLM", "qwen3_next", 64, 96, 2, 4, 2,
            head_dim=32, hidden_act="silu", tie_word_embeddings=False, attention_bias=False,
            linear_conv_kernel_dim=3, linear_key_head_dim=32, linear_value_head_dim=16, linear_num_key_heads=2,
            linear_num_value_heads=6, layer_types=["full_attention", "linear_attention"],
            num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40, shared_expert_intermediate_size=48,
            norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], rope_theta=10000.0,
            partial_rotary_factor=0.25, rope_scaling=None, torch_dtype="bfloat16",
        ),
    ),
    # Experts stacked as transformers 5 does.
    "qwen35-moe": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        stacked=True,
        config=family(
            "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 64, 96, 2, 2, 1,
            head_dim=32, hidden_act="silu", tie_word_embeddings=False, attention_bias=False,
            linear_conv_kernel_dim=4, linear_key_head_dim=48, linear_value_head_dim=24, linear_num_key_heads=2,
            linear_num_value_heads=2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=40,
            shared_expert_intermediate_size=48, full_attention_interval=2, dtype="bfloat16",
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        ),
    ),
    # The expert for every token has the size of the others, as in published models.
    "qwen35-moe-shared": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        stacked=True,
        config=family(
            "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", 64, 96, 2, 2, 1,
            head_dim=32, hidden_act="silu", tie_word_embeddings=False, attention_bias=False,
            linear_conv_kernel_dim=4, linear_key_head_dim=16, linear_value_head_dim=24, linear_num_key_heads=2,
            linear_num_value_heads=2, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=40,
            shared_expert_intermediate_size=40, full_attention_interval=2, dtype="bfloat16",
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        ),
    ),
    # Sinks, biases, windows of every other layer, YaRN without truncation, and experts whose gate and up are clamped: weights are
    # large enough that both clamps are met. The size of an expert is no whole number of tiles of 8 rows.
    "gpt-oss": dict(
        tokens=48,
        greedy=12,
        margin=0.15,
        config=family(
            "GptOssForCausalLM", "gpt_oss", 72, 44, 2, 4, 2,
            head_dim=32, hidden_act="silu", tie_word_embeddings=False, attention_bias=True, sliding_window=10,
            layer_types=["sliding_attention", "full_attention"], num_local_experts=6, num_experts_per_tok=3,
            swiglu_limit=7.0, rms_norm_eps=1e-5, rope_theta=150000.0, torch_dtype="bfloat16",
            rope_scaling={
                "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                "original_max_position_embeddings": 64,
            },
        ),
    ),
    # As OpenAI publishes it: experts are MXFP4, in tensors of codes and of scales.
    "gpt-oss-mxfp4": dict(
        tokens=48,
        greedy=12,
        margin=0.15,
        config=family(
            "GptOssForCausalLM", "gpt_oss", 64, 96, 2, 4, 2,
            head_dim=32, hidden_act="silu", tie_word_embeddings=False, attention_bias=True, sliding_window=10,
            layer_types=["sliding_attention", "full_attention"], num_local_experts=5, num_experts_per_tok=2,
            swiglu_limit=7.0, rms_norm_eps=1e-5, rope_theta=150000.0, torch_dtype="bfloat16",
            rope_scaling={
                "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                "original_max_position_embeddings": 64,
            },
            quantization_config={
                "quant_method": "mxfp4",
                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
            },
        ),
    ),
    # Heads of another size and number in layers that see everything, whose values are their keys before norm and rotation; a quarter
    # of their pairs is rotated; each layer scales the stream. Sizes beside num_attention_heads as the files on the Hub have them.
    "gemma4-dense": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Gemma4ForCausalLM", "gemma4_text", 72, 88, 4, 4, 2,
            head_dim=24, global_head_dim=40, num_global_key_value_heads=1, attention_k_eq_v=True,
            hidden_activation="gelu_pytorch_tanh", sliding_window=10, final_logit_softcapping=3.0,
            layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
            hidden_size_per_layer_input=0, num_kv_shared_layers=0, enable_moe_block=False, attention_bias=False,
            tie_word_embeddings=True, use_bidirectional_attention="vision",
            rope_parameters={
                "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            dtype="bfloat16",
        ),
    ),
    # The last two of five layers have queries only, and attend to the keys and values of layers 2 and 1; their MLPs are twice as wide.
    "gemma4-shared-kv": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Gemma4ForCausalLM", "gemma4_text", 88, 56, 5, 6, 2,
            head_dim=24, global_head_dim=40, hidden_activation="gelu_pytorch_tanh", sliding_window=10,
            final_logit_softcapping=3.0,
            layer_types=[f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")],
            hidden_size_per_layer_input=0, num_kv_shared_layers=2, use_double_wide_mlp=True, enable_moe_block=False,
            attention_bias=False, tie_word_embeddings=True,
            rope_parameters={
                "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            dtype="bfloat16",
        ),
    ),
    # An input of 20 elements for each layer, from an embedding of its own and a projection; the last of three layers has queries only.
    "gemma4-layer-inputs": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Gemma4ForCausalLM", "gemma4_text", 88, 56, 3, 6, 2,
            head_dim=24, global_head_dim=40, hidden_activation="gelu_pytorch_tanh", sliding_window=10,
            final_logit_softcapping=3.0,
            layer_types=[f"{kind}_attention" for kind in ("sliding", "full", "full")],
            hidden_size_per_layer_input=20, vocab_size_per_layer_input=331, num_kv_shared_layers=1, use_double_wide_mlp=True,
            enable_moe_block=False, attention_bias=False, tie_word_embeddings=True,
            rope_parameters={
                "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            dtype="bfloat16",
        ),
    ),
    # Experts beside the MLP of each layer, and a router with a norm, a scale and a factor of each expert.
    "gemma4-moe": dict(
        tokens=40,
        greedy=12,
        margin=0.15,
        config=family(
            "Gemma4ForCausalLM", "gemma4_text", 72, 88, 3, 4, 2,
            head_dim=24, global_head_dim=40, num_global_key_value_heads=1, attention_k_eq_v=True,
            hidden_activation="gelu_pytorch_tanh", sliding_window=10, final_logit_softcapping=3.0,
            layer_types=["sliding_attention", "full_attention", "full_attention"],
            hidden_size_per_layer_input=0, num_kv_shared_layers=0, attention_bias=False,
            enable_moe_block=True, num_experts=7, top_k_experts=3, moe_intermediate_size=40,
            tie_word_embeddings=True, use_bidirectional_attention="vision",
            rope_parameters={
                "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            dtype="bfloat16",
        ),
    ),
    # Four streams, of which the layers work on one; gates of which a part is kept; the last two of five layers have queries only. Tokens
    # from 301 on have the first row of the second embedding.
    "gemma3n": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Gemma3nForCausalLM", "gemma3n_text", 72, [120, 56, 88, 72, 56], 5, 4, 2,
            head_dim=20, hidden_activation="gelu_pytorch_tanh", sliding_window=10, final_logit_softcapping=3.0,
            layer_types=[f"{kind}_attention" for kind in ("sliding", "full", "sliding", "sliding", "full")],
            activation_sparsity_pattern=[0.85, 0.0, 0.6, 0.75, 0.0], num_kv_shared_layers=2,
            altup_num_inputs=4, altup_active_idx=0, altup_correct_scale=True, altup_coef_clip=0.2, laurel_rank=10,
            hidden_size_per_layer_input=20, vocab_size_per_layer_input=301, attention_bias=False, tie_word_embeddings=True,
            rope_parameters={
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
            dtype="bfloat16",
        ),
    ),
    # Seven heads to one pair of keys and values, as Qwen 2.5 7B; heads of 128 that hidden_size does not foretell.
    "qwen25-heads-7-to-1": dict(
        tokens=48,
        greedy=16,
        config=family(
            "Qwen2ForCausalLM", "qwen2", 64, 128, 1, 7, 1,
            head_dim=128, hidden_act="silu", tie_word_embeddings=True, sliding_window=512, use_sliding_window=False,
            max_window_layers=1, rope_theta=1000000.0, torch_dtype="bfloat16",
        ),
    ),
}


def make_case(name, config, tokens, greedy, dtype=torch.bfloat16, margin=None, stacked=False, images=0, processor=None):
    folder = MODELS / "tiny" / name
    folder.mkdir(parents=True, exist_ok=True)
    seed = sum(name.encode())
    write_json(folder / "config.json", config)
    vocab_size = config.get("text_config", config)["vocab_size"]
    write_tokenizer(folder, vocab_size)
    if processor:
        write_json(folder / "preprocessor_config.json", processor)
    write_weights(folder, seed, dtype, stacked)
    generator = torch.Generator().manual_seed(seed + 1)
    ids = torch.randint(FIRST_ORDINARY_TOKEN, vocab_size, (tokens,), generator=generator)
    if processor:
        # Tokens of images are no text.
        ids[(ids >= config["vision_start_token_id"]) & (ids <= config["video_token_id"])] += 8
    ids[0] = COMMON["bos_token_id"]
    if margin is not None:
        keep_apart(folder, ids, margin, generator)
    write_golden(folder, ids, greedy)
    if images and processor:
        write_grid_golden(folder, ids, greedy, generator)
    elif images:
        write_image_golden(folder, ids, images, greedy, generator)


def write_image_golden(folder, text, images, greedy, generator):
    """image.safetensors: pictures u8[n, height, width, 3]; resized u8[n, size, size, 3], by Pillow; rows f32[n, rows, hidden] that they
    become; tokens i32[T], in which the image's token stands for each row; logits f32[T, vocab] and greedy i32[m]."""
    model = load_float32(folder)
    config, size = model.config, model.config.vision_config.image_size
    pictures = torch.rand((images, 7, 11, 3), generator=generator).repeat_interleave(8, 1).repeat_interleave(6, 2)
    pictures = (pictures * 255).to(torch.uint8)[:, :50, :61].contiguous()
    resized = [Image.fromarray(one.numpy()).resize((size, size), Image.Resampling.BILINEAR) for one in pictures]
    resized = torch.from_numpy(np.stack([np.asarray(one) for one in resized]))
    pixels = ((resized.float() / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)
    image = [config.boi_token_id if hasattr(config, "boi_token_id") else config.boi_token_index]
    image += [config.image_token_id] * config.mm_tokens_per_image
    image += [config.eoi_token_id if hasattr(config, "eoi_token_id") else config.eoi_token_index]
    image = torch.tensor(image)
    parts = [part for piece in text.chunk(images + 1)[:-1] for part in (piece, image)] + [text.chunk(images + 1)[-1]]
    ids = torch.cat(parts)

    def logits_of_images(ids):
        kinds = (ids == config.image_token_id).long()[None]
        return model(input_ids=ids[None], pixel_values=pixels, token_type_ids=kinds, use_cache=False).logits[0]

    with torch.no_grad():
        rows = model.get_image_features(pixels)
        rows = getattr(rows, "pooler_output", rows)
        logits, sequence = logits_of_images(ids), ids
        for _ in range(greedy):
            sequence = torch.cat([sequence, logits_of_images(sequence)[-1].argmax()[None]])
    found = {
        "pictures": pictures,
        "resized": resized.contiguous(),
        "rows": torch.stack(list(rows)).float().contiguous(),
        "tokens": ids.to(torch.int32),
        "logits": logits.float().contiguous(),
        "greedy": sequence[len(ids) :].to(torch.int32).contiguous(),
    }
    save_file(found, folder / "image.safetensors")
    (folder / "image.safetensors").chmod(0o644)
    print(f"{folder.name}: images {tuple(found['rows'].shape)}, deviation {found['rows'].std():.3f}, {found['greedy'].tolist()}")


# Heights and widths: one that is made smaller, to four rows of eight, and one that is made larger, to three of four.
GRID_PICTURES = [(50, 91), (19, 23)]


def read_grid_pictures(folder, text, sizes, generator, limits=None):
    """Random pictures of these heights and widths, what the processor reads of them, and the tokens of a text with their rows between its
    pieces. `limits`: fewest and most pixels instead of the processor's."""
    config = AutoConfig.from_pretrained(folder)
    size = {} if limits is None else {"size": {"shortest_edge": limits[0], "longest_edge": limits[1]}}
    processor = Qwen2VLImageProcessorPil.from_pretrained(folder, **size)
    pictures, parts, pieces = [], [], text.chunk(len(sizes) + 1)
    for number, (height, width) in enumerate(sizes):
        picture = torch.rand((height // 8 + 1, width // 6 + 1, 3), generator=generator)
        picture = picture.repeat_interleave(8, 0).repeat_interleave(6, 1)[:height, :width]
        pictures.append((picture * 255).to(torch.uint8).contiguous())
        read = processor(Image.fromarray(pictures[-1].numpy()), return_tensors="pt")
        [[_, down, across]] = read["image_grid_thw"].tolist()
        image = [config.vision_start_token_id, *[config.image_token_id] * (down * across // 4), config.vision_end_token_id]
        parts += [pieces[number], torch.tensor(image), read]
    ids = torch.cat([part for index, part in enumerate(parts) if index % 3 < 2] + [pieces[-1]])
    return pictures, parts[2::3], ids


def continue_behind_grids(model, reads, ids, greedy):
    """rows f32[rows of all, hidden of the row and of each feature], logits f32[T, vocab] and greedy i32[m] of a text with images."""
    config = model.config
    pixels = torch.cat([read["pixel_values"] for read in reads])
    grids = torch.cat([read["image_grid_thw"] for read in reads])

    def logits_of_images(ids):
        kinds = (ids == config.image_token_id).int()[None]
        rest = {"mm_token_type_ids": kinds, "image_grid_thw": grids, "use_cache": False}
        return model(input_ids=ids[None], pixel_values=pixels, **rest).logits[0]

    with torch.no_grad():
        features = model.get_image_features(pixels, grids)
        rows = [torch.cat(features.pooler_output), *[torch.cat(deep) for deep in features.deepstack_features]]
        logits, sequence = logits_of_images(ids), ids
        for _ in range(greedy):
            sequence = torch.cat([sequence, logits_of_images(sequence)[-1].argmax()[None]])
    print(f"grids {grids.tolist()}, rows {[f'{part.std():.3f}' for part in rows]}, {sequence[len(ids) :].tolist()}")
    return {
        "rows": torch.cat(rows, dim=1).float().contiguous(),
        "tokens": ids.to(torch.int32),
        "logits": logits.float().contiguous(),
        "greedy": sequence[len(ids) :].to(torch.int32).contiguous(),
    }


def write_grid_golden(folder, text, greedy, generator):
    """image.safetensors: picture.N u8[height, width, 3]; resized.N u8[height, width, 3], by Pillow; rows f32[rows of all, hidden of the
    row and of each feature]; tokens i32[T], in which the image's token stands for each row; logits f32[T, vocab] and greedy i32[m]."""
    model = load_float32(folder)
    side = model.config.vision_config.patch_size
    pictures, reads, ids = read_grid_pictures(folder, text, GRID_PICTURES, generator)
    found = {}
    for number, (picture, read) in enumerate(zip(pictures, reads)):
        [[_, down, across]] = read["image_grid_thw"].tolist()
        resized = Image.fromarray(picture.numpy()).resize((across * side, down * side), Image.Resampling.BICUBIC)
        found |= {f"picture.{number}": picture, f"resized.{number}": torch.from_numpy(np.array(resized))}
    found |= continue_behind_grids(model, reads, ids, greedy)
    save_file(found, folder / "image.safetensors")
    (folder / "image.safetensors").chmod(0o644)


# Heights and widths: three rows of four, and then 24 of 26, which no step of 512 takes. Neither is scaled between these limits.
LARGE_PICTURES = [(24, 32), (192, 208)]
LARGE_LIMITS = [640, 640 * 64]
# Rows of which the golden has one, and last tokens of which it has the logits.
LARGE_ROWS, LARGE_LOGITS = 16, 4


def write_large_golden(folder):
    """large_image.safetensors: as image.safetensors, of one row of LARGE_ROWS and the last LARGE_LOGITS tokens."""
    model = load_float32(folder)
    generator = torch.Generator().manual_seed(sum(folder.name.encode()) + 3)
    text = torch.randint(FIRST_ORDINARY_TOKEN, model.config.vision_start_token_id, (60,), generator=generator)
    pictures, reads, ids = read_grid_pictures(folder, text, LARGE_PICTURES, generator, LARGE_LIMITS)
    found = continue_behind_grids(model, reads, ids, 6)
    found["rows"] = found["rows"][::LARGE_ROWS].contiguous()
    found["logits"] = found["logits"][-LARGE_LOGITS:].contiguous()
    found |= {f"picture.{number}": picture for number, picture in enumerate(pictures)}
    save_file(found, folder / "large_image.safetensors")
    (folder / "large_image.safetensors").chmod(0o644)


def keep_apart(folder, ids, margin, generator):
    """Draws each token again until no layer's router is in doubt about the last expert that it chooses, and the last group.

    Quantisation moves logits by some hundredths; where two experts are as near as that, another is as right, and the logits are
    of another model.
    """
    model = load_float32(folder)
    for position in range(1, len(ids)):
        while True:
            all_ranks = ranks(model, router_logits(model, ids[None, : position + 1]))
            text = getattr(model.config, "text_config", model.config)
            chosen = getattr(text, "num_experts_per_tok", None) or text.top_k_experts
            groups, kept = getattr(text, "n_group", None) or 1, getattr(text, "topk_group", None) or 1
            if kept < groups:
                # Of a group's best two, or one: DeepSeek V3 and V2.
                best = 1 if getattr(text, "topk_method", None) == "group_limited_greedy" else 2
                sums = all_ranks.unflatten(-1, (groups, -1)).topk(best).values.sum(-1)
                if doubt(sums, kept) < margin:
                    ids[position] = torch.randint(FIRST_ORDINARY_TOKEN, text.vocab_size, (1,), generator=generator)
                    continue
                lost = sums < sums.topk(kept).values[:, -1:]
                all_ranks = all_ranks.masked_fill(lost.repeat_interleave(all_ranks.shape[-1] // groups, -1), -torch.inf)
            if doubt(all_ranks, chosen) >= margin:
                break
            ids[position] = torch.randint(FIRST_ORDINARY_TOKEN, text.vocab_size, (1,), generator=generator)


def doubt(ranks, chosen):
    """The smallest distance of any layer between the last that is chosen and the next."""
    last = ranks.sort(descending=True).values
    return (last[:, chosen - 1] - last[:, chosen]).min()


def router_logits(model, ids):
    """What each layer's router makes of the last token."""
    if not model.config.model_type.startswith("gemma4"):
        with torch.no_grad():
            routers = model(ids, output_router_logits=True).router_logits
        return [logits[-1] for logits in routers if logits is not None]
    # Its model gives no logits out.
    found = []
    hooks = [
        layer.router.proj.register_forward_hook(lambda _module, _input, logits: found.append(logits[-1]))
        for layer in model.model.layers
    ]
    with torch.no_grad():
        model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def ranks(model, logits):
    """By what each layer's experts are chosen: the logits, or their sigmoids plus a bias."""
    biases = [buffer for name, buffer in model.named_buffers() if name.endswith(CHOICE_BIASES)]
    return torch.stack(logits).sigmoid() + torch.stack(biases) if biases else torch.stack(logits)


CHOICE_BIASES = ("e_score_correction_bias", "expert_bias")


def write_weights(folder, seed, dtype, stacked=False):
    """Random weights large enough that every part of a layer is seen in the logits."""
    config = AutoConfig.from_pretrained(folder)
    quantization = getattr(config, "quantization_config", None)
    if quantization:
        del config.quantization_config
    model = model_class(folder).from_config(config, dtype=torch.float32)
    config_type = model.config.model_type
    gemma4 = config_type.startswith("gemma4")
    gemma3n = config_type.startswith("gemma3n")
    norms_add_one = config_type.startswith(("gemma", "qwen3_5", "qwen3_next")) and not gemma4 and not gemma3n
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if "linear_attn" in name and name.split(".")[-1] in ("A_log", "dt_bias"):
                # Rates of decay from a fraction of a token to hundreds of them.
                parameter.copy_(noise if name.endswith("dt_bias") else noise - 3.0)
            elif name.endswith("linear_attn.norm.weight"):
                parameter.copy_(1.0 + 0.3 * noise)
            elif "conv1d" in name:
                # Queries and keys that are positive for the most part, as SiLU leaves large ones: their product, by which values are
                # multiplied before a norm, is then not near 0.
                parameter.copy_(1.5 * noise)
            elif name.endswith("linear_attn.out_proj.weight"):
                parameter.copy_(noise * 0.2 * parameter.shape[-1] ** -0.5)
            elif (gemma4 or gemma3n) and name.endswith("q_norm.weight"):
                # Nothing else keeps scores small.
                parameter.copy_(0.3 + 0.1 * noise)
            elif hasattr(config, "kv_lora_rank") and name.endswith(("q_proj.weight", "q_b_proj.weight")):
                # Keys are products of two matrices, and their scores would be large.
                parameter.copy_(0.5 * noise * parameter.shape[-1] ** -0.5)
            elif name.endswith("router.scale"):
                # As large as makes one expert likelier than another: what it multiplies is divided by this root.
                parameter.copy_(parameter.shape[-1] ** 0.5 * (1.0 + 0.3 * noise))
            elif name.endswith("per_expert_scale"):
                parameter.copy_(1.0 + 0.4 * noise)
            elif gemma3n and name.split(".")[-2].startswith("post_"):
                # With branches as large as the stream, roundings would grow from layer to layer.
                parameter.copy_(0.5 + 0.15 * noise)
            elif "norm" in name:
                # With the mean of 1 that Gemma adds, its branches would drown in the scaled embedding, whose own
                # token would always win where the output matrix is the embedding.
                branch_output = norms_add_one and name.split(".")[-2].startswith("post_")
                centre = 1.0 if branch_output or not norms_add_one else 0.0
                parameter.copy_(centre + 0.3 * noise)
            elif name.endswith("sinks"):
                parameter.copy_(noise)
            elif name.endswith("modality_router.weight"):
                # What it multiplies is divided by the width.
                parameter.copy_(noise * parameter.shape[-1] ** 0.5)
            elif name.endswith(("prediction_coefs.weight", "correction_coefs.weight")):
                parameter.copy_(0.15 * noise)
            elif name.endswith("correct_output_scale"):
                parameter.copy_(1.0 + 0.3 * noise)
            elif name.endswith("gate_up_proj") and config_type == "gpt_oss":
                # Rows are inputs. Some gates and ups are beyond the limit.
                parameter.copy_(noise * 2.5 * parameter.shape[-2] ** -0.5)
            elif name.endswith("down_proj") and config_type == "gpt_oss":
                parameter.copy_(noise * 0.4 * parameter.shape[-2] ** -0.5)
            elif name.endswith("bias"):
                parameter.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(noise * max(0.1, 1.2 * parameter.shape[-1] ** -0.5))
        for name, buffer in sorted(model.named_buffers()):
            if name.endswith("layer_scalar"):
                buffer.copy_(0.4 + torch.rand(buffer.shape, generator=generator))
            elif name.endswith(CHOICE_BIASES):
                buffer.copy_(0.2 * torch.randn(buffer.shape, generator=generator))
    with tempfile.TemporaryDirectory() as temporary:
        # As transformers 4 did, a tensor for each expert; or as the modules of transformers 5 hold them.
        model.to(dtype).save_pretrained(temporary, save_original_format=not stacked)
        file = folder / "model.safetensors"
        shutil.copyfile(Path(temporary) / "model.safetensors", file)
    if quantization:
        tensors = load_file(file)
        is_fp8 = quantization["quant_method"] == "fp8"
        tensors = with_fp8(tensors, quantization["weight_block_size"]) if is_fp8 else with_mxfp4(tensors)
        save_file(tensors, file, metadata={"format": "pt"})
        file.chmod(0o644)
    if config_type == "qwen3_vl_moe":
        # As in published folders; transformers 5 writes stacks that are not transposed, and reads both.
        tensors = {name: tensor.transpose(1, 2).contiguous() if ".experts." in name else tensor for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})
        file.chmod(0o644)


# E2M1 by code; the other eight codes are the same with a sign.
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def with_mxfp4(tensors):
    """Stacks of experts (experts, inputs, outputs) as blocks of 32 inputs: a byte for two codes, and an exponent for each block."""
    found = {}
    for name, tensor in tensors.items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            found[name] = tensor
            continue
        groups = tensor.float().transpose(1, 2).unflatten(-1, (-1, 32))
        # The largest weight is between 4 and 8 times the scale: above 6 it is cut.
        exponents = groups.abs().amax(-1).clamp(min=1e-30).log2().floor() - 2
        scaled = groups / exponents.exp2()[..., None]
        codes = (scaled.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (scaled < 0)
        found[f"{name}_blocks"] = (codes[..., 0::2] + 16 * codes[..., 1::2]).to(torch.uint8).contiguous()
        found[f"{name}_scales"] = (exponents + 127).to(torch.uint8).contiguous()
    return found


def with_fp8(tensors, block):
    """Matrices of attention and MLPs as FP8, but for the router, with a factor for each block of rows and columns; `block` None: one for all."""
    found = {}
    for name, tensor in tensors.items():
        is_linear = tensor.dim() == 2 and (".self_attn." in name or ".mlp." in name)
        if not is_linear or name.endswith("mlp.gate.weight"):
            found[name] = tensor
            continue
        rows, cols = block or tensor.shape
        blocks = tensor.float().unflatten(0, (-1, rows)).unflatten(2, (-1, cols))
        # 448 is the largest number of E4M3.
        factors = blocks.abs().amax((1, 3)) / 448.0
        numbers = (blocks / factors[:, None, :, None]).flatten(2).flatten(0, 1)
        found[name] = numbers.to(torch.float8_e4m3fn).contiguous()
        found[f"{name}_scale_inv"] = factors if block else factors.reshape(())
        if not block:
            # Of activations, which only some programs quantise.
            found[name.replace("weight", "activation_scale")] = torch.tensor(0.5)
    return found


def load_float32(folder):
    rest = {}
    quantization = getattr(AutoConfig.from_pretrained(folder), "quantization_config", None)
    if quantization and quantization["quant_method"] == "fp8":
        block = quantization["weight_block_size"]
        rest["quantization_config"] = FineGrainedFP8Config(dequantize=True, weight_block_size=block)
    elif quantization:
        rest["quantization_config"] = Mxfp4Config(dequantize=True)
    return model_class(folder).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **rest).eval()


def model_class(folder):
    is_multimodal = hasattr(AutoConfig.from_pretrained(folder), "vision_config")
    return AutoModelForImageTextToText if is_multimodal else AutoModelForCausalLM


def write_golden(folder, ids, greedy_tokens):
    save_golden(folder, load_float32(folder), ids, greedy_tokens)


def save_golden(folder, model, ids, greedy_tokens):
    """Logits of `ids` (T), then a greedy continuation that reads the whole sequence again for every token."""
    with torch.no_grad():
        logits = logits_of(model, ids)
        sequence = ids
        for _ in range(greedy_tokens):
            following = logits_of(model, sequence)[-1].argmax()
            sequence = torch.cat([sequence, following[None]])
    save_file(
        {
            "tokens": ids.to(torch.int32),
            "logits": logits.float().contiguous(),
            "greedy": sequence[len(ids) :].to(torch.int32).contiguous(),
        },
        folder / "golden.safetensors",
    )
    (folder / "golden.safetensors").chmod(0o644)
    print(f"{folder.name}: {tuple(logits.shape)}, deviation {logits.std():.3f}, {sequence[len(ids) :].tolist()}")


def logits_of(model, ids):
    """Logits of all positions. Without hidden states, Gemma 4's model of 5.24.0 expects embeddings of each layer where layers share caches."""
    return model(ids[None], use_cache=False, output_hidden_states=True).logits[0]


def write_tokenizer(folder, vocab_size):
    """One token a byte, filled up with <unusedN>, as in the folder it is patterned on."""
    tokenizer = json.loads((TOKENIZER_PATTERN / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    unused = sum(token.startswith("<unused") for token in vocab)
    while len(vocab) < vocab_size:
        vocab[f"<unused{unused}>"] = len(vocab)
        unused += 1
    write_json(folder / "tokenizer.json", tokenizer)
    shutil.copyfile(TOKENIZER_PATTERN / "tokenizer_config.json", folder / "tokenizer_config.json")


def write_json(file, value):
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def golden_of(folder, text_file, tokens):
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    bos = json.loads((folder / "config.json").read_text())["bos_token_id"]
    text = tokenizer.encode(text_file.read_text(encoding="utf-8"), add_special_tokens=False)
    write_golden(folder, torch.tensor([bos] + text.ids[: tokens - 1]), greedy_tokens=16)


def golden_again(folder):
    golden = load_file(folder / "golden.safetensors")
    write_golden(folder, golden["tokens"].long(), len(golden["greedy"]))


if __name__ == "__main__":
    torch.set_num_threads(1)  # one order of summation
    logging.disable_progress_bar()
    if sys.argv[1:2] == ["--golden-of"]:
        golden_of(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    elif sys.argv[1:2] == ["--again"]:
        for folder in sys.argv[2:]:
            golden_again(Path(folder))
    elif sys.argv[1:2] == ["--large-image"]:
        write_large_golden(Path(sys.argv[2]))
    else:
        for case in sys.argv[1:] or CASES:
            make_case(case, **CASES[case])
