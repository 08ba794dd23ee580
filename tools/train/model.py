"""The gpt-oss architecture in PyTorch, for training, with packed sequences and dense experts.

Every expert computes every token. That is four times the arithmetic of the chosen experts but needs no sorting, and is faster for hidden 256 on a
large GPU. Parameters are float32; GEMMs run in bf16 under autocast.

Source  openai/gpt-oss gpt_oss/torch/model.py and Hugging Face transformers models/gpt_oss (formulas and names).
"""

import dataclasses
import math

import torch
from torch import nn
from torch.nn import functional as F

from mxfp4 import fake_quantise

ALPHA = 1.702


@dataclasses.dataclass
class Config:
    vocab: int = 1024
    hidden: int = 256
    layers: int = 6
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 256
    experts: int = 16
    top_k: int = 4
    window: int = 64
    theta: float = 150000.0
    factor: float = 4.0
    original_context: int = 1024
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    eps: float = 1e-5
    limit: float = 7.0


def yarn(c: Config) -> tuple:
    """Returns (inverse frequencies [head_dim / 2], factor of cos and sin). The ends of the ramp are not rounded."""
    half = torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim
    fast = 1 / c.theta**half

    def dimension(rotations):
        return c.head_dim * math.log(c.original_context / (rotations * 2 * math.pi)) / (2 * math.log(c.theta))

    low, high = max(dimension(c.beta_fast), 0), min(dimension(c.beta_slow), c.head_dim - 1)
    ramp = ((torch.arange(c.head_dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return (fast / c.factor * ramp + fast * (1 - ramp)).float(), 0.1 * math.log(c.factor) + 1


def turn(x, cos, sin):
    """Applies RoPE to the two halves of each head of x [batch, heads, length, head_dim]."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Norm(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(c.hidden)), c.eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden)
        self.sinks = nn.Parameter(torch.zeros(c.heads))

    def forward(self, x, cos, sin, hidden_pairs):
        c, (batch, length, _) = self.c, x.shape

        def split(y, heads):
            return y.view(batch, length, heads, c.head_dim).transpose(1, 2)

        q = turn(split(self.q_proj(x), c.heads), cos, sin)
        k = turn(split(self.k_proj(x), c.kv_heads), cos, sin)
        v = split(self.v_proj(x), c.kv_heads)
        k, v = (y.repeat_interleave(c.heads // c.kv_heads, dim=1) for y in (k, v))
        scores = (q @ k.transpose(2, 3)).float() * c.head_dim**-0.5
        scores = scores.masked_fill(hidden_pairs, -1e30)
        sinks = self.sinks.view(1, -1, 1, 1)
        most = torch.maximum(scores.amax(-1, keepdim=True), sinks).detach()
        weights = torch.exp(scores - most)
        weights = weights / (weights.sum(-1, keepdim=True) + torch.exp(sinks - most))
        y = weights.to(v.dtype) @ v
        return self.o_proj(y.transpose(1, 2).reshape(batch, length, -1))


class Experts(nn.Module):
    """gate_up_proj [E, 2I, H] with alternating gate and up rows, down_proj [E, H, I]: the layout of the checkpoint, unpacked."""

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.gate_up_proj = nn.Parameter(torch.empty(c.experts, 2 * c.intermediate, c.hidden))
        self.gate_up_proj_bias = nn.Parameter(torch.zeros(c.experts, 2 * c.intermediate))
        self.down_proj = nn.Parameter(torch.empty(c.experts, c.hidden, c.intermediate))
        self.down_proj_bias = nn.Parameter(torch.zeros(c.experts, c.hidden))

    def forward(self, x, weights, quantised):
        """x [tokens, hidden], weights [tokens, experts], zero for experts that were not chosen."""
        up_matrix, down_matrix = self.gate_up_proj, self.down_proj
        if quantised:
            up_matrix, down_matrix = fake_quantise(up_matrix), fake_quantise(down_matrix)
        c, tokens = self.c, x.shape[0]
        h = (
            x.to(torch.bfloat16) @ up_matrix.to(torch.bfloat16).flatten(0, 1).t()
            + self.gate_up_proj_bias.to(torch.bfloat16).flatten()
        )
        h = h.view(tokens, c.experts, 2 * c.intermediate)
        gate, up = h[..., ::2].clamp(max=c.limit), h[..., 1::2].clamp(-c.limit, c.limit)
        act = (up + 1) * gate * torch.sigmoid(ALPHA * gate)
        # The router's weights are applied before the down projection, which is linear, so that one GEMM also sums over experts.
        act = (act * weights[..., None]).to(torch.bfloat16).flatten(1)
        stacked = down_matrix.to(torch.bfloat16).permute(0, 2, 1).flatten(0, 1)
        return act @ stacked + weights.to(torch.bfloat16) @ self.down_proj_bias.to(torch.bfloat16)


class Mlp(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.c, self.router, self.experts = c, nn.Linear(c.hidden, c.experts), Experts(c)

    def forward(self, x, quantised):
        """Returns (output, load-balancing loss). The loss is 1 if all experts get the same share of tokens, and larger otherwise."""
        flat = x.reshape(-1, self.c.hidden)
        with torch.autocast(flat.device.type, enabled=False):
            logits = self.router(flat.float())
        top, ids = logits.topk(self.c.top_k, dim=-1)
        weights = torch.zeros_like(logits).scatter(1, ids, top.softmax(-1))
        share = (weights > 0).float().mean(0) / self.c.top_k
        balance = self.c.experts * (share * logits.softmax(-1).mean(0)).sum()
        return self.experts(flat, weights, quantised).view(x.shape), balance


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.input_layernorm, self.self_attn = Norm(c), Attention(c)
        self.post_attention_layernorm, self.mlp = Norm(c), Mlp(c)

    def forward(self, x, cos, sin, hidden_pairs, quantised):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, hidden_pairs)
        y, balance = self.mlp(self.post_attention_layernorm(x), quantised)
        return x + y, balance


class Model(nn.Module):
    """Parameters have the checkpoint's names without the leading "model."."""

    def __init__(self, c: Config):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = Norm(c)
        self.lm_head = nn.Linear(c.hidden, c.vocab, bias=False)
        frequencies, self.scale = yarn(c)
        self.register_buffer("frequencies", frequencies, persistent=False)
        for name, p in self.named_parameters():
            if p.dim() >= 2 and not name.endswith("_bias"):
                narrow = name.endswith(("o_proj.weight", "down_proj"))
                nn.init.normal_(p, std=(p.shape[-1] if "embed" not in name else 1) ** -0.5 * (0.4 if narrow else 1))
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def forward(self, ids, positions, documents, quantised: bool):
        """ids, positions, documents [batch, length]; a token attends only to its own document. Returns (hidden [batch, length, H], balance loss)."""
        angle = positions[..., None].float() * self.frequencies
        cos, sin = (angle.cos() * self.scale)[:, None], (angle.sin() * self.scale)[:, None]
        at = torch.arange(ids.shape[1], device=ids.device)
        distance = at[:, None] - at
        foreign = (documents[:, :, None] != documents[:, None, :]) | (distance < 0)
        full, sliding = foreign[:, None], (foreign | (distance >= self.c.window))[:, None]
        x, balance = self.embed_tokens(ids), 0.0
        for i, layer in enumerate(self.layers):
            x, b = layer(x, cos, sin, sliding if i % 2 == 0 else full, quantised)
            balance = balance + b / self.c.layers
        return self.norm(x), balance

    def loss(self, ids, positions, documents, targets, quantised: bool):
        """Returns (mean cross-entropy of the targets that are not -100, load-balancing loss)."""
        x, balance = self(ids, positions, documents, quantised)
        chosen = targets.reshape(-1)
        logits = self.lm_head(x.reshape(-1, self.c.hidden))
        return F.cross_entropy(logits.float(), chosen, ignore_index=-100), balance
