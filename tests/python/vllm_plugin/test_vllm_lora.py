"""LoRA on routed experts: vLLM's LoRA manager loads adapters into vLLM's layers on Sluice. Outputs are compared with float64, each token with its
adapter."""
import types

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm", reason="these tests want vLLM (./dev test-python)")

from sluice_moe.vllm import lora, method, report  # noqa: E402
from sluice_moe.lora_tensors import AdapterSizes, adapter_tensors, halves, joined, no_adapter  # noqa: E402
from test_vllm_fp8 import GivenFp8, config_of  # noqa: E402
from test_vllm_fp8 import load as load_fp8  # noqa: E402
from test_vllm_layers import EXPERTS, HIDDEN, INSIDE, Given, choice, load, load_some, reload, runner_of, vllm_config  # noqa: E402,F401

SLOTS, MAX_RANK, SCALE = 3, 8, 2.0
NAMES = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
TOKENS = 16
ORDER = {"halves": "gate_first", "alternating": "interleaved"}


class Adapter:
    """An adapter's matrices by expert. `form`: "separate" matrices of the projections; or gate and up as one, whose rows are "halves" or "alternating"."""

    def __init__(self, form: str, rank: int, seed: int, experts: int = EXPERTS, hidden: int = HIDDEN, inside: int = INSIDE):
        draw = torch.Generator().manual_seed(seed)
        self.form, self.rank, self.experts, self.a, self.b = form, rank, experts, {}, {}
        for expert in range(experts):
            for name, rows, width in (("w1", inside, hidden), ("w3", inside, hidden), ("w2", hidden, inside)):
                shared = name == "w3" and form != "separate"  # one matrix has one A
                self.a[expert, name] = self.a[expert, "w1"] if shared else (torch.randn(rank, width, generator=draw) / width**0.5).bfloat16()
                self.b[expert, name] = (torch.randn(rows, rank, generator=draw) / rank**0.5 / 2).bfloat16()

    def stacked(self, which: dict, name: str) -> torch.Tensor:
        return torch.stack([which[expert, name] for expert in range(self.experts)])

    def tensors(self) -> dict[str, torch.Tensor]:
        """The adapter as PEFT writes it."""
        at, out = "base_model.model.mlp.experts", {}
        if self.form == "separate":
            for expert, name in self.a:
                out[f"{at}.{expert}.{NAMES[name]}.lora_A.weight"] = self.a[expert, name]
                out[f"{at}.{expert}.{NAMES[name]}.lora_B.weight"] = self.b[expert, name]
            return out
        up = joined(self.stacked(self.b, "w1"), self.stacked(self.b, "w3"), ORDER[self.form])
        for where, name, b in ((f"{at}.base_layer", "w1", up), (at, "w2", self.stacked(self.b, "w2"))):
            out[f"{where}.lora_A.weight"] = self.stacked(self.a, name).flatten(0, 1)
            out[f"{where}.lora_B.weight"] = b.permute(1, 2, 0).flatten(1)  # [rows, rank * experts]
        return out


def wanted(given, x, ids, weights, adapters, limit=None, alpha=1.0, beta=0.0, biases=None):
    """(outputs, bounds) float64 [tokens, hidden]; `adapters`: of each token, or None. Rounded to bf16 are the experts' products, the values between
    them, and the output."""
    eps, out, bound = 2.0**-8, torch.zeros(x.shape, dtype=torch.float64), torch.zeros(x.shape, dtype=torch.float64)

    def product(adapter, expert, name, value):
        base = given.dense[expert, name] @ value
        whole = base + (biases[expert, name].double() if biases else 0)
        if adapter is not None:
            whole = whole + SCALE * (adapter.b[expert, name].double() @ (adapter.a[expert, name].double() @ value))
        return whole, eps * (base.abs() + whole.abs())

    for t, adapter in enumerate(adapters):
        for expert, weight in zip(ids[t].tolist(), weights[t].double()):
            if expert < 0:
                continue
            (gate, of_gate), (up, of_up) = (product(adapter, expert, name, x[t].double()) for name in ("w1", "w3"))
            if limit:
                gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            bent, up = gate * torch.sigmoid(alpha * gate), up + beta
            inside = bent * up
            of_inside = 1.1 * of_gate * up.abs() + bent.abs() * of_up + eps * inside.abs()  # 1.1: the steepest slope of gate * sigmoid(alpha * gate)
            answer, of_answer = product(adapter, expert, "w2", inside)
            of_answer = of_answer + given.dense[expert, "w2"].abs() @ of_inside
            if adapter is not None:
                of_answer += SCALE * (adapter.b[expert, "w2"].double().abs() @ (adapter.a[expert, "w2"].double().abs() @ of_inside))
            out[t] += weight * answer
            bound[t] += weight * of_answer
    return out, bound + out.abs() * eps


# ---- vLLM's manager ----


@pytest.fixture
def with_lora(vllm_config, monkeypatch):  # noqa: F811
    """A function that makes the engine's config one with --enable-lora."""
    import vllm.lora.model_manager as model_manager
    from vllm.config import LoRAConfig

    for name in ("get_supported_lora_modules", "from_layer"):
        monkeypatch.setattr(model_manager, name, getattr(model_manager, name))
    monkeypatch.setattr(report, "_logged", set())

    def enable(form: str = "separate", **more):
        given = {"max_lora_rank": MAX_RANK, "max_loras": SLOTS, "max_cpu_loras": 2 * SLOTS, "lora_dtype": torch.bfloat16}
        monkeypatch.setattr(vllm_config, "lora_config", LoRAConfig(**(given | more)))
        monkeypatch.setattr(lora, "get_model_cls", lambda config: types.SimpleNamespace(is_3d_moe_weight=form != "separate"))

    return enable


class Model(torch.nn.Module):
    """A model with one layer of experts, as vLLM's LoRA wants it."""

    packed_modules_mapping: dict = {}
    embedding_modules: dict = {}
    is_non_gated_moe = False

    def __init__(self, runner, form: str):
        super().__init__()
        self.is_3d_moe_weight = form != "separate"
        self.config = types.SimpleNamespace(architectures=["GptOssForCausalLM" if form == "alternating" else "Qwen3VLMoeForConditionalGeneration"])
        self.mlp = torch.nn.Module()
        self.mlp.experts = runner


class Manager:
    """vLLM's LoRA manager of a model with one layer."""

    def __init__(self, config, runner, form: str):
        from vllm.lora.model_manager import LRUCacheLoRAModelManager

        self.layer = runner.routed_experts
        self.theirs = LRUCacheLoRAModelManager(Model(runner, form), max_num_seqs=TOKENS, max_num_batched_tokens=512, vocab_size=512, vllm_config=config,
                                               lora_config=config.lora_config, device=torch.device("cpu"))

    def add(self, number: int, tensors: dict[str, torch.Tensor], rank: int, joined: bool = False) -> None:
        from vllm.lora.lora_model import LoRAModel
        from vllm.lora.peft_helper import PEFTHelper

        peft = PEFTHelper(r=rank, lora_alpha=int(SCALE * rank), target_modules=["experts"])
        made = LoRAModel.from_lora_tensors(number, dict(tensors), peft, device="cpu", dtype=torch.bfloat16)
        made.is_3d_lora_weight = joined
        self.theirs.add_adapter(made)
        self.theirs.activate_adapter(number)

    def run(self, x, ids, weights, numbers: list[int]) -> torch.Tensor:
        """`numbers`: of the adapters of the first tokens, 0: none. The tokens behind them are padding."""
        from vllm.lora.layers import LoRAMapping

        self.theirs.set_adapter_mapping(LoRAMapping(tuple(numbers), tuple(numbers), is_prefill=True))
        return self.layer.quant_method.apply(self.layer, x, weights, ids, None, None).double()


def load_alternating(layer, given: Given) -> dict:
    """Loads MXFP4 experts as in gpt-oss's checkpoints, and returns their biases."""
    draw = torch.Generator().manual_seed(6)
    biases = {key: (torch.randn(dense.shape[0], generator=draw) / 4).bfloat16() for key, dense in given.dense.items()}

    def all_of(name, get):
        return torch.stack([get((expert, name)) for expert in range(EXPERTS)])

    for part, get in (("weight", lambda key: given.tensors[key][0]), ("weight_scale", lambda key: given.tensors[key][1].view(torch.uint8)),
                      ("bias", lambda key: biases[key][:, None])):
        up, down = joined(all_of("w1", get), all_of("w3", get), "interleaved"), all_of("w2", get)
        for name, tensor in ((f"w13_{part}", up), (f"w2_{part}", down)):
            parameter = getattr(layer, name)
            parameter.data.copy_(tensor.view(parameter.shape))
    layer.quant_method.process_weights_after_loading(layer)
    return biases


CASES = {  # kind, form, arguments of wanted(), arguments of the layer
    "bf16": ("bf16", "separate", {}, {}),
    "clamped": ("mxfp4", "separate", {"limit": 1.5}, {"swiglu_limit": 1.5}),
    "one matrix": ("bf16", "halves", {}, {}),
    "gpt-oss": ("gpt_oss", "alternating", {"limit": 7.0, "alpha": 1.702, "beta": 1.0}, {"activation": "swigluoai", "has_bias": True})}


def case(name: str, prefix: str):
    """(runner, weights, form, arguments of wanted())."""
    kind, form, formula, more = CASES[name]
    runner, given = runner_of(kind, f"{prefix}.{name}", **more), Given("bf16" if kind == "bf16" else "mxfp4")
    if kind == "gpt_oss":
        return runner, given, form, formula | {"biases": load_alternating(runner.routed_experts, given)}
    load(runner.routed_experts, given)
    return runner, given, form, formula


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_each_token_has_its_adapter(vllm_config, with_lora, name):  # noqa: F811
    with_lora(CASES[name][1])
    runner, given, form, formula = case(name, "adapters")
    manager, x_ids_weights = Manager(vllm_config, runner, form), choice(TOKENS)
    known = {7: Adapter(form, MAX_RANK, 1), 4: Adapter(form, 3, 2), 9: Adapter(form, 1, 3), 5: Adapter(form, 5, 4)}

    def check(numbers: list[int]) -> None:
        numbers = numbers * (TOKENS // len(numbers))
        got = manager.run(*x_ids_weights, numbers)
        out, bound = wanted(given, *x_ids_weights, [known.get(n) for n in numbers], **formula)
        assert ((got - out).abs() <= bound).all()
        plain, _ = wanted(given, *x_ids_weights, [None] * TOKENS, **formula)
        changed = ((out - plain).abs() > 2 * bound).any(1)
        assert changed.tolist() == [n in known for n in numbers]  # or the comparison would say nothing

    check([0])
    for number in (7, 4):
        manager.add(number, known[number].tensors(), known[number].rank)
    check([7, 0, 4, 4])
    for number in (9, 5):  # one more than there is room for: 7 leaves
        manager.add(number, known[number].tensors(), known[number].rank)
    check([5, 9, 4, 0])
    other = {f"base_model.model.mlp.other.lora_{n}.weight": torch.ones(2, 2) for n in "AB"}
    manager.add(8, other, 2)  # in the place of 4, without weights for experts
    check([8, 5, 9, 0])
    # Padding behind the tokens has no adapter.
    got = manager.run(*x_ids_weights, [5] * 4)
    out, bound = wanted(given, *x_ids_weights, [known[5]] * 4 + [None] * (TOKENS - 4), **formula)
    assert ((got - out).abs() <= bound).all()


@pytest.mark.parametrize("name", ["blocks", "ct_channel"])
@torch.no_grad()
def test_fp8_experts(vllm_config, with_lora, name):  # noqa: F811
    with_lora()
    from test_vllm_fp8 import EXPERTS as count
    from test_vllm_fp8 import HIDDEN as hidden
    from test_vllm_fp8 import INSIDE as inside
    from test_vllm_fp8 import SIZES

    runner, given = runner_of(config_of(name), f"lora.{name}", **SIZES), GivenFp8(name)
    load_fp8(runner.routed_experts, given)
    adapter, manager = Adapter("separate", 4, 1, count, hidden, inside), Manager(vllm_config, runner, "separate")
    manager.add(2, adapter.tensors(), 4)
    x_ids_weights = choice(TOKENS, hidden, count)
    out, bound = wanted(given, *x_ids_weights, [adapter, None] * (TOKENS // 2))
    assert ((manager.run(*x_ids_weights, [2, 0] * (TOKENS // 2)) - out).abs() <= bound).all()


@pytest.mark.parametrize("here", [[4, 5, 6, 7], [1, 3, 5, 7], [7, 0]], ids=str)
@torch.no_grad()
def test_some_of_the_experts(vllm_config, with_lora, here):  # noqa: F811
    """Ranks of expert parallelism: the adapter's matrices of these experts are used."""
    with_lora()
    runner, given = runner_of("mxfp4", f"lora.some.{here}"), Given("mxfp4")
    load_some(runner.routed_experts, given, here)
    adapter, manager = Adapter("separate", MAX_RANK, 1), Manager(vllm_config, runner, "separate")
    manager.add(1, adapter.tensors(), MAX_RANK)
    x, ids, weights = choice(TOKENS)
    out, bound = wanted(given, x, torch.where(torch.isin(ids, torch.tensor(here)), ids, -1), weights, [adapter] * TOKENS)
    assert ((manager.run(x, ids, weights, [1] * TOKENS) - out).abs() <= bound).all()


@torch.no_grad()
def test_adapters_survive_a_reload_of_the_weights(vllm_config, with_lora):  # noqa: F811
    with_lora()
    runner, second = runner_of("bf16", "lora.reload"), Given("bf16", seed=2)
    adapter, kept = Adapter("separate", 4, 1), []

    def first() -> None:
        load(runner.routed_experts, Given("bf16"))
        kept.append(Manager(vllm_config, runner, "separate"))
        kept[0].add(1, adapter.tensors(), 4)

    reload(runner.routed_experts, first, lambda: load(runner.routed_experts, second))
    x_ids_weights = choice(TOKENS)
    out, bound = wanted(second, *x_ids_weights, [adapter] * TOKENS)
    assert ((kept[0].run(*x_ids_weights, [1] * TOKENS) - out).abs() <= bound).all()


@pytest.mark.parametrize("name", ["bf16", "gpt-oss"])
@torch.no_grad()
def test_adapters_of_the_warm_up_add_nothing(vllm_config, with_lora, name):  # noqa: F811
    with_lora(CASES[name][1])
    runner, given, form, formula = case(name, "warm")
    manager = Manager(vllm_config, runner, form)
    for number in range(1, SLOTS + 1):
        manager.theirs.add_adapter(manager.theirs.create_dummy_lora(number, MAX_RANK, {}))
        manager.theirs.activate_adapter(number)
    x_ids_weights = choice(TOKENS)
    out, bound = wanted(given, *x_ids_weights, [None] * TOKENS, **formula)
    assert ((manager.run(*x_ids_weights, [1, 2, 3, 0] * (TOKENS // 4)) - out).abs() <= bound).all()


@torch.no_grad()
def test_both_forms_in_one_engine(vllm_config, with_lora):  # noqa: F811
    """--enable-mixed-moe-lora-format."""
    with_lora("alternating", enable_mixed_moe_lora_format=True)
    runner, given, form, formula = case("gpt-oss", "mixed")
    manager = Manager(vllm_config, runner, form)
    known = {1: Adapter("separate", 4, 1), 2: Adapter("alternating", MAX_RANK, 2)}
    for number, adapter in known.items():
        manager.add(number, adapter.tensors(), adapter.rank, joined=adapter.form != "separate")
    x_ids_weights, numbers = choice(TOKENS), [1, 2, 0, 2] * (TOKENS // 4)
    out, bound = wanted(given, *x_ids_weights, [known.get(n) for n in numbers], **formula)
    assert ((manager.run(*x_ids_weights, numbers) - out).abs() <= bound).all()


# ---- An adapter's tensors ----

WHOLE = AdapterSizes(experts=2, hidden=8, intermediate=12, rank=4, gated=True, split=True, gate_order="gate_first", first=0, width=12)


def matrices(rank: int = 4, experts: int = 2):
    draw = torch.Generator().manual_seed(1)
    sizes = ((8, 12), (12, 8), (8, 12))  # gate, down, up
    return ([torch.randn(experts, rank, width, generator=draw).bfloat16() for width, _ in sizes],
            [torch.randn(experts, rows, rank, generator=draw).bfloat16() for _, rows in sizes])


@pytest.mark.parametrize("order", ["gate_first", "up_first", "interleaved"])
def test_ranks_of_tensor_parallelism_have_slices(order):
    """Three ranks of 8, 4 and no columns: the rest are zeros."""
    a, b = matrices()
    parts = [adapter_tensors(WHOLE._replace(gate_order=order, first=8 * rank, width=8), a, b) for rank in range(3)]
    for part in parts:
        assert torch.equal(part["experts.up_lora_a"], torch.cat([a[0], a[2]], 1)) and torch.equal(part["experts.down_lora_b"], b[1])
    rows = [halves(part["experts.up_lora_b"], order == "interleaved") for part in parts]
    gate, up = (torch.cat([of_rank[i] for of_rank in rows], 1) for i in ((1, 0) if order == "up_first" else (0, 1)))
    down = torch.cat([part["experts.down_lora_a"] for part in parts], 2)
    assert torch.equal(gate[:, :12], b[0]) and torch.equal(up[:, :12], b[2]) and torch.equal(down[..., :12], a[1])
    assert not gate[:, 12:].any() and not up[:, 12:].any() and not down[..., 12:].any()


def test_smaller_ranks_are_filled_with_zeros():
    a, b = matrices(rank=3)
    made = adapter_tensors(WHOLE, a, b)
    assert {n: tuple(t.shape) for n, t in made.items()} == {
        "experts.up_lora_a": (2, 8, 8), "experts.up_lora_b": (2, 24, 4), "experts.down_lora_a": (2, 4, 12), "experts.down_lora_b": (2, 8, 4),
        "experts.lora_scale": (1,)}
    assert torch.equal(made["experts.up_lora_a"][:, 4:7], a[2]) and not made["experts.up_lora_a"][:, 3].any()
    assert torch.equal(made["experts.down_lora_b"][..., :3], b[1]) and not made["experts.down_lora_b"][..., 3].any()


def test_matrices_of_all_experts_in_one():
    """--enable-moe-shared-loras: one A of gate and up, and one B of down, for all experts."""
    a, b = matrices()
    shared = adapter_tensors(WHOLE, [a[0][:1], a[1], a[2][:1]], [b[0], b[1][:1], b[2]])
    every = adapter_tensors(WHOLE, [a[0][:1].expand(2, -1, -1), a[1], a[2][:1].expand(2, -1, -1)], [b[0], b[1][:1].expand(2, -1, -1), b[2]])
    assert all(torch.equal(shared[name], tensor) for name, tensor in every.items())


def test_experts_without_a_gate():
    a, b = matrices()
    made = adapter_tensors(WHOLE._replace(gated=False, split=False), [a[0], a[1], a[0]], [b[0], b[1], b[0]])
    assert torch.equal(made["experts.up_lora_a"], a[0]) and torch.equal(made["experts.up_lora_b"], b[0])


@pytest.mark.parametrize("sizes", [WHOLE, WHOLE._replace(split=False), WHOLE._replace(gated=False, split=False), WHOLE._replace(held=(1,))], ids=str)
def test_no_adapter_has_the_shapes_of_one(sizes):
    a, b = matrices()
    made = adapter_tensors(sizes, a if sizes.split else [a[0], a[1], a[0]], b)
    nothing = no_adapter(sizes)
    assert {n: (t.shape, t.dtype) for n, t in made.items()} == {n: (t.shape, t.dtype) for n, t in nothing.items()}
    assert not any(t.any() for n, t in nothing.items() if "scale" not in n)


def test_wrong_adapters_are_named():
    a, b = matrices()
    with pytest.raises(ValueError, match=r"up_proj.lora_B: wanted \[2, 12, 4\], found \[2, 11, 4\]"):
        adapter_tensors(WHOLE, a, [b[0], b[1], b[2][:, :11]])
    with pytest.raises(ValueError, match=r"gate_proj.lora_A: wanted \[2, 4, 8\], found \[3, 4, 8\]"):
        adapter_tensors(WHOLE, [a[0].repeat(2, 1, 1)[:3], *a[1:]], b)
    with pytest.raises(ValueError, match=r"wanted a rank of at most 2 \(--max-lora-rank\), found 4"):
        adapter_tensors(WHOLE._replace(rank=2), a, b)
    with pytest.raises(ValueError, match="wanted one A for gate_proj and up_proj"):
        adapter_tensors(WHOLE._replace(split=False), a, b)


# ---- Refusals ----


@torch.no_grad()
def test_what_cannot_have_adapters_says_every_reason(vllm_config, with_lora):  # noqa: F811
    import dataclasses

    layer = runner_of("bf16", "lora.refused").routed_experts
    with_lora(lora_dtype=torch.float16)
    parallel = dataclasses.replace(layer.moe_config.moe_parallel_config, dp_size=2, enable_eplb=True)
    layer.moe_config = dataclasses.replace(layer.moe_config, moe_parallel_config=parallel)
    reasons = method.why_not(layer, "model.layers.0.mlp.experts", "bf16", 64, torch.device("cpu"))
    assert [r.split(",")[0] for r in reasons] == ["wanted LoRA on experts in bf16", "wanted LoRA on experts without data parallelism",
                                                  "wanted LoRA on experts without --enable-eplb"]
    assert all(r.endswith("use --lora-target-modules without experts") for r in reasons)
    with_lora(lora_dtype=torch.float16, target_modules=["o_proj"])
    assert method.why_not(layer, "model.layers.0.mlp.experts", "bf16", 64, torch.device("cpu")) == []


@torch.no_grad()
def test_the_layers_own_reason_names_adapters(vllm_config, with_lora):  # noqa: F811
    with_lora()
    layer = runner_of("bf16", "lora.on_input").routed_experts
    layer.apply_router_weight_on_input = True
    (reason,) = method.why_not(layer, "model.layers.0.mlp.experts", "bf16", 64, torch.device("cpu"))
    assert reason.startswith("LoRA on experts: ") and "weight_on_input" in reason and reason.endswith("without experts")
