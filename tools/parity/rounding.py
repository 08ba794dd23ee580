"""What a float64 run is checked for, and what a rounding to bf16 may do to a value."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Float64Only(TorchDispatchMode):
    """Raises if any operation gives a floating-point tensor that is not float64."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.dtype != torch.float64:
                raise TypeError(f"{func} gave {tensor.dtype} in a float64 run")
        return out


def jitter(y, generator):
    """y as a rounding to bf16 could have left it: moved by up to half a unit in the last of its 8 bits, uniformly."""
    unit = torch.exp2((torch.frexp(y).exponent - 8).double())
    return y + unit * (torch.rand(y.shape, dtype=torch.float64, generator=generator) - 0.5)
