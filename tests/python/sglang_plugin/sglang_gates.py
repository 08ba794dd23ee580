"""Gates alone (SLUICE_SGLANG_GATES=1): each class of gates of SGLang on Sluice, with experts that SGLang runs. test_sglang.py runs this file in one
process per version."""

from __future__ import annotations

import importlib
import logging
import os

import pytest
import torch

import moe_bounds
import sglang_engine
from sglang_layers import EXPERTS, HIDDEN, TOP_K, WIDTH, random

FLOAT32, BF16 = torch.float32, torch.bfloat16


@pytest.fixture(scope="module", autouse=True)
def engine():
    """A scheduler process without a flag, whose environment selects gates."""
    sglang_engine.prepare()
    os.environ["SLUICE_SGLANG_GATES"] = "1"
    logging.getLogger("sluice_moe.sglang").setLevel(logging.INFO)
    sglang_engine.start()
    sglang_engine.groups()
    before = torch.get_default_dtype()
    torch.set_default_dtype(BF16)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from sluice_moe.sglang import gates

    said: list[str] = []
    monkeypatch.setattr(gates, "_logged", set())
    monkeypatch.setattr(gates, "logger", type("Lines", (), {"info": staticmethod(said.append)}))
    return said


def experts(**more: object) -> torch.nn.Module:
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    return FusedMoE(num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=WIDTH, layer_id=0, top_k=TOP_K, prefix="model.layers.0.mlp.experts",
                    **more)


def block(gate: torch.nn.Module, name: str = "gate") -> torch.nn.Module:
    """A block with SGLang's experts, as after ModelRunner.load_model."""
    from sluice_moe.sglang import gates

    made = torch.nn.Module()
    made.experts = experts()
    setattr(made, name, gate)
    gates.take_over(made)
    return made


def config(**more: object) -> object:
    from transformers import DeepseekV3Config

    made = DeepseekV3Config(hidden_size=HIDDEN, n_routed_experts=EXPERTS)
    for name, value in {"topk_method": "noaux_tc", "num_experts": EXPERTS, "moe_num_experts": EXPERTS, "moe_router_enable_expert_bias": False,
                        "moe_router_logit_softcapping": 0.0, **more}.items():
        setattr(made, name, value)
    return made


def linear(**more: object) -> torch.nn.Module:
    """The gate of Qwen2, Qwen3, Mixtral, Hunyuan, Granite (bf16) and of MiniMax M2 (float32)."""
    from sglang.srt.layers.linear import ReplicatedLinear

    return ReplicatedLinear(HIDDEN, EXPERTS, **({"bias": False} | more))


def of(module: str, name: str, *arguments: object, **more: object) -> torch.nn.Module:
    return getattr(importlib.import_module(f"sglang.srt.models.{module}"), name)(*arguments, **more)


GATES = {
    "qwen3": (lambda: linear(), BF16, BF16),
    "with a bias": (lambda: linear(bias=True), BF16, BF16),
    "minimax_m2": (lambda: linear(params_dtype=FLOAT32), FLOAT32, FLOAT32),
    "gpt_oss": (lambda: of("gpt_oss", "TinyGemmLinear", HIDDEN, EXPERTS, bias=True), BF16, FLOAT32),
    "deepseek": (lambda: of("deepseek_v2", "MoEGate", config(), None), BF16, FLOAT32),
    "glm4": (lambda: of("glm4_moe", "Glm4MoeGate", config()), BF16, FLOAT32),
    "glm4 lite": (lambda: of("glm4_moe_lite", "Glm4MoeLiteGate", config()), BF16, FLOAT32),
    "ernie4": (lambda: of("ernie4", "MoEGate", config()), BF16, BF16),
    "bailing": (lambda: of("bailing_moe", "BailingMoEGate", config=config()), BF16, BF16),
}


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("tokens", [1, 9])
@torch.no_grad()
def test_a_gate_of_each_class(lines: list[str], kind: str, tokens: int) -> None:
    make, x_dtype, y_dtype = GATES[kind]
    gate = make()
    before = type(gate)
    gate.weight.copy_(random(EXPERTS, HIDDEN, seed=1))
    bias = getattr(gate, "bias", None)
    if bias is not None:
        bias.copy_(random(EXPERTS, seed=2))
    made = block(gate)
    assert isinstance(made.gate, before) and type(made.experts.quant_method).__name__ == "UnquantizedFusedMoEMethod"
    x = random(tokens, HIDDEN, seed=3).to(x_dtype)
    found = made.gate(x)
    logits = found[0] if isinstance(found, tuple) else found
    assert logits.dtype is y_dtype and (not isinstance(found, tuple) or found[1] is None)
    more = torch.zeros(EXPERTS, dtype=torch.float64) if bias is None else bias.double()
    wanted = x.double() @ gate.weight.double().T + more
    bound = (HIDDEN + 4) * moe_bounds.F32 * (x.double().abs() @ gate.weight.double().abs().T + more.abs())
    moe_bounds.assert_within(logits, wanted, bound + (moe_bounds.BF16 * wanted.abs() if y_dtype is BF16 else 0))
    assert lines == [f"sluice: gate {before.__name__} [{EXPERTS}, {HIDDEN}]: router_gemm, logits in "
                     + ("the type of x" if kind in ("ernie4", "bailing") else str(y_dtype).removeprefix("torch."))]


@torch.no_grad()
def test_the_gate_of_a_model_in_fp8(lines: list[str]) -> None:
    """DeepSeek V3: SGLang's own FP8 method keeps the experts."""
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sluice_moe.sglang import gates

    fp8 = Fp8Config(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[32, 32])
    made = torch.nn.Module()
    made.gate, made.experts = of("deepseek_v2", "MoEGate", config(), fp8), experts(quant_config=fp8)
    gates.take_over(made)
    assert gates.runs(made.gate) and type(made.experts.quant_method).__name__ == "Fp8MoEMethod" and len(lines) == 1


@torch.no_grad()
def test_the_operation_runs() -> None:
    """A gate's logits have the same bits as the operation's."""
    made = block(of("deepseek_v2", "MoEGate", config(), None))
    made.gate.weight.copy_(random(EXPERTS, HIDDEN, seed=1))
    for tokens in (1, 17, 200):
        x = random(tokens, HIDDEN, seed=tokens)
        assert torch.equal(made.gate(x), torch.ops.sluice.router_gemm(x, made.gate.weight))


@torch.no_grad()
def test_it_compiles(lines: list[str]) -> None:
    made = block(linear())
    made.gate.weight.copy_(random(EXPERTS, HIDDEN, seed=1))
    compiled = torch.compile(made.gate, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (3, 70):
        x = random(tokens, HIDDEN, seed=tokens)
        assert torch.equal(compiled(x)[0], made.gate(x)[0])


@pytest.mark.parametrize("quantized, taken", [(None, True), ("fp8", False)])
def test_an_automatic_choice_leaves_quantized_models_alone(monkeypatch: pytest.MonkeyPatch, lines: list[str], quantized: str | None,
                                                           taken: bool) -> None:
    from sluice_moe.sglang import gates

    monkeypatch.setenv("SLUICE_SGLANG_GATES", "0")
    monkeypatch.setenv("SLUICE_SGLANG_AUTO", "1")
    made = torch.nn.Module()
    made.gate, made.experts = linear(), experts()
    made.experts.quant_config = quantized
    gates.take_over(made)
    assert gates.runs(made.gate) == taken and len(lines) == taken


@torch.no_grad()
def test_a_router_around_a_linear_layer(lines: list[str]) -> None:
    """DBRX and Gemma 4 have such routers."""
    router = torch.nn.Module()
    router.layer = linear()
    made = block(router, "router")
    from sluice_moe.sglang import gates

    assert gates.runs(made.router.layer) and not gates.runs(made.router)


@torch.no_grad()
def test_minimax_m3_multiplies_in_a_method_of_its_block(lines: list[str]) -> None:
    from sluice_moe.sglang import gates

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = linear(), experts()

        def _compute_router_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
            raise AssertionError("SGLang's product ran")

    made = Block()
    made.gate.weight.copy_(random(EXPERTS, HIDDEN, seed=1))
    gates.take_over(made)
    x = random(5, HIDDEN, seed=2)
    assert torch.equal(made._compute_router_logits(x), torch.ops.sluice.router_gemm(x, made.gate.weight))
    assert hasattr(importlib.import_module("sglang.srt.models.minimax_m3").MiniMaxM3MoE, "_compute_router_logits")


@torch.no_grad()
def test_gates_that_sglang_runs_say_why(lines: list[str]) -> None:
    from sluice_moe.sglang import gates

    class OtherGate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN))

    packed = linear()
    packed.use_intel_amx_backend = True
    for gate in (OtherGate(), linear(params_dtype=torch.float16), linear(bias=True, skip_bias_add=True), packed):
        assert not gates.runs(block(gate).gate)
    assert [line.split(": runs on SGLang: ")[1].split(",")[0] for line in lines] == [
        "wanted ReplicatedLinear", "wanted weights in bf16 or f32 [experts", "wanted a bias that is added", "wanted weights as loaded"]
    assert lines[0].endswith(f"found {__name__}.test_gates_that_sglang_runs_say_why.<locals>.OtherGate")


@pytest.mark.parametrize("tokens", [1, 9])
@torch.no_grad()
def test_nemotron_multiplies_by_the_weight(lines: list[str], monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """Its model does not call the gate. torch.mm with an out_dtype has no implementation on the CPU, so the operation must have run."""
    from sglang.srt.models.nemotron_h import NemotronHMoE
    from sluice_moe.sglang import gates

    class Routed(Exception):
        pass

    def topk(hidden_states: torch.Tensor, router_logits: torch.Tensor) -> None:
        raise Routed(router_logits)

    monkeypatch.setattr(NemotronHMoE, "__init__", lambda self: torch.nn.Module.__init__(self))
    made = NemotronHMoE()
    made.gate, made.experts, made.shared_experts, made.topk = linear(), experts(), None, topk
    made.gate.weight.data.copy_(random(EXPERTS, HIDDEN, seed=1))
    known = made.gate.weight
    gates.take_over(made)
    x = random(tokens, HIDDEN, seed=2)
    for run in (made._forward_core_normal, torch.compile(made._forward_core_normal, backend="aot_eager")):
        with pytest.raises(Routed) as logits:
            run(x)
        assert torch.equal(logits.value.args[0], torch.ops.sluice.router_gemm(x, known.data))
    known.data.copy_(random(EXPERTS, HIDDEN, seed=3))  # an update of weights
    assert made.gate.weight is known and torch.equal(made.gate(x)[0], torch.ops.sluice.router_gemm(x, known.data))
    assert len(lines) == 1 and lines[0].endswith("router_gemm, logits in float32")


@torch.no_grad()
def test_a_model_that_multiplies_itself_says_why(lines: list[str]) -> None:
    from sluice_moe.sglang import gates

    class Step3p5MoEMLP(torch.nn.Module):
        __module__ = "sglang.srt.models.step3p5"

    made = Step3p5MoEMLP()
    made.gate, made.experts = linear(), experts()
    gates.take_over(made)
    assert not gates.runs(made.gate) and lines[0].endswith("runs on SGLang: the model multiplies by the gate's weight itself")


@torch.no_grad()
def test_an_adapter_on_a_gate_is_refused(lines: list[str]) -> None:
    """SGLang would call the parts of the gate itself, without Sluice."""
    from sluice_moe.sglang import lora

    class Manager:
        target_modules = {"gate"}

    gate = block(linear()).gate
    with pytest.raises(RuntimeError, match="wanted LoRA target modules without gates that Sluice runs, found gate: name other modules in "
                                           "--lora-target-modules, or serve without SLUICE_SGLANG_GATES=1"):
        lora.around_set_module(lambda *a: pytest.fail("wrapped"), Manager(), "model.layers.0.mlp.gate", gate)
