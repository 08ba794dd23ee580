"""Compares transformers' multi-token prediction layer with mtp.py, and holds the code that both recorders of drafts share. transformers computes
some parts in float32.
"""

import torch
from transformers.modeling_layers import MtpLayer
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as hf


def shapes(c: dict) -> dict:
    """Returns the shape of each weight by its name after "model.layers.<n>.", in the checkpoint's order."""
    h, heads, i = c["hidden_size"], c["num_attention_heads"], c["moe_intermediate_size"]
    head, rank = c["qk_nope_head_dim"] + c["qk_rope_head_dim"], c["q_lora_rank"]
    queries = {"self_attn.q_proj.weight": [heads * head, h]}
    if rank is not None:
        queries = {
            "self_attn.q_a_proj.weight": [rank, h],
            "self_attn.q_a_layernorm.weight": [rank],
            "self_attn.q_b_proj.weight": [heads * head, rank],
        }
    out = {
        "embed_tokens.weight": [c["vocab_size"], h],
        "enorm.weight": [h],
        "hnorm.weight": [h],
        "eh_proj.weight": [h, 2 * h],
        "input_layernorm.weight": [h],
        **queries,
        "self_attn.kv_a_proj_with_mqa.weight": [c["kv_lora_rank"] + c["qk_rope_head_dim"], h],
        "self_attn.kv_a_layernorm.weight": [c["kv_lora_rank"]],
        "self_attn.kv_b_proj.weight": [heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]],
        "self_attn.o_proj.weight": [h, heads * c["v_head_dim"]],
        "post_attention_layernorm.weight": [h],
        "mlp.gate.weight": [c["n_routed_experts"], h],
        "mlp.gate.e_score_correction_bias": [c["n_routed_experts"]],
        "shared_head.norm.weight": [h],
        "shared_head.head.weight": [c["vocab_size"], h],
    }
    widths = {f"mlp.experts.{e}": i for e in range(c["n_routed_experts"])} | {"mlp.shared_experts": i * c["n_shared_experts"]}
    for name, width in widths.items():
        out |= {f"{name}.{p}_proj.weight": [width, h] for p in ("gate", "up")} | {f"{name}.down_proj.weight": [h, width]}
    return out


def noise(name: str, runs: list, want: dict) -> dict:
    off = torch.stack([run[name] - want[name] for run in runs])
    return {
        name: want[name].float(),
        f"{name}.noise": off.square().mean((0, 2)).sqrt().float(),
        f"{name}.noise_most": off.abs().amax((0, 2)).float(),
    }


def witness(settings: dict, w: dict, ids: torch.Tensor, hidden: torch.Tensor, want: dict) -> str:
    """Returns the largest differences between transformers' layer and mtp.py, relative to the largest element."""
    config = hf.DeepseekV3Config(**{k: v for k, v in settings.items() if k != "architectures"})
    config._attn_implementation = config._experts_implementation = "eager"
    layer = MtpLayer(config, hf.DeepseekV3DecoderLayer, hf.DeepseekV3RMSNorm, settings["num_hidden_layers"]).double().eval()
    state = {}
    for name in shapes(settings):
        if name.startswith(("mlp.experts.", "embed_tokens", "shared_head.head")):
            continue
        own = name if name.split(".")[0] in ("enorm", "hnorm", "eh_proj") else f"mtp_block.{name}"
        state["post_norm.weight" if name == "shared_head.norm.weight" else own] = w[name]
    experts = [f"mlp.experts.{e}" for e in range(settings["n_routed_experts"])]
    up = [torch.cat([w[f"{e}.gate_proj.weight"], w[f"{e}.up_proj.weight"]]) for e in experts]
    state["mtp_block.mlp.experts.gate_up_proj"] = torch.stack(up)
    state["mtp_block.mlp.experts.down_proj"] = torch.stack([w[f"{e}.down_proj.weight"] for e in experts])
    layer.load_state_dict(state)
    embedded = w["embed_tokens.weight"][ids.clamp(min=0)] * (ids >= 0)[:, None]
    positions = torch.arange(len(ids))[None]
    mask = torch.full([len(ids), len(ids)], float("-inf"), dtype=torch.float64).triu(1)[None, None]
    with torch.no_grad():
        turn = hf.DeepseekV3RotaryEmbedding(config)(embedded, positions)
        y = layer(embedded[None], hidden[None], turn, mask, positions, None)[0]
    off = 0.0
    for name, got in (("hidden", y), ("logits", y @ w["shared_head.head.weight"].T)):
        off = max(off, float((got - want[name]).abs().max() / want[name].abs().max()))
    if off > 1e-5:
        raise ValueError(f"transformers' layer is off by {off:.2e} of the largest element")
    return f"{off:.2e}"
