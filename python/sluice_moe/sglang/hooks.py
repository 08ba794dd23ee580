"""Registers the plug-in when SGLang's loader runs, and installs the hooks on layers once a process knows that its flags select Sluice.

SGLang only logs plug-ins and hooks that fail, so install() checks every hook and ends the process if one is missing. A process whose flags do not
select Sluice imports only this module.
"""
from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any, Callable

from sluice_moe.errors import IncompatibleEngine

from . import compat, state
from .state import logger, refused

# Processes that build no model.
_NO_MODEL = ("tokenizer", "detokenizer", "dp_controller", "encoder", "expert_backup", "launcher")

_installed = False


def register() -> None:
    """Registers `--moe-runner-backend sluice`, and a hook that installs the others once the flags are known."""
    version = compat.found_version()
    asked = compat.asked_by_environment()
    known = compat.seams(version)
    if known is None:
        line = f"sluice: wanted SGLang {compat.wanted_versions()}, found {version}: SGLang runs without Sluice"
        if asked:
            raise SystemExit(f"{line}, but {asked[0]}=1 asks for it")
        logger.warning(line)
        return
    if compat.SWITCH in asked and known.names:
        raise SystemExit(f"sluice: {compat.SWITCH}=1: wanted SGLang 0.5.17, found {version}: "
                         f"use --moe-runner-backend {compat.BACKEND} instead")
    if state.seams() is not None:
        return
    try:
        _check(known.publish)
    except IncompatibleEngine as why:
        if asked:  # no flag selects Sluice, so no later check would end the process
            raise SystemExit(str(why)) from why
        raise
    state.use(known)
    _hook(known.publish, _after_publish, "AFTER")
    if known.names:
        choices = importlib.import_module(known.choices)
        choices.add_moe_runner_backend_choices([compat.BACKEND])
        choices.add_mxfp8_moe_runner_backend_choices([compat.BACKEND])  # for other backends SGLang overrides the flag


# ---- The flags ----


def _after_publish(result: Any, server_args: Any, *args: Any, role: str = "", **kwargs: Any) -> None:
    """Runs after SGLang has published the settings of a process."""
    if role in _NO_MODEL:
        return
    asked = compat.asked_by_environment()
    experts = _asked_for(server_args) or compat.AUTO in asked
    if experts or compat.GATES in asked:
        install(experts)


def _asked_for(server_args: Any) -> bool:
    """Whether the settings of this process select Sluice. Raises an error if a flag selects Sluice and SGLang overrides it."""
    from sglang.srt.runtime_context import get_exec, get_spec

    flags = {"--moe-runner-backend": (server_args.moe_runner_backend, get_exec().moe.moe_runner_backend),
             "--speculative-moe-runner-backend": (server_args.speculative_moe_runner_backend,
                                                  get_spec().speculative_moe_runner_backend)}
    seams = state.seams()
    wanted = seams.backend
    if not seams.names:
        if not compat.switched_on():
            return False
        if not any(effective == wanted for _, effective in flags.values()):
            raise refused(f"{compat.SWITCH}=1: wanted --moe-runner-backend {wanted}, which Sluice replaces, found "
                          + " and ".join(f"{flag} {effective}" for flag, (_, effective) in flags.items()))
        return True
    for flag, (given, effective) in flags.items():
        if given == wanted and effective != wanted:
            raise refused(f"wanted {flag} {wanted}, found {effective!r}: SGLang overrides the flag for this model or its quantization")
    return any(effective == wanted for _, effective in flags.values())


# ---- Installing ----


def install(experts: bool = True) -> None:
    """Installs the hooks on gates and, if asked, on experts, and checks each one. Raises IncompatibleEngine if one is missing."""
    global _installed
    if _installed:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry

    found = list(zip(state.seams().gate_targets, _gate_hooks(), strict=True))
    if experts:
        found += zip(state.seams().expert_targets, _expert_hooks(), strict=True)
    hooks = {target.path: (target, *hook) for target, hook in found}
    for target, hook, kind in hooks.values():
        _check(target)
        _hook(target, hook, kind)
    HookRegistry.apply_hooks()
    missing = [path for path, (_, hook, _) in hooks.items() if not applied(path, hook)]
    if missing:
        raise refused(f"Sluice's hooks are missing on {', '.join(missing)}: remove other plug-ins with hooks there, or see the reason in "
                      "SGLang's log")
    if experts and state.seams().names:
        from sglang.srt.layers.moe.utils import register_moe_runner_backend_name

        register_moe_runner_backend_name(compat.BACKEND)
    _installed = True


def _expert_hooks() -> tuple[tuple[Callable, str], ...]:
    from . import experts

    return tuple((hook, "AROUND") for hook in (experts.around_fused_moe, experts.around_mxfp4, experts.around_fp8,
                                               experts.around_modelopt_fp8, experts.around_modelopt_fp4, experts.around_modelopt_mixed,
                                               experts.around_hybrid, experts.around_compressed_tensors))


def _gate_hooks() -> tuple[tuple[Callable, str], ...]:
    from . import expert_lora, gates, lora

    return ((gates.after_load, "AFTER"), (lora.around_init, "AROUND"), (lora.around_set_module, "AROUND"), (lora.around_load, "AROUND"),
            (lora.around_load, "AROUND"), (expert_lora.after_prepare, "AFTER"), (expert_lora.around_slot, "AROUND"),
            (expert_lora.around_shape, "AROUND"), (expert_lora.around_shape, "AROUND"))


def _hook(target: compat.Target, hook: Callable, kind: str) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    if not any(known is hook for _, known, *_ in HookRegistry._hooks.get(target.path, ())):
        HookRegistry.register(target.path, hook, HookType[kind], source=HookSource("sluice", "sluice_moe"))


def _check(target: compat.Target) -> None:
    """Raises IncompatibleEngine unless the target exists and has the parameters that its hook reads."""
    try:
        found = pkgutil.resolve_name(target.path)
    except (ImportError, AttributeError) as why:
        raise refused(f"wanted {target.path} of SGLang {compat.found_version()}, found {type(why).__name__}: {why}") from why
    parameters = inspect.signature(found).parameters
    missing = [name for name in target.parameters if name not in parameters]
    if missing:
        raise refused(f"wanted {target.path} of SGLang {compat.found_version()} with {', '.join(missing)}, found only "
                      f"{', '.join(parameters)}")


def applied(path: str, hook: Callable) -> bool:
    """Whether calling `path` runs the hook. It is found in the closures of SGLang's wrappers."""
    found = pkgutil.resolve_name(path)
    while found is not None:
        if any(cell.cell_contents is hook for cell in getattr(found, "__closure__", None) or ()):
            return True
        found = getattr(found, "__wrapped__", None)
    return False
