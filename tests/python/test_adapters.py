"""LoRA adapters on the experts of a layer, compared in float64 with the merged weights: W + scale * B A."""
from __future__ import annotations

import pytest
import torch

import sluice_moe
from conftest import Made, close

RANK, ADAPTERS = 4, 3


def adapter_of(made: Made, split: bool, seed: int) -> dict[str, torch.Tensor]:
    fields = made.fields
    experts, hidden, intermediate = fields["experts"], fields["hidden"], fields["intermediate"]
    random = torch.Generator().manual_seed(seed)

    def normal(*shape, scale):
        return (torch.randn(*shape, generator=random) * scale).bfloat16()

    return {"experts.up_lora_a": normal(experts, RANK * (2 if split else 1), hidden, scale=hidden**-0.5),
            "experts.up_lora_b": normal(experts, 2 * intermediate, RANK, scale=0.5),
            "experts.down_lora_a": normal(experts, RANK, intermediate, scale=intermediate**-0.5),
            "experts.down_lora_b": normal(experts, hidden, RANK, scale=0.5),
            "experts.lora_scale": torch.tensor([0.5 + 0.25 * seed])}


def merged(made: Made, adapter: dict[str, torch.Tensor], split: bool) -> Made:
    """The same layer with the adapter's update in its weights."""
    out = object.__new__(Made)
    out.__dict__.update(made.__dict__)
    out.dense = dict(made.dense)
    a, b, scale = adapter["experts.up_lora_a"].double(), adapter["experts.up_lora_b"].double(), adapter["experts.lora_scale"].double()
    if split:
        order, half = made.fields["gate_order"], b.shape[1] // 2
        up_rows = torch.zeros(b.shape[1], dtype=torch.bool)
        if order == "interleaved":
            up_rows[1::2] = True
        else:
            up_rows[half:] = True
            if order == "up_first":
                up_rows = ~up_rows
        update = torch.where(up_rows[None, :, None], b @ a[:, RANK:], b @ a[:, :RANK])
    else:
        update = b @ a
    out.dense["experts.up"] = made.dense["experts.up"] + scale * update
    out.dense["experts.down"] = made.dense["experts.down"] + scale * (adapter["experts.down_lora_b"].double() @ adapter["experts.down_lora_a"].double())
    return out


def wanted(made: Made, adapters, split, x, of_token):
    """The outputs of tokens with their adapters."""
    ids, weights = made.choice(x)
    out = made.experts(x, ids, weights)
    for index, adapter in enumerate(adapters):
        mine = of_token == index
        if mine.any():
            out[mine] = merged(made, adapter, split).experts(x[mine], ids[mine], weights[mine])
    return out, ids, weights


def fields_of(split: bool) -> dict:
    return dict(expert_lora_rank=RANK, lora_adapters=ADAPTERS, expert_lora_split=split)


@pytest.mark.parametrize("tokens", [1, 7, 64])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("expert_w, gate_order, bias", [("bf16", "gate_first", False), ("e2m1", "interleaved", True), ("bf16", "up_first", True)])
def test_a_token_gets_the_experts_with_its_adapter_merged(tokens, split, expert_w, gate_order, bias):
    made = Made(expert_w=expert_w, gate_order=gate_order, bias=bias)
    layer = made.layer(**fields_of(split))
    adapters = [adapter_of(made, split, seed) for seed in range(ADAPTERS)]
    for index, adapter in enumerate(adapters):
        layer.replace_adapter(index, adapter)
    x = made.x(tokens)
    of_token = torch.arange(tokens, dtype=torch.int32) % (ADAPTERS + 1) - 1
    want, ids, weights = wanted(made, adapters, split, x, of_token)
    assert close(layer(x, adapter=of_token), want)
    given = made.layer(input="precomputed", router_bias=False, **fields_of(split))
    for index, adapter in enumerate(adapters):
        given.replace_adapter(index, adapter)
    assert close(given(x, ids=ids, weights=weights, adapter=of_token), want), "without a router of its own"


@pytest.mark.parametrize("slices", [[dict(tp=(0, 2)), dict(tp=(1, 2))], [dict(ep=(r, 3)) for r in range(3)]])
@pytest.mark.parametrize("gate_order", ["interleaved", "gate_first", "up_first"])
def test_ranks_add_up_to_the_layer(slices, gate_order):
    made = Made(intermediate=160, gate_order=gate_order, bias=True)  # uneven ranks: 96 and 64 columns; 2, 3 and 3 experts
    adapters = [adapter_of(made, False, seed) for seed in range(ADAPTERS)]
    x, of_token = made.x(33), torch.arange(33, dtype=torch.int32) % (ADAPTERS + 1) - 1
    total = torch.zeros(x.shape, dtype=torch.float64)
    for part in slices:
        layer = made.layer(**fields_of(False), **part)
        for index, adapter in enumerate(adapters):
            layer.replace_adapter(index, adapter)
        total += layer(x, adapter=of_token).double()
    want, _, _ = wanted(made, adapters, False, x, of_token)
    assert close(total, want)


def test_adapters_are_zero_until_given_and_stay_when_weights_are_loaded_again():
    made = Made()
    layer = made.layer(**fields_of(False))
    x, of_token = made.x(9), torch.arange(9, dtype=torch.int32) % ADAPTERS
    assert close(layer(x, adapter=of_token), made.wanted(x))
    adapter = adapter_of(made, False, 1)
    layer.replace_adapter(2, adapter)
    before = layer(x, adapter=of_token)
    layer.load(made.tensors)
    assert torch.equal(layer(x, adapter=of_token), before)
    packed = layer.packed_bytes()
    other = made.layer(**fields_of(False))
    other.load_packed(packed)
    assert torch.equal(other(x, adapter=of_token), before), "packed weights have the adapters"
    assert close(layer(x, adapter=of_token), wanted(made, [{**adapter, "experts.lora_scale": torch.zeros(1)}] * 2 + [adapter], False, x, of_token)[0])


def test_bad_adapters_are_refused_by_name():
    made = Made()
    layer = made.layer(**fields_of(False))
    good = adapter_of(made, False, 1)
    with pytest.raises(sluice_moe.InvalidArgument, match="adapter: wanted 0 to 2, found 3"):
        layer.replace_adapter(3, good)
    with pytest.raises(sluice_moe.Error, match="experts.down_lora_a"):
        layer.replace_adapter(0, {k: t for k, t in good.items() if k != "experts.down_lora_a"})
    with pytest.raises(sluice_moe.Error, match=r"experts.up_lora_b.*wanted BF16\[8, 192, 4\], found BF16\[8, 4, 192\]"):
        layer.replace_adapter(0, good | {"experts.up_lora_b": good["experts.up_lora_b"].transpose(1, 2)})
    with pytest.raises(sluice_moe.Error, match="experts.up_lora_a"):
        layer.replace_adapter(0, good | {"experts.up_lora_a": good["experts.up_lora_a"] * float("nan")})
    with pytest.raises(sluice_moe.InvalidArgument, match="adapters of experts one at a time"):
        layer.load(made.tensors | {"experts.up_lora_a": good["experts.up_lora_a"]})
    with pytest.raises(sluice_moe.InvalidArgument, match="lora_adapters above 0"):
        made.layer().replace_adapter(0, good)
    with pytest.raises(sluice_moe.InvalidArgument, match="adapter"):
        layer(made.x(3))
    with pytest.raises(sluice_moe.InvalidArgument, match="expert_lora_rank and lora_adapters"):
        made.layer(expert_lora_rank=4)
    with pytest.raises(sluice_moe.InvalidArgument, match="lora_rank or expert_lora_rank and lora_adapters"):
        made.layer(lora_adapters=4)
    with pytest.raises(sluice_moe.InvalidArgument, match="lora_w: wanted bf16 or f32, found e4m3"):
        made.layer(**fields_of(False), lora_w="e4m3")
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted only tensors of adapters that the layer has.*lora_a"):
        layer.replace_adapter(0, good | {"lora_a": torch.zeros(4, 64).bfloat16()})
    with pytest.raises(sluice_moe.InvalidArgument, match="expert_lora_rank: wanted above 0"):
        made.layer().load(made.tensors | good)
    with pytest.raises(sluice_moe.InvalidArgument, match="one at a time"):
        layer.replace_expert(0, made.tensors | good)
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted weights"):
        sluice_moe.MoeLayer(device="cpu", tokens_max=8, **made.fields, **fields_of(False)).replace_adapter(0, good)
    rank = made.layer(**fields_of(False), ep=(1, 2))
    same = sluice_moe.MoeLayer(device="cpu", tokens_max=64, **made.fields, **fields_of(False), scope="range", expert_begin=4, expert_count=4)
    same.load_packed(rank.packed_bytes())
    with pytest.raises(sluice_moe.InvalidArgument, match="scope: wanted all .* found range"):
        same.replace_adapter(0, good)


def test_a_refused_adapter_changes_nothing():
    made = Made()
    layer = made.layer(**fields_of(False))
    layer.replace_adapter(0, adapter_of(made, False, 1))
    x, of_token = made.x(3), torch.tensor([0, 1, -1], dtype=torch.int32)
    before = layer(x, adapter=of_token)
    other = adapter_of(made, False, 2)
    for name in other:
        with pytest.raises(sluice_moe.Error, match=name):
            layer.replace_adapter(0, other | {name: other[name] * float("nan")})
        assert torch.equal(layer(x, adapter=of_token), before), name
    layer.replace_adapter(0, other)
    assert not torch.equal(layer(x, adapter=of_token), before)


def test_adapters_on_router_and_experts_together():
    made = Made()
    layer = sluice_moe.MoeLayer(device="cpu", tokens_max=64, lora_rank=2, **made.fields, **fields_of(False))
    random = torch.Generator().manual_seed(3)
    router = {"lora_a": torch.randn(ADAPTERS, 2, 64, generator=random).bfloat16() / 8, "lora_b": torch.randn(ADAPTERS, 8, 2, generator=random).bfloat16(),
              "lora_scale": torch.ones(ADAPTERS)}
    layer.load(made.tensors | router)
    adapter = adapter_of(made, False, 1)
    of_router = {"lora_a": torch.randn(2, 64, generator=random).bfloat16() / 8, "lora_b": torch.randn(8, 2, generator=random).bfloat16(),
                 "lora_scale": torch.tensor([0.5])}
    layer.replace_adapter(1, adapter | of_router)
    x = made.x(20)
    logits = x.double() @ made.tensors["router"].double().T
    logits += 0.5 * (x.double() @ of_router["lora_a"].double().T) @ of_router["lora_b"].double().T
    top = torch.topk(logits, 3, dim=-1)
    clear = top.values[:, 1] - top.values[:, 2] > 2**-6 * logits.abs().amax(-1)  # the choice does not depend on rounding
    want = merged(made, adapter, False).experts(x, top.indices[:, :2].to(torch.int32), torch.softmax(top.values[:, :2], -1).float())
    got = layer(x, adapter=torch.ones(20, dtype=torch.int32))
    assert clear.any() and close(got[clear], want[clear])
