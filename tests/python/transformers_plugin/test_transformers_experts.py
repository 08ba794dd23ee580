"""Experts of transformers' models on Sluice, module by module: every class in the registry, compared with itself in float64."""
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import sluice_moe
import sluice_moe.transformers as hf
from experts_in_float64 import bound, reference
from experts_of_transformers import CLASSES, EXPERTS, HIDDEN, INTERMEDIATE, Config, fill, inputs, made
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS, use_experts_implementation

# Experts that Sluice cannot compute, and the refusal's message.
REFUSED = {"MuseSparkExperts": "has_post_expert_norm", "Inkling2Experts": "its activation .*SoftcappedSwiGLU",
           "Inkling2LoopExperts": "its activation .*SoftcappedSwiGLU"}


def assert_within(found, wanted, allowed):
    share = ((found.double() - wanted).abs() / allowed).max().item()
    assert share <= 1, f"{share:.2f} of the bound"
    return share


def test_the_registry_has_the_models_that_the_docs_name():
    assert {"GptOssExperts", "Qwen3MoeExperts", "MixtralExperts"} <= set(CLASSES)
    assert any(module.endswith("deepseek_v3") for module in CLASSES.values())
    assert len(CLASSES) >= 40


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_every_module_agrees_with_its_own_float64_or_is_refused(name):
    module = made(name)
    x, ids, weights = inputs(33)
    if name in REFUSED:
        with pytest.raises(sluice_moe.Unsupported, match=REFUSED[name]):
            module(x, ids, weights)
        assert not hf.is_packed(module)
        return
    wanted, allowed = reference(module, x, ids, weights), bound(module, x, ids, weights)
    found = module(x, ids, weights)
    assert hf.is_packed(module) and found.dtype is torch.bfloat16
    assert_within(found, wanted, allowed)
    # A wrong order of gate and up, or a missing bias, must be far outside the bound.
    assert ((wanted.abs().mean() / allowed.mean()) > 20).item()


@pytest.mark.parametrize("act, plain", [("relu", "relu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh"), ("silu", "silu"),
                                        ("relu2", "relu2"), ("linear", "identity")])
def test_an_activation_without_gate_is_found_by_its_values(act, plain):
    module = made("NemotronHExperts", mlp_hidden_act=act, hidden_act=act, activation=act)
    x, ids, weights = inputs(5)
    wanted, allowed = reference(module, x, ids, weights), bound(module, x, ids, weights)
    assert_within(module(x, ids, weights), wanted, allowed)
    assert module.sluice.experts.fields["act"] == plain


@pytest.mark.parametrize("act, gated", [("silu", "swiglu"), ("gelu", "geglu"), ("gelu_pytorch_tanh", "geglu_tanh")])
def test_a_gated_activation_is_found_by_its_values(act, gated):
    module = made("Qwen3MoeExperts", hidden_act=act)
    x, ids, weights = inputs(5)
    wanted, allowed = reference(module, x, ids, weights), bound(module, x, ids, weights)
    assert_within(module(x, ids, weights), wanted, allowed)
    assert module.sluice.experts.fields["act"] == gated


def test_an_unknown_activation_is_refused_with_its_name():
    with pytest.raises(sluice_moe.Unsupported, match="Qwen3MoeExperts cannot run on Sluice: its activation .*swiglu"):
        made("Qwen3MoeExperts", hidden_act="relu")(*inputs(2))


def test_other_dtypes_and_places_are_refused_with_all_reasons():
    module = made("Qwen3MoeExperts").float()
    with pytest.raises(sluice_moe.Unsupported, match="gate_up_proj: wanted torch.bfloat16.*float32; down_proj: wanted"):
        module(*inputs(2))
    with pytest.raises(sluice_moe.Unsupported, match="gate_up_proj: wanted weights in memory, found them on meta"):
        made("Qwen3MoeExperts").to("meta")(*inputs(2))
    x, ids, weights = inputs(2)
    with pytest.raises(sluice_moe.Unsupported, match="wanted hidden states in torch.bfloat16 or torch.float32, found torch.float16"):
        made("Qwen3MoeExperts")(x.half(), ids, weights)


def test_weights_that_are_no_numbers_are_refused():
    module = made("Qwen3MoeExperts")
    module.down_proj.data[3, 5, 7] = float("nan")
    with pytest.raises(sluice_moe.CorruptData, match="experts.down"):
        module(*inputs(2))
    assert not hf.is_packed(module) and module.down_proj[3, 5, 7].isnan()


def test_ids_of_other_ranks_are_empty_slots():
    for name in ("Qwen3MoeExperts", "GptOssExperts"):
        module = made(name)
        module._is_expert_parallel = True
        x, ids, weights = inputs(17)
        ids[::2, 1] = EXPERTS  # the id that expert parallelism writes for experts of other ranks
        weights[::2, 1] = 0
        ids[4] = EXPERTS
        wanted, allowed = reference(module, x, ids, weights, "batched_mm"), bound(module, x, ids, weights)
        found = module(x, ids, weights.masked_fill(ids == EXPERTS, 5.0))  # such a slot may have any weight
        assert_within(found, wanted.masked_fill((ids == EXPERTS).all(-1, keepdim=True), 0), allowed)
        assert not found[4].any()


def test_a_call_that_needs_gradients_is_refused():
    module, (x, ids, weights) = made("Qwen3MoeExperts"), inputs(2)
    with pytest.raises(sluice_moe.Unsupported, match="no backward pass"):
        module(x.requires_grad_(), ids, weights)
    with torch.no_grad():
        module(x, ids, weights)
    with pytest.raises(sluice_moe.Unsupported, match="no backward pass"):
        module(x, ids, weights)
    trained = made("Qwen3MoeExperts").requires_grad_()
    with pytest.raises(sluice_moe.Unsupported, match="no backward pass"):
        trained(*inputs(2))
    with torch.inference_mode():
        trained(*inputs(2))
    with pytest.raises(sluice_moe.Unsupported, match="no backward pass"):
        trained(*inputs(2))


def test_more_tokens_than_one_run_takes_and_none():
    module = made("Qwen3MoeExperts")
    holder = torch.nn.ModuleList([module])
    assert hf.pack(holder, tokens_max=8) == 1
    x, ids, weights = inputs(21)
    whole = made("Qwen3MoeExperts")
    allowed = bound(whole, x, ids, weights)
    assert_within(module(x, ids, weights), reference(whole, x, ids, weights), allowed)
    assert module(x[:0], ids[:0], weights[:0]).shape == (0, HIDDEN)
    assert torch.equal(module(x.reshape(3, 7, HIDDEN), ids, weights).reshape(21, HIDDEN), module(x, ids, weights))


def test_another_count_of_experts_for_a_token_packs_again():
    module, (x, ids, weights) = made("Qwen3MoeExperts"), inputs(4)
    module(x, ids, weights)
    plain = made("Qwen3MoeExperts")
    found = module(x, ids[:, :1].contiguous(), weights[:, :1].contiguous())
    assert_within(found, reference(plain, x, ids[:, :1], weights[:, :1]), bound(plain, x, ids[:, :1], weights[:, :1]))


def test_another_device_is_named():
    module, (x, ids, weights) = made("Qwen3MoeExperts"), inputs(2)
    module(x, ids, weights)
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted hidden states on cpu.*found them on meta"):
        module(x.to("meta"), ids.to("meta"), weights.to("meta"))


def test_a_module_of_ones_own_reaches_sluice_through_the_registry():
    @use_experts_implementation(is_transposed=True, has_gate=False, has_bias=True)
    class Own(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.num_experts = EXPERTS
            self.up_proj = torch.nn.Parameter(torch.empty(EXPERTS, HIDDEN, INTERMEDIATE))
            self.up_proj_bias = torch.nn.Parameter(torch.empty(EXPERTS, INTERMEDIATE))
            self.down_proj = torch.nn.Parameter(torch.empty(EXPERTS, INTERMEDIATE, HIDDEN))
            self.down_proj_bias = torch.nn.Parameter(torch.empty(EXPERTS, HIDDEN))
            self.act_fn = torch.nn.GELU()
            self.has_post_expert_norm = False

        def forward(self, hidden_states, top_k_index, top_k_weights):
            raise AssertionError("not called")

    module = Own(Config())
    module.has_post_expert_norm = False
    module._is_expert_parallel = False
    fill(module)
    x, ids, weights = inputs(9)
    assert "sluice" in ALL_EXPERTS_FUNCTIONS
    wanted, allowed = reference(module, x, ids, weights, "batched_mm"), bound(module, x, ids, weights)
    assert_within(module(x, ids, weights), wanted, allowed)


def test_tensors_that_do_not_fit_together_are_refused():
    module = made("Qwen3MoeExperts")
    module.down_proj = torch.nn.Parameter(torch.zeros(EXPERTS, HIDDEN, INTERMEDIATE + 32, dtype=torch.bfloat16), requires_grad=False)
    with pytest.raises(sluice_moe.Unsupported, match=r"experts.down: wanted \[8, 64, 96\].*found \[8, 64, 128\]"):
        module(*inputs(2))
