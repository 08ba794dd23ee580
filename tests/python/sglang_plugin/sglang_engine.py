"""SGLang set up as in its scheduler process, on a machine without a GPU: real plug-in loader, flags, settings and groups.

SGLang's settings are global to a process, so a process has one engine. SGLang's wheel is for one CPython version, and its CUDA kernels have
no build for the CPU: the wheel is unpacked into a folder, and a stand-in replaces the kernels.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import os
import pathlib
import socket
import sys

import pytest

from sluice_moe.sglang import compat

NEWEST = "0.5.23"
VERSIONS = ("0.5.17", "0.5.21", "0.5.22", NEWEST)
VERSION = os.environ.get("SLUICE_TEST_SGLANG_VERSION", NEWEST)  # the version in this process


def folders() -> pathlib.Path:
    """The folder where tools/python_venv puts what SGLang's tests need: SLUICE_TEST_SGLANG, or build/python/sglang."""
    named = os.environ.get("SLUICE_TEST_SGLANG")
    return pathlib.Path(named) if named else pathlib.Path(__file__).resolve().parents[3] / "build" / "python" / "sglang"


def wheel(version: str) -> pathlib.Path:
    """The folder of a version's unpacked wheel."""
    folder = folders() / version
    if not (folder / "sglang").is_dir():
        pytest.fail(f"wanted SGLang {version} in {folder}, found none: ./dev test-python puts it there")
    return folder


def prepare(version: str = VERSION) -> None:
    """Makes `import sglang` find the wheel and no GPU."""
    sys.path.insert(0, str(wheel(version)))
    sys.path.append(str(folders() / "packages"))  # last, and only in these tests
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    import sgl_kernel_stand_in

    sgl_kernel_stand_in.install()


def asked_for_sluice() -> list[str]:
    """The flags that request Sluice: by its name or, in versions with a closed enum of names, in place of triton."""
    if compat.VERSIONS[VERSION].names:
        return ["--moe-runner-backend", "sluice"]
    os.environ["SLUICE_SGLANG"] = "1"
    return ["--moe-runner-backend", "triton"]


def start(*flags: str, plugins: bool = True) -> object:
    """Sets the state of a scheduler process started with these flags, before it builds its model. Returns the ServerArgs."""
    if plugins:
        importlib.import_module("sglang.srt.plugins").load_plugins()
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(exit_on_error=False)
    ServerArgs.add_cli_args(parser)
    settings = ServerArgs.from_cli_args(parser.parse_args(["--model-path", "dummy", "--device", "cpu", *flags]))
    if hasattr(settings, "resolve_once"):
        settings.resolve_once()
    placed = {}
    if "ranks" in inspect.signature(publish).parameters:
        from sglang.srt.runtime_context import SpawnRanks

        placed["ranks"] = SpawnRanks(world_rank=0, dp_rank=None, gpu_id=0)
    publish(settings, role="scheduler", **placed)
    from sglang.srt.layers.moe.utils import initialize_moe_config

    initialize_moe_config(*[settings] * len(inspect.signature(initialize_moe_config).parameters))
    return settings


def groups() -> None:
    """Process groups of one rank, which every layer needs to run."""
    from sglang.srt.distributed import parallel_state

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    parallel_state.init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="gloo",
                                                distributed_init_method=f"tcp://127.0.0.1:{port}")
    parallel_state.initialize_model_parallel(backend="gloo")


@contextlib.contextmanager
def rank(*, tp: tuple[int, int] = (0, 1), ep: tuple[int, int] = (0, 1)):
    """Inside, layers are built for this (rank, size)."""
    from sglang.srt.runtime_context import get_parallel

    # override() would require process groups of that size; a layer that reduces nothing itself needs no group.
    parallel = get_parallel()
    before = dict(parallel._overrides)
    parallel._overrides.update(moe_tp_rank=tp[0], moe_tp_size=tp[1], moe_ep_rank=ep[0], moe_ep_size=ep[1], attn_dp_rank=0, attn_dp_size=1)
    try:
        yield
    finally:
        parallel._overrides.clear()
        parallel._overrides.update(before)
