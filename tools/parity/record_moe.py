"""Makes two small layers of DeepSeek-V4 and records their expected results: in float64 with the noise of bf16 rounding, and in bf16.

    record_moe.py OUT_DIR     writes OUT_DIR/deepseek-v4.{safetensors,json}

The file holds the layers with their checkpoint names: layers.0 with MXFP4 experts and an FP8 shared expert, layers.1 entirely in bf16. Tensors of
one way of routing only have other names: score.L.bias and hash.L.tid2eid belong in layers.L.ffn.gate. For each layer L and each way of routing
W, score or hash:
    input.L.x        bf16[tokens, hidden]; input.L.token_ids i32[tokens]
    W.L.ids          i32[tokens, top_k]   chosen experts, in order; W.L.weights f32[tokens, top_k]
    W.L.y            f32[tokens, hidden]  float64 run, rounded once
    W.L.y.noise      f32[tokens]          standard deviation of an element over RUNS runs with random bf16 rounding errors, RMS
                                          over the row: the error that is expected of a bf16 implementation
    W.L.y.noise_most f32[tokens]          the largest deviation seen in those runs
    W.L.y.bf16       bf16[tokens, hidden] the layer run in PyTorch's bf16

Two experts have equal rows of the gate and equal biases, so some tokens choose between ties. All other choices have a large margin. The file is
only written if each part of the layer is tested: omitted, it must change some row by far more than the noise.
"""

import json
import math
import pathlib
import sys

import torch
from deepseek_v4 import E2M1, layer, of_fp8, of_mxfp4
from rounding import Float64Only, jitter
from safetensors.torch import save_file

RUNS = 16
TOKENS = 20
VOCAB = 40
CLEAR = 1e-3  # of a score: a thousand times the effect of f32 rounding, with biases of 8
TWINS = (2, 6)  # experts that the gate cannot distinguish
LAYERS = [
    {"experts": 12, "hidden": 160, "intermediate": 32, "top_k": 6, "route_scale": 1.5, "swiglu_limit": 10.0, "mxfp4": True},
    {"experts": 7, "hidden": 64, "intermediate": 32, "top_k": 4, "route_scale": 2.5, "swiglu_limit": 10.0, "mxfp4": False},
]
TIES = 4  # rows that choose between the twins
SEEN = 20  # a fault must change some row by this many times the noise


def matrix(rows: int, width: int, size: float, kind: str, g) -> tuple:
    """Returns a random matrix as stored tensors by suffix, and in float64. `size` is the magnitude of a dot product over its width."""
    if kind == "mxfp4":
        codes = torch.randint(256, [rows, width // 2], generator=g, dtype=torch.uint8)
        middle = 127 + round(math.log2(size / math.sqrt(float(E2M1.square().mean()) * width)))
        scales = torch.randint(middle - 1, middle + 2, [rows, width // 32], generator=g, dtype=torch.uint8)
        return {"weight": codes.view(torch.int8), "scale": scales.view(torch.float8_e8m0fnu)}, of_mxfp4(codes, scales)
    values = torch.randn(rows, width, generator=g, dtype=torch.float64) * (size / width**0.5)
    if kind == "bf16":
        return {"weight": values.bfloat16()}, values.bfloat16().double()
    scales = torch.randint(119, 122, [-(-rows // 128), -(-width // 128)], generator=g, dtype=torch.uint8)
    codes = (values / of_fp8(torch.ones(rows, width), scales)).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {"weight": codes, "scale": scales.view(torch.float8_e8m0fnu)}, of_fp8(codes, scales)


def expert(c: dict, kind: str, prefix: str, stored: dict, g) -> dict:
    """Makes an expert. Outputs of w1 and w3 are around 7, so that many exceed the limits; its outputs have magnitude 1."""
    out = {}
    for name, rows, width, size in (
        ("w1", c["intermediate"], c["hidden"], 7.0),
        ("w3", c["intermediate"], c["hidden"], 7.0),
        ("w2", c["hidden"], c["intermediate"], 0.05),
    ):
        tensors, out[name] = matrix(rows, width, size, kind, g)
        stored |= {f"{prefix}{name}.{suffix}": t for suffix, t in tensors.items()}
    return out


def between_twins(ids):
    """Returns the rows that chose exactly one of the twins."""
    return (ids == TWINS[0]).any(1) != (ids == TWINS[1]).any(1)


def make(c: dict, number: int) -> tuple:
    """Returns weights and inputs in float64, each exactly representable in its stored type, and the stored tensors."""
    g = torch.Generator().manual_seed(4100 + number)
    stored, prefix = {}, f"layers.{number}.ffn."
    gate = (torch.randn(c["experts"], c["hidden"], generator=g, dtype=torch.float64) * (1.5 / c["hidden"] ** 0.5)).bfloat16()
    bias = (8.08 + 0.15 * torch.randn(c["experts"], generator=g)).float()
    gate[TWINS[1]], bias[TWINS[1]] = gate[TWINS[0]], bias[TWINS[0]]
    tid2eid = torch.stack([torch.randperm(c["experts"], generator=g)[: c["top_k"]] for _ in range(VOCAB)])
    stored |= {f"{prefix}gate.weight": gate, f"score.{number}.bias": bias, f"hash.{number}.tid2eid": tid2eid}
    routed, shared = ("mxfp4", "fp8") if c["mxfp4"] else ("bf16", "bf16")
    w = {"gate": gate.double(), "bias": bias, "tid2eid": tid2eid}
    w["experts"] = [expert(c, routed, f"{prefix}experts.{e}.", stored, g) for e in range(c["experts"])]
    w["shared"] = expert(c, shared, f"{prefix}shared_experts.", stored, g)
    # Keeps rows whose choice has a large margin, beginning with some that choose between the twins.
    x = torch.randn(16 * TOKENS, c["hidden"], generator=g).bfloat16()
    seen = layer(w, x.double(), None, c)
    clear, equal = seen["gap"] > CLEAR, between_twins(seen["ids"])
    x = torch.cat([x[clear & equal][:TIES], x[clear & ~equal]])[:TOKENS]
    tokens = torch.randint(VOCAB, [TOKENS], generator=g, dtype=torch.int32)
    if int((clear & equal).sum()) < TIES or len(x) < TOKENS:
        raise ValueError(f"layer {number}: too few rows whose choice has a large margin, or that choose between ties")
    return w, x, tokens, stored | {f"input.{number}.x": x, f"input.{number}.token_ids": tokens}


def noise_of(run, want) -> dict:
    """Returns the noise of y = run(store): the spread over runs with a random rounding error in each store."""
    runs = []
    for seed in range(RUNS):
        g = torch.Generator().manual_seed(seed)
        runs.append(run(lambda y: torch.where(y == 0, y, jitter(y, g))) - want)  # noqa: B023
    off = torch.stack(runs)
    return {"y.noise": off.square().mean((0, 2)).sqrt().float(), "y.noise_most": off.abs().amax((0, 2)).float()}


def faults(w: dict, x, tokens, c: dict, right: dict) -> dict:
    """Returns y of layers with one part omitted or computed as in a careless port, by name."""
    routed, shared, scale = right["routed"], right["shared"], c["route_scale"]
    free = layer(w, x, tokens, c | {"swiglu_limit": float("inf")})
    out = {
        "no clamp of routed experts": free["routed"] + shared,
        "no clamp of the shared expert": routed + free["shared"],
        "no shared expert": routed,
        "the shared expert scaled, too": routed + scale * shared,
        "no scale": routed / scale + shared,
    }
    if tokens is None:
        swapped = list(range(c["experts"]))
        swapped[TWINS[0]], swapped[TWINS[1]] = TWINS[1], TWINS[0]
        other = w | {"experts": [w["experts"][e] for e in swapped]}
        out["equals to the higher expert"] = layer(other, x, tokens, c)["y"]
        out["chosen without the bias"] = layer(w | {"bias": torch.zeros_like(w["bias"])}, x, tokens, c)["y"]
    else:
        out["chosen by score in a hash layer"] = layer(w, x, None, c)["y"]
    return out


def record(number: int, c: dict, tensors: dict) -> dict:
    w, x, token_ids, stored = make(c, number)
    tensors |= stored
    about = {k: v for k, v in c.items()}
    for way, tokens in (("score", None), ("hash", token_ids)):
        with Float64Only():
            right = layer(w, x.double(), tokens, c)
        got = {"ids": right["ids"].int(), "weights": right["weights"].float(), "y": right["y"].float()}
        got |= noise_of(lambda store: layer(w, x.double(), tokens, c, store)["y"], right["y"])  # noqa: B023
        rounded = layer(w, x, tokens, c)
        got["y.bf16"] = rounded["y"]
        if (rounded["ids"] != right["ids"]).any():
            raise ValueError(f"layer {number}, {way}: f32 scores choose other experts than float64")

        def times(y, right=right, got=got):
            return (y.double() - right["y"]).square().mean(1).sqrt() / got["y.noise"]

        for name, y in faults(w, x.double(), tokens, c, right).items():
            seen = float(times(y).max())
            print(f"layer {number}, {way}: {name}: {seen:.0f} times the noise")
            if seen < SEEN:
                raise ValueError(f"layer {number}, {way}: {name} changes no row by {SEEN} times the noise")
        of_bf16 = times(rounded["y"])
        print(f"layer {number}, {way}: PyTorch in bf16 {of_bf16.mean():.2f} times the noise, at most {of_bf16.max():.2f}")
        tensors |= {f"{way}.{number}.{k}": v.contiguous() for k, v in got.items()}
        if tokens is None:
            about["closest_choice"] = float(right["gap"].min())
    return about


def main() -> None:
    torch.set_num_threads(1)  # the order of sums must not depend on the machine
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    layers = [record(number, c, tensors) for number, c in enumerate(LAYERS)]
    save_file(tensors, str(out / "deepseek-v4.safetensors"))
    head = {"layers": layers, "noise_runs": RUNS, "torch": torch.__version__.split("+")[0]}
    (out / "deepseek-v4.json").write_text(json.dumps(head, indent=1) + "\n")


if __name__ == "__main__":
    main()
