"""Small experts modules with generated weights, of every class in transformers' registry."""
from __future__ import annotations

import importlib
import pathlib
import pkgutil

import torch
import transformers

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 64, 96, 8, 3


class Config:
    """Replaces any model's config: has a value for every size that an experts module asks for."""

    def __init__(self, **values):
        self.__dict__.update(_experts_implementation="sluice", num_experts_per_tok=TOP_K, **values)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        for word, value in (("act", "silu"), ("alpha", 1.702), ("limit", 7.0), ("layer_types", None), ("eps", 1e-6), ("bias", False),
                            ("experts", EXPERTS), ("intermediate", INTERMEDIATE), ("ffn", INTERMEDIATE), ("hidden", HIDDEN),
                            ("dim", HIDDEN), ("latent", None), ("softcap", 30.0)):
            if word in name:
                return value
        raise AttributeError(name)


def classes():
    """The classes with use_experts_implementation in the installed transformers, one per name."""
    root, found = pathlib.Path(transformers.__file__).parent / "models", {}
    for info in pkgutil.iter_modules([str(root)]):
        file = root / info.name / f"modeling_{info.name}.py"
        if file.exists() and "\n@use_experts_implementation" in file.read_text():
            lines = file.read_text().splitlines()
            for at, line in enumerate(lines):
                if line.startswith("@use_experts_implementation"):
                    name = next(l for l in lines[at:] if l.startswith("class ")).split()[1].split("(")[0].rstrip(":")
                    found[name] = f"transformers.models.{info.name}.modeling_{info.name}"
    return found


CLASSES = classes()


def made(name: str, **values) -> torch.nn.Module:
    cls = getattr(importlib.import_module(CLASSES[name]), name)
    module = cls(Config(**values))
    fill(module)
    return module


def fill(module, seed=7, scale=1.0):
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            width = parameter.shape[-1] if parameter.dim() == 3 else 1
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * scale * 3 / width**0.5)
    module.to(torch.bfloat16).requires_grad_(False)


def inputs(tokens: int, seed=3, hidden=HIDDEN, experts=EXPERTS, top_k=TOP_K):
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, hidden, generator=draw).to(torch.bfloat16)
    weights, ids = torch.rand(tokens, experts, generator=draw).topk(top_k)
    return x, ids, (weights / weights.sum(-1, keepdim=True)).to(torch.bfloat16)
