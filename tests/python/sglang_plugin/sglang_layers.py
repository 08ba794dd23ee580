"""Layers of SGLang on Sluice, through SGLang's own plug-in loader, flags and weight loaders, compared with transformers' eager layers in
float64. SGLang's settings are global to a process, so test_sglang.py runs this file in one process per version."""

from __future__ import annotations

import functools
import logging
import types

import pytest
import torch

import moe_bounds
import sglang_engine

HIDDEN, WIDTH, EXPERTS, TOP_K = 64, 96, 8, 3


@functools.cache
def started() -> list[str]:
    """Starts a scheduler process with --moe-runner-backend sluice. Returns the list of what Sluice logs."""
    sglang_engine.prepare()
    records: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record.getMessage())

    logging.getLogger("sluice_moe.sglang").addHandler(Lines())
    logging.getLogger("sluice_moe.sglang").setLevel(logging.INFO)
    sglang_engine.start(*sglang_engine.asked_for_sluice())
    sglang_engine.groups()
    return records


@pytest.fixture(scope="module", autouse=True)
def engine():
    """Also used by sglang_fp8.py and sglang_fp4.py, whose tests run in the same process."""
    before = torch.get_default_dtype()
    records = started()
    torch.set_default_dtype(torch.bfloat16)
    yield records
    torch.set_default_dtype(before)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(*shape, generator=generator(seed), dtype=torch.float32) * scale).bfloat16()


def mxfp4(*shape: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(codes u8 [..., width / 2], scales u8 [..., width / 32], values f64 [..., width])."""
    low, high = (torch.randint(0, 16, (*shape[:-1], shape[-1] // 2), generator=generator(seed + i)) for i in range(2))
    scales = torch.randint(121, 125, (*shape[:-1], shape[-1] // 32), generator=generator(seed + 2), dtype=torch.int64)
    table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    table = torch.cat([table, -table])
    values = table[torch.stack([low, high], -1).flatten(-2)] * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)
    return (low | high << 4).to(torch.uint8), scales.to(torch.uint8), values


def halves(rows: torch.Tensor) -> torch.Tensor:
    """Converts interleaved rows of gate and up to [gate; up]."""
    return torch.cat([rows[:, ::2], rows[:, 1::2]], 1)


def with_gates(block: torch.nn.Module) -> torch.nn.Module:
    """A block as after ModelRunner.load_model."""
    from sluice_moe.sglang import gates

    gates.take_over(block)
    return block


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.float64)


# ---- gpt-oss: MXFP4 experts, router with a bias ----


class GptOss:
    """A layer's weights as in a checkpoint, transformers' layer of them in float64, and SGLang's blocks of them."""

    def __init__(self, seed: int = 1) -> None:
        from transformers import GptOssConfig
        from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP

        self.config = GptOssConfig(hidden_size=HIDDEN, intermediate_size=WIDTH, num_local_experts=EXPERTS, num_experts_per_tok=TOP_K,
                                   num_hidden_layers=1, swiglu_limit=7.0, dtype="bfloat16")
        self.config._experts_implementation = "eager"
        up, up_scale, self.up = mxfp4(EXPERTS, 2 * WIDTH, HIDDEN, seed=seed)
        down, down_scale, self.down = mxfp4(EXPERTS, HIDDEN, WIDTH, seed=seed + 10)
        self.router, self.router_bias = random(EXPERTS, HIDDEN, seed=seed + 20, scale=0.3), random(EXPERTS, seed=seed + 21)
        self.up_bias, self.down_bias = random(EXPERTS, 2 * WIDTH, seed=seed + 22), random(EXPERTS, HIDDEN, seed=seed + 23)
        prefix = "model.layers.0.mlp.experts."
        self.checkpoint = {
            prefix + "gate_up_proj_blocks": up.view(EXPERTS, 2 * WIDTH, HIDDEN // 32, 16), prefix + "gate_up_proj_scales": up_scale,
            prefix + "gate_up_proj_bias": self.up_bias, prefix + "down_proj_blocks": down.view(EXPERTS, HIDDEN, WIDTH // 32, 16),
            prefix + "down_proj_scales": down_scale, prefix + "down_proj_bias": self.down_bias}
        self.eager = GptOssMLP(self.config).double()
        with torch.no_grad():
            self.eager.router.weight.copy_(self.router)
            self.eager.router.bias.copy_(self.router_bias)
            self.eager.experts.gate_up_proj.copy_(self.up.transpose(1, 2))
            self.eager.experts.gate_up_proj_bias.copy_(self.up_bias)
            self.eager.experts.down_proj.copy_(self.down.transpose(1, 2))
            self.eager.experts.down_proj_bias.copy_(self.down_bias)

    def block(self) -> torch.nn.Module:
        """A GptOssSparseMoeBlock in the module structure that its model's loader expects."""
        from sglang.srt.layers.quantization.mxfp4 import Mxfp4Config
        from sglang.srt.models.gpt_oss import GptOssSparseMoeBlock

        quantization = Mxfp4Config(is_checkpoint_mxfp4_serialized=True)
        block = GptOssSparseMoeBlock(0, self.config, quantization, prefix="model.layers.0.mlp")
        with torch.no_grad():
            block.router.weight.copy_(self.router)
            block.router.bias.copy_(self.router_bias)
        self.load(block)
        block.experts.quant_method.process_weights_after_loading(block.experts)
        return with_gates(block)

    def load(self, block: torch.nn.Module, checkpoint: dict[str, torch.Tensor] | None = None) -> None:
        from sglang.srt.models.gpt_oss import GptOssForCausalLM

        model, inner, layer = torch.nn.Module(), torch.nn.Module(), torch.nn.Module()
        model.config, model.model, layer.mlp = self.config, inner, block
        inner.layers = torch.nn.ModuleList([layer])
        GptOssForCausalLM._load_mxfp4_experts_weights(model, (checkpoint or self.checkpoint).items())

    def wanted(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(y, ids, weights) of transformers' layer in float64."""
        _, weights, ids = self.eager.router(x)
        return self.eager(x[None])[0][0], ids, weights

    def experts(self, width: slice = slice(None), down_bias: bool = True) -> moe_bounds.Experts:
        up, bias = halves(self.up), halves(self.up_bias[..., None])[..., 0].double()
        rows = torch.cat([torch.arange(WIDTH)[width], WIDTH + torch.arange(WIDTH)[width]])
        return moe_bounds.Experts(up[:, rows], self.down[..., width], bias[:, rows], self.down_bias.double() * down_bias, "clamped",
                                  alpha=1.702, beta=1.0, limit=7.0)

    def weights_off(self, x: torch.Tensor) -> float:
        return moe_bounds.softmax_off((HIDDEN + 4) * moe_bounds.F32 * (x.abs() @ self.router.double().abs().T + self.router_bias.double().abs()))


@pytest.fixture(scope="module")
def gpt_oss() -> GptOss:
    return GptOss()


@pytest.mark.parametrize("tokens", [1, 2, 17])
@torch.no_grad()
def test_gpt_oss_block_is_transformers_layer(gpt_oss: GptOss, tokens: int) -> None:
    block = gpt_oss.block()
    x = random(tokens, HIDDEN, seed=tokens)
    wanted, ids, weights = gpt_oss.wanted(x.double())
    value, bound = moe_bounds.layer(gpt_oss.experts(), x.double(), ids, weights, gpt_oss.weights_off(x.double()))
    torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-12)
    moe_bounds.assert_within(block(x), wanted, bound)


@torch.no_grad()
def test_gpt_oss_router_gives_float32_scores(gpt_oss: GptOss) -> None:
    block = gpt_oss.block()
    x = random(9, HIDDEN, seed=3)
    scores, bias = block.router(x)
    wanted = torch.nn.functional.linear(x.double(), gpt_oss.router.double(), gpt_oss.router_bias.double())
    bound = (HIDDEN + 4) * moe_bounds.F32 * (x.double().abs() @ gpt_oss.router.double().abs().T + gpt_oss.router_bias.double().abs())
    assert bias is None and scores.dtype is torch.float32
    moe_bounds.assert_within(scores, wanted, bound)


@pytest.mark.parametrize("size", [2, 3])
@torch.no_grad()
def test_gpt_oss_tensor_parallel_ranks_add_up(gpt_oss: GptOss, size: int) -> None:
    x = random(5, HIDDEN, seed=7)
    wanted, ids, weights = gpt_oss.wanted(x.double())
    blocks = -(-(WIDTH // 32) // size) * 32
    found, bound = zeros(5, HIDDEN), zeros(5, HIDDEN)
    for rank in range(size):
        with sglang_engine.rank(tp=(rank, size)):
            found += gpt_oss.block()(x).double()
        part = gpt_oss.experts(slice(rank * blocks, min((rank + 1) * blocks, WIDTH)), down_bias=rank == 0)
        bound += moe_bounds.layer(part, x.double(), ids, weights, gpt_oss.weights_off(x.double()))[1]
    moe_bounds.assert_within(found, wanted, bound)


@pytest.mark.parametrize("size", [2, 4])  # with 4, a rank has fewer experts than top_k
@torch.no_grad()
def test_gpt_oss_expert_parallel_ranks_add_up(gpt_oss: GptOss, size: int) -> None:
    x = random(6, HIDDEN, seed=8)
    wanted, ids, weights = gpt_oss.wanted(x.double())
    found, bound = zeros(6, HIDDEN), zeros(6, HIDDEN)
    for rank in range(size):
        with sglang_engine.rank(ep=(rank, size)):
            block = gpt_oss.block()
            assert block.experts.w13_weight.numel() == 0 and block.experts.num_local_experts == EXPERTS // size
            found += block(x).double()
        mine = torch.where(ids // (EXPERTS // size) == rank, ids, -1)
        bound += moe_bounds.layer(gpt_oss.experts(), x.double(), mine, weights, gpt_oss.weights_off(x.double()))[1]
    moe_bounds.assert_within(found, wanted, bound)


@torch.no_grad()
def test_weights_are_reloaded_completely_or_not_at_all(gpt_oss: GptOss) -> None:
    block, other = gpt_oss.block(), GptOss(seed=50)
    x = random(4, HIDDEN, seed=4)
    before = block(x)
    names = list(gpt_oss.checkpoint)
    gpt_oss.load(block, {name: other.checkpoint[name] for name in names[:3]})
    assert torch.equal(block(x), before), "loading half of the weights changed the output"
    with pytest.raises(RuntimeError, match="wanted all weights of the layer again, found 3 of 6 pieces"):
        block.experts.quant_method.process_weights_after_loading(block.experts)
    pointer = block.experts.quant_method.layer.packed.data_ptr()
    gpt_oss.load(block, {name: other.checkpoint[name] for name in names[3:]})
    assert block.experts.quant_method.layer.packed.data_ptr() == pointer, "the address changed, which graphs hold"
    assert block.experts.w13_weight.numel() == 0
    block.experts.quant_method.process_weights_after_loading(block.experts)
    other.router, other.router_bias = gpt_oss.router, gpt_oss.router_bias
    with torch.no_grad():
        other.eager.router.weight.copy_(gpt_oss.router)
        other.eager.router.bias.copy_(gpt_oss.router_bias)
    wanted, ids, weights = other.wanted(x.double())
    _, bound = moe_bounds.layer(other.experts(), x.double(), ids, weights, other.weights_off(x.double()))
    moe_bounds.assert_within(block(x), wanted, bound)


# ---- bf16 experts ----


def fused_moe(**more: object) -> torch.nn.Module:
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    given = dict(num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=WIDTH, layer_id=0, top_k=TOP_K, prefix="model.layers.0.mlp.experts")
    return FusedMoE(**{**given, **more})


def load_experts(layer: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    load_pieces(layer, tensors)
    layer.quant_method.process_weights_after_loading(layer)


def load_pieces(layer: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> None:
    """Tensors by SGLang's names: gate_proj, up_proj, down_proj per expert; here [experts, rows, columns]."""
    mapping = layer.make_expert_params_mapping("gate_proj", "down_proj", "up_proj", EXPERTS)
    parameters = dict(layer.named_parameters())
    for parameter, weight, expert, shard in mapping:
        kind = weight.rstrip(".").rsplit(".", 1)[1]
        for given, tensor in tensors.items():
            if given.startswith(f"{kind}."):
                name = parameter.removeprefix("experts.") + given.removeprefix(f"{kind}.")
                parameters[name].weight_loader(parameters[name], tensor[expert], name, shard_id=shard, expert_id=expert)


def routed(layer: torch.nn.Module, x: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y, ids, weights) with random routing."""
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    scores = torch.rand(x.shape[0], EXPERTS, generator=generator(seed), dtype=torch.float32)
    weights, ids = scores.topk(TOP_K)
    return layer(x, StandardTopKOutput(weights, ids.to(torch.int32), scores)), ids, weights.double()


@torch.no_grad()
def test_qwen3_block_is_transformers_layer() -> None:
    from sglang.srt.models.qwen3_moe import Qwen3MoeSparseMoeBlock
    from transformers import Qwen3MoeConfig
    from transformers.models.qwen3_moe import modeling_qwen3_moe

    config = Qwen3MoeConfig(hidden_size=HIDDEN, moe_intermediate_size=WIDTH, num_experts=EXPERTS, num_experts_per_tok=TOP_K,
                            norm_topk_prob=True)
    config._experts_implementation = "eager"
    block = Qwen3MoeSparseMoeBlock(0, config, None, prefix="model.layers.0.mlp")
    gate, up = random(EXPERTS, WIDTH, HIDDEN, seed=1, scale=0.2), random(EXPERTS, WIDTH, HIDDEN, seed=2, scale=0.2)
    down, router = random(EXPERTS, HIDDEN, WIDTH, seed=3, scale=0.2), random(EXPERTS, HIDDEN, seed=4, scale=0.3)
    block.gate.weight.copy_(router)
    load_experts(block.experts, {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down})
    with_gates(block)

    eager = modeling_qwen3_moe.Qwen3MoeSparseMoeBlock(config).double()
    eager.gate.weight.copy_(router)
    eager.experts.gate_up_proj.copy_(torch.cat([gate, up], 1))
    eager.experts.down_proj.copy_(down)
    x = random(11, HIDDEN, seed=5)
    scores, weights, ids = eager.gate(x.double())
    wanted = eager(x.double()[None])[0]
    # The gate's scores have SGLang's type, bf16.
    off = moe_bounds.BF16 * scores.abs() + (HIDDEN + 4) * moe_bounds.F32 * (x.double().abs() @ router.double().abs().T)
    sorted_scores = scores.sort(descending=True).values
    clear = (sorted_scores[:, TOP_K - 1] - sorted_scores[:, TOP_K]) > 2 * off.amax(1)
    assert clear.sum() >= 6, "wanted tokens whose choice rounding cannot change"
    experts = moe_bounds.Experts(torch.cat([gate, up], 1).double(), down.double(), zeros(EXPERTS, 2 * WIDTH), zeros(EXPERTS, HIDDEN), "swiglu")
    _, bound = moe_bounds.layer(experts, x.double(), ids, weights, moe_bounds.softmax_off(off))
    moe_bounds.assert_within(block(x)[clear], wanted[clear], bound[clear])


@pytest.mark.parametrize("act", ["relu2", "silu"])
@torch.no_grad()
def test_experts_without_gates(act: str) -> None:
    layer = fused_moe(activation=act, is_gated=False)
    up, down = random(EXPERTS, WIDTH, HIDDEN, seed=1, scale=0.2), random(EXPERTS, HIDDEN, WIDTH, seed=2, scale=0.2)
    load_experts(layer, {"gate_proj.weight": up, "down_proj.weight": down})
    x = random(7, HIDDEN, seed=3)
    found, ids, weights = routed(layer, x, seed=4)
    experts = moe_bounds.Experts(up.double(), down.double(), zeros(EXPERTS, WIDTH), zeros(EXPERTS, HIDDEN), act)
    moe_bounds.assert_within(found, *moe_bounds.layer(experts, x.double(), ids, weights, 0))


@torch.no_grad()
def test_shared_experts_fused_into_the_routed_ones() -> None:
    layer = fused_moe(num_fused_shared_experts=1)  # the shared expert is the last
    assert layer.num_local_experts == EXPERTS
    up, gate = random(EXPERTS, WIDTH, HIDDEN, seed=1, scale=0.2), random(EXPERTS, WIDTH, HIDDEN, seed=2, scale=0.2)
    down = random(EXPERTS, HIDDEN, WIDTH, seed=3, scale=0.2)
    load_experts(layer, {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down})
    x = random(5, HIDDEN, seed=4)
    found, ids, weights = routed(layer, x, seed=5)
    experts = moe_bounds.Experts(torch.cat([gate, up], 1).double(), down.double(), zeros(EXPERTS, 2 * WIDTH), zeros(EXPERTS, HIDDEN), "swiglu")
    assert (ids == EXPERTS - 1).any(), "wanted a token that chooses the shared expert"
    moe_bounds.assert_within(found, *moe_bounds.layer(experts, x.double(), ids, weights, 0))


@torch.no_grad()
def test_deepseek_v4_experts() -> None:
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    config = Fp8Config(is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[128, 128], is_fp4_experts=True)
    layer = fused_moe(quant_config=config, swiglu_limit=2.0)
    tensors, values = {}, {}
    for seed, (name, rows, columns) in enumerate([("gate_proj", WIDTH, HIDDEN), ("up_proj", WIDTH, HIDDEN), ("down_proj", HIDDEN, WIDTH)]):
        codes, scales, values[name] = mxfp4(EXPERTS, rows, columns, seed=100 * (seed + 1))
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale_inv"] = codes.view(torch.int8), scales.view(torch.float8_e8m0fnu)
    load_experts(layer, tensors)
    x = random(7, HIDDEN, seed=3)
    found, ids, weights = routed(layer, x, seed=4)
    up = torch.cat([values["gate_proj"], values["up_proj"]], 1)
    experts = moe_bounds.Experts(up, values["down_proj"], zeros(EXPERTS, 2 * WIDTH), zeros(EXPERTS, HIDDEN), "clamped", limit=2.0)
    moe_bounds.assert_within(found, *moe_bounds.layer(experts, x.double(), ids, weights, 0))


@torch.no_grad()
def test_more_tokens_than_one_call_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice_moe.sglang import experts

    layer = fused_moe()
    load_experts(layer, {f"{name}.weight": random(EXPERTS, *shape, seed=i, scale=0.2)
                         for i, (name, shape) in enumerate([("gate_proj", (WIDTH, HIDDEN)), ("up_proj", (WIDTH, HIDDEN)),
                                                            ("down_proj", (HIDDEN, WIDTH))])})
    x = random(10, HIDDEN, seed=9)
    whole = routed(layer, x, seed=1)[0]
    monkeypatch.setattr(experts, "TOKENS_MAX", 4)
    assert torch.equal(routed(layer, x, seed=1)[0], whole)
    assert routed(layer, x[:0], seed=1)[0].shape == (0, HIDDEN)


# ---- Refusals name their reasons, and layers are logged once ----


@pytest.mark.parametrize("more, reason", [
    (dict(activation="situ"), r"wanted an activation of gated experts \(silu, gelu, gelu_tanh\), found situ"),
    (dict(no_combine=True), "wanted a sum over the experts of a token, found no_combine"),
    (dict(apply_router_weight_on_input=True), "wanted router weights on the output of experts, found on their input"),
    (dict(params_dtype=torch.float16), "wanted bfloat16"),
    (dict(top_k=None), "wanted a top_k, found none"),
])
def test_refusals_name_the_layer_and_the_reason(more: dict, reason: str) -> None:
    with pytest.raises(RuntimeError, match=f"sluice: model.layers.0.mlp.experts: {reason}"):
        fused_moe(**more)


@pytest.mark.parametrize("more, reason", [
    (dict(a2a="deepep"), "wanted --moe-a2a-backend none, found deepep, which groups tokens by expert in its own layout"),
    (dict(a2a="mooncake"), "wanted --moe-a2a-backend none, found mooncake, "),
    (dict(enable_eplb=True), "wanted experts with a fixed placement, found --enable-eplb, which moves weights that are packed here"),
    (dict(ep_num_redundant_experts=2), "wanted no redundant experts, found 2, whose weights are placed after loading"),
])
def test_parallel_forms_are_refused(monkeypatch: pytest.MonkeyPatch, more: dict, reason: str) -> None:
    """DeepEP's one batch per expert is one of the forms of --moe-a2a-backend."""
    from sglang.srt import runtime_context
    from sluice_moe.sglang import experts

    real = runtime_context.get_exec()
    moe = types.SimpleNamespace(**{"enable_eplb": False, "ep_num_redundant_experts": 0} | {n: v for n, v in more.items() if n != "a2a"})
    monkeypatch.setattr(runtime_context, "get_exec", lambda: types.SimpleNamespace(moe=moe, deterministic=real.deterministic))
    monkeypatch.setattr(experts, "get_moe_a2a_backend", lambda: types.SimpleNamespace(value=more.get("a2a", "none")))
    with pytest.raises(RuntimeError, match=f"sluice: model.layers.0.mlp.experts: {reason}"):
        fused_moe()


def test_kernels_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_DECODE_KERNEL", "cpu.expert_gemm.panels_f32")
    monkeypatch.setenv("SLUICE_DECODE_TOKENS", "2")
    layer = fused_moe()
    load_experts(layer, {f"{name}.weight": random(EXPERTS, *shape, seed=i, scale=0.2)
                         for i, (name, shape) in enumerate([("gate_proj", (WIDTH, HIDDEN)), ("up_proj", (WIDTH, HIDDEN)),
                                                            ("down_proj", (HIDDEN, WIDTH))])})
    ran = layer.quant_method.kernels(2)
    assert [name.split(":")[0] for name in ran if "expert_gemm" in name] == ["cpu.expert_gemm.panels_f32"] * 2
    monkeypatch.setenv("SLUICE_DECODE_KERNEL", "panels_f23")
    with pytest.raises(RuntimeError, match="SLUICE_DECODE_KERNEL=panels_f23 SLUICE_DECODE_TOKENS=2: moe backend: wanted auto or one of"):
        fused_moe(prefix="other")


def test_other_quantizations_are_refused() -> None:
    from sglang.srt.layers.quantization.w4afp8 import W4AFp8Config

    config = W4AFp8Config(is_checkpoint_fp8_serialized=True, is_checkpoint_w4afp8_serialized=True, weight_block_size=[128, 128])
    with pytest.raises(RuntimeError, match="wanted experts in MXFP4 .* found W4AFp8MoEMethod of W4AFp8Config"):
        fused_moe(quant_config=config)


def test_one_line_for_each_kind_of_layer(gpt_oss: GptOss, engine: list[str]) -> None:
    gpt_oss.block(), gpt_oss.block()
    lines = [line for line in engine if "MXFP4 experts" in line and "equal layers: 8 experts, top 3, 64 x 96" in line]
    assert len(lines) == 1 and "cpu.expert_gemm." in lines[0]
