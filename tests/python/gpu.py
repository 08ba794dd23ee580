#!/usr/bin/env python3
"""Checks of the Python package that need a GPU: streams, graphs, several GPUs. Needs a Hopper GPU, torch and sluice_moe, but no pytest.

  gpu.py [NAME...]     runs these checks, or all; prints one line per check; exits with status 1 if one fails
"""
import os
import sys
import threading
import traceback

import torch

import sluice_moe
from sluice_moe import devices

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 2880, 2880, 32, 4


def tensors(seed=1, device="cuda", expert_w="e2m1"):
    random = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, device=device).bfloat16()

    def whole(low, high, *shape):
        return torch.randint(low, high, shape, generator=random, device=device, dtype=torch.uint8)

    out = {"router": normal(EXPERTS, HIDDEN) / 50, "router_bias": normal(EXPERTS)}
    for name, rows, width in (("experts.up", 2 * INTERMEDIATE, HIDDEN), ("experts.down", HIDDEN, INTERMEDIATE)):
        if expert_w == "e2m1":
            out[name], out[name + "_scale"] = whole(0, 256, EXPERTS, rows, width // 2), whole(116, 121, EXPERTS, rows, width // 32)
        else:
            out[name] = normal(EXPERTS, rows, width) / 50
        out[name + "_bias"] = normal(EXPERTS, rows)
    return out


def layer_on(device, seed=1, tokens_max=256, weights=None, **fields):
    layer = sluice_moe.MoeLayer("gpt-oss-20b", tokens_max=tokens_max, device=device, **fields)
    given = weights or tensors(seed, device, fields.get("expert_w", "e2m1"))
    if layer.fields["input"] != "logits":
        given = {name: tensor for name, tensor in given.items() if "router" not in name}
    layer.load(given)
    return layer


def inputs(tokens, device="cuda", seed=7):
    return torch.randn(tokens, HIDDEN, generator=torch.Generator(device=device).manual_seed(seed), device=device).bfloat16()


def near(got, wanted, share=0.02):
    apart = (got.double() - wanted.double()).abs().max().item() / wanted.double().abs().max().item()
    assert apart < share, f"wanted a difference of at most {share} of the largest value, found {apart}"
    return f"differs by {apart:.4f} of the largest value"


def check_cpu_agrees():
    """The GPU's outputs equal the CPU's up to rounding; weights come from host memory and from GPU memory."""
    on_gpu = tensors()
    on_cpu = {name: tensor.cpu() for name, tensor in on_gpu.items()}
    x = inputs(5)
    wanted = layer_on("cpu", weights=on_cpu)(x.cpu())
    from_gpu, from_host = layer_on("cuda", weights=on_gpu)(x), layer_on("cuda", weights=on_cpu)(x)
    assert torch.equal(from_gpu, from_host)
    logits = torch.ops.sluice.router_gemm(x, on_gpu["router"], on_gpu["router_bias"])
    near(logits, torch.nn.functional.linear(x.double(), on_gpu["router"].double(), on_gpu["router_bias"].double()), 1e-4)
    weights, ids = torch.ops.sluice.route_topk(logits, TOP_K)
    assert torch.equal(ids.long(), torch.topk(logits, TOP_K).indices)
    near(layer_on("cuda", weights=on_gpu, input="precomputed")(x, ids=ids.long(), weights=weights), from_gpu)
    return near(from_gpu.cpu(), wanted)


def check_graph():
    """A captured layer replays, even if the graph's operations run for the first time during the capture; memory use does not grow."""
    layer, twin = layer_on("cuda"), layer_on("cuda")
    router = tensors()["router"].float()  # a problem that is not planned yet
    x = inputs(8)
    wanted = layer(x)
    static = torch.zeros_like(x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = twin(static)
        logits = torch.ops.sluice.router_gemm(static.float(), router)
        weights, ids = torch.ops.sluice.route_topk(logits, 3, scale=1.5)
        z = twin(y)
    for seed in (7, 8, 9):
        x = inputs(8, seed=seed)
        static.copy_(x)
        before = torch.cuda.memory_allocated()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == before
        assert torch.equal(y, layer(x)) and torch.equal(z, layer(layer(x)))
        assert torch.equal(logits, torch.ops.sluice.router_gemm(x.float(), router))
        assert torch.equal(ids, torch.ops.sluice.route_topk(logits, 3, scale=1.5)[1])
    twin.load(tensors(seed=5))  # in place: the graph has the new weights
    graph.replay()
    assert not torch.equal(y, wanted) and torch.equal(y, twin(static))
    return "3 replays, and one with new weights"


def adapter(seed, device="cuda", rank=8):
    """One adapter of all experts, whose update is about as large as the weights' product."""
    random = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, device=device)

    return {"experts.up_lora_a": (normal(EXPERTS, rank, HIDDEN) / HIDDEN**0.5).bfloat16(),
            "experts.up_lora_b": normal(EXPERTS, 2 * INTERMEDIATE, rank).bfloat16(),
            "experts.down_lora_a": (normal(EXPERTS, rank, INTERMEDIATE) / INTERMEDIATE**0.5).bfloat16(),
            "experts.down_lora_b": normal(EXPERTS, HIDDEN, rank).bfloat16(), "experts.lora_scale": torch.ones(1, device=device)}


def check_adapters():
    """Adapters on experts: as on the CPU for few and many tokens; a captured layer follows the adapters of its tokens and a replaced adapter."""
    weights = tensors()
    fields = dict(expert_lora_rank=8, lora_adapters=3)
    here = layer_on("cuda", weights=weights, **fields)
    there = layer_on("cpu", weights={name: tensor.cpu() for name, tensor in weights.items()}, **fields)
    for index in range(2):  # the third stays zero
        one = adapter(index)
        here.replace_adapter(index, one)
        there.replace_adapter(index, {name: tensor.cpu() for name, tensor in one.items()})
    for tokens in (1, 7, 70):
        x, of_token = inputs(tokens), torch.arange(tokens, dtype=torch.int32, device="cuda") % 4 - 1
        found = near(here(x, adapter=of_token).cpu(), there(x.cpu(), adapter=of_token.cpu()))
        without = here(x, adapter=torch.full_like(of_token, -1))
        changed = (here(x, adapter=of_token) != without).any(dim=1).tolist()
        assert changed == [one in (0, 1) for one in of_token.tolist()], "only rows with an adapter that is not zero change"
    static, of_token = torch.zeros_like(inputs(8)), torch.zeros(8, dtype=torch.int32, device="cuda")
    graph = torch.cuda.CUDAGraph()
    here(static, adapter=of_token)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = here(static, adapter=of_token)
    for first in (-1, 0, 2):
        static.copy_(inputs(8, seed=first + 20))
        of_token.copy_(torch.tensor([first, 0, 1, -1, 2, 1, 0, 5]))
        graph.replay()
        assert torch.equal(y, here(static, adapter=of_token))
    before = y.clone()
    here.replace_adapter(1, adapter(9))
    graph.replay()
    assert torch.equal(y, here(static, adapter=of_token)) and not torch.equal(y, before)
    return f"{found}; 3 replays, and one with a new adapter"


def check_streams():
    """Side streams, graphs captured on them, and more streams than were prepared."""
    layer, x = layer_on("cuda"), inputs(16)
    wanted = layer(x)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(3 * devices.STREAMS_AHEAD)]
    answers = []
    for stream in streams:
        with torch.cuda.stream(stream):
            answers.append(layer(x))
    torch.cuda.synchronize()
    assert all(torch.equal(y, wanted) for y in answers)
    return f"{len(streams)} streams"


def check_a_new_stream_in_a_capture_is_refused_when_none_is_left():
    device = devices.open_device("cuda")
    layer, x = layer_on("cuda"), inputs(1)
    layer(x)
    left, device._spare_streams = device._spare_streams, []
    known, device._streams = device._streams, {}
    try:
        graph, raised = torch.cuda.CUDAGraph(), None
        try:
            with torch.cuda.graph(graph):
                layer(x)
        except sluice_moe.Unsupported as why:
            raised = str(why)
        assert raised and "found a new one inside a captured region" in raised, raised
    finally:
        device._spare_streams, device._streams = left, known
    layer(x)
    return raised


def check_threads():
    """Two threads on their own streams, and two threads on one stream."""
    layer, wanted, faults = layer_on("cuda"), {}, []
    for tokens in (1, 7, 32, 100):
        wanted[tokens] = layer(inputs(tokens))
    torch.cuda.synchronize()

    def work(tokens, stream):
        x = inputs(tokens)
        with torch.cuda.stream(stream):
            for _ in range(100):
                if not torch.equal(layer(x), wanted[tokens]):
                    faults.append(tokens)

    shared, own = torch.cuda.Stream(), torch.cuda.Stream()
    threads = [threading.Thread(target=work, args=a) for a in ((1, shared), (7, shared), (32, own), (100, torch.cuda.Stream()))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    return "4 threads, 3 streams"


def check_compile():
    """torch.compile makes one graph, and in mode reduce-overhead torch also captures it."""
    layer, x = layer_on("cuda"), inputs(4)
    with torch.inference_mode():
        wanted = layer(x).float().sin()
        assert torch.equal(torch.compile(lambda x: layer(x).float().sin(), fullgraph=True)(x), wanted)
        captured = torch.compile(lambda x: layer(x).float().sin(), fullgraph=True, mode="reduce-overhead")
        for _ in range(4):
            y = captured(x).clone()
            near(y, wanted, 1e-5)
    return "default and reduce-overhead"


def kernels_that_ran(run) -> list[str]:
    """The names of the CUDA kernels of a call, in order, from torch's profiler."""
    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]) as profile:
        run()
        torch.cuda.synchronize()
    found = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA and not event.name.startswith("Mem")]
    assert found, "wanted kernels in torch's profile, found none: is CUPTI installed?"
    return [event.name for event in sorted(found, key=lambda event: event.time_range.start)]


def explained(layer, tokens: int) -> tuple[str, ...]:
    """The kernels that explain() names for the experts, with their configurations."""
    words = (line.split() for line in layer.explain(tokens).splitlines())
    return tuple(w[1] for w in words if len(w) == 2 and w[1].startswith("cuda.") and ("expert" in w[1] or "mlp" in w[1]))


def check_compiled_graph_changes_kernels():
    """torch.compile compiles once; at each token count the graph runs the same kernels as the layer alone, with the same bits."""
    from torch._dynamo.testing import CompileCounterWithBackend

    layer, counter = layer_on("cuda", tokens_max=300), CompileCounterWithBackend("inductor")
    compiled = torch.compile(lambda x: layer(x), fullgraph=True, dynamic=True, backend=counter)
    ran, named = {}, {}
    with torch.inference_mode():
        for tokens in (3, 8, 17, 33, 64, 65, 128, 200, 300):
            x = inputs(tokens)
            assert torch.equal(compiled(x), layer(x)), tokens
            ran[tokens] = tuple(kernels_that_ran(lambda: compiled(x)))
            assert list(ran[tokens]) == kernels_that_ran(lambda: layer(x)), (tokens, ran[tokens])
            named[tokens] = explained(layer, tokens)
    assert counter.frame_count == 1, f"wanted one compilation, found {counter.frame_count}"
    assert len(set(named.values())) > 1 and len(set(ran.values())) > 1, (named, ran)
    return "; ".join(f"{tokens}: {', '.join(dict.fromkeys(name[:60] for name in names))}" for tokens, names in ran.items())


def check_kernels_by_phase():
    """A kernel of the experts by its name: the function that runs for few tokens differs from the function for more."""
    free = layer_on("cuda", tokens_max=300)
    names = [n for n in dict.fromkeys(name.split(":")[0] for tokens in (3, 300) for name in explained(free, tokens)) if ".expert_gemm." in n]
    for name in names or ["cuda.expert_gemm.mxfp4_tile_sm90"]:
        layer = layer_on("cuda", tokens_max=300, kernel_decode=name, decode_tokens=16)
        assert {word.split(":")[0] for word in explained(layer, 16)} == {name}, explained(layer, 16)
        assert explained(layer, 300) == explained(free, 300)
        near(layer(inputs(16)), free(inputs(16)))
    return ", ".join(names)


def check_opcheck():
    layer, x = layer_on("cuda"), inputs(4)
    torch.library.opcheck(torch.ops.sluice.moe_layer.default, (x, layer.packed, layer.handle))
    torch.library.opcheck(torch.ops.sluice.moe_layer_out.default, (x, layer.packed, layer.handle), {"out": torch.empty_like(x)})
    w = tensors()["router"]
    torch.library.opcheck(torch.ops.sluice.router_gemm.default, (x, w))
    torch.library.opcheck(torch.ops.sluice.route_topk.default, (torch.ops.sluice.router_gemm(x, w), TOP_K))
    return "4 operations"


def check_refusals():
    layer, x = layer_on("cuda"), inputs(2)
    for call, wanted in ((lambda: layer(x.cpu()), "cpu"), (lambda: layer(x.float()), "bf16"), (lambda: layer(inputs(257)), "257"),
                         (lambda: layer.to("cpu"), "cannot move"), (lambda: torch.ops.sluice.router_gemm(x, torch.zeros(8, HIDDEN).bfloat16()), "w:")):
        try:
            call()
        except Exception as why:  # noqa: BLE001
            assert wanted in str(why), (wanted, why)
        else:
            raise AssertionError(f"wanted an error with {wanted}")
    return "5 refusals"


def check_state():
    layer, x = layer_on("cuda"), inputs(3)
    other = sluice_moe.MoeLayer("gpt-oss-20b", tokens_max=256, device="cuda")
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    return f"{layer.state_dict()['_extra_state'].numel() >> 20} MiB"


def check_fork():
    layer_on("cuda")
    sys.stdout.flush()
    child = os.fork()
    if not child:
        try:
            devices.open_device("cuda")
        except sluice_moe.Unsupported:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    return "refused in the child"


def check_two_gpus():
    if torch.cuda.device_count() < 2:
        return "not run: one GPU"
    x = inputs(9)
    first, second = layer_on("cuda:0"), layer_on("cuda:1", weights={n: t.to("cuda:1") for n, t in tensors(device="cuda:0").items()})
    wanted = first(x.to("cuda:0"))
    assert torch.equal(second(x.to("cuda:1")).cpu(), wanted.cpu()) and torch.cuda.current_device() == 0
    try:
        second(x.to("cuda:0"))
    except sluice_moe.InvalidArgument as why:
        assert "cuda:1" in str(why)
        return "the same answers on both"
    raise AssertionError("wanted an error for a tensor on another GPU")


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}


def main():
    wrong = [name for name in sys.argv[1:] if name not in CHECKS]
    if wrong:
        sys.exit(f"gpu.py: wanted names among {', '.join(CHECKS)}, found {', '.join(wrong)}")
    failed = 0
    for name in sys.argv[1:] or CHECKS:
        try:
            print(f"ok      {name}: {CHECKS[name]()}", flush=True)
        except Exception:  # noqa: BLE001
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
