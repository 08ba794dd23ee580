"""Makes a small layer of Nemotron 3 Super and records its expected results, as record_moe.py does for DeepSeek-V4.

    record_latent.py OUT_DIR     writes OUT_DIR/nemotron-3-super.{safetensors,json}

The file holds the layer with its checkpoint names, backbone.layers.0.mixer, in bf16, the input input.x, and as score.* the results that
record_moe.py describes. It is only written if each part of the layer is tested: omitted or computed wrongly, it must change some row by far more
than the noise.
"""

import json
import pathlib
import sys

import torch
from nemotron_3 import layer
from record_moe import CLEAR, RUNS, SEEN, TOKENS, noise_of
from rounding import Float64Only
from safetensors.torch import save_file

CONFIG = {"experts": 10, "hidden": 96, "latent": 48, "intermediate": 40, "shared_intermediate": 64, "top_k": 5, "scale": 5.0}
PREFIX = "backbone.layers.0.mixer."


def make(c: dict) -> tuple:
    """Returns weights in float64 that bf16 (f32 for the bias) represents exactly, rows of x whose choice of experts has a large margin, and the
    stored tensors."""
    g = torch.Generator().manual_seed(41)

    def matrix(name: str, rows: int, width: int, size: float = 1.0):
        values = (torch.randn(rows, width, generator=g, dtype=torch.float64) * (size / width**0.5)).bfloat16()
        stored[PREFIX + name] = values
        return values.double()

    stored = {}
    expert = {"up": (c["intermediate"], c["latent"]), "down": (c["latent"], c["intermediate"])}
    shared = {"up": (c["shared_intermediate"], c["hidden"]), "down": (c["hidden"], c["shared_intermediate"])}
    w = {"gate": matrix("gate.weight", c["experts"], c["hidden"], 1.5)}
    w["bias"] = (0.3 * torch.randn(c["experts"], generator=g)).float()
    stored[PREFIX + "gate.e_score_correction_bias"] = w["bias"]
    w["fc1"] = matrix("fc1_latent_proj.weight", c["latent"], c["hidden"])
    w["fc2"] = matrix("fc2_latent_proj.weight", c["hidden"], c["latent"])
    w["experts"] = [
        {k: matrix(f"experts.{e}.{k}_proj.weight", *shape) for k, shape in expert.items()} for e in range(c["experts"])
    ]
    w["shared"] = {k: matrix(f"shared_experts.{k}_proj.weight", *shape, 2.0) for k, shape in shared.items()}
    x = torch.randn(8 * TOKENS, c["hidden"], generator=g).bfloat16()
    x = x[layer(w, x.double(), c)["gap"] > CLEAR][:TOKENS]
    if len(x) < TOKENS:
        raise ValueError(f"{len(x)} rows whose choice has a large margin, wanted {TOKENS}")
    return w, x, stored | {"input.x": x}


def main() -> None:
    torch.set_num_threads(1)  # the order of sums must not depend on the machine
    out, c = pathlib.Path(sys.argv[1]), CONFIG
    out.mkdir(parents=True, exist_ok=True)
    w, x, tensors = make(c)
    with Float64Only():
        right = layer(w, x.double(), c)
    got = {"ids": right["ids"].int(), "weights": right["weights"].float(), "y": right["y"].float()}
    got |= noise_of(lambda store: layer(w, x.double(), c, store)["y"], right["y"])
    rounded = layer(w, x, c)
    if (rounded["ids"] != right["ids"]).any():
        raise ValueError("f32 scores choose other experts than float64")
    got["y.bf16"] = rounded["y"]

    def times(y):
        return (y.double() - right["y"]).square().mean(1).sqrt() / got["y.noise"]

    faults = {
        "no shared expert": right["routed"],
        "the shared expert scaled, too": right["routed"] + c["scale"] * right["shared"],
        "no scale": right["routed"] / c["scale"] + right["shared"],
        "chosen without the bias": layer(w | {"bias": torch.zeros_like(w["bias"])}, x.double(), c)["y"],
        "projections of another layer": layer(w | {"fc1": w["fc1"].roll(1, 0)}, x.double(), c)["y"],
    }
    for name, y in faults.items():
        seen = float(times(y).max())
        print(f"{name}: {seen:.0f} times the noise")
        if seen < SEEN:
            raise ValueError(f"{name} changes no row by {SEEN} times the noise")
    print(f"PyTorch in bf16 {times(rounded['y']).mean():.2f} times the noise, at most {times(rounded['y']).max():.2f}")
    save_file(tensors | {f"score.{k}": v.contiguous() for k, v in got.items()}, str(out / "nemotron-3-super.safetensors"))
    head = c | {"closest_choice": float(right["gap"].min()), "noise_runs": RUNS, "torch": torch.__version__.split("+")[0]}
    (out / "nemotron-3-super.json").write_text(json.dumps(head, indent=1) + "\n")


if __name__ == "__main__":
    main()
