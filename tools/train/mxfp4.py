"""MXFP4 as in the checkpoint: 32 values share a power-of-two scale, and each value is a 4-bit code, two codes per byte.

scale  floor(log2(max |v|)) - 2 + 127, at least 0; 127 for a block of zeros
codes  v / 2^(scale - 127) rounded to nearest, ties to the even code, clamped to magnitude 6; the low nibble is the even element

Source  OCP Microscaling Formats (MX) v1.0, section 6.3.
"""

import torch

BLOCK = 32


def _scales(blocks):
    """Returns the unbiased exponent of each block."""
    most = blocks.abs().amax(-1, keepdim=True)
    exponent = torch.frexp(most).exponent - 1 - 2
    return torch.where(most > 0, exponent, torch.zeros_like(exponent)).clamp(-127, 127)


def _round(v):
    """Rounds |v| <= 6 to the nearest of 0, 0.5, 1, 1.5, 2, 3, 4 and 6, ties to the even code. torch.round rounds ties to even, and a code is even
    exactly if its value divided by the step is even."""
    magnitude = v.abs().clamp(max=6)
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0)).to(v.dtype)
    return torch.copysign(torch.round(magnitude / step) * step, v)


class _Straight(torch.autograd.Function):
    """A straight-through estimator: quantizes in the forward pass, and passes gradients unchanged."""

    @staticmethod
    def forward(ctx, w):
        blocks = w.to(torch.bfloat16).to(w.dtype).unflatten(-1, (-1, BLOCK))
        scale = torch.exp2(_scales(blocks).to(w.dtype))
        return (_round(blocks / scale) * scale).flatten(-2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def fake_quantise(w):
    """Rounds w [..., K] to bf16, as export.py does, and then to MXFP4; K is a multiple of 32."""
    return _Straight.apply(w)


def pack(w):
    """Packs w f32 [..., K] into (blocks u8 [..., K/32, 16], scales u8 [..., K/32])."""
    blocks = w.float().unflatten(-1, (-1, BLOCK))
    exponent = _scales(blocks)
    rounded = _round(blocks / torch.exp2(exponent.float()))
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=w.device)
    codes = torch.searchsorted(values, rounded.abs().contiguous()) + 8 * torch.signbit(rounded).long()
    codes = codes.to(torch.uint8)
    return codes[..., 0::2] | codes[..., 1::2] << 4, (exponent.squeeze(-1) + 127).to(torch.uint8)


def unpack(blocks, scales):
    """The exact inverse of pack(): returns f32 [..., K]."""
    values = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    values = torch.cat([values, -values])
    codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(-2).long()
    return (values[codes] * torch.exp2(scales[..., None].float() - 127)).flatten(-2)
