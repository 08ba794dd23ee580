"""Runs transformers' gpt-oss entirely in float64, exactly or with a random error in place of every bf16 rounding.

RMSNorm, the rotary angles and their frequencies are replaced here, because transformers computes them in float32. All other operations use the
type of their inputs; rounding.Float64Only checks that.
"""

import contextlib
import math

import torch
from rounding import jitter
from transformers.models.gpt_oss import modeling_gpt_oss as hf


def frequencies(config) -> tuple:
    """Returns (YaRN's inverse frequencies, the factor of cos and sin) in float64."""
    rope, dim = config.rope_parameters, config.head_dim
    base, factor, context = rope["rope_theta"], rope["factor"], rope["original_max_position_embeddings"]
    fast = 1 / base ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    low, high = (
        dim * math.log(context / (beta * 2 * math.pi)) / (2 * math.log(base)) for beta in (rope["beta_fast"], rope["beta_slow"])
    )
    if rope["truncate"]:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
    return fast / factor * ramp + fast * (1 - ramp), 0.1 * math.log(factor) + 1


def norm_forward(self, x):
    return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon))


def make_double(model):
    """Changes the model to float64, in place. Its frequencies must agree with transformers' to float32's precision."""
    model.double()
    exact, scale = frequencies(model.config)
    rotary = model.model.rotary_emb
    if (rotary.inv_freq / exact - 1).abs().max() > 1e-5 or abs(rotary.attention_scaling - scale) > 1e-9:
        raise ValueError("YaRN frequencies differ from transformers'")

    def rotary_forward(x, position_ids):
        angle = position_ids[..., None].double() * exact.to(x.device)
        return angle.cos() * scale, angle.sin() * scale

    rotary.forward = rotary_forward
    for module in model.modules():
        if isinstance(module, hf.GptOssRMSNorm):
            module.forward = norm_forward.__get__(module)
    return model


@contextlib.contextmanager
def perturbed(model, generator):
    """A context in which every value that a bf16 implementation stores gets a random rounding error: outputs of norms, projections, RoPE, attention,
    activation and experts, and the residual stream after each addition. Router scores and logits stay exact: they are f32."""
    handles, residual = [], {}

    def hook(module, args, out):
        return jitter(out, generator)

    def before_layer(layer, args, kwargs):
        residual["x"] = args[0] if args else kwargs["hidden_states"]

    def after_attention(module, args, out):
        total = residual["x"] + out[0]
        return (out[0] + jitter(total, generator) - total, *out[1:])

    def after_layer(layer, args, out):
        return (jitter(out[0], generator), *out[1:]) if isinstance(out, tuple) else jitter(out, generator)

    for name, module in model.named_modules():
        if isinstance(module, (hf.GptOssRMSNorm, hf.GptOssExperts)) or name.endswith(("q_proj", "k_proj", "v_proj")):
            handles.append(module.register_forward_hook(hook))
        if name.endswith("o_proj"):
            handles.append(module.register_forward_pre_hook(lambda m, args: (jitter(args[0], generator),)))
        if isinstance(module, hf.GptOssAttention):
            handles.append(module.register_forward_hook(after_attention))
        if isinstance(module, hf.GptOssDecoderLayer):
            handles.append(module.register_forward_pre_hook(before_layer, with_kwargs=True))
            handles.append(module.register_forward_hook(after_layer))
    turn, gate = hf.apply_rotary_pos_emb, hf.GptOssExperts._apply_gate
    hf.apply_rotary_pos_emb = lambda *a, **k: tuple(jitter(y, generator) for y in turn(*a, **k))
    hf.GptOssExperts._apply_gate = lambda self, x: jitter(gate(self, jitter(x, generator)), generator)
    try:
        yield
    finally:
        hf.apply_rotary_pos_emb, hf.GptOssExperts._apply_gate = turn, gate
        for handle in handles:
            handle.remove()
