"""Makes small Qwen3-MoE checkpoints and records their expected logits in float64.

    record_qwen3_moe.py OUT_DIR     for each variant writes OUT_DIR/<variant>/{config.json,model.safetensors} and
                                    OUT_DIR/<variant>.safetensors, and OUT_DIR/expected.json

<variant>.safetensors has the tensors of tools/parity/record.py, with "all." before each name and all positions as rows:
    ids, positions   i32[tokens]
    logits           f32[tokens, vocab]   float64 run, rounded once
    noise            f32[tokens]          standard deviation of a logit over RUNS runs with random bf16 rounding errors, RMS over the
                                          vocabulary: the error that is expected of a bf16 implementation
    noise_most       f32[tokens]          the largest deviation seen in those runs
    experts          i32[layers, tokens, top_k]   chosen experts, ascending

The seed is taken whose smallest margin between experts is largest, so that rounding changes no choice. transformers' model runs as
an independent check; it computes some parts in float32.
"""

import json
import pathlib
import sys

import torch
import transformers
from qwen3_moe import Qwen3Moe, is_dense
from rounding import Float64Only, jitter
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

RUNS = 16
SEEDS = 300
TOKENS = 40
BASE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "moe_intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "use_sliding_window": False,
    "sliding_window": None,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
# Weights of chosen experts unchanged or divided by their sum; config keys of transformers 4 or 5.
VARIANTS = {
    "renormalized": {
        "num_experts": 6,
        "norm_topk_prob": True,
        "attention_bias": False,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
    "tied": {
        "num_local_experts": 6,
        "norm_topk_prob": False,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": True,
    },
    "yarn": {
        "num_experts": 6,
        "norm_topk_prob": True,
        "num_key_value_heads": 1,
        "attention_bias": False,
        "rope_theta": 10000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        "tie_word_embeddings": False,
        "max_position_embeddings": 16,
    },
    # Two layers with experts between dense layers, in shapes that the CUDA kernels support.
    "dense": {
        "num_experts": 6,
        "norm_topk_prob": True,
        "hidden_size": 128,
        "intermediate_size": 192,
        "moe_intermediate_size": 64,
        "head_dim": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 4,
        "mlp_only_layers": [0, 3],
        "attention_bias": False,
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    },
}


def shapes(c: dict) -> dict:
    h, i, d = c["hidden_size"], c["moe_intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * d, c["num_key_value_heads"] * d
    out = {"model.embed_tokens.weight": [c["vocab_size"], h]}
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        out[f"{name}.input_layernorm.weight"] = [h]
        for p, rows, width in (("q", q, h), ("k", kv, h), ("v", kv, h), ("o", h, q)):
            out[f"{name}.self_attn.{p}_proj.weight"] = [rows, width]
            if c["attention_bias"]:
                out[f"{name}.self_attn.{p}_proj.bias"] = [rows]
        out |= {f"{name}.self_attn.{p}_norm.weight": [d] for p in "qk"}
        out[f"{name}.post_attention_layernorm.weight"] = [h]
        if is_dense(c, layer):
            out |= {f"{name}.mlp.{p}_proj.weight": [c["intermediate_size"], h] for p in ("gate", "up")}
            out[f"{name}.mlp.down_proj.weight"] = [h, c["intermediate_size"]]
            continue
        experts = c.get("num_experts") or c["num_local_experts"]
        out[f"{name}.mlp.gate.weight"] = [experts, h]
        for e in range(experts):
            out |= {f"{name}.mlp.experts.{e}.{p}_proj.weight": [i, h] for p in ("gate", "up")}
            out[f"{name}.mlp.experts.{e}.down_proj.weight"] = [h, i]
    out["model.norm.weight"] = [h]
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = [c["vocab_size"], h]
    return out


def make(config: dict, seed: int) -> tuple:
    """Returns (weights, ids), the weights in float64 and exactly representable in bf16."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes(config).items():
        y = torch.randn(shape, generator=g, dtype=torch.float64)
        if name.endswith("bias"):
            y = 0.3 * y
        elif len(shape) == 1:
            y = 1 + 0.3 * y
        elif "embed_tokens" not in name:
            y = y / shape[1] ** 0.5 * (2 if "mlp.gate.weight" in name else 1)
        out[name] = y.bfloat16().double()
    return out, torch.randint(config["vocab_size"], [TOKENS], generator=g)


def witness(directory: pathlib.Path, ids: torch.Tensor, logits: torch.Tensor) -> str:
    """Returns the difference to transformers' model, relative to the largest logit."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad():
        off = (model(ids[None], use_cache=False).logits[0] - logits).abs().max() / logits.abs().max()
    if off > 1e-5:
        raise ValueError(f"{directory}: transformers' model is off by {off:.2e} of the largest logit")
    return f"{off:.2e}"


def record(out: pathlib.Path, variant: str) -> dict:
    config = BASE | VARIANTS[variant]

    def run(made, store=lambda y: y):
        return Qwen3Moe(config, made[0]).forward(made[1], store)

    seed = max(range(SEEDS), key=lambda s: float(run(make(config, s))["gap"].min()))
    made = make(config, seed)
    with Float64Only():
        want = run(made)
    runs = []
    for s in range(RUNS):
        g = torch.Generator().manual_seed(s)
        runs.append(run(made, lambda y: torch.where(y == 0, y, jitter(y, g))))  # zero is exact in bf16
    if any((r["experts"] != want["experts"]).any() for r in runs):
        raise ValueError(f"{variant}: rounding changes an expert; the smallest margin is {want['gap'].min():.4f}")
    directory = out / variant
    directory.mkdir(parents=True, exist_ok=True)
    save_file({k: v.bfloat16() for k, v in made[0].items()}, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    off = torch.stack([r["logits"] - want["logits"] for r in runs])
    tensors = {
        "ids": made[1].int(),
        "positions": torch.arange(TOKENS, dtype=torch.int32),
        "logits": want["logits"].float(),
        "noise": off.square().mean((0, 2)).sqrt().float(),
        "noise_most": off.abs().amax((0, 2)).float(),
        "experts": want["experts"].int(),
    }
    save_file({f"all.{k}": v.contiguous() for k, v in tensors.items()}, str(out / f"{variant}.safetensors"))
    return {
        "seed": seed,
        "closest_choice": round(float(want["gap"].min()), 4),
        "largest_logit": round(float(want["logits"].abs().max()), 2),
        "noise": round(float(tensors["noise"].mean()), 4),
        "transformers_off_by": witness(directory, made[1], want["logits"]),
    }


def main() -> None:
    torch.set_num_threads(1)  # the order of sums must not depend on the machine
    out = pathlib.Path(sys.argv[1])
    head = {"noise_runs": RUNS, "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    head["variants"] = {variant: record(out, variant) for variant in VARIANTS}
    (out / "expected.json").write_text(json.dumps(head, indent=1) + "\n")
    print(json.dumps(head, indent=1))


if __name__ == "__main__":
    main()
