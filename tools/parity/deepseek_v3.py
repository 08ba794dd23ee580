"""A reference of DeepSeek V3 in float64, from its definition: latent attention with expanded keys and values, grouped routing, shared experts.

Every value that a bf16 implementation stores passes through `store`. With the identity the model is exact; with rounding.jitter it has errors
of the size of bf16 rounding. Router scores and logits do not pass through it, because they are f32.
"""

import math

import torch
from torch.nn.functional import silu

# The eps of the norms of both latents. It does not depend on the config's rms_norm_eps in transformers (DeepseekV3RMSNorm's default), in the
# checkpoints' own modeling_deepseek.py (also Moonlight's, whose rms_norm_eps is 1e-5) and in deepseek-ai's inference/model.py. vLLM uses the
# config's.
LATENT_EPS = 1e-6


def exact(y):
    return y


def norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def stretch(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def frequencies(rope, dim):
    """Returns the frequency of each rotary pair, scaled by YaRN if `rope` asks for it."""
    pair, theta = torch.arange(dim // 2, dtype=torch.float64), rope["rope_theta"]
    fast = theta ** (-2 * pair / dim)
    if "factor" not in rope:
        return fast

    def turns(count):  # the index of the pair that makes this many rotations over the original context
        return dim * math.log(rope["original_max_position_embeddings"] / (count * 2 * math.pi)) / (2 * math.log(theta))

    low = max(math.floor(turns(rope.get("beta_fast", 32))), 0)
    high = min(math.ceil(turns(rope.get("beta_slow", 1))), dim - 1)
    slowed = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
    return fast / rope["factor"] * slowed + fast * (1 - slowed)


class Layers:
    """Decoder layers. weights: name in the checkpoint -> float64 tensor. `at`: the prefix of a layer's names."""

    def __init__(self, config: dict, weights: dict):
        self.c, self.w = config, weights
        rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]} | (config.get("rope_scaling") or {})
        self.frequencies = frequencies(rope, config["qk_rope_head_dim"])
        self.scale, self.gain = (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5, 1.0
        if "factor" in rope:
            mscale, whole = rope.get("mscale"), rope.get("mscale_all_dim")
            self.gain = stretch(rope["factor"], mscale if mscale and whole else 1)
            if whole:
                self.scale *= stretch(rope["factor"], whole) ** 2
            if mscale and whole:
                self.gain /= stretch(rope["factor"], whole)
        self.latent_eps = LATENT_EPS

    def turn(self, x):
        """Applies RoPE to x [tokens, ..., rope]: rotates elements 2i and 2i + 1 by the angle of the row's position."""
        angle = torch.arange(len(x), dtype=torch.float64)[:, None] * self.frequencies
        angle = angle.reshape(len(x), *[1] * (x.ndim - 2), -1)
        c, s = self.gain * angle.cos(), self.gain * angle.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T

    def norm(self, x, name):
        return norm(x, self.w[f"{name}.weight"], self.c["rms_norm_eps"])

    def latent(self, x, name):
        return norm(x, self.w[f"{name}.weight"], self.latent_eps)

    def attention(self, x, name, store):
        c, heads = self.c, self.c["num_attention_heads"]
        nope, rope, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        if c["q_lora_rank"] is None:
            q = store(self.linear(x, f"{name}.q_proj"))
        else:
            latent = store(self.latent(store(self.linear(x, f"{name}.q_a_proj")), f"{name}.q_a_layernorm"))
            q = store(self.linear(latent, f"{name}.q_b_proj"))
        q = q.reshape(len(x), heads, nope + rope)
        kv = store(self.linear(x, f"{name}.kv_a_proj_with_mqa"))
        latent = store(self.latent(kv[:, :rank], f"{name}.kv_a_layernorm"))
        a, b, r = q[..., :nope], store(self.turn(q[..., nope:])), store(self.turn(kv[:, rank:]))
        k, v = self.linear(latent, f"{name}.kv_b_proj").reshape(len(x), heads, -1).split([nope, c["v_head_dim"]], -1)
        score = self.scale * (torch.einsum("qhd,khd->hqk", a, k) + torch.einsum("qhd,kd->hqk", b, r))
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        weight = score.masked_fill(hidden, -math.inf).softmax(-1)
        y = store(torch.einsum("hqk,khd->qhd", weight, v).reshape(len(x), -1))
        return self.linear(y, f"{name}.o_proj")

    def weigh(self, score, choice):
        """Returns the scores from which the weights of chosen experts are computed."""
        return score

    def route(self, x, name):
        """Returns (experts [tokens, top_k], their weights, the margin to the nearest other choice)."""
        c, top = self.c, self.c["num_experts_per_tok"]
        score = self.linear(x, f"{name}.gate").sigmoid()
        choice = score + self.w[f"{name}.gate.e_score_correction_bias"]
        groups = choice.reshape(len(x), c["n_group"], -1)
        best = groups.topk(2, -1).values.sum(-1).sort(-1, descending=True)
        kept = torch.zeros_like(best.values, dtype=torch.bool).scatter(1, best.indices[:, : c["topk_group"]], True)
        open_choice = groups.masked_fill(~kept[..., None], -math.inf).flatten(1).sort(-1, descending=True)
        gap = open_choice.values[:, top - 1] - open_choice.values[:, top]
        if c["topk_group"] < c["n_group"]:
            gap = torch.minimum(gap, best.values[:, c["topk_group"] - 1] - best.values[:, c["topk_group"]])
        experts = open_choice.indices[:, :top]
        weight = self.weigh(score, choice).gather(1, experts)
        if c["norm_topk_prob"]:
            weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        return experts, weight * c["routed_scaling_factor"], gap

    def mlp(self, x, name, store):
        return self.linear(store(silu(self.linear(x, f"{name}.gate_proj")) * self.linear(x, f"{name}.up_proj")), f"{name}.down_proj")

    def layer(self, x, at, store) -> tuple:
        """Returns (residual stream, experts ascending, margin); the last two are None for a layer without experts."""
        x = store(x + self.attention(store(self.norm(x, f"{at}input_layernorm")), f"{at}self_attn", store))
        n = store(self.norm(x, f"{at}post_attention_layernorm"))
        if f"{at}mlp.gate.weight" not in self.w:
            return store(x + self.mlp(n, f"{at}mlp", store)), None, None
        experts, weights, gap = self.route(n, f"{at}mlp")
        y = store(self.mlp(n, f"{at}mlp.shared_experts", store))
        for e in range(self.c["n_routed_experts"]):
            row, slot = torch.where(experts == e)
            y = y.index_add(0, row, weights[row, slot, None] * self.mlp(n[row], f"{at}mlp.experts.{e}", store))
        return store(x + y), experts.sort(-1).values, gap


class DeepseekV3(Layers):
    def forward(self, ids, store=exact) -> dict:
        """Returns logits and intermediate values. `hidden` is what a draft layer reads, the stream after the last norm. Experts and margins
        have entries for layers with experts only."""
        x, chosen, gaps = self.w["model.embed_tokens.weight"][ids], [], []
        for layer in range(self.c["num_hidden_layers"]):
            x, experts, gap = self.layer(x, f"model.layers.{layer}.", store)
            if experts is not None:
                chosen.append(experts)
                gaps.append(gap)
        hidden = store(self.norm(x, "model.norm"))
        logits = self.linear(hidden, "lm_head")
        return {"logits": logits, "hidden": hidden, "stream": x, "experts": torch.stack(chosen), "gap": torch.stack(gaps)}
