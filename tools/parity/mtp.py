"""The multi-token prediction layer of DeepSeek V3 in float64, from its definition: latent attention with expanded keys and values,
routing group by group, one shared expert.

Everything that an implementation with bf16 activations keeps goes through `store`: the identity gives the exact layer, and
double.jitter one that bf16 cannot be blamed for. Router scores and logits are never stored: they are f32.
"""

import math

import torch
from torch.nn.functional import silu


def exact(y):
    return y


def norm(x, weight, eps):
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def stretch(factor, mscale):
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


class Mtp:
    """weights: name behind "model.layers.<n>." to a float64 tensor."""

    def __init__(self, config: dict, weights: dict):
        self.c, self.w = config, weights
        scaling = config["rope_scaling"]
        whole = stretch(scaling["factor"], scaling["mscale_all_dim"])
        self.scale = (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5 * whole**2
        self.gain = stretch(scaling["factor"], scaling["mscale"]) / whole
        self.frequencies = self.yarn(scaling, config["qk_rope_head_dim"], config["rope_theta"])

    @staticmethod
    def yarn(scaling, dim, theta):
        pair = torch.arange(dim // 2, dtype=torch.float64)
        fast = theta ** (-2 * pair / dim)

        def turns(count):
            return dim * math.log(scaling["original_max_position_embeddings"] / (count * 2 * math.pi)) / (2 * math.log(theta))

        low = max(math.floor(turns(scaling["beta_fast"])), 0)
        high = min(math.ceil(turns(scaling["beta_slow"])), dim - 1)
        slowed = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
        return fast / scaling["factor"] * slowed + fast * (1 - slowed)

    def turn(self, x):
        """x [tokens, ..., rope]: elements 2i and 2i + 1 by the angle of the row's position."""
        angle = torch.arange(len(x), dtype=torch.float64)[:, None] * self.frequencies
        angle = angle.reshape(len(x), *[1] * (x.ndim - 2), -1)
        c, s = self.gain * angle.cos(), self.gain * angle.sin()
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)

    def linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T

    def norm(self, x, name):
        inner = name.startswith("self_attn.")  # these two never take their eps from the config
        return norm(x, self.w[f"{name}.weight"], 1e-6 if inner else self.c["rms_norm_eps"])

    def attention(self, x, store):
        c, heads = self.c, self.c["num_attention_heads"]
        nope, rope, rank = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["kv_lora_rank"]
        latent = store(self.norm(store(self.linear(x, "self_attn.q_a_proj")), "self_attn.q_a_layernorm"))
        q = store(self.linear(latent, "self_attn.q_b_proj")).reshape(len(x), heads, nope + rope)
        kv = store(self.linear(x, "self_attn.kv_a_proj_with_mqa"))
        latent = store(self.norm(kv[:, :rank], "self_attn.kv_a_layernorm"))
        a, b, r = q[..., :nope], store(self.turn(q[..., nope:])), store(self.turn(kv[:, rank:]))
        k, v = self.linear(latent, "self_attn.kv_b_proj").reshape(len(x), heads, -1).split([nope, c["v_head_dim"]], -1)
        score = self.scale * (torch.einsum("qhd,khd->hqk", a, k) + torch.einsum("qhd,kd->hqk", b, r))
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        weight = score.masked_fill(hidden, -math.inf).softmax(-1)
        y = store(torch.einsum("hqk,khd->qhd", weight, v).reshape(len(x), -1))
        return self.linear(y, "self_attn.o_proj")

    def route(self, x):
        """(experts [tokens, top_k], their weights, by how much the nearest other choice lost)."""
        c = self.c
        score = self.linear(x, "mlp.gate").sigmoid()
        choice = score + self.w["mlp.gate.e_score_correction_bias"]
        groups = choice.reshape(len(x), c["n_group"], -1)
        best = groups.topk(2, -1).values.sum(-1).sort(-1, descending=True)
        kept = torch.zeros_like(best.values, dtype=torch.bool).scatter(1, best.indices[:, : c["topk_group"]], True)
        open_choice = groups.masked_fill(~kept[..., None], -math.inf).flatten(1).sort(-1, descending=True)
        top = c["num_experts_per_tok"]
        experts = open_choice.indices[:, :top]
        weight = score.gather(1, experts)
        gap = torch.minimum(
            open_choice.values[:, top - 1] - open_choice.values[:, top],
            best.values[:, c["topk_group"] - 1] - best.values[:, c["topk_group"]],
        )
        return experts, weight / (weight.sum(-1, keepdim=True) + 1e-20) * c["routed_scaling_factor"], gap

    def mlp(self, x, name, store):
        return self.linear(store(silu(self.linear(x, f"{name}.gate_proj")) * self.linear(x, f"{name}.up_proj")), f"{name}.down_proj")

    def moe(self, x, store):
        experts, weights, _ = self.route(x)
        y = store(self.mlp(x, "mlp.shared_experts", store))
        for e in range(self.c["n_routed_experts"]):
            row, slot = torch.where(experts == e)
            y = y.index_add(0, row, weights[row, slot, None] * self.mlp(x[row], f"mlp.experts.{e}", store))
        return y

    def forward(self, ids, hidden, store=exact) -> dict:
        """ids i64[tokens], -1: an embedding of zeros; hidden [tokens, hidden]. Row t is at position t."""
        embedded = self.w["embed_tokens.weight"][ids.clamp(min=0)] * (ids >= 0)[:, None]
        pair = torch.cat([store(self.norm(embedded, "enorm")), store(self.norm(hidden, "hnorm"))], -1)
        x = store(self.linear(pair, "eh_proj"))
        x = store(x + self.attention(store(self.norm(x, "input_layernorm")), store))
        y = store(self.norm(x, "post_attention_layernorm"))
        experts, _, gap = self.route(y)
        x = store(x + self.moe(y, store))
        logits = self.linear(store(self.norm(x, "shared_head.norm")), "shared_head.head")
        return {"hidden": x, "logits": logits, "experts": experts, "gap": gap}
