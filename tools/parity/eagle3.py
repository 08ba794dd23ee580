"""A reference of EAGLE3's draft head in float64, from its definition.

Every value that a bf16 implementation stores passes through `store`. With the identity the head is exact; with rounding.jitter it has errors of
the size of bf16 rounding. Logits do not pass through it, because they are f32.
"""

import math

import torch
from torch.nn.functional import silu


def exact(y):
    return y


class Eagle3:
    """weights: name without the layer's prefix -> float64 tensor. Keeps the keys and values of one sequence."""

    def __init__(self, config: dict, weights: dict, store=exact):
        self.c, self.w, self.store = config, weights, store
        eagle = config.get("eagle_config", {})
        self.fc = eagle.get("use_aux_hidden_state", True)
        self.k, self.v = [], []
        self.frequencies, self.gain = self.rotary(config["head_dim"], config.get("rope_theta", 10000.0), config.get("rope_scaling"))

    @staticmethod
    def rotary(dim, theta, yarn):
        pair = torch.arange(dim // 2, dtype=torch.float64)
        fast = theta ** (-2 * pair / dim)
        if not yarn:
            return fast, 1.0

        def turns(count):
            return dim * math.log(yarn["original_max_position_embeddings"] / (count * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(turns(yarn["beta_fast"]), 0.0), min(turns(yarn["beta_slow"]), dim - 1.0)
        slowed = ((pair - low) / (high - low)).clamp(0, 1)
        return fast / yarn["factor"] * slowed + fast * (1 - slowed), 0.1 * math.log(yarn["factor"]) + 1

    def norm(self, x, name):
        return self.w[f"{name}.weight"] * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"]))

    def linear(self, x, name):
        y = x @ self.w[f"{name}.weight"].T
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def turn(self, x, position):
        """Applies RoPE to the two halves of x [heads, dim] for one position."""
        angle = position * self.frequencies
        c, s = self.gain * angle.cos(), self.gain * angle.sin()
        a, b = x.chunk(2, -1)
        return torch.cat((a * c - b * s, b * c + a * s), -1)

    def features(self, f):
        """Combines f [taps * hidden], the model's features at one position."""
        if self.c.get("norm_before_fc"):
            f = self.store(self.norm(f, "input_norm"))
        if self.c.get("fc_norm"):
            f = torch.cat([self.store(self.norm(part, f"fc_norm.{i}")) for i, part in enumerate(f.split(self.c["hidden_size"]))])
        return self.store(self.linear(f, "fc")) if self.fc else f

    def row(self, token, g, position):
        """Computes one row of the layer, the residual stream r, and stores its keys and values at `position`."""
        c, store = self.c, self.store
        a, h = store(self.norm(self.w["embed_tokens.weight"][token], "input_layernorm")), store(self.norm(g, "hidden_norm"))
        x = torch.cat((a, h))

        def heads(name, count):
            return store(self.linear(x, f"self_attn.{name}_proj")).reshape(count, c["head_dim"])

        q = store(self.turn(heads("q", c["num_attention_heads"]), position))
        del self.k[position:], self.v[position:]
        self.k.append(store(self.turn(heads("k", c["num_key_value_heads"]), position)))
        self.v.append(heads("v", c["num_key_value_heads"]))
        group = c["num_attention_heads"] // c["num_key_value_heads"]
        k, v = (torch.stack(kept).repeat_interleave(group, 1) for kept in (self.k, self.v))
        weight = (torch.einsum("hd,khd->hk", q, k) * c["head_dim"] ** -0.5).softmax(-1)
        y = store(torch.einsum("hk,khd->hd", weight, v).reshape(-1))
        r = store((h if c.get("norm_before_residual") else g) + self.linear(y, "self_attn.o_proj"))
        x = store(self.norm(r, "post_attention_layernorm"))
        up = store(silu(self.linear(x, "mlp.gate_proj")) * self.linear(x, "mlp.up_proj"))
        return store(r + self.linear(up, "mlp.down_proj"))

    def draft(self, r):
        """Returns (logits of the draft's tokens, the hidden state that replaces g in the next row)."""
        y = self.store(self.norm(r, "norm"))
        return self.linear(y, "lm_head"), y if self.c.get("norm_output") else r
