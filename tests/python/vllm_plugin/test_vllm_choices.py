"""What runs on Sluice in vLLM, and who chose it: gates alone, unquantized models by themselves, kernels by phase; and what is refused."""
import copy
import dataclasses
import json
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests want vLLM (./dev test-python)")

import sluice_moe.vllm  # noqa: E402
from sluice_moe.vllm import auto, compat, lora, method, report  # noqa: E402
from test_vllm_layers import EXPERTS, HIDDEN, Given, choice, experts_layer, load, runner_of, vllm_config  # noqa: E402,F401
from vllm_engine import MODEL  # noqa: E402


@pytest.fixture
def lines(monkeypatch) -> list[str]:
    """The plug-in's log lines."""
    said: list[str] = []
    monkeypatch.setattr(report, "_logged", set())
    keep = types.SimpleNamespace(info=lambda text, *given: said.append(text % given), warning=lambda text, *given: said.append(text % given))
    monkeypatch.setattr(compat, "logger", lambda: keep)
    return said


# ---- Gates alone ----


def gate_of(config, **more):
    """A gate as a model builds it, in an engine with this quantization."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.fused_moe.router.gate_linear import GateLinear

    with set_current_vllm_config(config):
        return GateLinear(HIDDEN, EXPERTS, prefix="model.layers.0.mlp.gate", **({"bias": False} | more))


@pytest.fixture
def fp8(vllm_config):  # noqa: F811
    """An engine's config whose checkpoint vLLM's own FP8 method runs."""
    from vllm.model_executor.layers.quantization.fp8 import Fp8Config

    made = copy.copy(vllm_config)
    made.quant_config = Fp8Config(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[128, 128])
    return made


@pytest.mark.parametrize("w, y", [(torch.bfloat16, torch.float32), (torch.bfloat16, None), (torch.float32, torch.float32)])
@pytest.mark.parametrize("bias", [False, True])
@torch.no_grad()
def test_gates_alone_of_a_quantized_model(fp8, monkeypatch, lines, w, y, bias):
    """DeepSeek V3's, Qwen3's and MiniMax's kinds of gates. The engine's quantization stays."""
    from sluice_moe.vllm.gate import install_for_every_model

    monkeypatch.setenv(compat.GATES, "1")
    install_for_every_model()
    made = gate_of(fp8, params_dtype=w, out_dtype=y, bias=bias)
    assert made.sluice and type(fp8.quant_config).__name__ == "Fp8Config"
    draw = torch.Generator().manual_seed(6)
    made.weight.copy_(torch.randn(EXPERTS, HIDDEN, generator=draw) / 8)
    if bias:
        made.bias.copy_(torch.randn(EXPERTS, generator=draw))
    x = torch.randn(9, HIDDEN, generator=draw).bfloat16()
    logits, left = made(x)
    wanted = x.double() @ made.weight.double().T + (made.bias.double() if bias else 0)
    size = x.double().abs() @ made.weight.double().abs().T + (made.bias.double().abs() if bias else 0)
    assert left is None and logits.dtype is (y or torch.bfloat16)
    assert ((logits.double() - wanted).abs() <= (HIDDEN + 4) * 2.0**-24 * size + (0 if y else 2.0**-8) * wanted.abs()).all()
    assert len(lines) == 1 and f"gate GateLinear ({EXPERTS}, {HIDDEN})" in lines[0] and "torch.ops.sluice.router_gemm" in lines[0]


def test_experts_of_a_quantized_model_stay_with_vllm(fp8, monkeypatch, lines):
    from sluice_moe.vllm.gate import install_for_every_model
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.layers.fused_moe import FusedMoEFactory

    monkeypatch.setenv(compat.GATES, "1")
    install_for_every_model()
    with set_current_vllm_config(fp8):
        made = FusedMoEFactory(num_experts=EXPERTS, top_k=2, hidden_size=128, intermediate_size=128, params_dtype=torch.bfloat16,
                               renormalize=True, quant_config=fp8.quant_config, prefix="gates.alone.experts", activation="silu")
    assert type(made.routed_experts.quant_method).__name__ == "Fp8MoEMethod" and lines == []


def test_compiled_graphs_are_cached_apart(monkeypatch):
    """vLLM would reuse a graph that was compiled without Sluice's gates: the config of the model is the same."""
    import vllm.envs as envs
    from sluice_moe.vllm.gate import install_for_every_model

    monkeypatch.setattr(envs, "environment_variables", {n: get for n, get in envs.environment_variables.items() if n != compat.GATES})
    assert compat.GATES not in envs.compile_factors()
    install_for_every_model()
    assert envs.compile_factors()[compat.GATES] == "1"


def test_without_the_variable_gates_are_vllms(fp8, monkeypatch, lines):
    from sluice_moe.vllm.gate import install_for_every_model

    monkeypatch.delenv(compat.GATES, raising=False)
    install_for_every_model()  # another engine in this process may use Sluice
    assert not gate_of(fp8).sluice and lines == []


def test_a_gate_that_vllm_runs_says_why(fp8, monkeypatch, lines):
    from sluice_moe.vllm.gate import install_for_every_model

    monkeypatch.setenv(compat.GATES, "1")
    install_for_every_model()
    assert not gate_of(fp8, params_dtype=torch.float16).sluice
    assert len(lines) == 1 and lines[0].endswith("runs on vLLM: wanted weights in bf16 or f32, found torch.float16")


# ---- Unquantized models by themselves ----


@pytest.fixture
def chosen_by_itself(monkeypatch):
    """vLLM with SLUICE_VLLM_AUTO=1 for the length of a test."""
    from vllm.config.model import ModelConfig

    monkeypatch.setattr(ModelConfig, "_verify_quantization", ModelConfig._verify_quantization)  # restored afterwards
    monkeypatch.setenv(compat.AUTO, "1")
    sluice_moe.vllm.register()


def small_model(tmp_path, architecture: str, kind: str, **more) -> str:
    (tmp_path / "config.json").write_text(json.dumps({
        "architectures": [architecture], "model_type": kind, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64, "torch_dtype": "bfloat16", "max_position_embeddings": 512} | more))
    return str(tmp_path)


def model_config(model: str, **more):
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=model, skip_tokenizer_init=True, max_model_len=128, **more).create_model_config()


QWEN3 = {"architecture": "Qwen3MoeForCausalLM", "kind": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
         "head_dim": 32}


def test_an_unquantized_model_gets_sluice(tmp_path, chosen_by_itself, lines):
    from sluice_moe.vllm.config import SluiceConfig
    from vllm.model_executor.layers.quantization import get_quantization_config

    made = model_config(small_model(tmp_path, **QWEN3))
    assert made.quantization == "sluice_auto" and issubclass(get_quantization_config("sluice_auto"), SluiceConfig)
    assert len(lines) == 1 and lines[0].endswith(f"SLUICE_VLLM_AUTO=1: {tmp_path} is not quantized, so its experts and gates run on Sluice")


def test_other_models_stay_as_they_are(tmp_path, chosen_by_itself, lines):
    assert model_config(small_model(tmp_path, "Qwen3ForCausalLM", "qwen3", head_dim=32)).quantization is None  # no experts
    assert model_config(str(MODEL), dtype="bfloat16").quantization == "gpt_oss_mxfp4"
    assert lines == []
    assert model_config(small_model(tmp_path, **QWEN3), dtype="float16").quantization is None
    assert len(lines) == 1 and lines[0].endswith("runs on vLLM: wanted --dtype bfloat16, found torch.float16")


def test_the_flag_still_wins(tmp_path, chosen_by_itself, lines):
    assert model_config(small_model(tmp_path, **QWEN3), quantization="sluice").quantization == "sluice" and lines == []


@pytest.mark.parametrize("given, reason", [("swiglustep", "wanted an activation of silu"), ("float16", "wanted LoRA on experts in bf16")])
def test_experts_that_sluice_cannot_run_stay_with_vllm(vllm_config, monkeypatch, lines, given, reason):  # noqa: F811
    """With the flag each of these is an error."""
    layer = experts_layer("bf16", f"auto.{given}")
    if given == "swiglustep":
        from vllm.model_executor.layers.fused_moe.activation import MoEActivation

        layer.activation = MoEActivation(given)
    else:
        monkeypatch.setattr(vllm_config, "lora_config", lora_config(lora_dtype=torch.float16))
    assert auto.SluiceAutoConfig().get_quant_method(layer, "model.layers.0.mlp.experts") is None
    assert len(lines) == 1 and f"SLUICE_VLLM_AUTO=1: experts run on vLLM: {reason}" in lines[0]


@pytest.mark.parametrize("name", [compat.GATES, compat.AUTO])
def test_a_variable_ends_the_start_where_sluice_cannot_run(monkeypatch, name):
    monkeypatch.setenv(name, "1")
    monkeypatch.setattr(compat, "installed_version", lambda: "0.99.0")
    with pytest.raises(ImportError, match=f"{name}=1: wanted vLLM .*, found 0.99.0"):
        sluice_moe.vllm.register()
    monkeypatch.setenv(name, "yes")
    with pytest.raises(ValueError, match=f"{name}: wanted 0 or 1, found 'yes'"):
        sluice_moe.vllm.register()


# ---- Kernels by phase ----


def test_kernels_by_phase(vllm_config, monkeypatch):  # noqa: F811
    monkeypatch.setenv("SLUICE_DECODE_KERNEL", "cpu.expert_gemm.panels_f32")
    monkeypatch.setenv("SLUICE_PREFILL_KERNEL", "auto")
    monkeypatch.setenv("SLUICE_DECODE_TOKENS", "4")
    layer, given = experts_layer("bf16", "phases"), Given("bf16")
    load(layer, given)
    made = layer.quant_method.sluice_layer
    assert all(method.expert_kernels(made.explain(n)) == "cpu.expert_gemm.panels_f32" for n in (1, 4))
    x, ids, weights = choice(3)
    wanted, bound = given.wanted(x, ids, weights, None)
    assert ((layer.quant_method.apply(layer, x, weights, ids, None, None).double() - wanted).abs() <= bound).all()


@pytest.mark.parametrize("name, value, reason", [
    ("SLUICE_DECODE_KERNEL", "panels_f23", "SLUICE_DECODE_KERNEL=panels_f23: moe backend: wanted auto or one of "),
    ("SLUICE_PREFILL_KERNEL", "cpu.expert_gemm.mxfp4_avx512", "mxfp4_avx512"),
    ("SLUICE_DECODE_TOKENS", "few", "SLUICE_DECODE_TOKENS: wanted a number of tokens, 1 or more, found 'few'"),
    ("SLUICE_MOE_ACTIVATIONS", "int8", "SLUICE_MOE_ACTIVATIONS: wanted bf16 or fp8, found 'int8'"),
    ("SLUICE_MOE_ACTIVATIONS", "fp8", "SLUICE_MOE_ACTIVATIONS=fp8: fp8_activations: wanted activations in bf16, experts in e2m1")])
def test_a_kernel_that_cannot_run_ends_the_start(vllm_config, monkeypatch, name, value, reason):  # noqa: F811
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError) as why:
        experts_layer("bf16", f"phase.{value}")
    assert reason in str(why.value)


# ---- Refusals ----


@pytest.mark.parametrize("backend", ["deepep_low_latency", "nixl_ep"])
def test_one_batch_per_expert_is_refused(vllm_config, backend):  # noqa: F811
    layer = experts_layer("bf16", f"batched.{backend}")
    parallel = dataclasses.replace(layer.moe_config.moe_parallel_config, dp_size=2, ep_size=2, use_ep=True, all2all_backend=backend)
    assert parallel.use_batched_activation_format
    layer.moe_config = dataclasses.replace(layer.moe_config, moe_parallel_config=parallel)
    assert f"found {backend}, which passes one batch per expert" in "; ".join(method.why_not(layer, "p", "bf16", 64, torch.device("cpu")))


def lora_config(**more):
    from vllm.config import LoRAConfig

    return LoRAConfig(**({"max_loras": 2, "max_lora_rank": 8, "lora_dtype": torch.bfloat16} | more))


@pytest.mark.parametrize("targets", [None, ["down_proj"]])
def test_experts_without_room_take_no_adapters(vllm_config, monkeypatch, lines, targets):  # noqa: F811
    """vLLM's list of modules for adapters has no experts then, and its other modules."""
    import vllm.lora.model_manager as model_manager
    from vllm.model_executor.layers.linear import ReplicatedLinear

    for name in ("get_supported_lora_modules", "from_layer"):
        monkeypatch.setattr(model_manager, name, getattr(model_manager, name))
    monkeypatch.setattr(vllm_config, "lora_config", lora_config(target_modules=targets))
    model = torch.nn.Module()
    model.mlp = torch.nn.Module()
    model.mlp.down_proj = ReplicatedLinear(HIDDEN, HIDDEN, bias=False, prefix="mlp.down_proj")
    model.mlp.experts = runner_of("bf16", f"lora.{targets}")
    supported = ["down_proj"] if targets else ["down_proj", "experts"]
    assert lora.names_of_experts(model) == ({"experts", "routed_experts"} if targets else set())
    assert sorted(model_manager.get_supported_lora_modules(model)) == supported
    wanted = "LoRA on down_proj except routed experts" if targets else "LoRA on every module: routed experts have 2 adapters of rank 8"
    assert any(wanted in line for line in lines)
