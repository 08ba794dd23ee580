"""A reference of Qwen3-MoE in float64, from its definition: per-head norms of queries and keys before RoPE, routing by softmax over all experts.

Every value that a bf16 implementation stores passes through `store`. With the identity the model is exact; with rounding.jitter it has errors
of the size of bf16 rounding. Router scores and logits do not pass through it, because they are f32.
"""

import math

import torch
from deepseek_v3 import exact, norm, stretch
from torch.nn.functional import silu


def is_dense(config: dict, layer: int) -> bool:
    return layer in config["mlp_only_layers"] or (layer + 1) % config["decoder_sparse_step"] != 0


class Qwen3Moe:
    """weights: name in the checkpoint -> float64 tensor."""

    def __init__(self, config: dict, weights: dict):
        self.c, self.w = config, weights
        rope = config.get("rope_parameters") or {"rope_theta": config.get("rope_theta")} | (config.get("rope_scaling") or {})
        dim, theta = config["head_dim"], rope["rope_theta"]
        pair = torch.arange(dim // 2, dtype=torch.float64)
        self.frequencies, self.gain = theta ** (-2 * pair / dim), 1.0
        if rope.get("rope_type", "default") == "yarn":
            original, factor = rope["original_max_position_embeddings"], rope["factor"]

            def turns(count):  # the index of the pair that makes this many rotations over the original context
                return dim * math.log(original / (count * 2 * math.pi)) / (2 * math.log(theta))

            low, high = max(math.floor(turns(rope.get("beta_fast", 32))), 0), min(math.ceil(turns(rope.get("beta_slow", 1))), dim - 1)
            slowed = ((pair - low) / max(high - low, 0.001)).clamp(0, 1)
            self.frequencies = self.frequencies * (slowed / factor + 1 - slowed)
            self.gain = stretch(factor, 1)

    def turn(self, x):
        """Applies RoPE to x [tokens, heads, head_dim]: rotates elements i and i + head_dim / 2 by the angle of the row's position."""
        angle = torch.arange(len(x), dtype=torch.float64)[:, None, None] * self.frequencies
        c, s = self.gain * angle.cos(), self.gain * angle.sin()
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def linear(self, x, name):
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def norm(self, x, name):
        return norm(x, self.w[f"{name}.weight"], self.c["rms_norm_eps"])

    def attention(self, x, name, store):
        c = self.c
        q, k, v = (
            store(self.linear(x, f"{name}.{p}_proj")).reshape(len(x), heads, c["head_dim"])
            for p, heads in (("q", c["num_attention_heads"]), ("k", c["num_key_value_heads"]), ("v", c["num_key_value_heads"]))
        )
        q, k = store(self.turn(store(self.norm(q, f"{name}.q_norm")))), store(self.turn(store(self.norm(k, f"{name}.k_norm"))))
        k, v = (y.repeat_interleave(c["num_attention_heads"] // c["num_key_value_heads"], 1) for y in (k, v))
        score = torch.einsum("qhd,khd->hqk", q, k) * c["head_dim"] ** -0.5
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        y = torch.einsum("hqk,khd->qhd", score.masked_fill(hidden, -math.inf).softmax(-1), v)
        return self.linear(store(y.reshape(len(x), -1)), f"{name}.o_proj")

    def route(self, x, name):
        """Returns (experts [tokens, top_k], their weights, the margin in logits to the best other expert)."""
        logits, top = self.linear(x, f"{name}.gate"), self.c["num_experts_per_tok"]
        score, order = logits.softmax(-1).sort(-1, descending=True)
        weight = score[:, :top]
        if self.c.get("norm_topk_prob", False):
            weight = weight / weight.sum(-1, keepdim=True)
        ranked = logits.gather(1, order)
        return order[:, :top], weight, ranked[:, top - 1] - ranked[:, top]

    def expert(self, x, name, store):
        return store(self.linear(store(silu(self.linear(x, f"{name}.gate_proj")) * self.linear(x, f"{name}.up_proj")), f"{name}.down_proj"))

    def forward(self, ids, store=exact) -> dict:
        x, gaps, chosen = self.w["model.embed_tokens.weight"][ids], [], []
        for layer in range(self.c["num_hidden_layers"]):
            name = f"model.layers.{layer}"
            x = store(x + self.attention(store(self.norm(x, f"{name}.input_layernorm")), f"{name}.self_attn", store))
            n = store(self.norm(x, f"{name}.post_attention_layernorm"))
            if is_dense(self.c, layer):
                x = store(x + self.expert(n, f"{name}.mlp", store))
                continue
            experts, weights, gap = self.route(n, f"{name}.mlp")
            y = x
            for e in range(self.w[f"{name}.mlp.gate.weight"].shape[0]):
                row, slot = torch.where(experts == e)
                y = y.index_add(0, row, weights[row, slot, None] * self.expert(n[row], f"{name}.mlp.experts.{e}", store))
            x = store(y)
            gaps.append(gap)
            chosen.append(experts.sort(-1).values)
        head = "model.embed_tokens" if self.c.get("tie_word_embeddings", False) else "lm_head"
        logits = self.linear(store(self.norm(x, "model.norm")), head)
        return {"logits": logits, "experts": torch.stack(chosen), "gap": torch.stack(gaps)}
