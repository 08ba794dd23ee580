"""A short PyTorch reference of DeepSeek-V4's Mixture-of-Experts layer, in any floating-point type, with which Sluice's layer is compared.

Written from the published facts: deepseek-ai's inference code (Gate, Expert, MoE) and config.json. With s = sqrt(softplus(x @ gate.T)):
    chosen    the top_k largest of s + bias; ties go to the lower expert. In hash layers tid2eid[token]
    weights   s of the chosen experts, without the bias, divided by their sum, times route_scale
    expert    w2 @ (silu(min(w1 @ x, limit)) * clamp(w3 @ x, -limit, limit)); the shared expert also clamps
    y         the weighted sum over the chosen experts, plus the output of the shared expert, unscaled
"""

import torch
import torch.nn.functional as F

E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def of_mxfp4(codes, scales):
    """Decodes e2m1 codes u8 [rows, width / 2], low nibble first, with e8m0 scales u8 [rows, width / 32], to float64 [rows, width]."""
    both = torch.stack([codes & 15, codes >> 4], -1).flatten(1).long()
    values = E2M1[both & 7] * (1 - 2 * (both >> 3))
    return values * torch.exp2(scales.double() - 127).repeat_interleave(32, 1)


def of_fp8(codes, scales):
    """Decodes e4m3 codes with an e8m0 scale u8 for each block of 128 x 128 to float64 [rows, width]."""
    rows, width = codes.shape
    blocks = torch.exp2(scales.double() - 127).repeat_interleave(128, 0).repeat_interleave(128, 1)
    return codes.double() * blocks[:rows, :width]


def route(w: dict, x, tokens, top_k: int, scale: float) -> dict:
    """Returns ids and weights [tokens, top_k], and the margin of each row's choice, not counting ties."""
    logits = (x[:, None] * w["gate"].to(x.dtype)[None]).sum(-1)  # a separate sum per expert, so that equal rows of the gate give equal bits
    scores = F.softplus(logits).sqrt()
    gap = torch.full([len(x)], torch.inf, dtype=x.dtype)
    if tokens is not None:
        ids = w["tid2eid"][tokens.long()]
    else:
        choice = scores + w["bias"].to(x.dtype)
        order = choice.sort(dim=-1, descending=True, stable=True)
        ids = order.indices[:, :top_k]
        steps = order.values[:, :-1] - order.values[:, 1:]
        gap = torch.where(steps == 0, torch.inf, steps)[:, :top_k].amin(-1)
    weights = scores.gather(1, ids)
    return {"ids": ids, "weights": weights / weights.sum(-1, keepdim=True) * scale, "gap": gap}


def expert(w: dict, x, limit: float, dtype, store, weight=None):
    """Returns one expert's output. In bf16 arithmetic `weight` multiplies the input of the second matrix, as in DeepSeek's code."""
    gate = (x @ w["w1"].to(dtype).T).to(torch.promote_types(dtype, torch.float32))
    up = (x @ w["w3"].to(dtype).T).to(gate.dtype)
    h = F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
    if weight is not None:
        h = h * weight
    return store(h.to(dtype)) @ w["w2"].to(dtype).T


def layer(w: dict, x, tokens, config: dict, store=lambda y: y) -> dict:
    """Returns y [tokens, hidden] in x's type, the choice of experts, and the two parts of y. `store` is applied to each value that is kept in
    memory."""
    chosen = route(w, x.to(torch.promote_types(x.dtype, torch.float32)), tokens, config["top_k"], config["route_scale"])
    routed = torch.zeros_like(x, dtype=chosen["weights"].dtype)
    for e in range(config["experts"]):
        at, slot = (chosen["ids"] == e).nonzero(as_tuple=True)
        weight = chosen["weights"][at, slot, None]
        if x.dtype == torch.bfloat16:
            routed[at] += expert(w["experts"][e], x[at], config["swiglu_limit"], x.dtype, store, weight)
        else:
            routed[at] += weight * store(expert(w["experts"][e], x[at], config["swiglu_limit"], x.dtype, store))
    shared = store(expert(w["shared"], x, config["swiglu_limit"], x.dtype, store))
    return chosen | {"routed": routed, "shared": shared, "y": store((routed + shared).to(x.dtype))}
