"""Makes small checkpoints of DeepSeek V3's family and records their expected results: logits and drafts in float64.

    record_deepseek_v3.py OUT_DIR     for each variant writes OUT_DIR/<variant>/{config.json,model.safetensors} and
                                      OUT_DIR/<variant>.safetensors, and OUT_DIR/expected.json

<variant>.safetensors has the tensors of tools/parity/record.py, with "all." before each name and all positions as rows:
    ids, positions   i32[tokens]
    logits           f32[tokens, vocab]   float64 run, rounded once
    noise            f32[tokens]          standard deviation of a logit over RUNS runs with random bf16 rounding errors, RMS over the
                                          vocabulary: the error that is expected of a bf16 implementation
    noise_most       f32[tokens]          the largest deviation seen in those runs
    experts          i32[layers, tokens, top_k]   chosen experts, ascending, in layers with experts

If there is a draft layer, the file also has the following, with "mtp." before each name. The main model ran the tokens 0 to n - 2, and its own
next token is the last of ids. Row i of the draft layer is at position i and reads the model's hidden state i, after the last norm, and token
i + 1:
    logits           f32[tokens - 1, vocab]   of the token at i + 2; noise, noise_most f32[tokens - 1] as above, for the model and the draft
                                              layer together
    hidden           f32[tokens - 1, hidden]  after shared_head.norm, as the next draft reads it; hidden.noise, hidden.noise_most
    experts          i32[tokens - 1, top_k]
    drafts           i32[3]   greedy drafts: the first from the last row, each other from an additional row at the next position, which reads
                              the hidden state and the token of the previous draft
    second_logits    f32[vocab]   of the second draft; second_logits.noise, second_logits.noise_most f32[1]
    margin           f32[3]   by how much the logit of each draft exceeds the second largest

Unlike in vLLM, the embedding at position 0 is not zeroed. The norms of the latents have an eps of 1e-6, whatever the config says
(deepseek_v3.LATENT_EPS). The latents of "moonlight" are so small that another eps would be detected.

In an FP8 checkpoint a projection is f32(q) * weight_scale_inv, rounded once to bf16 outside the experts; activations are not quantized.

Rounding must not change a choice. Each token is therefore the one of CANDIDATES with the largest margins between experts and groups, and the
last token also gives drafts with large margins. Of SEEDS models with large margins, the one that uses the most experts is taken. To show that
every part of the model is tested, each part is omitted in turn and must change some row by EFFECT times the noise. transformers' model and
draft layer run as an independent check; they compute some parts in float32.
"""

import json
import pathlib
import sys
import tempfile

import mtp_witness
import torch
import transformers
from deepseek_v3 import DeepseekV3, Layers, exact, frequencies
from mtp import Mtp
from record_qwen3_moe import witness
from rounding import Float64Only, jitter
from safetensors.torch import save_file

RUNS = 16
SEEDS = 16
CANDIDATES = 4
CLEAR = 0.03  # of a score: about five standard deviations of the effect of rounding
TOKENS = 40
DRAFTS = 3
EFFECT = 20
PER_LOGIT = 0.1  # converts a margin of logits to the scale of scores: the ratio of the effects of rounding on them
BLOCK = 128
BASE = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "aux_loss_alpha": 0.001,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "ep_size": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "kv_lora_rank": 16,
    "max_position_embeddings": 64,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 16,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "pretraining_tp": 1,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 16,
    "vocab_size": 96,
}
YARN = {
    "beta_fast": 32,
    "beta_slow": 1,
    "factor": 4,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 32,
    "type": "yarn",
}
# Shapes that the CUDA kernels support.
WIDE = {
    "hidden_size": 128,
    "intermediate_size": 192,
    "kv_lora_rank": 128,
    "max_position_embeddings": 128,
    "moe_intermediate_size": 64,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
}
# Keys of config.json as in moonshotai/Moonlight-16B-A3B, in deepseek-ai/DeepSeek-V3, and in transformers 5.
VARIANTS = {
    "moonlight": {
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "num_nextn_predict_layers": 0,
        "q_lora_rank": None,
        "qk_rope_head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "routed_scaling_factor": 2.446,
    },
    "v3": {
        "max_position_embeddings": 128,
        "n_group": 4,
        "num_experts_per_tok": 3,
        "num_hidden_layers": 3,
        "rope_scaling": YARN,
        "topk_group": 2,
        "v_head_dim": 12,
    },
    # transformers 5 writes the number of draft layers, but not their tensors.
    "five": {
        "dtype": "bfloat16",
        "head_dim": 16,
        "max_position_embeddings": 128,
        "n_group": 2,
        "output_router_logits": False,
        "pad_token_id": None,
        "qk_head_dim": 32,
        "rope_interleave": True,
        "rope_parameters": {
            "beta_fast": 32,
            "beta_slow": 1,
            "factor": 4.0,
            "mscale": 0.707,
            "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 32,
            "rope_theta": 10000.0,
            "rope_type": "yarn",
        },
        "transformers_version": "5.24.0",
        "v_head_dim": 24,
    },
    # This variant's draft layer has no copies of the embedding and the head.
    "gpu": WIDE | {"max_position_embeddings": 256, "n_group": 2, "rope_scaling": YARN | {"factor": 8, "mscale_all_dim": 0.45}},
    # Some blocks of the projections are only half a block high or wide.
    "fp8": WIDE
    | {
        "moe_intermediate_size": 192,
        "n_routed_experts": 6,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [BLOCK, BLOCK],
        },
    },
}
# Published keys that transformers 5 does not write.
NOT_FIVE = "aux_loss_alpha ep_size moe_layer_freq rope_scaling rope_theta scoring_func seq_aux topk_method torch_dtype".split()


def settings(variant: str) -> dict:
    config = BASE | VARIANTS[variant]
    return {k: v for k, v in sorted(config.items()) if variant != "five" or k not in NOT_FIVE}


def draft_at(variant: str, c: dict) -> str:
    """Returns the prefix of the draft layer's names; empty if the checkpoint has no draft layer."""
    return f"model.layers.{c['num_hidden_layers']}." if c["num_nextn_predict_layers"] and variant != "five" else ""


def shapes(variant: str, c: dict) -> dict:
    own = mtp_witness.shapes(c)
    layer = {k: v for k, v in own.items() if k.startswith(("input_layernorm", "self_attn", "post_attention_layernorm", "mlp"))}
    h, i = c["hidden_size"], c["intermediate_size"]
    dense = {k: v for k, v in layer.items() if not k.startswith("mlp")}
    dense |= {"mlp.gate_proj.weight": [i, h], "mlp.up_proj.weight": [i, h], "mlp.down_proj.weight": [h, i]}
    out = {"model.embed_tokens.weight": [c["vocab_size"], h]}
    for n in range(c["num_hidden_layers"]):
        out |= {f"model.layers.{n}.{k}": v for k, v in (dense if n < c["first_k_dense_replace"] else layer).items()}
    out |= {"model.norm.weight": [h], "lm_head.weight": [c["vocab_size"], h]}
    if at := draft_at(variant, c):
        out |= {at + k: v for k, v in own.items()}
    return out


def quantised(w: torch.Tensor) -> tuple:
    """Returns (e4m3 values, an f32 scale per block), scaled so that the largest value of a block is the largest e4m3 number."""
    rows, width = w.shape
    high, wide = -(-rows // BLOCK), -(-width // BLOCK)
    padded = torch.zeros(high * BLOCK, wide * BLOCK)
    padded[:rows, :width] = w
    scale = padded.reshape(high, BLOCK, wide, BLOCK).abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    return (w / spread(scale, w.shape)).to(torch.float8_e4m3fn), scale


def spread(scale: torch.Tensor, shape) -> torch.Tensor:
    return scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)[: shape[0], : shape[1]]


def make(variant: str, config: dict, seed: int) -> tuple:
    """Returns (the checkpoint's tensors, candidates for each token)."""
    g = torch.Generator().manual_seed(seed)
    out, at = {}, draft_at(variant, config)
    for name, shape in shapes(variant, config).items():
        y = torch.randn(shape, generator=g, dtype=torch.float64)
        if name.endswith("bias"):
            out[name] = (0.3 * y).abs().float()
            continue
        if len(shape) == 1:
            y = 1 + (1 if "shared_head" in name else 0.3) * y  # so that hidden states before and after this norm differ
        elif "embed_tokens" not in name:
            y = y / shape[1] ** 0.5 * (2 if "mlp.gate.weight" in name else 1)
        if variant == "moonlight" and "kv_a_proj" in name:
            y[: config["kv_lora_rank"]] /= 256
        if "quantization_config" in config and "_proj" in name and "eh_proj" not in name:
            size = torch.rand(-(-shape[0] // BLOCK), -(-shape[1] // BLOCK), generator=g, dtype=torch.float64)
            y = y * torch.exp2(2 * spread(size, shape) - 1)  # makes the scales of blocks differ
            out[name], out[f"{name}_scale_inv"] = quantised(y.float())
            continue
        out[name] = y.bfloat16()
    if at:
        copies = {at + "embed_tokens.weight": "model.embed_tokens.weight", at + "shared_head.head.weight": "lm_head.weight"}
        out = {k: out[copies.get(k, k)].clone() for k in out if variant != "gpu" or k not in copies}
    return out, torch.randint(config["vocab_size"], [TOKENS, CANDIDATES], generator=g)


def bf16(checkpoint: dict) -> dict:
    """Returns the checkpoint's tensors with FP8 dequantized to bf16."""
    out = {}
    for name, y in checkpoint.items():
        if f"{name}_scale_inv" in checkpoint:
            out[name] = (y.float() * spread(checkpoint[f"{name}_scale_inv"], y.shape)).bfloat16()
        elif not name.endswith("_scale_inv"):
            out[name] = y
    return out


def widened(checkpoint: dict) -> dict:
    """Returns the checkpoint's tensors in float64. FP8 is dequantized to bf16; FP8 experts are converted exactly."""
    out = {}
    for name, y in bf16(checkpoint).items():
        scales = checkpoint.get(f"{name}_scale_inv")
        exact_codes = scales is not None and "experts." in name
        out[name] = checkpoint[name].double() * spread(scales, y.shape).double() if exact_codes else y.double()
    return out


class Run:
    """A model and its draft layer."""

    def __init__(self, config: dict, weights: dict, at: str):
        self.model, self.mtp = DeepseekV3(config, weights), None
        if at:
            own = {k.removeprefix(at): v for k, v in weights.items() if k.startswith(at)}
            shared = {"embed_tokens.weight": weights["model.embed_tokens.weight"], "shared_head.head.weight": weights["lm_head.weight"]}
            self.mtp = Mtp(config, shared | own)

    def __call__(self, ids, store=exact, main="hidden", recycled="hidden") -> dict:
        """Returns the tensors to record, "clear" (the smallest margin of a choice), "main" (the main model's hidden states) and "chain" (the
        drafts)."""
        of = self.model.forward(ids, store)
        out = {"all.logits": of["logits"], "all.experts": of["experts"], "clear": float(of["gap"].min()), "main": of[main][:-1]}
        if not self.mtp:
            return out
        chain = self.mtp.drafts(ids[1:], out["main"], DRAFTS, store, recycled)
        best = torch.stack([d["logits"][-1] for d in chain]).topk(2)
        margin = best.values[:, 0] - best.values[:, 1]
        return out | {
            "chain": chain,
            "mtp.logits": chain[0]["logits"],
            "mtp.hidden": chain[0]["hidden"],
            "mtp.second_logits": chain[1]["logits"][-1:],
            "mtp.experts": chain[0]["experts"],
            "mtp.drafts": best.indices[:, 0],
            "mtp.margin": margin,
            "clear": min(out["clear"], float(chain[-1]["gap"].min()), float(margin.min()) * PER_LOGIT),
        }

    def gap(self, ids) -> float:
        """Returns the smallest margin of the last token's choices."""
        of = self.model.forward(ids)
        out = float(of["gap"][:, -1].min())
        return min(out, float(self.mtp.forward(ids[1:], of["hidden"][:-1])["gap"][-1])) if self.mtp and len(ids) > 1 else out

    def choose(self, candidates) -> torch.Tensor:
        ids = candidates[:0, 0]
        for some in candidates[:-1]:
            ids = max((torch.cat([ids, token[None]]) for token in some), key=self.gap)
        return max((torch.cat([ids, token[None]]) for token in torch.arange(self.model.c["vocab_size"])), key=lambda x: self(x)["clear"])


def halved(x):
    """Reorders rotary pairs from elements i and i + half to elements 2i and 2i + 1."""
    return torch.stack(x.chunk(2, -1), -1).flatten(-2)


def wrongs(c: dict) -> dict:
    """Returns parts that an implementation may omit, and how to omit each from a DeepseekV3."""

    def zeroed(part):
        return lambda m: m.w.update({k: torch.zeros_like(v) for k, v in m.w.items() if part in k})

    def setting(**other):
        return lambda m: m.c.update(other)

    def attribute(name, value):
        return lambda m: setattr(m, name, value)

    right, rope = DeepseekV3(c, {}), c["qk_rope_head_dim"]
    scale = (c["qk_nope_head_dim"] + rope) ** -0.5
    plain = frequencies({"rope_theta": c["rope_theta"] if "rope_theta" in c else c["rope_parameters"]["rope_theta"]}, rope)
    out = {
        "bias": zeroed("e_score_correction_bias"),
        "score_without_bias": attribute("weigh", lambda score, choice: choice),
        "shared_experts": zeroed("shared_experts.down_proj"),
        "norm_topk_prob": setting(norm_topk_prob=False),
        "routed_scaling_factor": setting(routed_scaling_factor=1),
        "interleaved_pairs": lambda m: setattr(m, "turn", lambda x: Layers.turn(m, halved(x))),
    }
    if c["n_group"] > 1:
        out["groups"] = setting(n_group=1, topk_group=1)
    if c["rms_norm_eps"] != right.latent_eps:
        out["latent_eps"] = attribute("latent_eps", c["rms_norm_eps"])
    if right.scale != scale:
        out["scale_of_scores"] = attribute("scale", scale)
    if right.gain != 1:
        out["scale_of_rotation"] = attribute("gain", 1)
    if (right.frequencies != plain).any():
        out["frequencies"] = attribute("frequencies", plain)
    return out


def effects(config: dict, weights: dict, at: str, ids: torch.Tensor, want: dict, noise: dict) -> dict:
    """Returns for each part the largest change of a row without it, relative to the noise."""
    out = {}

    def show(part, run, name, **options):
        off = (run(ids, **options)[name] - want[name]).square().mean(-1).sqrt() / noise[f"{name}.noise"]
        out[part] = round(float(off.max()), 1)

    for part, change in wrongs(config).items():
        wrong = Run(dict(config), dict(weights), at)
        change(wrong.model)
        show(part, wrong, "all.logits")
    if at:
        run = Run(config, weights, at)
        show("draft_reads_after_norm", run, "mtp.logits", main="stream")
        show("draft_recycles_after_norm", run, "mtp.second_logits", recycled="stream")
    return out


def witnesses(directory: pathlib.Path, config: dict, checkpoint: dict, run: Run, ids: torch.Tensor, want: dict) -> dict:
    """Returns the differences to transformers' model and draft layer. For an FP8 checkpoint these get bf16 weights, because with FP8 weights they
    would also quantize activations."""
    with tempfile.TemporaryDirectory() as plain:
        if "quantization_config" in config:
            directory = pathlib.Path(plain)
            write(directory, {k: v for k, v in config.items() if k != "quantization_config"}, bf16(checkpoint))
        out = {"transformers_off_by": witness(directory, ids, want["all.logits"])}
    if run.mtp:
        *before, last = want["chain"]
        tokens = torch.cat([ids[1:], want["mtp.drafts"][:-1]])
        hidden = torch.cat([want["main"], *(d["hidden"][-1:] for d in before)])
        out["transformers_draft_off_by"] = mtp_witness.witness(config, run.mtp.w, tokens, hidden, last)
    return out


def write(directory: pathlib.Path, config: dict, checkpoint: dict) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    save_file(checkpoint, str(directory / "model.safetensors"), metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def record(out: pathlib.Path, variant: str) -> dict:
    config = settings(variant)
    at = draft_at(variant, config)

    def made(seed):
        checkpoint, candidates = make(variant, config, seed)
        weights = widened(checkpoint)
        run = Run(config, weights, at)
        ids = run.choose(candidates)
        got = run(ids)
        layers = [*got["all.experts"], *([got["mtp.experts"]] if at else [])]
        worth = (got["clear"] >= CLEAR, sum(len(chosen.unique()) for chosen in layers), got["clear"])
        return worth, seed, checkpoint, weights, ids

    worth, seed, checkpoint, weights, ids = max((made(s) for s in range(SEEDS)), key=lambda m: m[0])
    run = Run(config, weights, at)
    with Float64Only():
        want = run(ids)
    runs = []
    for s in range(RUNS):
        g = torch.Generator().manual_seed(s)
        runs.append(run(ids, lambda y: torch.where(y == 0, y, jitter(y, g))))  # zero is exact in bf16
    for name in ("all.experts", "mtp.experts", "mtp.drafts"):
        if name in want and any((r[name] != want[name]).any() for r in runs):
            raise ValueError(f"{variant}: rounding changes {name}; the smallest margin is {want['clear']:.4f}")
    tensors = {"all.ids": ids.int(), "all.positions": torch.arange(TOKENS, dtype=torch.int32)}
    for name in ("all.logits", "mtp.logits", "mtp.hidden", "mtp.second_logits"):
        tensors |= mtp_witness.noise(name, runs, want) if name in want else {}
    for name in ("all.experts", "mtp.experts", "mtp.drafts"):
        tensors |= {name: want[name].int()} if name in want else {}
    shown = effects(config, weights, at, ids, want, tensors)
    if min(shown.values()) < EFFECT:
        raise ValueError(f"{variant}: omitting a part is not detected: {shown}")
    write(out / variant, config, checkpoint)
    head = {
        "seed": seed,
        "closest_choice": round(want["clear"], 4),
        "chosen_experts": worth[1],
        "largest_logit": round(float(want["all.logits"].abs().max()), 2),
        "noise": round(float(tensors["all.logits.noise"].mean()), 4),
    }
    if at:
        tensors["mtp.margin"] = want["mtp.margin"].float()
        tensors["mtp.second_logits"] = tensors["mtp.second_logits"][0]
        head |= {
            "draft_noise": round(float(tensors["mtp.logits.noise"].mean()), 4),
            "drafts": want["mtp.drafts"].tolist(),
            "closest_draft": round(float(want["mtp.margin"].min()), 3),
        }
    # "all.noise" and "mtp.noise" are the noise of logits, as in tools/parity/record.py.
    named = {k if "second" in k else k.replace(".logits.noise", ".noise"): v.contiguous() for k, v in tensors.items()}
    save_file(named, str(out / f"{variant}.safetensors"))
    if "quantization_config" in config:  # the witnesses have bf16 weights
        run = Run(config, {k: v.double() for k, v in bf16(checkpoint).items()}, at)
        with Float64Only():
            want = run(ids)
    return head | witnesses(out / variant, config, checkpoint, run, ids, want) | {"left_out": shown}


def main() -> None:
    torch.set_num_threads(1)  # the order of sums must not depend on the machine
    out = pathlib.Path(sys.argv[1])
    head = {"noise_runs": RUNS, "torch": torch.__version__.split("+")[0], "transformers": transformers.__version__}
    head["variants"] = {variant: record(out, variant) for variant in VARIANTS}
    (out / "expected.json").write_text(json.dumps(head, indent=1) + "\n")
    print(json.dumps(head, indent=1))


if __name__ == "__main__":
    main()
