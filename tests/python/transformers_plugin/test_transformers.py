"""Packed experts inside modules: Parameters, state, copies, moves, compiled graphs; small Qwen3-MoE and DeepSeek-V3 models."""
import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import sluice_moe
import sluice_moe.transformers as hf
from experts_in_float64 import bound, reference
from transformers import AutoModelForCausalLM, DeepseekV3Config, GptOssConfig, Qwen3MoeConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeExperts

SIZES = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             max_position_embeddings=128, dtype=torch.bfloat16, pad_token_id=0, bos_token_id=1, eos_token_id=2)
QWEN3 = Qwen3MoeConfig(**SIZES, intermediate_size=96, moe_intermediate_size=96, num_experts=16, num_experts_per_tok=4, norm_topk_prob=True,
                       decoder_sparse_step=1)
GPT_OSS = GptOssConfig(**SIZES, intermediate_size=96, num_local_experts=8, num_experts_per_tok=2, sliding_window=16)
DEEPSEEK_V3 = DeepseekV3Config(**{**SIZES, "num_hidden_layers": 3, "num_key_value_heads": 4}, intermediate_size=96, moe_intermediate_size=64,
                               n_routed_experts=16, num_experts_per_tok=4, n_shared_experts=1, n_group=4, topk_group=2,
                               first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=16,
                               v_head_dim=16, routed_scaling_factor=2.5, norm_topk_prob=True)


def model_of(config, implementation="sluice", seed=11):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(config), experts_implementation=implementation, dtype=torch.bfloat16)
    with torch.no_grad():  # so that experts contribute as much as the residual stream
        for parameter in model.parameters():
            if parameter.dim() == 3:
                parameter.normal_(0, 3 / 64**0.5)
    return model.eval().requires_grad_(False)


def experts_of(model):
    return [module for _, module in hf._expert_modules(model)]


def prompt(tokens=24, batch=2):
    return torch.randint(3, 128, (batch, tokens), generator=torch.Generator().manual_seed(5))


def run(model, ids=None):
    with torch.no_grad():
        return model(prompt() if ids is None else ids).logits


@pytest.mark.parametrize("config", [QWEN3, DEEPSEEK_V3, GPT_OSS], ids=lambda c: c.model_type)
def test_every_layer_of_a_small_model_is_within_the_bound_of_its_own_float64(config):
    model, seen = model_of(config), []
    plain = {id(module): copy.deepcopy(module) for module in experts_of(model)}
    hooks = [module.register_forward_hook(lambda module, inputs, y: seen.append((module, inputs, y))) for module in experts_of(model)]
    run(model)
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(plain) == 2
    for module, (x, ids, weights), y in seen:
        own = plain[id(module)]
        share = ((y.double() - reference(own, x, ids, weights)).abs() / bound(own, x, ids, weights)).max().item()
        assert share <= 1, f"{share:.2f} of the bound"
    # The whole model: two bf16 implementations differ by this much although each layer is right.
    own = run(model_of(config, "grouped_mm"))
    assert (run(model) - own).float().square().mean().sqrt() <= 0.02 * own.float().square().mean().sqrt()


@pytest.mark.parametrize("config", [QWEN3, DEEPSEEK_V3], ids=lambda c: c.model_type)
def test_generate_gives_the_tokens_of_transformers_own_experts(config):
    ids = prompt(9, 1)
    kept = dict(max_new_tokens=12, min_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(ids), output_logits=True,
                return_dict_in_generate=True)
    ours, own = (model_of(config, name).generate(ids, **kept) for name in ("sluice", "grouped_mm"))
    for at, (a, b) in enumerate(zip(ours.logits, own.logits)):
        if ours.sequences[0, 9 + at] == own.sequences[0, 9 + at]:
            continue
        # Tokens may differ only where the two likeliest logits are closer than bf16 can resolve.
        gap = (b[0].max() - b[0, ours.sequences[0, 9 + at]]).item()
        assert gap <= 4 * (a - b).float().square().mean().sqrt().item()
        break


def test_packing_keeps_one_copy_and_unpacks_the_same_bits():
    for config in (QWEN3, GPT_OSS):
        model = model_of(config)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        assert hf.pack(model) == 2 and all(map(hf.is_packed, experts_of(model)))
        assert not any("experts." in name for name, _ in model.named_parameters())
        after = model.state_dict()
        assert sorted(after) == sorted(before)
        for name, value in before.items():
            assert after[name].dtype is value.dtype and torch.equal(after[name], value), name
        first = run(model)
        assert hf.unpack(model) == 2 and hf.unpack(model) == 0
        assert {name: p.shape for name, p in model.named_parameters()} == {name: v.shape for name, v in before.items() if v.dim()}
        assert type(experts_of(model)[0]) in (Qwen3MoeExperts, GptOssExperts)
        assert torch.equal(run(model), first)


def test_a_packed_parameter_cannot_be_read_or_changed_unseen():
    model = model_of(QWEN3)
    run(model)
    experts = experts_of(model)[0]
    with pytest.raises(AttributeError, match=r"gate_up_proj is packed by Sluice.*unpack\(model\)"):
        experts.gate_up_proj
    assert not hasattr(experts, "down_proj") and experts.num_experts == 16
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        experts.nothing_of_that_name
    old = run(model)
    hf.unpack(model)
    with torch.no_grad():
        experts.down_proj[:] *= 2
    new = run(model)
    assert hf.is_packed(experts) and not torch.equal(new, old)
    # Assigns a Parameter in place of a packed one.
    experts.down_proj = torch.nn.Parameter(torch.zeros(16, 64, 96, dtype=torch.bfloat16), requires_grad=False)
    assert not hf.is_packed(experts) and experts.gate_up_proj.shape == (16, 192, 64)
    x, ids, weights = torch.ones(2, 64, dtype=torch.bfloat16), torch.tensor([[0, 1, 2, 3]] * 2), torch.full((2, 4), 0.25)
    assert not experts(x, ids, weights).any()


def test_loading_a_state_into_a_packed_model_is_seen():
    model, other = model_of(QWEN3), model_of(QWEN3, seed=12)
    run(model)
    model.load_state_dict(other.state_dict())
    assert torch.equal(run(model), run(other))
    with pytest.raises(RuntimeError, match="experts.down_proj"):
        model.load_state_dict({name: v for name, v in other.state_dict().items() if not name.endswith("1.mlp.experts.down_proj")})


def test_copies_and_pickles_have_weights_of_their_own():
    model = model_of(QWEN3)
    first = run(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert hf.is_packed(experts_of(model)[0]) and type(experts_of(twin)[0]) is Qwen3MoeExperts
        assert torch.equal(run(twin), first)
        hf.unpack(twin)
        with torch.no_grad():
            experts_of(twin)[0].down_proj.zero_()
        assert not torch.equal(run(twin), first) and torch.equal(run(model), first)


def test_moves_and_other_dtypes_bring_the_parameters_back():
    model = model_of(QWEN3)
    run(model)
    assert model.to("cpu") is model and hf.is_packed(experts_of(model)[0])  # no move
    model.float()
    assert not hf.is_packed(experts_of(model)[0]) and experts_of(model)[0].down_proj.dtype is torch.float32
    with pytest.raises(sluice_moe.Unsupported, match="wanted torch.bfloat16"):
        run(model)
    model.bfloat16()
    assert torch.equal(run(model), run(model_of(QWEN3).float().bfloat16()))  # not the original model: RoPE is rounded now


def test_another_implementation_gets_its_parameters():
    model = model_of(QWEN3)
    first, experts = run(model), experts_of(model)[0]
    model.set_experts_implementation("eager")
    own = run(model)
    assert not hf.is_packed(experts) and type(experts) is Qwen3MoeExperts
    assert torch.equal(own, run(model_of(QWEN3, "eager")))
    model.set_experts_implementation("sluice")
    assert torch.equal(run(model), first) and hf.is_packed(experts)


def test_packing_what_does_not_ask_for_it_is_an_error():
    with pytest.raises(sluice_moe.InvalidArgument, match="wanted experts_implementation='sluice', found 'grouped_mm'"):
        hf.pack(model_of(QWEN3, "grouped_mm"))
    with pytest.raises(sluice_moe.InvalidArgument, match="found none in Linear"):
        hf.pack(torch.nn.Linear(2, 2))
    with pytest.raises(sluice_moe.SluiceError, match="cpu.expert_gemm.no_such"):
        hf.pack(model_of(QWEN3), kernel="cpu.expert_gemm.no_such")


def test_training_is_refused():
    model = model_of(QWEN3).train().requires_grad_()
    with pytest.raises(sluice_moe.Unsupported, match="Qwen3MoeExperts: Sluice has no backward pass"):
        model(prompt())
    with torch.no_grad():
        model(prompt())
    with pytest.raises(sluice_moe.Unsupported, match="Sluice has no backward pass"):
        model(prompt())


def test_a_full_graph_has_the_packed_layer_in_it():
    model = model_of(QWEN3)
    hf.pack(model)
    wanted = run(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(run(compiled), wanted)
    assert torch.equal(run(compiled, prompt(31)), run(model, prompt(31)))  # other shapes
    # Newly loaded weights are used by the compiled graph.
    model.load_state_dict(model_of(QWEN3, seed=12).state_dict())
    hf.pack(model)
    assert torch.equal(run(compiled), run(model_of(QWEN3, seed=12)))


def test_compiling_before_packing_breaks_the_graph_once_and_says_so_when_it_may_not():
    torch._dynamo.reset()
    model = model_of(QWEN3)
    compiled = torch.compile(model, backend="aot_eager")
    wanted = run(model_of(QWEN3))
    assert torch.equal(run(compiled), wanted) and hf.is_packed(experts_of(model)[0])
    assert torch.equal(run(compiled), wanted)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"pack\(model\)"):
        run(torch.compile(model_of(QWEN3), backend="aot_eager", fullgraph=True))


def test_generate_with_a_static_cache():
    model, ids = model_of(QWEN3), prompt(9, 1)
    kept = dict(max_new_tokens=8, min_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(ids))
    wanted = model.generate(ids, **kept)
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend="aot_eager", fullgraph=True)
    assert torch.equal(model.generate(ids, cache_implementation="static", **kept), wanted)
