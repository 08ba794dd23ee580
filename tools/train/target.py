"""Inference with a trained checkpoint: KV cache, batched answers, and the residual streams that a draft head reads.

Experts are dequantized from MXFP4 while loading. As in training, every expert computes every token.

Source  openai/gpt-oss gpt_oss/torch/model.py and Hugging Face transformers models/gpt_oss (formulas and names).
"""

import json
import pathlib

import torch

from export import config_json, read_state
from model import ALPHA, Config, turn, yarn

STOPS = (1007, 1004, 1017)  # <|return|>, <|endoftext|>, <|call|>: eos_token_id of generation_config.json


def norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


class Target:
    """The residual stream is float32; GEMMs run in `dtype`."""

    def __init__(self, directory: pathlib.Path, device: str, dtype):
        self.c = Config()
        if json.loads((directory / "config.json").read_text()) != config_json(self.c, quantised=True):
            raise SystemExit(f"{directory}/config.json is not the configuration of model.py")
        self.device, self.dtype = device, dtype
        self.w = {}
        for name, value in read_state(directory / "model.safetensors").items():
            if name.endswith("down_proj"):
                value = value.permute(0, 2, 1).flatten(0, 1).contiguous()  # so that one GEMM also sums over experts
            matrix = value.dim() >= 2 and not name.endswith(("_bias", "router.weight")) and "embed" not in name
            self.w[name] = value.to(device, dtype if matrix else torch.float32)
        frequencies, self.scale = yarn(self.c)
        self.frequencies = frequencies.to(device)

    def linear(self, x, name):
        y = (x.to(self.dtype) @ self.w[f"{name}.weight"].t()).float()
        return y + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else y

    def logits(self, stream):
        """Returns the float32 logits of rows of the residual stream after the last layer."""
        return self.linear(norm(stream.float(), self.w["norm.weight"], self.c.eps), "lm_head")

    def new_cache(self, rows: int, slots: int) -> list:
        """Returns (keys, values) for every layer, each [rows, kv_heads, slots, head_dim]."""
        shape = (rows, self.c.kv_heads, slots, self.c.head_dim)
        return [tuple(torch.zeros(shape, device=self.device, dtype=self.dtype) for _ in "kv") for _ in range(self.c.layers)]

    def attention(self, i, x, positions, cache, width):
        c, (rows, n, _) = self.c, x.shape
        at = f"layers.{i}.self_attn"
        angle = positions[..., None].float() * self.frequencies
        cos, sin = (angle.cos() * self.scale)[:, None], (angle.sin() * self.scale)[:, None]

        def split(name, heads):
            return self.linear(x, f"{at}.{name}").view(rows, n, heads, c.head_dim).transpose(1, 2)

        q = turn(split("q_proj", c.heads), cos, sin).to(self.dtype)
        k = turn(split("k_proj", c.kv_heads), cos, sin).to(self.dtype)
        v = split("v_proj", c.kv_heads).to(self.dtype)
        row = torch.arange(rows, device=x.device)[:, None]
        keys, values = cache[i]
        keys[row, :, positions], values[row, :, positions] = k.transpose(1, 2), v.transpose(1, 2)
        keys, values = keys[:, :, :width], values[:, :, :width]

        group = c.heads // c.kv_heads
        scores = q.reshape(rows, c.kv_heads, group * n, c.head_dim) @ keys.transpose(2, 3)
        scores = scores.float().view(rows, c.kv_heads, group, n, width) * c.head_dim**-0.5
        distance = positions[..., None] - torch.arange(width, device=x.device)
        unseen = (distance < 0) | (distance >= c.window) if i % 2 == 0 else distance < 0
        scores = scores.masked_fill(unseen[:, None, None], -1e30)
        sinks = self.w[f"{at}.sinks"].view(1, c.kv_heads, group, 1, 1)
        most = torch.maximum(scores.amax(-1, keepdim=True), sinks)
        weights = torch.exp(scores - most)
        weights = weights / (weights.sum(-1, keepdim=True) + torch.exp(sinks - most))
        y = weights.to(self.dtype).view(rows, c.kv_heads, group * n, width) @ values
        y = y.view(rows, c.heads, n, c.head_dim).transpose(1, 2).reshape(rows, n, -1)
        return self.linear(y, f"{at}.o_proj")

    def mlp(self, i, x):
        c, w, at = self.c, self.w, f"layers.{i}.mlp"
        logits = x @ w[f"{at}.router.weight"].t() + w[f"{at}.router.bias"]
        top, ids = logits.topk(c.top_k, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, ids, top.softmax(-1))
        h = x.to(self.dtype) @ w[f"{at}.experts.gate_up_proj"].flatten(0, 1).t()
        h = h + w[f"{at}.experts.gate_up_proj_bias"].flatten().to(self.dtype)
        h = h.unflatten(-1, (c.experts, 2 * c.intermediate))
        gate, up = h[..., ::2].clamp(max=c.limit), h[..., 1::2].clamp(-c.limit, c.limit)
        act = (up + 1) * gate * torch.sigmoid(ALPHA * gate)
        act = (act * weights[..., None].to(self.dtype)).flatten(-2)
        return (act @ w[f"{at}.experts.down_proj"]).float() + weights @ w[f"{at}.experts.down_proj_bias"]

    @torch.no_grad()
    def forward(self, ids, positions, cache, width, taps=()):
        """ids and positions [rows, n]; width: an exclusive upper bound of positions. Returns the residual stream after the last layer [rows, n, H], and
        the concatenated streams before the layers `taps` (the number of layers means after the last)."""
        c, w, kept = self.c, self.w, []
        x = w["embed_tokens.weight"][ids]
        for i in range(c.layers):
            if i in taps:
                kept.append(x)
            at = f"layers.{i}"
            x = x + self.attention(i, norm(x, w[f"{at}.input_layernorm.weight"], c.eps), positions, cache, width)
            x = x + self.mlp(i, norm(x, w[f"{at}.post_attention_layernorm.weight"], c.eps))
        if c.layers in taps:
            kept.append(x)
        return x, torch.cat(kept, -1) if kept else None

    @torch.no_grad()
    def answers(self, prompts: list, sampled: list, most: int, generator, chunk: int = 256) -> list:
        """Returns the answer to each prompt (ids), with its stop token and at most `most` tokens: sampled at temperature 1 if `sampled`, otherwise
        greedy."""
        rows, lengths = len(prompts), [len(p) for p in prompts]
        cache = self.new_cache(rows, max(lengths) + most)
        at = torch.tensor(lengths, device=self.device)  # position of the next token
        noisy = torch.tensor(sampled, device=self.device, dtype=torch.float32)[:, None]
        streams = []
        for first in range(0, rows, chunk):
            part = prompts[first : first + chunk]
            n = max(map(len, part))
            ids = torch.tensor([p + [0] * (n - len(p)) for p in part], device=self.device)
            positions = torch.arange(n, device=self.device).expand(len(part), n)
            # Padding writes cache entries after the prompt. Tokens of the answer overwrite them before any row attends to them.
            x, _ = self.forward(ids, positions, [(k[first : first + chunk], v[first : first + chunk]) for k, v in cache], n)
            streams.append(x[torch.arange(len(part), device=self.device), at[first : first + chunk] - 1])
        stream, which = torch.cat(streams), torch.arange(rows, device=self.device)
        out = torch.full((rows, most), -1, device=self.device)
        stops = torch.tensor(STOPS, device=self.device)
        ended = torch.zeros(rows, dtype=torch.bool, device=self.device)
        for step in range(most):
            logits = self.logits(stream)
            noise = torch.empty_like(logits).exponential_(generator=generator).log()
            tokens = (logits - noisy * noise).argmax(-1)
            out[which, step] = torch.where(ended, -1, tokens)
            ended = ended | torch.isin(tokens, stops)
            if step % 8 == 7:  # removes finished rows from the batch
                left = int((~ended).sum())
                if left == 0:
                    break
                if left < 0.8 * len(which):
                    keep = ~ended
                    cache = [(k[keep], v[keep]) for k, v in cache]
                    which, at, noisy, tokens, ended = which[keep], at[keep], noisy[keep], tokens[keep], ended[keep]
            if step + 1 < most:
                stream = self.forward(tokens[:, None], at[:, None], cache, max(lengths) + step + 1)[0][:, 0]
                at = at + 1
        return [[t for t in row if t >= 0] for row in out.tolist()]
