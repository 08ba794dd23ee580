"""Makes small EAGLE3 draft heads and records their expected drafts, in float64.

    record_eagle3.py OUT_DIR     writes OUT_DIR/NAME/checkpoint/{config.json,model.safetensors} and OUT_DIR/NAME/expected.safetensors

In expected.safetensors rows are positions. The first POSITIONS rows have the model's features. The rows after them are further drafts, each from
the token and the hidden state of the previous row:
    features      bf16[POSITIONS, taps * hidden]
    ids           i32[rows]             the next token of each row; in rows of further drafts the previously drafted token
    tokens        i32[rows]             the token that the row drafts
    stream        f32[rows, hidden]     the residual stream after the layer: float64 run, rounded once; hidden and logits likewise
    hidden        f32[rows, hidden]     the input of the next row
    logits        f32[rows, draft_vocab]
    *.noise, *.noise_most  as in record_deepseek_v3.py, for stream and hidden

The seed is taken whose smallest margin between tokens is largest, so that rounding changes no draft.
"""

import json
import pathlib
import sys

import torch
from eagle3 import Eagle3, exact
from rounding import Float64Only, jitter
from safetensors.torch import save_file

RUNS = 16
SEEDS = 200
POSITIONS = 9
DRAFTS = 2
CLEAR = 4  # times the largest deviation of a logit by rounding
BASE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "vocab_size": 96,
    "draft_vocab_size": 40,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
VARIANTS = {
    "plain": {},
    "norm_before_fc": {"norm_before_fc": True, "norm_before_residual": True, "rope_theta": 150000.0, "rope_scaling": YARN},
    "fc_norm": {"fc_norm": True, "norm_output": True, "attention_bias": True},
    "short": {"draft_vocab_size": None, "eagle_config": {"use_aux_hidden_state": False}},
}


def shapes(c: dict) -> dict:
    """Returns the shape of each weight, by its name without the layer's prefix."""
    h, i, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    taps = 3 if c.get("eagle_config", {}).get("use_aux_hidden_state", True) else 1
    out = {"embed_tokens.weight": [c["vocab_size"], h]}
    if c.get("norm_before_fc"):
        out["input_norm.weight"] = [taps * h]
    if c.get("fc_norm"):
        out |= {f"fc_norm.{t}.weight": [h] for t in range(taps)}
    if taps > 1:
        out["fc.weight"] = [h, taps * h]
    out |= {f"{n}.weight": [h] for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")}
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        out[f"self_attn.{name}_proj.weight"] = [rows, 2 * h]
    out["self_attn.o_proj.weight"] = [h, q]
    if c.get("attention_bias"):
        out |= {f"self_attn.{n}_proj.bias": [rows] for n, rows in (("q", q), ("k", kv), ("v", kv), ("o", h))}
    out |= {"mlp.gate_proj.weight": [i, h], "mlp.up_proj.weight": [i, h], "mlp.down_proj.weight": [h, i]}
    return out | {"lm_head.weight": [c["draft_vocab_size"] or c["vocab_size"], h]}


def make(c: dict, seed: int) -> dict:
    """Returns weights and inputs in float64, each exactly representable in bf16."""
    g = torch.Generator().manual_seed(seed)
    w = {}
    for name, shape in shapes(c).items():
        y = torch.randn(shape, generator=g, dtype=torch.float64)
        if name.endswith("bias"):
            y = 0.3 * y
        elif len(shape) == 1:
            y = 1 + 0.2 * y
        elif name != "embed_tokens.weight":
            y = y / shape[1] ** 0.5
        w[name] = y.bfloat16().double()
    taps = 1 if "fc.weight" not in w else w["fc.weight"].shape[1] // c["hidden_size"]
    # In real models the magnitude of the residual stream differs from layer to layer.
    size = torch.tensor([1.0, 3.0, 8.0], dtype=torch.float64)[-taps:].repeat_interleave(c["hidden_size"])
    f = torch.randn(POSITIONS, taps * c["hidden_size"], generator=g, dtype=torch.float64) * size
    ids = torch.randint(c["vocab_size"], [POSITIONS], generator=g)
    draft_vocab = c["draft_vocab_size"]
    token_of = torch.randperm(c["vocab_size"], generator=g)[:draft_vocab].sort().values if draft_vocab else None
    return {"w": w, "features": f.bfloat16().double(), "ids": ids.tolist(), "token_of": token_of}


def run(c: dict, made: dict, store=exact, tokens=None) -> dict:
    """Runs the head. tokens: the token of each row's draft; None: the most likely one."""
    head = Eagle3(c, made["w"], store)
    out = {name: [] for name in ("stream", "hidden", "logits", "ids", "tokens", "gap")}
    hidden = None
    for position in range(POSITIONS + DRAFTS):
        is_draft = position >= POSITIONS
        token = out["tokens"][-1] if is_draft else made["ids"][position]
        r = head.row(token, hidden if is_draft else head.features(made["features"][position]), position)
        logits, hidden = head.draft(r)
        best = logits.topk(2)
        drafted = int(best.indices[0]) if made["token_of"] is None else int(made["token_of"][best.indices[0]])
        out["tokens"].append(drafted if tokens is None else tokens[position])
        out["gap"].append(best.values[0] - best.values[1])
        for name, value in (("stream", r), ("hidden", hidden), ("logits", logits), ("ids", token)):
            out[name].append(value)
    return {k: v if k in ("ids", "tokens") else torch.stack(v) for k, v in out.items()}


def noise(name: str, runs: list, want: dict) -> dict:
    off = torch.stack([r[name] - want[name] for r in runs])
    return {
        name: want[name].float(),
        f"{name}.noise": off.square().mean((0, 2)).sqrt().float(),
        f"{name}.noise_most": off.abs().amax((0, 2)).float(),
    }


def record(name: str, c: dict, out: pathlib.Path) -> None:
    (out / "checkpoint").mkdir(parents=True, exist_ok=True)
    seed = max(range(SEEDS), key=lambda s: float(run(c, make(c, s))["gap"].min()))
    made = make(c, seed)
    with Float64Only():
        want = run(c, made)
    runs = []
    for s in range(RUNS):
        g = torch.Generator().manual_seed(s)
        runs.append(run(c, made, lambda y: torch.where(y == 0, y, jitter(y, g)), want["tokens"]))
    moved = max(float((r["logits"] - want["logits"]).abs().max()) for r in runs)
    gap = float(want["gap"].min())
    if gap < CLEAR * moved:
        raise ValueError(f"{name}: rounding changes logits by {moved:.4f}, and the smallest margin is {gap:.4f}")

    outside = ("embed_tokens.", "input_norm.", "fc_norm.", "fc.", "norm.", "lm_head.")
    stored = {k if k.startswith(outside) else f"midlayer.{k}": v.bfloat16() for k, v in made["w"].items()}
    if made["token_of"] is not None:
        stored["d2t"] = made["token_of"] - torch.arange(len(made["token_of"]))
        stored["t2d"] = torch.isin(torch.arange(c["vocab_size"]), made["token_of"])
    save_file(stored, str(out / "checkpoint" / "model.safetensors"))
    (out / "checkpoint" / "config.json").write_text(json.dumps(c, indent=1) + "\n")
    tensors = {"features": made["features"].bfloat16()}
    tensors |= {k: torch.tensor(want[k], dtype=torch.int32) for k in ("ids", "tokens")}
    tensors["logits"] = want["logits"].float()
    save_file(tensors | noise("stream", runs, want) | noise("hidden", runs, want), str(out / "expected.safetensors"))
    print(f"{name}: seed {seed}, smallest margin {gap:.3f}, rounding error {moved:.4f}, largest stream {want['stream'].abs().max():.1f}")


def main() -> None:
    torch.set_num_threads(1)  # the order of sums must not depend on the machine
    for name, changes in VARIANTS.items():
        record(name, BASE | changes, pathlib.Path(sys.argv[1]) / name)


if __name__ == "__main__":
    main()
