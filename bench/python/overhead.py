#!/usr/bin/env python3
"""Measures the host's cost of calls: microseconds to call a small layer through torch, and of the parts of such a call.

  overhead.py [--device cpu|cuda] [--calls 20000]

The layer's computation is negligible on the CPU, which uses one thread, and only enqueued on a GPU. So the times show Python,
torch's dispatcher and the library's checks.
"""
import argparse
import time

import torch

import sluice_moe
from sluice_moe import capi


def microseconds(call, calls, batch=200):
    """Returns the time of the fastest batch, in which no other process used the core."""
    best = float("inf")
    for _ in range(max(calls // batch, 1)):
        begin = time.perf_counter()
        for _ in range(batch):
            call()
        best = min(best, (time.perf_counter() - begin) / batch)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    return best * 1e6


def main():
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--device", default="cpu")
    words.add_argument("--calls", type=int, default=20000)
    asked = words.parse_args()
    torch.set_num_threads(1)
    experts, hidden = 4, 64
    layer = sluice_moe.MoeLayer(hidden=hidden, intermediate=32, experts=experts, top_k=2, expert_w="bf16", act="swiglu", residual=True,
                                input="precomputed", tokens_max=1, device=asked.device)
    bf16 = dict(dtype=torch.bfloat16, device=asked.device)
    layer.load({"experts.up": torch.randn(experts, 64, hidden, **bf16), "experts.down": torch.randn(experts, hidden, 32, **bf16)},
               naming="plain")
    x, residual, out = (torch.randn(1, hidden, **bf16) for _ in range(3))
    ids = torch.tensor([[1, 2]], dtype=torch.int32, device=asked.device)
    weights = torch.tensor([[0.25, 0.75]], device=asked.device)
    w = torch.randn(experts, hidden, **bf16)
    logits = torch.ops.sluice.router_gemm(x, w)
    one = torch.ones(1, device=asked.device)
    function, message = capi.lib.sluice_layer_run, capi.Message()
    names, tensors = ("x", "y", "residual", "ids_in", "weights_in"), [x, out, residual, ids, weights]
    layer._run(names, tensors)
    launch = layer._launches._free[names][0]
    memory = layer._opened.borrow(layer.workspace_bytes)
    launch._launch.workspace, launch._launch.workspace_bytes = memory.data_ptr(), layer.workspace_bytes
    rows = {
        "the C ABI alone: sluice_layer_run by ctypes": lambda: function(layer._native, launch.address, launch.message_address),
        "the same after setting the addresses of five tensors and the workspace": lambda: layer._run(names, tensors),
        "torch.ops.sluice.moe_layer_out": lambda: torch.ops.sluice.moe_layer_out.default(
            x, layer.packed, layer.handle, residual=residual, ids=ids, weights=weights, out=out),
        "torch.ops.sluice.moe_layer": lambda: torch.ops.sluice.moe_layer.default(
            x, layer.packed, layer.handle, residual=residual, ids=ids, weights=weights),
        "MoeLayer with the argument out": lambda: layer(x, residual=residual, ids=ids, weights=weights, out=out),
        "torch.ops.sluice.router_gemm": lambda: torch.ops.sluice.router_gemm(x, w),
        "torch.ops.sluice.route_topk": lambda: torch.ops.sluice.route_topk(logits, 2),
        "for comparison, torch.add of one element": lambda: torch.add(one, one),
    }
    assert message.read() == ""
    print(f"sluice_moe {sluice_moe.version()}, torch {torch.__version__}, {layer._opened.text}")
    with torch.inference_mode():
        for name, call in rows.items():
            call()
            print(f"{microseconds(call, asked.calls):7.2f} us  {name}")


if __name__ == "__main__":
    main()
