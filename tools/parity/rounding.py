"""A check that a run is entirely in float64, and random errors of the size of bf16 rounding."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Float64Only(TorchDispatchMode):
    """Raises an error if any operation returns a floating-point tensor that is not float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64:
                raise TypeError(f"{func} gave {tensor.dtype} in a float64 run")
        return out


def jitter(y, generator):
    """Adds a uniform random error to y, of at most half a unit in the last place of bf16."""
    unit = torch.exp2((torch.frexp(y).exponent - 8).double())
    return y + unit * (torch.rand(y.shape, dtype=torch.float64, generator=generator) - 0.5)
