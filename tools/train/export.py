"""Writes a trained model as a checkpoint in the layout of gpt-oss: config.json, generation_config.json, model.safetensors."""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

from model import Config
from mxfp4 import pack, unpack

TOKENS = {"bos_token_id": 1003, "eos_token_id": 1007, "pad_token_id": 1004}


def config_json(c: Config, quantised: bool) -> dict:
    out = {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        **TOKENS,
        "experts_per_token": c.top_k,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.hidden,
        "initial_context_length": c.original_context,
        "initializer_range": 0.02,
        "intermediate_size": c.intermediate,
        "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(c.layers)],
        "max_position_embeddings": int(c.original_context * c.factor),
        "model_type": "gpt_oss",
        "num_attention_heads": c.heads,
        "num_experts_per_tok": c.top_k,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "num_local_experts": c.experts,
        "output_router_logits": False,
        "rms_norm_eps": c.eps,
        "rope_scaling": {
            "beta_fast": c.beta_fast,
            "beta_slow": c.beta_slow,
            "factor": c.factor,
            "original_max_position_embeddings": c.original_context,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": int(c.theta),
        "router_aux_loss_coef": 0.9,
        "sliding_window": c.window,
        "swiglu_limit": c.limit,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": c.vocab,
    }
    if quantised:
        out["quantization_config"] = {
            "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"],
            "quant_method": "mxfp4",
        }
    return out


def tensors(state: dict, quantised: bool) -> dict:
    """Converts state, a Model.state_dict(), to the tensors of a checkpoint. MXFP4 experts are packed from bf16 values. In an unquantized checkpoint
    experts are transposed, [E, in, out], as in Hugging Face's checkpoints."""
    out = {}
    for name, value in state.items():
        name = name if name.startswith("lm_head") else f"model.{name}"
        value = value.detach().to("cpu", torch.bfloat16)
        if not name.endswith(("gate_up_proj", "down_proj")):
            out[name] = value.contiguous()
        elif quantised:
            blocks, scales = pack(value)
            out[f"{name}_blocks"], out[f"{name}_scales"] = blocks.contiguous(), scales.contiguous()
        else:
            out[name] = value.transpose(1, 2).contiguous()
    return out


def export(state: dict, c: Config, directory: pathlib.Path, quantised: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_json(c, quantised), indent=2) + "\n")
    generation = {
        "bos_token_id": TOKENS["bos_token_id"],
        "do_sample": False,
        "eos_token_id": [1007, 1004, 1017],
        "pad_token_id": TOKENS["pad_token_id"],
    }
    (directory / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    save_file(tensors(state, quantised), str(directory / "model.safetensors"), metadata={"format": "pt"})


def read_state(path: pathlib.Path) -> dict:
    """Reads a model.safetensors that this module wrote with packed experts, and returns a state_dict."""
    stored, out = load_file(str(path)), {}
    for name, value in stored.items():
        name = name.removeprefix("model.")
        if name.endswith("_blocks"):
            scales = stored[f"model.{name}".replace("_blocks", "_scales")]
            out[name.removesuffix("_blocks")] = unpack(value, scales)
        elif not name.endswith("_scales"):
            out[name] = value.float()
    return out
