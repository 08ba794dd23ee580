"""A short PyTorch reference of Nemotron 3 Super's Mixture-of-Experts layer with its latent projections, in any floating-point type.

Written from the published facts: NVIDIA's config.json and modeling code (NemotronHMoE). With s = sigmoid(x @ gate.T):
    chosen    the top_k largest of s + bias; ties go to the lower expert
    weights   s of the chosen experts, without the bias, divided by their sum, times the routed scale
    expert    down @ max(up @ z, 0)^2 with z = fc1 @ x, which is narrower than x
    y         fc2 @ (the weighted sum over the chosen experts), plus the shared expert's output for x itself
"""

import torch


def squares(w: dict, x, dtype, store):
    return store(torch.relu(x @ w["up"].to(dtype).T).square()) @ w["down"].to(dtype).T


def layer(w: dict, x, config: dict, store=lambda y: y) -> dict:
    """Returns y [tokens, hidden] in x's type, the choice of experts, and the parts of y. `store` is applied to each value that is kept in memory."""
    wide = torch.promote_types(x.dtype, torch.float32)
    scores = torch.sigmoid((x.to(wide)[:, None] * w["gate"].to(wide)[None]).sum(-1))
    order = (scores + w["bias"].to(wide)).sort(dim=-1, descending=True, stable=True)
    ids = order.indices[:, : config["top_k"]]
    gap = (order.values[:, :-1] - order.values[:, 1:])[:, : config["top_k"]].amin(-1)
    weights = scores.gather(1, ids)
    weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * config["scale"]
    z = store(x @ w["fc1"].to(x.dtype).T)
    total = torch.zeros(len(x), config["latent"], dtype=wide)
    for e in range(config["experts"]):
        at, slot = (ids == e).nonzero(as_tuple=True)
        total[at] += weights[at, slot, None] * store(squares(w["experts"][e], z[at], x.dtype, store))
    routed = store(store(total.to(x.dtype)) @ w["fc2"].to(x.dtype).T)
    shared = store(squares(w["shared"], x, x.dtype, store))
    y = store((routed.to(wide) + shared).to(x.dtype))
    return {"ids": ids, "weights": weights, "gap": gap, "routed": routed, "shared": shared, "y": y}
