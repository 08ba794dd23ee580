"""A stand-in for sgl_kernel, SGLang's CUDA kernels, which have no build for machines without a GPU.

SGLang imports names from sgl_kernel long before it calls them. Every name exists here, and calling one is an error, so a passing test has
called none.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types


class _Kernel:
    """Any name of the package: a function, a type in a signature, a namespace."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise NotImplementedError(f"{self._name}: wanted a GPU and SGLang's kernels, found the stand-in of the tests")

    def __getattr__(self, name: str) -> _Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self._name}.{name}")

    def __or__(self, other: object) -> _Kernel:  # used in annotations
        return self

    __ror__ = __or__


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> _Kernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "sgl_kernel":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__version__ = "0.0.0"


def install() -> None:
    """Lets `import sgl_kernel` find the stand-in in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
