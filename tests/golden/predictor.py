#!/usr/bin/env python3
"""Makes the tiny models whose head predicts the token behind the next one (multi-token prediction), and the head's goldens.

    python predictor.py            all of CASES
    python predictor.py NAME...    only these

The model itself and its golden are those of `make.py`. The head's tensors, `mtp.*`, are added to model.safetensors, where transformers skips them;
so its golden is computed here, in plain PyTorch, float32, one row a pair of a token and the model's hidden row before it, without a cache.
The formula is that of vLLM's `Qwen3_5MultiTokenPredictor` (vllm/model_executor/models/qwen3_5_mtp.py).

predictor.safetensors: predicted f32[T - 1, vocab], of each token of golden.safetensors but the first: the logits of the token that follows it, by
the head alone; drafts i32[n], the head's greedy continuation of all tokens and the first of `greedy`: each draft's row is the hidden row of the next.
"""

import sys

import torch
from make import CASES as MODELS_OF_MAKE
from make import MODELS, load_float32, make_case
from safetensors.torch import load_file, save_file

MIXTURE = MODELS_OF_MAKE["qwen35-moe"]
CASES = {
    # The layers of `qwen35-delta`: a gated delta net, attention; then the head's.
    "qwen35-mtp": MODELS_OF_MAKE["qwen35-delta"] | dict(tokens=48, greedy=12),
    # Experts, and a shared one, in the head's layer as in others; stacked as transformers 5 does.
    "qwen35-moe-mtp": MIXTURE | dict(config=MIXTURE["config"] | dict(mtp_num_hidden_layers=1)),
}

DRAFTS = 6
# A router whose last expert is nearer than this to the next is in doubt where weights are f16.
MARGIN = 0.03


def shapes(config):
    """The head's tensors: one layer with gated attention, and what is in front of it and behind it."""
    hidden, heads, kv_heads, dim = (
        config[name] for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    found = {
        "fc.weight": (hidden, 2 * hidden),
        "pre_fc_norm_embedding.weight": (hidden,),
        "pre_fc_norm_hidden.weight": (hidden,),
        "norm.weight": (hidden,),
        "layers.0.input_layernorm.weight": (hidden,),
        "layers.0.post_attention_layernorm.weight": (hidden,),
        "layers.0.self_attn.q_proj.weight": (2 * heads * dim, hidden),
        "layers.0.self_attn.k_proj.weight": (kv_heads * dim, hidden),
        "layers.0.self_attn.v_proj.weight": (kv_heads * dim, hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, heads * dim),
        "layers.0.self_attn.q_norm.weight": (dim,),
        "layers.0.self_attn.k_norm.weight": (dim,),
    }
    if "num_experts" not in config:
        return found | mlp_shapes("layers.0.mlp", hidden, config["intermediate_size"])
    experts, inner = config["num_experts"], config["moe_intermediate_size"]
    found |= {
        "layers.0.mlp.gate.weight": (experts, hidden),
        "layers.0.mlp.experts.gate_up_proj": (experts, 2 * inner, hidden),
        "layers.0.mlp.experts.down_proj": (experts, hidden, inner),
        "layers.0.mlp.shared_expert_gate.weight": (1, hidden),
    }
    return found | mlp_shapes("layers.0.mlp.shared_expert", hidden, config["shared_expert_intermediate_size"])


def mlp_shapes(block, hidden, inner):
    return {
        f"{block}.gate_proj.weight": (inner, hidden),
        f"{block}.up_proj.weight": (inner, hidden),
        f"{block}.down_proj.weight": (hidden, inner),
    }


def add_head(folder, config, seed):
    """Random weights of the head, drawn as those of `make.py`."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if "mtp." not in name}
    for name, shape in sorted(shapes(config).items()):
        noise = torch.randn(shape, generator=generator)
        scale = 0.3 if "norm" in name else max(0.1, 1.2 * shape[-1] ** -0.5)
        tensors[f"mtp.{name}"] = (scale * noise).to(torch.bfloat16)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    return {name: tensor.float() for name, tensor in tensors.items() if name.startswith("mtp.")}


class Head:
    """The head: `rows` gives what the model's own head then reads."""

    def __init__(self, config, tensors, model):
        self.config, self.tensors, self.model = config, tensors, model
        self.doubt = torch.inf

    def weight(self, name):
        return self.tensors[f"mtp.{name}"]

    def norm(self, x, name):
        """RMS norm, whose weights are stored less 1."""
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return scaled * (1.0 + self.weight(name))

    def rows(self, tokens, hidden):
        """y[n, hidden] of tokens[n] and the hidden row before each."""
        embedded = self.norm(self.model.model.embed_tokens.weight[tokens], "pre_fc_norm_embedding.weight")
        before = self.norm(hidden, "pre_fc_norm_hidden.weight")
        stream = torch.cat([embedded, before], dim=-1) @ self.weight("fc.weight").T
        stream = stream + self.attention(self.norm(stream, "layers.0.input_layernorm.weight"))
        stream = stream + self.feed_forward(self.norm(stream, "layers.0.post_attention_layernorm.weight"))
        return self.norm(stream, "norm.weight")

    def attention(self, x):
        heads, kv_heads, dim = (self.config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim"))
        n = len(x)
        # Each query is followed by its gate.
        query, gate = (x @ self.weight("layers.0.self_attn.q_proj.weight").T).view(n, heads, 2 * dim).chunk(2, -1)
        key = (x @ self.weight("layers.0.self_attn.k_proj.weight").T).view(n, kv_heads, dim)
        value = (x @ self.weight("layers.0.self_attn.v_proj.weight").T).view(n, kv_heads, dim)
        query = self.rotated(self.norm(query, "layers.0.self_attn.q_norm.weight"))
        key = self.rotated(self.norm(key, "layers.0.self_attn.k_norm.weight"))
        key, value = (one.repeat_interleave(heads // kv_heads, 1) for one in (key, value))
        scores = torch.einsum("ihd,jhd->hij", query, key) * dim**-0.5
        scores = scores.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        mixed = torch.einsum("hij,jhd->ihd", scores.softmax(-1), value) * torch.sigmoid(gate)
        return mixed.reshape(n, -1) @ self.weight("layers.0.self_attn.o_proj.weight").T

    def rotated(self, x):
        """The first dimensions of each head, in halves, by the row's number."""
        rope = self.config["rope_parameters"]
        rotary = int(self.config["head_dim"] * rope["partial_rotary_factor"])
        frequencies = rope["rope_theta"] ** (-torch.arange(0, rotary, 2) / rotary)
        angles = (torch.arange(len(x))[:, None] * frequencies)[:, None]
        one, other, rest = x[..., : rotary // 2], x[..., rotary // 2 : rotary], x[..., rotary:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - other * sin, other * cos + one * sin, rest], dim=-1)

    def feed_forward(self, x):
        if "num_experts" not in self.config:
            return self.mlp(x, "layers.0.mlp")
        chosen = self.config["num_experts_per_tok"]
        logits = x @ self.weight("layers.0.mlp.gate.weight").T
        best = logits.sort(descending=True).values
        self.doubt = min(self.doubt, (best[:, chosen - 1] - best[:, chosen]).min().item())
        weights, experts = logits.softmax(-1).topk(chosen)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for row in range(len(x)):
            for weight, expert in zip(weights[row], experts[row]):
                gate, up = (self.weight("layers.0.mlp.experts.gate_up_proj")[expert] @ x[row]).chunk(2)
                inner = torch.nn.functional.silu(gate) * up
                mixed[row] += weight * (self.weight("layers.0.mlp.experts.down_proj")[expert] @ inner)
        shared = self.mlp(x, "layers.0.mlp.shared_expert")
        return mixed + torch.sigmoid(x @ self.weight("layers.0.mlp.shared_expert_gate.weight").T) * shared

    def mlp(self, x, block):
        gate, up = (x @ self.weight(f"{block}.{name}.weight").T for name in ("gate_proj", "up_proj"))
        return (torch.nn.functional.silu(gate) * up) @ self.weight(f"{block}.down_proj.weight").T


def predictions(folder, config, tensors):
    """The contents of predictor.safetensors, and the least doubt of the head's router."""
    model = load_float32(folder)
    golden = load_file(folder / "golden.safetensors")
    head, tokens = Head(config, tensors, model), golden["tokens"].long()
    with torch.no_grad():
        # What the model's head reads: the stream behind the last norm.
        hidden = model.model(tokens[None], use_cache=False).last_hidden_state[0]
        predicted = model.lm_head(head.rows(tokens[1:], hidden[:-1]))
        text, before, drafts = torch.cat([tokens, golden["greedy"][:1].long()]), hidden, []
        for _ in range(DRAFTS):
            last = head.rows(text[1:], before)[-1]
            drafts.append(model.lm_head(last).argmax())
            text, before = torch.cat([text, drafts[-1][None]]), torch.cat([before, last[None]])
    found = {"predicted": predicted.contiguous(), "drafts": torch.stack(drafts).to(torch.int32)}
    return found, head.doubt


def make(name):
    case = CASES[name]
    make_case(name, **case)
    folder, config, seed = MODELS / "tiny" / name, case["config"], 1000 + sum(name.encode())
    while True:
        found, doubt = predictions(folder, config, add_head(folder, config, seed))
        if doubt >= MARGIN:
            break
        seed += 1
    save_file(found, folder / "predictor.safetensors")
    (folder / "predictor.safetensors").chmod(0o644)
    print(f"{name}: predicted {tuple(found['predicted'].shape)}, deviation {found['predicted'].std():.3f}, {found['drafts'].tolist()}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # one order of summation
    for case in sys.argv[1:] or CASES:
        make(case)
