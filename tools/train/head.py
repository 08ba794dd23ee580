"""The EAGLE3 draft head: one decoder layer that reads residual streams of the target model and drafts the tokens after the target's next token.

Entry i of a sequence reads the streams of token i and the id of token i + 1, and predicts token i + 2. Later drafts read the head's own output at
the previous row instead of the streams. Names of parameters are those of the checkpoint.

Source  Li, Wei, Zhang, Zhang, "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test"
(2025); vLLM model_executor/models/llama_eagle3.py.
"""

import dataclasses
import json
import pathlib

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from model import turn


@dataclasses.dataclass
class HeadConfig:
    vocab: int = 1024
    hidden: int = 256
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    intermediate: int = 768
    taps: tuple = (1, 3, 6)  # layers whose input is a feature; the number of layers means the stream after the last one
    theta: float = 10000.0
    context: int = 4096
    eps: float = 1e-5
    norm_before_fc: bool = True
    norm_before_residual: bool = True
    norm_output: bool = False

    def json(self) -> dict:
        return {
            "architectures": ["LlamaForCausalLMEagle3"],
            "attention_bias": False,
            "draft_vocab_size": None,
            "eagle_aux_hidden_state_layer_ids": list(self.taps),
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "max_position_embeddings": self.context,
            "mlp_bias": False,
            "model_type": "llama",
            "norm_before_fc": self.norm_before_fc,
            "norm_before_residual": self.norm_before_residual,
            "norm_output": self.norm_output,
            "num_attention_heads": self.heads,
            "num_hidden_layers": 1,
            "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": self.eps,
            "rope_theta": int(self.theta),
            "target_hidden_size": self.hidden,
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "vocab_size": self.vocab,
        }


def config_of(text: str) -> HeadConfig:
    """The inverse of HeadConfig.json."""
    j = json.loads(text)
    return HeadConfig(
        vocab=j["vocab_size"],
        hidden=j["hidden_size"],
        heads=j["num_attention_heads"],
        kv_heads=j["num_key_value_heads"],
        head_dim=j["head_dim"],
        intermediate=j["intermediate_size"],
        taps=tuple(j["eagle_aux_hidden_state_layer_ids"]),
        theta=float(j["rope_theta"]),
        context=j["max_position_embeddings"],
        eps=j["rms_norm_eps"],
        norm_before_fc=j["norm_before_fc"],
        norm_before_residual=j["norm_before_residual"],
        norm_output=j["norm_output"],
    )


class Norm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def linear(inputs: int, outputs: int, scale: float = 1) -> nn.Linear:
    out = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(out.weight, std=scale * inputs**-0.5)
    return out


class Layer(nn.Module):
    def __init__(self, c: HeadConfig):
        super().__init__()
        self.input_layernorm, self.hidden_norm = Norm(c.hidden, c.eps), Norm(c.hidden, c.eps)
        self.post_attention_layernorm = Norm(c.hidden, c.eps)
        self.self_attn, self.mlp = nn.Module(), nn.Module()
        self.self_attn.q_proj = linear(2 * c.hidden, c.heads * c.head_dim)
        self.self_attn.k_proj = linear(2 * c.hidden, c.kv_heads * c.head_dim)
        self.self_attn.v_proj = linear(2 * c.hidden, c.kv_heads * c.head_dim)
        self.self_attn.o_proj = linear(c.heads * c.head_dim, c.hidden, 0.4)
        self.mlp.gate_proj, self.mlp.up_proj = linear(c.hidden, c.intermediate), linear(c.hidden, c.intermediate)
        self.mlp.down_proj = linear(c.intermediate, c.hidden, 0.4)


class Head(nn.Module):
    """The embedding and lm_head belong to the target and are not trained."""

    def __init__(self, c: HeadConfig, embedding, lm_head):
        super().__init__()
        self.c, self.midlayer = c, Layer(c)
        self.fc = linear(len(c.taps) * c.hidden, c.hidden)
        self.norm = Norm(c.hidden, c.eps)
        if c.norm_before_fc:
            self.input_norm = Norm(len(c.taps) * c.hidden, c.eps)
        frequencies = c.theta ** -(torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim)
        self.register_buffer("frequencies", frequencies.float(), persistent=False)
        self.register_buffer("embedding", embedding.float(), persistent=False)
        self.register_buffer("lm_head", lm_head.float(), persistent=False)

    def reduced(self, features):
        """Returns the hidden state of an entry, from the target's streams [.., taps * hidden]."""
        return self.fc(self.input_norm(features) if self.c.norm_before_fc else features.float())

    def inputs(self, g, tokens):
        """Returns (residual, input of the projections) of entries, from hidden states g and the ids of next tokens."""
        h = self.midlayer.hidden_norm(g)
        a = self.midlayer.input_layernorm(self.embedding[tokens])
        return h if self.c.norm_before_residual else g, torch.cat([a, h], -1)

    def split(self, x, name, positions):
        """Returns the projection `name` of x [rows, n, 2 * hidden] as [rows, heads, n, head_dim]. Keys and values are repeated for their query heads. If
        positions [rows, n] are given, RoPE is applied."""
        y = getattr(self.midlayer.self_attn, name)(x).float().unflatten(-1, (-1, self.c.head_dim)).transpose(1, 2)
        if positions is not None:
            angle = (positions[..., None].float() * self.frequencies)[:, None]
            y = turn(y, angle.cos(), angle.sin())
        return y if name == "q_proj" else y.repeat_interleave(self.c.heads // self.c.kv_heads, dim=1)

    def finish(self, residual, attended):
        """Returns (next hidden state, input of lm_head), from the attention's output [rows, heads, n, head_dim]."""
        layer = self.midlayer
        r = residual + layer.self_attn.o_proj(attended.transpose(1, 2).flatten(2))
        x = layer.post_attention_layernorm(r)
        r = r + layer.mlp.down_proj(F.silu(layer.mlp.gate_proj(x)) * layer.mlp.up_proj(x))
        y = self.norm(r)
        return (y if self.c.norm_output else r), y

    def logits(self, y):
        return F.linear(y, self.lm_head).float()

    def unroll(self, features, ids, positions, first: int, steps: int):
        """Yields for each step t the input of lm_head, [rows, n, hidden], of the entries at columns first to first + n - 1, with n = columns - 2 - first.
        Each entry predicts the token t + 2 columns later.

        features [rows, columns, ..], ids and positions [rows, columns]: each row is a sequence, possibly with padding on both sides; padding on the left
        has negative positions. A step reads the sequence's ids, as if all previous drafts were accepted. It attends to entries with features up to
        its own column, and to its own drafts."""
        n, scale = ids.shape[1] - 2 - first, self.c.head_dim**-0.5
        ids = F.pad(ids, (0, steps))
        places = positions[:, : first + n]
        residual, x = self.inputs(self.reduced(features[:, : first + n]), ids[:, 1 : first + n + 1])
        keys, values = self.split(x, "k_proj", places), self.split(x, "v_proj", None)
        column = torch.arange(first + n, device=ids.device)
        unseen = (column > column[first:, None]) | (places < 0)[:, None, None]
        residual, x, places = residual[:, first:], x[:, first:], places[:, first:]
        own_keys, own_values = [], []
        for t in range(steps):
            if t:
                residual, x = self.inputs(g, ids[:, first + 1 + t : first + 1 + t + n])
                own_keys.append(self.split(x, "k_proj", places + t))
                own_values.append(self.split(x, "v_proj", None))
            q = self.split(x, "q_proj", places + t)
            scores = (q @ keys.transpose(2, 3)).float().masked_fill(unseen, -1e30)
            own = [(q * k).sum(-1, keepdim=True) for k in own_keys]
            weights = (torch.cat([scores, *own], -1) * scale).softmax(-1)
            attended = weights[..., : first + n] @ values
            for s, v in enumerate(own_values):
                attended = attended + weights[..., first + n + s, None] * v
            g, y = self.finish(residual, attended)
            yield y

    @torch.no_grad()
    def extend(self, g, tokens, positions, cache):
        """Runs new entries of one sequence after those in the cache, as a server does. Returns (hidden states, inputs of lm_head, extended cache), all
        [1, n, ..]. cache: (keys, values) or None."""
        residual, x = self.inputs(g, tokens)
        keys, values = self.split(x, "k_proj", positions), self.split(x, "v_proj", None)
        if cache:
            keys, values = torch.cat([cache[0], keys], 2), torch.cat([cache[1], values], 2)
        scores = self.split(x, "q_proj", positions) @ keys.transpose(2, 3) * self.c.head_dim**-0.5
        row = torch.arange(keys.shape[2] - x.shape[1], keys.shape[2], device=x.device)
        scores = scores.masked_fill(torch.arange(keys.shape[2], device=x.device) > row[:, None], -1e30)
        return *self.finish(residual, scores.softmax(-1) @ values), (keys, values)


def save_head(head: Head, directory: pathlib.Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(head.c.json(), indent=2) + "\n")
    tensors = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in head.state_dict().items()}
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})


def load_head(directory: pathlib.Path, embedding, lm_head) -> Head:
    head = Head(config_of((directory / "config.json").read_text()), embedding, lm_head)
    stored = load_file(str(directory / "model.safetensors"))
    head.load_state_dict({name: value.float() for name, value in stored.items()})
    return head.to(embedding.device).eval()
