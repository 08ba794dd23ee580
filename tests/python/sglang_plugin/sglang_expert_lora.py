"""Adapters on experts that Sluice runs: SGLang's LoRAManager loads them, moves them between slots and gives each token its own. Outputs are compared
with float64. test_sglang.py runs this file in one process per version."""

from __future__ import annotations

import pathlib
import types

import pytest
import torch

import moe_bounds
import sglang_engine
from moe_bounds import BF16, F32
from sglang_layers import EXPERTS, HIDDEN, WIDTH, GptOss, halves, random, zeros
from sglang_lora import Model, adapter, asked_by, loaded, reference

RANK, SLOTS, SCALE = 4, 2, 2.0
LAYER = "model.layers.0.mlp.experts"


@pytest.fixture(scope="module", autouse=True)
def settings():
    """A scheduler process with --moe-runner-backend sluice and adapters on experts."""
    sglang_engine.prepare()
    made = sglang_engine.start(*sglang_engine.asked_for_sluice(), "--enable-lora", "--lora-target-modules", "gate_up_proj", "down_proj", "o_proj",
                               "--max-lora-rank", str(RANK), "--max-loras-per-batch", str(SLOTS), "--lora-backend", "torch_native")
    sglang_engine.groups()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield made
    torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def weights() -> GptOss:
    return GptOss()


class Adapter:
    """Matrices of every expert: {(expert, "gate_proj"): (A, B), ...}; `missing`: projections and experts that it lacks."""

    SHAPES = {"gate_proj": (WIDTH, HIDDEN), "up_proj": (WIDTH, HIDDEN), "down_proj": (HIDDEN, WIDTH)}

    def __init__(self, seed: int, rank: int = RANK, missing: tuple[object, ...] = ()) -> None:
        self.rank = rank
        self.pairs = {(expert, name): (random(rank, width, seed=seed * 1000 + expert * 10 + i, scale=0.1),
                                       random(rows, rank, seed=seed * 1000 + expert * 10 + i + 5, scale=0.1))
                      for expert in range(EXPERTS) for i, (name, (rows, width)) in enumerate(self.SHAPES.items())
                      if not {expert, name} & set(missing)}

    def tensors(self, stacked: bool = False) -> dict[str, torch.Tensor]:
        """By PEFT's names. stacked: with a dimension of experts in place of their numbers."""
        out = {}
        for (expert, name), pair in self.pairs.items():
            for factor, matrix in zip("AB", pair):
                where = f"{LAYER}.{name}" if stacked else f"{LAYER}.{expert}.{name}"
                out.setdefault(f"base_model.model.{where}.lora_{factor}.weight", []).append(matrix)
        return {name: torch.stack(matrices) if stacked else matrices[0] for name, matrices in out.items()}

    def delta(self, expert: int, name: str, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(scale * B A x, the sum of its terms' magnitudes)."""
        a, b = (matrix.double() for matrix in self.pairs.get((expert, name), (torch.zeros(1, x.shape[0]), torch.zeros(self.SHAPES[name][0], 1))))
        return SCALE * (b @ (a @ x)), SCALE * (b.abs() @ (a.abs() @ x.abs()))


def wanted(weights: GptOss, x: torch.Tensor, adapters: list[Adapter | None], width: slice = slice(None),
           here: range = range(EXPERTS), down_bias: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, bound). With adapters, the products of experts are rounded to bf16 before the rest is added, and A x to two bf16 terms."""
    experts = weights.experts(width, down_bias)
    _, ids, shares = weights.wanted(x)
    y, off = zeros(len(x), HIDDEN), zeros(len(x), HIDDEN)

    def product(matrix: torch.Tensor, bias: torch.Tensor, value: torch.Tensor, value_off: torch.Tensor,
                delta: tuple[torch.Tensor, torch.Tensor], delta_off: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        plain = matrix @ value
        error = matrix.abs() @ value_off + (matrix.shape[1] + 4) * F32 * (matrix.abs() @ (value.abs() + value_off) + bias.abs())
        return plain + bias + delta[0], error + BF16 * (plain.abs() + error) + 2.0**-15 * delta[1] + delta_off

    for t in range(len(x)):
        for expert, share in zip(ids[t].tolist(), shares[t].tolist()):
            if expert not in here:
                continue
            one = adapters[t] or Adapter(0, missing=tuple(range(EXPERTS)))
            gate, up = (one.delta(expert, name, x[t]) for name in ("gate_proj", "up_proj"))
            delta = tuple(torch.cat((g[width], u[width])) for g, u in zip(gate, up))
            inside, inside_off = product(experts.up[expert], experts.up_bias[expert], x[t], torch.zeros(HIDDEN, dtype=torch.float64), delta, 0 * delta[0])
            inside, inside_off = experts.activate(inside, inside_off)
            inside_off = inside_off + (BF16 + 16 * F32) * (inside.abs() + inside_off)
            whole, whole_off = torch.zeros(WIDTH, dtype=torch.float64), torch.zeros(WIDTH, dtype=torch.float64)
            whole[width], whole_off[width] = inside, inside_off
            out, out_off = product(experts.down[expert], experts.down_bias[expert], inside, inside_off, one.delta(expert, "down_proj", whole),
                                   one.delta(expert, "down_proj", whole_off)[1])
            out_off = out_off + BF16 * (out.abs() + out_off)
            y[t] += share * out
            off[t] += abs(share) * (out_off + (weights.weights_off(x) + 8 * F32) * (out.abs() + out_off))
    return y, off + BF16 * (y.abs() + off)


class Manager:
    """The manager as ModelRunner makes it, and a model with one block of experts."""

    def __init__(self, settings: object, weights: GptOss, model: torch.nn.Module | None = None) -> None:
        import inspect

        from sglang.srt.configs.load_config import LoadConfig
        from sglang.srt.lora.lora_manager import LoRAManager
        from sluice_moe.sglang import gates

        self.model, self.ids = model or Model(weights, dense="other_proj"), {}
        gates.take_over(self.model)
        ranks = {"tp_size": 1, "tp_rank": 0} if "tp_size" in inspect.signature(LoRAManager).parameters else {}
        self.made = LoRAManager(base_model=self.model, base_hf_config=self.model.config, max_loras_per_batch=SLOTS, load_config=LoadConfig(),
                                dtype=torch.bfloat16, server_args=settings, lora_backend="torch_native", max_lora_rank=RANK,
                                target_modules=set(settings.lora_target_modules), lora_paths=[], **ranks)
        # What SGLang's kernels for adapters read, which run in no test here. It is in pinned memory, which needs a driver.
        backend = self.made.lora_backend
        backend.prepare_lora_batch = lambda *_, **__: setattr(backend, "batch_info", types.SimpleNamespace())

    @property
    def block(self) -> torch.nn.Module:
        return self.model.model.layers[0].mlp

    def load(self, name: str, path: str) -> None:
        ref = reference(path, name)
        done = self.made.load_lora_adapter(ref)
        assert done.success, done.error_message
        self.ids[name] = ref.lora_id

    def run(self, x: torch.Tensor, names: list[str | None], lengths: list[int] | None = None) -> torch.Tensor:
        """A step in which request i has the adapter names[i], and one token or lengths[i]."""
        from sglang.srt.model_executor.forward_batch_info import ForwardMode

        lora_ids = [self.ids.get(name) for name in names]
        batch = types.SimpleNamespace(lora_ids=lora_ids, batch_size=len(names), forward_mode=ForwardMode.DECODE if lengths is None else ForwardMode.EXTEND,
                                      spec_info=None, return_logprob=False)
        if lengths is not None:
            batch.extend_seq_lens_cpu, batch.extend_seq_lens = lengths, torch.tensor(lengths, dtype=torch.int32)
            batch.extend_num_tokens = sum(lengths)
        self.made.fetch_new_loras(set(lora_ids))
        self.made.prepare_lora_batch(batch)
        with torch.no_grad():
            return self.block(x)


def saved(folder: pathlib.Path, made: Adapter, targets: list[str], stacked: bool = False) -> str:
    return adapter(folder, {}, targets, made.tensors(stacked), made.rank)


TARGETS = ["gate_proj", "up_proj", "down_proj"]


def test_each_token_has_its_adapter(settings: object, weights: GptOss, tmp_path: pathlib.Path) -> None:
    known = {"one": Adapter(1), "low": Adapter(2, rank=2), "part": Adapter(3, missing=("down_proj", 3))}
    manager = Manager(settings, weights)
    assert type(manager.block.experts).__name__ == "ExpertsWithLoRA" and manager.block.experts.quant_method.room == (SLOTS, RANK)
    for name, made in known.items():
        manager.load(name, saved(tmp_path / name, made, TARGETS))
    x = random(6, HIDDEN, seed=5)

    def check(names: list[str | None], lengths: list[int] | None = None) -> None:
        tokens = [name for name, count in zip(names, lengths or [1] * len(names)) for _ in range(count)]
        found = manager.run(x[: len(tokens)], names, lengths)
        value, bound = wanted(weights, x[: len(tokens)].double(), [known.get(name) for name in tokens])
        moe_bounds.assert_within(found, value, bound)
        plain, _ = wanted(weights, x[: len(tokens)].double(), [None] * len(tokens))
        assert ((value - plain).abs() > 2 * bound).any(1).tolist() == [name is not None for name in tokens]  # or the check would say nothing

    check([None] * 6)
    check(["one", "low"] * 3)
    check(["one", "low", "one"], [3, 1, 2])
    check(["part", None, "part", "part", None, "part"])  # takes a slot
    check(["low", "part", "low", "part"])
    check(["one", None], [1, 5])
    check([None] * 3)
    check(["one"] * 2)


def test_matrices_with_a_dimension_of_experts(settings: object, weights: GptOss, tmp_path: pathlib.Path) -> None:
    made, manager = Adapter(4), Manager(settings, weights)
    manager.load("one", saved(tmp_path / "one", made, TARGETS, stacked=True))
    x = random(4, HIDDEN, seed=6)
    moe_bounds.assert_within(manager.run(x, ["one"] * 4), *wanted(weights, x.double(), [made] * 4))


def test_more_tokens_than_a_call_takes(settings: object, weights: GptOss, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sluice_moe.sglang import experts

    made, manager = Adapter(5), Manager(settings, weights)
    manager.load("one", saved(tmp_path / "one", made, TARGETS))
    monkeypatch.setattr(experts, "TOKENS_MAX", 4)
    x = random(10, HIDDEN, seed=7)
    found = manager.run(x, [None, "one"], [3, 7])
    moe_bounds.assert_within(found, *wanted(weights, x.double(), [None] * 3 + [made] * 7))


@pytest.mark.parametrize("size", [2, 3])
def test_tensor_parallel_ranks_add_up(settings: object, weights: GptOss, tmp_path: pathlib.Path, size: int) -> None:
    made = Adapter(6)
    path, x = saved(tmp_path / "one", made, TARGETS), random(5, HIDDEN, seed=8)
    blocks = -(-(WIDTH // 32) // size) * 32
    found, value, bound = zeros(5, HIDDEN), zeros(5, HIDDEN), zeros(5, HIDDEN)
    for rank in range(size):
        with sglang_engine.rank(tp=(rank, size)):
            manager = Manager(settings, weights)
            manager.load("one", path)
            found += manager.run(x, ["one"] * 5).double()
        parts = wanted(weights, x.double(), [made] * 5, slice(rank * blocks, min((rank + 1) * blocks, WIDTH)), down_bias=rank == 0)
        value, bound = value + parts[0], bound + parts[1]
    whole, _ = wanted(weights, x.double(), [made] * 5)
    torch.testing.assert_close(value, whole, rtol=1e-12, atol=1e-12)
    moe_bounds.assert_within(found, whole, bound)


@pytest.mark.parametrize("size", [2, 4])
def test_expert_parallel_ranks_have_their_adapters(settings: object, weights: GptOss, tmp_path: pathlib.Path, size: int) -> None:
    made, each = Adapter(7), EXPERTS // size
    path, x = saved(tmp_path / "one", made, TARGETS), random(5, HIDDEN, seed=9)
    for rank in range(size):
        with sglang_engine.rank(ep=(rank, size)):
            manager = Manager(settings, weights)
            manager.load("one", path)
            found = manager.run(x, ["one"] * 5)
        value, bound = wanted(weights, x.double(), [made] * 5, here=range(rank * each, (rank + 1) * each))
        error = (found.double() - value).abs()
        assert (error <= bound).all(), f"rank {rank}: {(error / bound).max():.3g} of the bound"


@pytest.mark.parametrize("name, shape, why", [
    (f"{LAYER}.8.down_proj", (HIDDEN, WIDTH), "wanted an expert below 8"),
    (f"{LAYER}.1.down_proj", (HIDDEN, WIDTH + 32), f"wanted rank x {WIDTH}, found {RANK} x {WIDTH + 32}"),
    (f"{LAYER}.1.gate_up_proj", (WIDTH, HIDDEN), f"wanted {2 * WIDTH} x rank, found {WIDTH} x {RANK}"),
    (LAYER, (HIDDEN, WIDTH), "wanted gate_up_proj or gate_proj, up_proj and down_proj, by expert or with a dimension of experts"),
], ids=["expert", "width", "rows", "flat"])
def test_an_adapter_that_does_not_fit_is_refused_alone(settings: object, weights: GptOss, tmp_path: pathlib.Path, name: str, shape: tuple[int, int],
                                                       why: str) -> None:
    manager = Manager(settings, weights)
    bad = adapter(tmp_path / "bad", {name: shape}, ["down_proj"])
    done = loaded(manager.made, bad, "file", "bad")
    assert not done.success
    assert done.error_message.startswith(f"sluice: LoRA adapter bad: base_model.model.{name}.lora_") and why in done.error_message
    assert done.error_message.endswith(f"or serve without {asked_by()}")
    assert not manager.made.loras and not manager.made.configs
    good = Adapter(8)
    manager.load("good", saved(tmp_path / "good", good, TARGETS))
    x = random(2, HIDDEN, seed=10)
    moe_bounds.assert_within(manager.run(x, ["good"] * 2), *wanted(weights, x.double(), [good] * 2))


def spoiled(name: str) -> tuple[dict[str, torch.Tensor], str]:
    """Tensors of an adapter whose config has RANK, and why they are refused."""
    tensors = Adapter(1, rank=2 if name == "ranks" else RANK).tensors()
    down = next(key for key in tensors if f"{LAYER}.3.down_proj.lora_B" in key)
    if name == "one rank":
        tensors |= {key: tensor for key, tensor in Adapter(1, rank=2).tensors().items() if f"{LAYER}.3." in key}
    if "rank" in name:
        return tensors, f"wanted the rank {RANK} of the adapter's config, found 2"
    tensors[down] = tensors[down].float()
    tensors[down][0, 0] = float("nan") if name == "NaN" else 3.4e38
    return tensors, "wanted numbers that are finite in bf16, found others"


@pytest.mark.parametrize("name", ["ranks", "one rank", "NaN", "too large"])
def test_what_would_fail_in_a_step_is_refused_when_it_is_loaded(settings: object, weights: GptOss, tmp_path: pathlib.Path, name: str) -> None:
    """With another rank than the config's, also the scale would be wrong."""
    manager, (tensors, why) = Manager(settings, weights), spoiled(name)
    done = loaded(manager.made, adapter(tmp_path / "bad", {}, TARGETS, tensors), "file", "bad")
    assert not done.success and why in done.error_message
    assert not manager.made.loras


def test_a_load_that_fails_leaves_nothing_behind(settings: object, weights: GptOss, tmp_path: pathlib.Path) -> None:
    manager, x = Manager(settings, weights), random(4, HIDDEN, seed=11)
    attention = "model.layers.0.self_attn.o_proj"
    wrong = {f"base_model.model.{attention}.lora_A.weight": random(RANK, HIDDEN + 8, seed=1),
             f"base_model.model.{attention}.lora_B.weight": random(HIDDEN, RANK, seed=2)}
    manager.load("bad", adapter(tmp_path / "bad", {}, [*TARGETS, "o_proj"], Adapter(1).tensors() | wrong))
    with pytest.raises(AssertionError):
        manager.run(x, ["bad"] * 4)
    manager.load("good", adapter(tmp_path / "good", {attention: (HIDDEN, HIDDEN)}, ["o_proj"]))
    moe_bounds.assert_within(manager.run(x, ["good"] * 4), *wanted(weights, x.double(), [None] * 4))


def test_one_matrix_for_all_experts_may_have_a_number(settings: object, weights: GptOss, tmp_path: pathlib.Path) -> None:
    """--experts-shared-outer-loras."""
    made, manager, x = Adapter(12), Manager(settings, weights), random(4, HIDDEN, seed=12)
    tensors = made.tensors()
    for expert in range(EXPERTS):
        for name, outer in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
            pair = list(made.pairs[expert, name])
            pair[outer] = made.pairs[0, name][outer]
            made.pairs[expert, name] = tuple(pair)
            if expert:
                tensors.pop(f"base_model.model.{LAYER}.{expert}.{name}.lora_{'AB'[outer]}.weight")
    manager.made.memory_pool.experts_shared_outer_loras = True
    manager.load("one", adapter(tmp_path / "one", {}, TARGETS, tensors))
    moe_bounds.assert_within(manager.run(x, ["one"] * 4), *wanted(weights, x.double(), [made] * 4))


def test_sglang_allocates_for_captured_graphs(settings: object, weights: GptOss) -> None:
    """As ModelRunner does at the start unless graphs are disabled. No layer reads these buffers."""
    import inspect

    from sglang.srt.lora.lora_manager import init_lora_cuda_graph_moe_buffers
    from sglang.srt.runtime_context import get_exec

    manager = Manager(settings, weights)
    graphs = types.SimpleNamespace(decode=types.SimpleNamespace(max_bs=4))
    given = {"model": manager.model, "lora_manager": manager.made, "dtype": torch.bfloat16}
    if "server_args" in inspect.signature(init_lora_cuda_graph_moe_buffers).parameters:  # 0.5.17
        flags = types.SimpleNamespace(cuda_graph_config=graphs, max_loras_per_batch=SLOTS, speculative_num_draft_tokens=None)
        init_lora_cuda_graph_moe_buffers(**given, server_args=flags)
    else:
        with get_exec().graph.override(cuda_graph_config=graphs):
            init_lora_cuda_graph_moe_buffers(**given)


def test_an_adapter_on_the_gate_is_refused(settings: object, weights: GptOss, tmp_path: pathlib.Path) -> None:
    manager = Manager(settings, weights)
    done = loaded(manager.made, adapter(tmp_path / "bad", {"model.layers.0.mlp.router": (EXPERTS, HIDDEN)}, ["o_proj"]), "file", "bad")
    assert not done.success and "wanted no weights for gates, or for experts without room for adapters, that Sluice runs" in done.error_message


def test_the_pool_holds_no_copy_of_the_adapters(settings: object, weights: GptOss) -> None:
    pool = Manager(settings, weights).made.memory_pool
    for buffers in (pool.A_buffer, pool.B_buffer):
        for name in ("gate_up_proj_moe", "down_proj_moe"):
            assert {buffer.shape[:2] for buffer in buffers[name]} == {(SLOTS, 1)}


@pytest.mark.parametrize("flag", ["dp-attention", "two-batch-overlap"])
def test_tokens_in_another_order_end_the_start(settings: object, weights: GptOss, flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.runtime_context import get_flags, get_parallel

    with monkeypatch.context() as changed:
        if flag == "dp-attention":
            # From 0.5.22 on SGLang clears the flag and sets attn_dp_enabled.
            name = "attn_dp_enabled" if hasattr(get_parallel(), "attn_dp_enabled") else "enable_dp_attention"
            changed.setitem(get_parallel()._overrides, name, True)
            changed.setitem(vars(get_parallel()._config), name, True)  # where 0.5.17 reads it
        else:
            changed.setattr(get_flags().moe, "tbo_enabled", True)
        model = Model(weights, dense="other_proj")
    with pytest.raises(RuntimeError) as why:
        Manager(settings, weights, model)
    assert str(why.value) == (
        f"sluice: {LAYER}: wanted LoRA target modules without experts that Sluice runs, found down_proj, gate_up_proj (wanted LoRA on experts without "
        f"--enable-{flag}, with which tokens reach the experts in another order than their adapters): name other modules in --lora-target-modules, or "
        f"serve without {asked_by()}")


def test_the_adapters_of_the_command_line_say_the_room(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sglang.srt.runtime_context as context
    from sluice_moe.sglang import expert_lora

    flags = types.SimpleNamespace(enable_lora=True, lora_target_modules=None, max_lora_rank=None, max_loras_per_batch=3, lora_paths=[])
    monkeypatch.setattr(context, "get_lora", lambda: flags)
    assert expert_lora.room() is None
    flags.lora_paths = [reference(saved(tmp_path / "attention", Adapter(9, rank=2), ["o_proj"]))]
    assert expert_lora.room() is None
    flags.lora_paths.append(reference(saved(tmp_path / "experts", Adapter(9, rank=3), TARGETS)))
    assert expert_lora.room() == (3, 3)
    flags.max_lora_rank = 4
    assert expert_lora.room() == (3, 4)
    flags.lora_target_modules = {"o_proj"}
    assert expert_lora.room() is None
    flags.lora_target_modules = {"gate_proj", "up_proj", "down_proj"}  # SGLang's modules are gate_up_proj and down_proj
    assert expert_lora.room() == (3, 4)
    flags.lora_target_modules = {"all"}
    assert expert_lora.room() == (3, 4)
    flags.enable_lora = False
    assert expert_lora.room() is None
