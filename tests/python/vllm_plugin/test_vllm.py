"""The shipped checkpoint and small random checkpoints in real vLLM on the CPU, through the plug-in."""
import json
import math
import pathlib
import re

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests want vLLM (./dev test-python)")

from safetensors.torch import load_file, save_file  # noqa: E402
from vllm_engine import MODEL, PROMPT, run, sluice_lines  # noqa: E402

QUESTIONS = [("What is 417 + 268?", "685"), ("Compute 7059 - 209.", "6850")]
ASK = {"prompts": [PROMPT.format(q) for q, _ in QUESTIONS], "sampling": {"max_tokens": 180, "skip_special_tokens": False}}


def right(answers: list[dict]) -> None:
    for (question, answer), said in zip(QUESTIONS, answers):
        assert said["text"].rsplit("<|message|>", 1)[-1].removesuffix("<|return|>") == answer, (question, said["text"])


def test_eager_and_reloaded(tmp_path):
    answers, log = run(tmp_path, {"model": str(MODEL), "quantization": "sluice"}, [ASK, ASK | {"before": "reload"}])
    right(answers[0])
    right(answers[1])
    lines = sluice_lines(log)
    assert len(lines) == 2, lines  # one line per kind of layer, not per layer
    assert "torch.ops.sluice.router_gemm with bias" in lines[1 if "gate" in lines[1] else 0]
    assert any("experts gpt_oss hidden=256 intermediate=256 experts=16 top_k=4" in line for line in lines)


@pytest.mark.parametrize("engine", [{}, {"enable_expert_parallel": True}], ids=["tp2", "ep2"])
def test_two_ranks(tmp_path, engine):
    answers, log = run(tmp_path, {"model": str(MODEL), "quantization": "sluice", "tensor_parallel_size": 2} | engine, [ASK])
    right(answers[0])
    wanted = "intermediate=256" if engine else "intermediate=128"
    assert any(f"experts gpt_oss hidden=256 {wanted} experts=16" in line for line in sluice_lines(log))


def test_compiled(tmp_path):
    answers, _ = run(tmp_path, {"model": str(MODEL), "quantization": "sluice", "enforce_eager": False}, [ASK])
    right(answers[0])


def test_a_draft_with_weights_of_its_own(tmp_path):
    """The model as its own draft: both run on Sluice, because neither could run here otherwise, and nearly all drafts are accepted."""
    draft = {"method": "draft_model", "model": str(MODEL), "num_speculative_tokens": 3, "quantization": "sluice"}
    # vLLM requires all layers of a draft in one KV cache group.
    engine = {"speculative_config": draft, "disable_hybrid_kv_cache_manager": True, "disable_log_stats": False}
    answers, log = run(tmp_path, {"model": str(MODEL), "quantization": "sluice"} | engine, [ASK])
    right(answers[0])
    accepted, guessed = map(int, re.search(r"guesses: (\d+) of (\d+) accepted", log).groups())
    assert guessed > 100 and accepted > 0.9 * guessed, (accepted, guessed)


# ---- bf16 experts, compared with vLLM's own ----

WORDS, SIZE = 512, 256


def qwen3(tmp_path, dense: tuple[int, ...] = ()) -> pathlib.Path:
    """A small Qwen3-MoE checkpoint with random weights that preserve the magnitude of activations; layers in `dense` have no experts."""
    folder = tmp_path / "qwen3"
    folder.mkdir()
    experts, inside, heads, layers = 8, 128, 4, 2
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": SIZE, "intermediate_size": 2 * inside,
        "moe_intermediate_size": inside, "num_experts": experts, "num_experts_per_tok": 2, "norm_topk_prob": True,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 2, "head_dim": 64, "vocab_size": WORDS,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "decoder_sparse_step": 1, "mlp_only_layers": list(dense), "attention_bias": False, "torch_dtype": "bfloat16", "eos_token_id": 0}))
    draw = torch.Generator().manual_seed(5)

    def matrix(rows, width):
        return (torch.randn(rows, width, generator=draw) / math.sqrt(width)).bfloat16()

    tensors = {"model.embed_tokens.weight": torch.randn(WORDS, SIZE, generator=draw).bfloat16(), "lm_head.weight": matrix(WORDS, SIZE),
               "model.norm.weight": torch.ones(SIZE, dtype=torch.bfloat16)}
    for i in range(layers):
        at = f"model.layers.{i}"
        tensors |= {f"{at}.{n}.weight": torch.ones(w, dtype=torch.bfloat16) for n, w in (
            ("input_layernorm", SIZE), ("post_attention_layernorm", SIZE), ("self_attn.q_norm", 64), ("self_attn.k_norm", 64))}
        tensors |= {f"{at}.self_attn.{n}_proj.weight": matrix(64 * h, SIZE) for n, h in (("q", heads), ("k", 2), ("v", 2))}
        tensors[f"{at}.self_attn.o_proj.weight"] = matrix(SIZE, 64 * heads)
        if i in dense:
            tensors |= {f"{at}.mlp.{n}.weight": matrix(2 * inside, SIZE) for n in ("gate_proj", "up_proj")}
            tensors[f"{at}.mlp.down_proj.weight"] = matrix(SIZE, 2 * inside)
            continue
        tensors[f"{at}.mlp.gate.weight"] = matrix(experts, SIZE)
        for e in range(experts):
            tensors |= {f"{at}.mlp.experts.{e}.{n}.weight": matrix(inside, SIZE) for n in ("gate_proj", "up_proj")}
            tensors[f"{at}.mlp.experts.{e}.down_proj.weight"] = matrix(SIZE, inside)
    save_file(tensors, folder / "model.safetensors")
    return folder


def tokens_of(count: int) -> dict:
    draw = torch.Generator().manual_seed(9)
    prompts = [{"prompt_token_ids": torch.randint(1, WORDS, (32,), generator=draw).tolist()} for _ in range(3)]
    return {"prompts": prompts, "sampling": {"max_tokens": count, "logprobs": 20, "detokenize": False, "ignore_eos": True}}


@pytest.fixture(scope="module")
def qwen3_in_vllm(tmp_path_factory):
    """(an engine's arguments, answers of vLLM's own experts and gates)."""
    folder = tmp_path_factory.mktemp("qwen3")
    engine = {"model": str(qwen3(folder)), "skip_tokenizer_init": True}
    answers, log = run(folder, engine, [tokens_of(8)])
    assert not sluice_lines(log)  # without the flag, Sluice logs nothing
    return engine, answers


@pytest.mark.parametrize("chosen", ["flag", "gates", "auto"])
def test_bf16_models_say_what_vllms_own_layers_say(tmp_path, qwen3_in_vllm, chosen):
    """Experts and gates by the flag, gates alone, and experts and gates of an unquantized model by itself."""
    engine, theirs = qwen3_in_vllm
    flag, switch = ({"quantization": "sluice"}, {}) if chosen == "flag" else ({}, {f"SLUICE_VLLM_{chosen.upper()}": "1"})
    ours, log = run(tmp_path, engine | flag, [tokens_of(8)], switch)
    lines = sluice_lines(log)
    assert any("gate GateLinear (8, 256) bf16: torch.ops.sluice.router_gemm" in line for line in lines)
    assert any("experts bf16 hidden=256 intermediate=128 experts=8 top_k=2" in line for line in lines) == (chosen != "gates")
    assert any("is not quantized, so its experts and gates run on Sluice" in line for line in lines) == (chosen == "auto")
    agree(theirs[0], ours[0])


def agree(theirs: list[dict], ours: list[dict], roundings: int = 10) -> None:
    # Logits have magnitudes from 1 to 4, where bf16 steps are 2^-7 to 2^-6. They and their inputs are rounded about ten times on the way,
    # at different places in the two engines.
    bound, compared = 2.0**-6 * math.sqrt(roundings), 0
    for a, b in zip(theirs, ours):
        for i, (one, other) in enumerate(zip(a["top"], b["top"])):
            for token in one.keys() & other.keys():
                assert abs(one[token] - other[token]) <= bound, (i, token, one[token], other[token])
                compared += 1
            if a["tokens"][i] != b["tokens"][i]:
                break  # from here on the texts differ
    assert compared > 100


# ---- FP8 experts, compared with vLLM's own experts in bf16, which holds their weights exactly ----

FP8 = {"fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
       "compressed-tensors": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"group_0": {
           "targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False, "symmetric": True},
           "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}}}}}
SKIP = {"fp8": "modules_to_not_convert", "compressed-tensors": "ignore"}  # as in checkpoints of Qwen3, and attention: vLLM's FP8 kernels for CPUs need AMX


def in_fp8(folder: pathlib.Path, method: str) -> pathlib.Path:
    """Returns a checkpoint with FP8 experts, and writes their exact weights into the bf16 checkpoint that they are made of."""
    tensors, of_blocks = load_file(folder / "model.safetensors"), method == "fp8"
    stored, skipped = dict(tensors), ["lm_head"]
    for name, weight in tensors.items():
        if ".experts." not in name:
            skipped += [name.removesuffix(".weight")] if name.endswith(("_proj.weight", ".gate.weight")) else []
            continue
        rows, width = weight.shape
        parts = weight.float().view(rows // 128, 128, width // 128, 128) if of_blocks else weight.float().view(rows, 1, 1, width)
        scales = (parts.abs().amax((1, 3), keepdim=True) / 448).log2().ceil().exp2()
        codes = (parts / scales).to(torch.float8_e4m3fn)
        tensors[name] = (codes.float() * scales).view(rows, width).bfloat16()
        stored[name], stored[name + ("_scale_inv" if of_blocks else "_scale")] = codes.view(rows, width), scales[:, 0, :, 0].contiguous()
    save_file(tensors, folder / "model.safetensors")
    out = folder / method
    out.mkdir()
    given = json.loads((folder / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(given | {"quantization_config": FP8[method] | {SKIP[method]: skipped}}))
    save_file(stored, out / "model.safetensors")
    return out


@pytest.mark.parametrize("method, kind", [("fp8", "fp8_blocks"), ("compressed-tensors", "fp8_rows")])
def test_fp8_models_say_what_their_exact_weights_say(tmp_path, method, kind):
    exact = qwen3(tmp_path)
    folder = in_fp8(exact, method)
    theirs, _ = run(tmp_path, {"model": str(exact), "skip_tokenizer_init": True}, [tokens_of(8)])
    engine = {"model": str(folder), "skip_tokenizer_init": True, "quantization": "sluice"}
    ours, log = run(tmp_path, engine, [tokens_of(8), tokens_of(8) | {"before": "reload"}])
    assert any(f"experts {kind} hidden=256 intermediate=128 experts=8 top_k=2 expert_w=e4m3" in line for line in sluice_lines(log))
    assert any("gate GateLinear (8, 256) bf16: torch.ops.sluice.router_gemm" in line for line in sluice_lines(log))
    agree(theirs[0], ours[0])
    agree(ours[0], ours[1])
