"""Makes a small checkpoint with a multi-token prediction layer and records what it must answer: hidden states and logits in float64.

    record_mtp.py OUT_DIR     writes OUT_DIR/checkpoint/{config.json,model.safetensors}, OUT_DIR/expected.{safetensors,json}

In expected.safetensors (rows are positions):
    ids           i32[tokens]           the token after each; -1 at position 0
    main          bf16[tokens, hidden]  hidden states of the main model, after its last norm
    hidden        f32[tokens, hidden]   float64 run, rounded once: the state after shared_head.norm, which the next draft reads
    logits        f32[tokens, vocab]    likewise
    *.noise       f32[tokens]           standard deviation of an element over RUNS runs with random bf16 roundings, root mean square
                                        over the row: what an implementation in bf16 cannot be blamed for
    *.noise_most  f32[tokens]           the largest deviation seen in those runs
    experts       i32[tokens, top_k]    chosen experts, ascending

Of many seeds the one is taken whose closest choice between two experts or groups is clearest, so that no rounding flips one.
transformers' own layer is run beside, as a witness: it falls back to float32 in places.
"""

import json
import pathlib
import sys

import torch
import transformers
from mtp import Mtp
from rounding import Float64Only, jitter
from safetensors.torch import save_file
from transformers.modeling_layers import MtpLayer
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as hf

RUNS = 16
SEEDS = 300
TOKENS = 24
CLEAR = 0.01  # of a sigmoid: some ten deviations of what roundings move a score by
CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 64,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
    "max_position_embeddings": 2560,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def shapes(c: dict) -> dict:
    """Of each weight behind "model.layers.<n>.", in the checkpoint's order."""
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


def make(seed: int) -> dict:
    """Weights and inputs, each a float64 that the checkpoint's type holds exactly."""
    g = torch.Generator().manual_seed(seed)
    out = {}
    for name, shape in shapes(CONFIG).items():
        y = torch.randn(shape, generator=g, dtype=torch.float64)
        if name.endswith("bias"):
            out[name] = (0.1 * y).abs().float().double()
            continue
        if len(shape) == 1:
            y = 1 + 0.2 * y
        elif name != "embed_tokens.weight":
            y = y / shape[1] ** 0.5 * (1.5 if "gate.weight" in name else 1)
        out[name] = y.bfloat16().double()
    ids = torch.randint(CONFIG["vocab_size"], [TOKENS], generator=g)
    ids[0] = -1
    return {"w": out, "ids": ids, "main": torch.randn(TOKENS, CONFIG["hidden_size"], generator=g).bfloat16().double()}


def noise(name: str, runs: list, want: dict) -> dict:
    off = torch.stack([run[name] - want[name] for run in runs])
    return {
        name: want[name].float(),
        f"{name}.noise": off.square().mean((0, 2)).sqrt().float(),
        f"{name}.noise_most": off.abs().amax((0, 2)).float(),
    }


def witness(settings: dict, w: dict, ids: torch.Tensor, hidden: torch.Tensor, want: dict) -> str:
    """How far transformers' own layer is from ours, as shares of the largest element."""
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


def main() -> None:
    torch.set_num_threads(1)  # the same sums in the same order wherever it runs
    out = pathlib.Path(sys.argv[1])
    (out / "checkpoint").mkdir(parents=True, exist_ok=True)

    def run(made, store=lambda y: y):
        return Mtp(CONFIG, made["w"]).forward(made["ids"], made["main"], store)

    seed = max(range(SEEDS), key=lambda s: float(run(make(s))["gap"].min()))
    made = make(seed)
    with Float64Only():
        want = run(made)
    runs = []
    for s in range(RUNS):
        g = torch.Generator().manual_seed(s)
        runs.append(run(made, lambda y: torch.where(y == 0, y, jitter(y, g))))  # bf16 holds zero
    gap = float(want["gap"].min())
    if gap < CLEAR or any((r["experts"] != want["experts"]).any() for r in runs):
        raise ValueError(f"roundings flip an expert: the closest choice is {gap:.4f} wide")

    prefix = f"model.layers.{CONFIG['num_hidden_layers']}."
    stored = {prefix + k: v.float() if k.endswith("bias") else v.bfloat16() for k, v in made["w"].items()}
    save_file(stored, str(out / "checkpoint" / "model.safetensors"))
    (out / "checkpoint" / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")
    tensors = {"ids": made["ids"].int(), "main": made["main"].bfloat16(), "experts": want["experts"].int()}
    save_file(tensors | noise("hidden", runs, want) | noise("logits", runs, want), str(out / "expected.safetensors"))
    rounded = run(made, lambda y: y.bfloat16().double())
    for name in ("hidden", "logits"):
        off = noise(name, [rounded], want)[f"{name}.noise"] / noise(name, runs, want)[f"{name}.noise"]
        print(f"{name}: largest {want[name].abs().max():.2f}; rounded to bf16 {off.mean():.2f} times the noise, at most {off.max():.2f}")
    head = {
        "seed": seed,
        "closest_choice": gap,
        "noise_runs": RUNS,
        "torch": torch.__version__.split("+")[0],
        "transformers": transformers.__version__,
        "transformers_off_by": "not run",
    }
    expected = out / "expected.json"
    expected.write_text(json.dumps(head, indent=1) + "\n")
    head["transformers_off_by"] = witness(CONFIG, made["w"], made["ids"], made["main"], want)
    expected.write_text(json.dumps(head, indent=1) + "\n")
    print(head)


if __name__ == "__main__":
    main()
