#!/usr/bin/env python3
"""Compares the errors of vLLM's triton_kernels and of Sluice on one expert layer of gpt-oss, against float64: the whole layer (intermediate
size 2880), and the slice of one of two tensor-parallel ranks (1440, which vLLM pads to 1472).

    layer_vllm.py

Prints for several token counts the RMS error and the largest error, both relative to the RMS of the output. Requires vLLM 0.26.0, the
package sluice_moe and a Hopper GPU.
"""
from __future__ import annotations

import torch
from triton_kernels.matmul_ogs import FlexCtx, PrecisionConfig
from vllm.model_executor.layers.fused_moe.config import mxfp4_w4a16_moe_quant_config
from vllm.model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe import triton_kernel_moe_forward
from vllm.model_executor.layers.quantization.utils.mxfp4_utils import _swizzle_mxfp4

import sluice_moe

EXPERTS, HIDDEN, TOP_K, GPU = 32, 2880, 4, "cuda"
WIDTHS, TOKENS, PADDED_TO = (2880, 1440, 1472), (1, 4, 48, 700), 64
CODES = (0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6)


def decoded(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    values = torch.tensor(CODES, dtype=torch.float64, device=GPU)
    pairs = torch.stack((values[(codes & 15).long()], values[(codes >> 4).long()]), -1)
    return pairs.reshape(*codes.shape[:-1], -1) * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)


def random_weights(width: int) -> dict[str, torch.Tensor]:
    def codes(rows: int, columns: int) -> torch.Tensor:
        return torch.randint(0, 256, (EXPERTS, rows, columns // 2), dtype=torch.uint8, device=GPU)

    def scales(rows: int, columns: int, least: int) -> torch.Tensor:
        return torch.randint(least, least + 2, (EXPERTS, rows, columns // 32), dtype=torch.uint8, device=GPU)

    def bias(rows: int) -> torch.Tensor:
        return torch.randn(EXPERTS, rows, device=GPU).mul(.1).bfloat16()

    return {"experts.up": codes(2 * width, HIDDEN), "experts.up_scale": scales(2 * width, HIDDEN, 120), "experts.up_bias": bias(2 * width),
            "experts.down": codes(HIDDEN, width), "experts.down_scale": scales(HIDDEN, width, 118), "experts.down_bias": bias(HIDDEN)}


def in_float64(w: dict[str, torch.Tensor], x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    top = logits.double().topk(TOP_K, -1)
    weights, y = top.values.softmax(-1), torch.zeros(x.shape[0], HIDDEN, dtype=torch.float64, device=GPU)
    for expert in range(EXPERTS):
        token, slot = (top.indices == expert).nonzero(as_tuple=True)
        if not len(token):
            continue
        h = x[token].double() @ decoded(w["experts.up"][expert], w["experts.up_scale"][expert]).T + w["experts.up_bias"][expert].double()
        gate, up = h[:, 0::2].clamp(max=7), h[:, 1::2].clamp(-7, 7)
        down = decoded(w["experts.down"][expert], w["experts.down_scale"][expert])
        out = (gate * torch.sigmoid(1.702 * gate) * (up + 1)) @ down.T + w["experts.down_bias"][expert].double()
        y.index_add_(0, token, out * weights[token, slot][:, None])
    return y


class OfVllm:
    """The layer in the layout of vLLM's loader: padded with zeros, and swizzled."""

    def __init__(self, w: dict[str, torch.Tensor], width: int) -> None:
        more, pad = -width % PADDED_TO, torch.nn.functional.pad
        self.up, _, up_scale = _swizzle_mxfp4(pad(w["experts.up"], (0, 0, 0, 2 * more)), pad(w["experts.up_scale"], (0, 0, 0, 2 * more)))
        self.down, _, down_scale = _swizzle_mxfp4(pad(w["experts.down"], (0, more // 2)), pad(w["experts.down_scale"], (0, more // 32)))
        self.config = mxfp4_w4a16_moe_quant_config(
            PrecisionConfig(weight_scale=up_scale, flex_ctx=FlexCtx()), PrecisionConfig(weight_scale=down_scale, flex_ctx=FlexCtx()),
            pad(w["experts.up_bias"], (0, 2 * more)).float(), w["experts.down_bias"].float())

    def __call__(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        return triton_kernel_moe_forward(x, self.up, self.down, logits, TOP_K, True, quant_config=self.config)


class OfSluice:
    def __init__(self, w: dict[str, torch.Tensor], width: int) -> None:
        self.layer = sluice_moe.MoeLayer(
            hidden=HIDDEN, intermediate=width, experts=EXPERTS, top_k=TOP_K, input="precomputed", expert_w="e2m1", up_bias=True, down_bias=True,
            act="swiglu_clamped", gate_order="interleaved", alpha=1.702, beta=1.0, limit=7.0, tokens_max=max(TOKENS), device=torch.device(GPU))
        self.layer.load(w, naming="plain")

    def __call__(self, x: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        top = logits.float().topk(TOP_K, -1)
        return self.layer(x, ids=top.indices.int(), weights=top.values.softmax(-1), out=torch.empty_like(x))


def main() -> None:
    torch.manual_seed(3)
    for width in WIDTHS:
        w = random_weights(width)
        layers = {"triton_kernels": OfVllm(w, width), "sluice": OfSluice(w, width)}
        for tokens in TOKENS:
            x, logits = torch.randn(tokens, HIDDEN, device=GPU).bfloat16(), torch.randn(tokens, EXPERTS, device=GPU).bfloat16()
            want = in_float64(w, x, logits)
            size = want.pow(2).mean().sqrt()
            apart = {name: (layer(x, logits).double() - want) / size for name, layer in layers.items()}
            print(f"width {width}, {tokens} tokens:", ", ".join(
                f"{name} RMS error {d.pow(2).mean().sqrt().item():.5f}, largest error {d.abs().max().item():.4f}" for name, d in apart.items()), flush=True)


if __name__ == "__main__":
    main()
