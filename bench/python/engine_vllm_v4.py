#!/usr/bin/env python3
"""Runs DeepSeek V4 Flash, with few layers and random weights, in vLLM 0.26.0 with and without Sluice.

    engine_vllm_v4.py run BACKEND OUT.json [--layers N] [--experts N] [--graphs] [--times DIR]
    engine_vllm_v4.py compare A.json B.json
    engine_vllm.py table --out DIR; engine_vllm.py rows --out DIR --version COMMIT

BACKEND is default (vLLM's choice, Marlin on Hopper), another backend of vLLM, or sluice. A run writes greedy tokens and the log probabilities
of answers and prompts, for prompts in one batch, for the first of them alone, and for long prompts. Weights depend only on their names, so
they are equal in all backends. `compare` prints how far two runs differ. For scale it also prints how far a prompt alone differs from the
same prompt in a batch, where only the order of sums changes. --times also measures decode steps and prompts, as engine_vllm.py does.

Requires vLLM 0.26.0 with its dependencies tilelang, CuTe DSL, quack and DeepGEMM, the package sluice_moe, nvcc, and a Hopper GPU.
"""
from __future__ import annotations

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import tempfile
import time
import zlib

import engine_runs
import engine_vllm

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
               "VLLM_DEEP_GEMM_WARMUP": "skip", "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}

SEED = 20
RATIOS = [0, 4, 128, 4]  # compression per layer: 0 window only, 4 with indexer (sparse), 128 dense; repeated for more layers
HASH_LAYERS = 2
LENGTHS = [3, 17, 48, 100, 129, 260, 511, 700]
LONG = [2000, 6000]  # 6000 tokens give 1500 compressed keys, of which the indexer keeps 512
TOKENS = 16
CONTEXT = 1024
STEPS = {1: 100, 8: 80, 32: 60, 64: 50, 128: 40}  # sequences: number of timed decode steps
PROMPTS, REPEATS = (1024, 4096), 7


def config_of(layers: int, experts: int) -> dict:
    """Returns config.json of DeepSeek-V4-Flash with another number of layers and, with --experts, of experts."""
    return {
        "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 0, "eos_token_id": 1, "expert_dtype": "fp4", "hc_eps": 1e-6, "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 512,
        "hidden_act": "silu", "hidden_size": 4096, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512, "initializer_range": 0.02,
        "max_position_embeddings": 1048576, "moe_intermediate_size": 2048, "n_routed_experts": experts, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 64, "num_experts_per_tok": 6, "num_hidden_layers": layers, "num_hash_layers": HASH_LAYERS,
        "num_key_value_heads": 1, "num_nextn_predict_layers": 0, "o_groups": 8, "o_lora_rank": 1024, "q_lora_rank": 1024, "qk_rope_head_dim": 64,
        "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                                "weight_block_size": [128, 128]},
        "rms_norm_eps": 1e-6, "rope_theta": 10000, "compress_rope_theta": 160000,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 65536, "type": "yarn",
                         "rope_type": "yarn"},
        "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 128, "swiglu_limit": 10.0, "tie_word_embeddings": False,
        "topk_method": "noaux_tc", "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 129280,
        "compress_ratios": [RATIOS[i % len(RATIOS)] for i in range(layers)] + [0],
    }


# ---- Weights ----

SWIGLU = 5.0  # RMS of gate and up: about one value in twenty exceeds the clamp of 10
INSIDE = SWIGLU * SWIGLU / math.sqrt(2)
E2M1 = 2.93  # RMS of uniformly random codes


def exponent(size: float) -> int:
    return round(math.log2(size))


def fill(model, config: dict) -> dict[str, int]:
    """Fills every parameter with random numbers that depend on SEED and its name. Returns the number of parameters of each kind."""
    import torch

    counts: dict[str, int] = {}
    seen = set()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            data = parameter.data
            name = name.replace(".routed_experts", "")
            assert name not in seen, name
            seen.add(name)
            draw = torch.Generator(device=data.device)
            draw.manual_seed(SEED * 1_000_003 + zlib.crc32(name.encode()))
            kind = fill_one(name, data, config, draw)
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def fill_one(name: str, data, config: dict, draw) -> str:
    import torch

    hidden, inside, experts = config["hidden_size"], config["moe_intermediate_size"], config["n_routed_experts"]
    last = name.split(".")[-1]
    expert = last.split("_")[0] if last.startswith(("w13_", "w2_")) else None
    if expert:
        width, rows = (hidden, 2 * inside) if expert == "w13" else (inside, hidden)
        gain = SWIGLU if expert == "w13" else 1 / INSIDE
        assert data.dtype == torch.uint8, (name, data.dtype)
        if last.endswith("weight_scale"):
            assert tuple(data.shape) == (experts, rows, width // 32), (name, data.shape)
            data.random_(0, 3, generator=draw).add_(126 + exponent(gain / (E2M1 * math.sqrt(width))))
            return "experts' scales"
        assert tuple(data.shape) == (experts, rows, width // 2), (name, data.shape)
        data.random_(0, 256, generator=draw)
        return "experts' codes"
    if last == "tid2eid":
        for begin in range(0, data.shape[0], 16384):
            part = data[begin:begin + 16384]
            order = torch.rand((part.shape[0], experts), generator=draw, device=data.device).argsort(dim=1)
            part.copy_(order[:, :part.shape[1]])
        return "hash table"
    # Gains (output RMS / input RMS) of GEMMs; shared experts have the same gains as routed experts; most other GEMMs have 1.
    gains = {"gate_up_proj": SWIGLU, "down_proj": 1 / INSIDE, "gate.weight": 2, "lm_head": 3}
    gain = next((gain for part, gain in gains.items() if part in name), 1)
    if data.dtype == torch.float8_e4m3fn:
        for begin in range(0, data.shape[0], 4096):
            part = data[begin:begin + 4096]
            part.copy_(torch.empty(part.shape, dtype=torch.float32, device=data.device).normal_(0, 48, generator=draw).clamp_(-448, 448)
                       .to(torch.float8_e4m3fn))
        return "fp8"
    if last == "weight_scale_inv":
        shift = exponent(gain / (48 * math.sqrt(data.shape[-1] * 128)))
        more = torch.empty(data.shape, dtype=torch.uint8, device=data.device).random_(0, 3, generator=draw)
        if data.dtype == torch.float32:
            data.copy_(torch.exp2(more.float() - 1 + shift))
        else:
            data.view(torch.uint8).copy_(more + (126 + shift))
        return "fp8 scales"
    assert data.dtype in (torch.bfloat16, torch.float32), (name, data.dtype)
    if "hc_" in last:
        if last.endswith("_fn"):
            data.normal_(0, 1 / math.sqrt(data.shape[-1]), generator=draw)
        elif last.endswith("_scale"):
            data.fill_(0.5)
        else:
            data.normal_(0, 0.5, generator=draw)
        return "hyper-connections"
    if "norm" in name:
        data.fill_(2 if "kv_norm" in name or "compressor" in name else 1)
        return "norms"
    if last == "attn_sink":
        data.normal_(0, 1, generator=draw)
    elif last == "ape":
        data.normal_(0, 0.5, generator=draw)
    elif last == "e_score_correction_bias":
        data.normal_(0, 0.1, generator=draw)
    elif "embed" in name:
        data.normal_(0, 1, generator=draw)
    else:
        assert last == "weight" and data.dim() == 2, (name, data.shape)
        data.normal_(0, gain / math.sqrt(data.shape[-1]), generator=draw)
        return "bf16 products"
    return last


def fill_dummies(config: dict) -> None:
    import vllm.model_executor.warmup.kernel_warmup as warmup
    from vllm.model_executor.model_loader.dummy_loader import DummyModelLoader

    warmup._warmup_ll_bf16_router_gemm = lambda: None  # skipped, because it compiles shapes of other models

    def load_weights(loader, module, model_config) -> None:
        print("random parameters:", fill(module, config), flush=True)
        module.model.finalize_mhc_broadcast_weights()  # the last step of DeepseekV4ForCausalLM.load_weights

    DummyModelLoader.load_weights = load_weights


# ---- Runs ----


def arguments_of(folder: str, backend: str, graphs: bool) -> dict:
    arguments = dict(model=folder, load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16", seed=SEED, max_model_len=8192,
                     max_num_seqs=max(STEPS), max_num_batched_tokens=4096, enable_prefix_caching=False, disable_log_stats=True,
                     kv_cache_dtype="fp8", block_size=256, gpu_memory_utilization=0.75,
                     kernel_config={"enable_flashinfer_autotune": False})
    if graphs:
        arguments["compilation_config"] = {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": list(STEPS)}
    else:
        arguments["enforce_eager"] = True
    if backend == "sluice":
        arguments["quantization"] = "sluice"
    elif backend != "default":
        arguments["moe_backend"] = backend
    return arguments


def inside_of(model) -> dict:
    """Returns the classes that run experts, gates, attention and linear layers."""
    found: dict[str, list[str]] = {"experts": [], "gates": [], "attention": [], "linear": []}
    for module in model.modules():
        kind, method = type(module).__name__, getattr(module, "quant_method", None)
        kernel = getattr(method, "moe_kernel", None)
        if kernel is not None:
            found["experts"].append(type(kernel.fused_experts).__name__)
        if "GateLinear" in kind:
            found["gates"].append(f"{kind} sluice={getattr(module, 'sluice', None)} hash={getattr(module, 'tid2eid', None) is not None}")
        if kind.endswith("MLAAttention"):
            found["attention"].append(f"{kind} ratio {module.compress_ratio} {module.kv_cache_dtype} indexer {module.indexer is not None}")
        if hasattr(method, "fp8_linear"):
            found["linear"].append(type(method.fp8_linear).__name__)
    return {key: sorted(set(value)) if key == "linear" else value for key, value in found.items()}


def prompt(length: int, vocabulary: int, which: int) -> dict:
    draw = random.Random(SEED * 7919 + which)
    return {"prompt_token_ids": [draw.randrange(2, vocabulary) for _ in range(length)]}


def top(at) -> dict:
    return {int(token): logprob.logprob for token, logprob in at.items()}


def ask(llm, lengths: list[int], vocabulary: int) -> list[dict]:
    from vllm import SamplingParams

    parameters = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, detokenize=False, logprobs=5, prompt_logprobs=0)
    prompts = [prompt(length, vocabulary, length) for length in lengths]
    said = []
    for length, output in zip(lengths, llm.generate(prompts, parameters, use_tqdm=False)):
        one = output.outputs[0]
        given = output.prompt_token_ids
        said.append({"length": length, "tokens": list(one.token_ids), "top": [top(at) for at in one.logprobs],
                     "prompt": [at[token].logprob for token, at in zip(given[1:], output.prompt_logprobs[1:])]})
    return said


def measure(llm, result: dict, out: pathlib.Path) -> None:
    """Measures decode steps and prompts, and writes their rows."""
    steps = engine_vllm.Steps(llm, llm.model_config.get_vocab_size())
    kept = engine_runs.Result(f"deepseek-v4-flash-{result['layers']}-layers", result["backend"], out, vllm=result["vllm"],
                              ready_s=result["ready_s"], experts=result["inside"]["experts"][0], gpu=result["gpu"])
    note = f"{result['layers']} layers" + (" full graphs" if result["graphs"] else " eager")
    for sequences, count in STEPS.items():
        kept.keep("decode", sequences, steps.decode(sequences, count, CONTEXT), f"context {CONTEXT} sustained {note}")
    for length in PROMPTS:
        kept.keep("prefill", length, steps.prefill(length, REPEATS), f"one prompt in bursts {result['layers']} layers")
    kept.write(complete=True)


def run(arguments) -> None:
    config = config_of(arguments.layers, arguments.experts)
    import torch
    import vllm
    from vllm import LLM

    fill_dummies(config)
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(config))
        began = time.perf_counter()
        llm = LLM(**arguments_of(folder, arguments.backend, arguments.graphs))
        ready = time.perf_counter() - began
        inside = llm.apply_model(inside_of)[0]
        print(f"{arguments.backend}: ready after {ready:.0f} s", json.dumps(inside), flush=True)
        result = {"backend": arguments.backend, "graphs": arguments.graphs, "vllm": vllm.__version__, "gpu": torch.cuda.get_device_name(),
                  "layers": arguments.layers, "experts": arguments.experts, "inside": inside, "ready_s": round(ready, 1)}
        vocabulary = config["vocab_size"]
        result["together"] = ask(llm, LENGTHS, vocabulary)
        result["alone"] = [answer for length in LENGTHS[:3] for answer in ask(llm, [length], vocabulary)]
        result["long"] = ask(llm, LONG, vocabulary)
        arguments.out.write_text(json.dumps(result))
        print(f"{arguments.backend}: answered after {time.perf_counter() - began:.0f} s", flush=True)
        if arguments.times:
            arguments.times.mkdir(parents=True, exist_ok=True)
            measure(llm, result, arguments.times)


# ---- Comparisons ----


def spread(values: list[float]) -> str:
    values = sorted(values)
    return f"mean {statistics.fmean(values):.3f}, 99% {values[math.ceil(0.99 * (len(values) - 1))]:.3f}, max {values[-1]:.3f} of {len(values)}"


def apart(one: dict, two: dict) -> list[float]:
    """Returns the differences of the prompt's log probabilities, which do not depend on sampled tokens."""
    return [abs(s - t) for s, t in zip(one["prompt"], two["prompt"])]


def compare(arguments) -> None:
    a, b = (json.loads(path.read_text()) for path in (arguments.a, arguments.b))
    everything, sizes = [], []
    for group in ("together", "alone", "long"):
        for one, two in zip(a[group], b[group]):
            same, differences = engine_runs.equal_tokens(one["tokens"], two["tokens"]), apart(one, two)
            print(f"{a['backend']} and {b['backend']}, {group}, {one['length']} tokens: {same} of {len(one['tokens'])} tokens equal; "
                  f"prompt: {spread(differences)}")
            everything += differences
            sizes += one["prompt"]
    print(f"all prompts: {spread(everything)}; log probabilities have a standard deviation of {statistics.pstdev(sizes):.2f}")
    for backend in (a, b):
        differences = [d for one, two in zip(backend["alone"], backend["together"]) for d in apart(one, two)]
        print(f"{backend['backend']} alone and in a batch: {spread(differences)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("backend")
    one.add_argument("out", type=pathlib.Path)
    one.add_argument("--layers", type=int, default=len(RATIOS))
    one.add_argument("--experts", type=int, default=256)
    one.add_argument("--graphs", action="store_true")
    one.add_argument("--times", type=pathlib.Path, metavar="DIR")
    one.set_defaults(call=run)
    two = commands.add_parser("compare")
    two.add_argument("a", type=pathlib.Path)
    two.add_argument("b", type=pathlib.Path)
    two.set_defaults(call=compare)
    arguments = parser.parse_args()
    arguments.call(arguments)


if __name__ == "__main__":
    main()
