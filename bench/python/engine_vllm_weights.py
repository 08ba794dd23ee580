"""The models that engine_vllm.py runs, and their random weights. Unlike vLLM's own dummy weights they have magnitudes that keep activations
from vanishing and that spread tokens over experts.
"""
from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import re
import zlib

SEED = 20
BLOCK, CODES_RMS = 128, 64  # of FP8 weights: the side of a block that shares a scale, and the RMS of random codes
TINY = pathlib.Path(__file__).parents[2] / "models/sluice-16e-tiny/config.json"


def config_of(model: str) -> dict:
    """Returns a config.json: gpt-oss-20b's or -120b's as published, the shipped model's, Qwen3-30B-A3B-FP8's, or one of eight layers of
    Qwen3-30B-A3B or of one MoE layer and the MTP layer of Hunyuan 3."""
    if model == "tiny":
        return json.loads(TINY.read_text())
    if model == "qwen3-fp8":
        return config_of("qwen3") | {"num_hidden_layers": 48, "quantization_config": {
            "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
            "modules_to_not_convert": ["lm_head"] + [f"model.layers.{i}.{part}" for i in range(48)
                                                     for part in ("input_layernorm", "post_attention_layernorm", "mlp.gate")]}}
    if model == "qwen3":
        return {
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": 151643, "eos_token_id": 151645, "decoder_sparse_step": 1, "head_dim": 128, "hidden_act": "silu",
            "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
            "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
            "num_experts_per_tok": 8, "num_hidden_layers": 8, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
            "tie_word_embeddings": False, "use_cache": True, "vocab_size": 151936, "torch_dtype": "bfloat16",
        }
    if model == "hy3":
        return {
            "architectures": ["HYV3ForCausalLM"], "model_type": "hy_v3", "bos_token_id": 120000, "eos_token_id": 120025, "head_dim": 128,
            "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.006, "intermediate_size": 13312, "expert_hidden_dim": 1536,
            "moe_intermediate_size": 1536, "max_position_embeddings": 131072, "num_attention_heads": 64, "num_key_value_heads": 8,
            "num_experts": 192, "num_experts_per_tok": 8, "num_shared_experts": 1, "num_hidden_layers": 1, "first_k_dense_replace": 0,
            "num_nextn_predict_layers": 1, "moe_router_enable_expert_bias": True, "moe_router_use_sigmoid": True, "route_norm": True,
            "router_scaling_factor": 2.826, "qk_norm": True, "rms_norm_eps": 1e-5,
            "rope_parameters": {"rope_theta": 11158840.0, "rope_type": "default"}, "tie_word_embeddings": False, "use_cache": True,
            "vocab_size": 120832, "torch_dtype": "bfloat16",
        }
    layers, experts = {"20b": (24, 32), "120b": (36, 128)}[model]
    return {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True, "attention_dropout": 0.0,
        "eos_token_id": 200002, "pad_token_id": 199999, "experts_per_token": 4, "num_experts_per_tok": 4, "num_local_experts": experts,
        "head_dim": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_act": "silu", "hidden_size": 2880,
        "intermediate_size": 2880, "initial_context_length": 4096, "max_position_embeddings": 131072, "initializer_range": 0.02,
        "num_hidden_layers": layers, "layer_types": ["sliding_attention", "full_attention"] * (layers // 2), "sliding_window": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 150000, "router_aux_loss_coef": 0.9, "output_router_logits": False, "swiglu_limit": 7.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                         "original_max_position_embeddings": 4096},
        "tie_word_embeddings": False, "use_cache": True, "vocab_size": 201088, "torch_dtype": "bfloat16",
        "quantization_config": {"quant_method": "mxfp4",
                                "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                                           "lm_head"]},
    }


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of a model on this process: whole experts (by_expert), or a slice of every expert."""
    rank: int = 0
    ranks: int = 1
    by_expert: bool = False
    expert_rank: int = 0


def fill(model, config: dict, shard: Shard = Shard()) -> None:
    """Fills every parameter with random numbers that depend on SEED and its name. GEMMs keep the magnitude of their input, and residual
    branches add a fifth of it.

    Backends pad experts differently, so random numbers fill the checkpoint's shape and padding is zero, as after vLLM's loader. An expert has
    the same weights on every rank, even if it is replicated. If a layer is split over tensor-parallel ranks, each rank fills its own
    shard, with the same numbers for each backend. Only the first rank has the bias of the down projection, as after vLLM's loader."""
    import torch

    hidden, experts = config["hidden_size"], config.get("num_local_experts") or config["num_experts"]
    inside = (config.get("moe_intermediate_size") or config["intermediate_size"]) // (1 if shard.by_expert else shard.ranks)
    slice_rank = 0 if shard.by_expert else shard.rank
    rows = {"w13": 2 * inside, "w2": hidden}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            data = parameter.data
            draw = torch.Generator(device=data.device)
            seed = SEED * 1_000_003 + zlib.crc32(seed_name(name).encode())
            matrix = name.split(".")[-1].split("_")[0]
            if not data.shape:  # scales of an FP8 cache, which keep vLLM's defaults
                continue
            if matrix in rows:
                data.zero_()
                first, width = shard.expert_rank * data.shape[0], hidden if matrix == "w13" else inside
                for slot in range(data.shape[0] if not (name.endswith("w2_bias") and slice_rank) else 0):
                    draw.manual_seed(seed * 1024 + (first + slot) % experts + slice_rank * experts)
                    fill_expert(data[slot], name, rows[matrix], width, matrix == "w2", draw)
                continue
            draw.manual_seed(seed * 1024 + (0 if whole(name) else shard.rank))
            if "norm" in name:
                data.fill_(1)
            elif "eh_proj" in name:  # of the MTP layer: passes the token's embedding and drops the hidden state
                data.zero_()[:, :hidden].fill_diagonal_(1)
            elif name.endswith("bias") or "sinks" in name:
                data.normal_(0, 0.02, generator=draw)
            elif "embed" in name:
                data.normal_(0, 1, generator=draw)
            else:
                small = 0.2 if "o_proj" in name else 2 if "router" in name or "mlp.gate." in name else 1
                fill_matrix(data, name, small, data.shape[-1] * (shard.ranks if "o_proj" in name else 1), draw)


def seed_name(name: str) -> str:
    """Returns the name from which a parameter's seed follows. The MTP layer gets the weights of the first layer and of the model's head."""
    name = re.sub(r"layers\.\d+\.mtp_block\.", "layers.0.", name.replace(".routed_experts", ""))
    return re.sub(r"model\.layers\.\d+\.shared_head\.head\.", "lm_head.", name)


def whole(name: str) -> bool:
    """Whether the parameter is replicated on every tensor-parallel rank."""
    return any(part in name for part in ("norm", "router", "mlp.gate.", "o_proj.bias"))


def fill_matrix(data, name: str, kept: float, width: int, draw) -> None:
    """Fills a matrix, or the scales of an FP8 matrix, so that a product over `width` inputs has `kept` times their magnitude. The scales of an
    FP8 matrix have one column for 128 inputs."""
    import torch

    if name.endswith("scale_inv"):
        data.fill_(kept / math.sqrt(width * BLOCK) / CODES_RMS)
    elif data.dtype == torch.float8_e4m3fn:
        data.copy_(torch.empty(data.shape, device=data.device).normal_(0, CODES_RMS, generator=draw).clamp_(-448, 448))
    else:
        data.normal_(0, kept / math.sqrt(width), generator=draw)


def fill_expert(part, name: str, rows: int, width: int, back: bool, draw) -> None:
    """Fills one expert's `rows` x `width` matrix, its scales or its bias. `back`: it is the down projection."""
    import torch

    kept = 0.2 if back else 1
    if name.endswith("bias"):
        part[:rows].normal_(0, 0.02, generator=draw)
    elif name.endswith("scale"):
        # Random codes have an RMS of 2.93, so 2^(scale - 127) * 2.93 * sqrt(width) is 1, or a fifth for the down projection.
        part[:rows, :width // 32] = 127 + round(math.log2(kept / (2.93 * math.sqrt(width))))
    elif part.dtype == torch.uint8:
        codes = torch.empty((rows, width // 2), dtype=torch.uint8, device=part.device)
        part[:rows, :width // 2] = codes.random_(0, 256, generator=draw)
    elif name.endswith("scale_inv"):
        fill_matrix(part, name, kept, width // BLOCK, draw)
    else:
        fill_matrix(part[:rows, :width], name, kept, width, draw)


def adapter_of(model: str, out: pathlib.Path):
    """Makes random LoRA adapters for every router, and returns their LoRA request."""
    import torch
    from safetensors.torch import save_file
    from vllm.lora.request import LoRARequest

    config, folder = config_of(model), out / f"adapter-{model}"
    folder.mkdir(exist_ok=True)
    draw, rank, hidden = torch.Generator().manual_seed(SEED), 8, config["hidden_size"]
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        at = f"base_model.model.model.layers.{layer}.mlp.router"
        tensors[f"{at}.lora_A.weight"] = (torch.randn(rank, hidden, generator=draw) / math.sqrt(hidden)).bfloat16()
        tensors[f"{at}.lora_B.weight"] = (torch.randn(config["num_local_experts"], rank, generator=draw) / 4).bfloat16()
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(
        {"r": rank, "lora_alpha": rank, "target_modules": ["router"], "peft_type": "LORA", "bias": "none"}))
    return LoRARequest("routers", 1, str(folder))
