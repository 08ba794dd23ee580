"""Sluice's hooks in SGLang: registered when its loader runs, installed when a process learns that Sluice was asked for.

SGLang only logs a plug-in or a hook that fails. So the hooks check themselves: install() ends the start unless each of them is where
it belongs. A process that was not asked for Sluice imports nothing more than this module.
"""
from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from typing import Any, Callable

from . import compat

logger = logging.getLogger("sluice_moe.sglang")

# Processes that build no model.
_NO_MODEL = ("tokenizer", "detokenizer", "dp_controller", "encoder", "expert_backup", "launcher")

_seams: compat.Seams | None = None
_installed = False


def takes_method() -> bool:
    """Whether FusedMoE takes a quant_method."""
    return _seams.method_argument


def asked_by() -> str:
    """What a user said to get Sluice."""
    return _seams.asked_by


class NotInstalled(RuntimeError):
    """Sluice was asked for and cannot run; the message says what was wanted and what was found."""


def register() -> None:
    """Makes `--moe-runner-backend sluice` known and waits for a process that is asked for it."""
    global _seams
    version = compat.found_version()
    switched = compat.switched_on()
    known = compat.seams(version)
    if known is None:
        line = f"sluice: wanted SGLang {compat.wanted_versions()}, found {version}: SGLang runs without Sluice"
        if switched:
            raise SystemExit(f"{line}, but {compat.SWITCH}=1 asks for it")
        logger.warning(line)
        return
    if switched and known.names:
        raise SystemExit(f"sluice: {compat.SWITCH}=1: wanted SGLang before 0.5.19, found {version}: "
                         f"say --moe-runner-backend {compat.BACKEND} instead")
    if _seams is not None:
        return
    try:
        _check(known.publish)
    except NotInstalled as why:
        if switched:  # nothing later would stop the start: its backend is one of SGLang's own
            raise SystemExit(str(why)) from why
        raise
    _seams = known
    _hook(known.publish, _after_publish, "AFTER")
    if known.names:
        importlib.import_module(known.choices).add_moe_runner_backend_choices([compat.BACKEND])


def chosen() -> bool:
    """Whether the layers being built or run now are Sluice's: a draft may have another backend than its target."""
    from sglang.srt.layers.moe.utils import get_moe_runner_backend

    return get_moe_runner_backend().value == _seams.backend


# ---- Asked for? ----


def _after_publish(result: Any, server_args: Any, *args: Any, role: str = "", **kwargs: Any) -> None:
    """After SGLang's settings are settled in a process."""
    if role in _NO_MODEL or not _asked_for(server_args):
        return
    install()


def _asked_for(server_args: Any) -> bool:
    from sglang.srt.runtime_context import get_exec, get_spec

    flags = {"--moe-runner-backend": (server_args.moe_runner_backend, get_exec().moe.moe_runner_backend),
             "--speculative-moe-runner-backend": (server_args.speculative_moe_runner_backend,
                                                  get_spec().speculative_moe_runner_backend)}
    wanted = _seams.backend
    if not _seams.names:
        if not compat.switched_on():
            return False
        if not any(settled == wanted for _, settled in flags.values()):
            raise _refused(f"{compat.SWITCH}=1: wanted --moe-runner-backend {wanted}, which Sluice stands in for, found "
                           + " and ".join(f"{flag} {settled}" for flag, (_, settled) in flags.items()))
        return True
    for flag, (said, settled) in flags.items():
        if said == wanted and settled != wanted:
            raise _refused(f"wanted {flag} {wanted}, found that SGLang made it {settled!r}: this model or its quantization does not "
                           "leave the choice to the flag")
    return any(settled == wanted for _, settled in flags.values())


def _refused(reason: str) -> NotInstalled:
    logger.error("sluice: %s", reason)
    return NotInstalled(f"sluice: {reason}")


# ---- Installing ----


def install() -> None:
    """Puts the hooks of the layers in place and checks each one. Raises NotInstalled, and then none of the layers is Sluice's."""
    global _installed
    if _installed:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry

    hooks = {target.path: (target, *hook) for target, hook in zip(_seams.targets, _layer_hooks(), strict=True)}
    for target, hook, kind in hooks.values():
        _check(target)
        _hook(target, hook, kind)
    HookRegistry.apply_hooks()
    missing = [path for path, (_, hook, _) in hooks.items() if not applied(path, hook)]
    if missing:
        raise _refused(f"wanted hooks on {', '.join(hooks)}, found none of Sluice's on {', '.join(missing)}: another plug-in's are there, "
                       "or SGLang's log says why")
    if _seams.names:
        from sglang.srt.layers.moe.utils import register_moe_runner_backend_name

        register_moe_runner_backend_name(compat.BACKEND)
    _installed = True


def _layer_hooks() -> tuple[tuple[Callable, str], ...]:
    from . import experts, gates, lora

    return ((experts.around_fused_moe, "AROUND"), (experts.around_mxfp4, "AROUND"), (experts.around_fp8, "AROUND"),
            (gates.around_gpt_oss, "AROUND"), (gates.around_deepseek, "AROUND"), (lora.around_set_module, "AROUND"),
            (lora.around_load, "AROUND"), (lora.around_load, "AROUND"))


def _hook(target: compat.Target, hook: Callable, kind: str) -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType

    if not any(known is hook for _, known, *_ in HookRegistry._hooks.get(target.path, ())):
        HookRegistry.register(target.path, hook, HookType[kind], source=HookSource("sluice", "sluice_moe"))


def _check(target: compat.Target) -> None:
    """The target exists and has the parameters that its hook reads."""
    try:
        found = pkgutil.resolve_name(target.path)
    except (ImportError, AttributeError) as why:
        raise _refused(f"wanted {target.path} of SGLang {compat.found_version()}, found {type(why).__name__}: {why}") from why
    parameters = inspect.signature(found).parameters
    missing = [name for name in target.parameters if name not in parameters]
    if missing:
        raise _refused(f"wanted {target.path} of SGLang {compat.found_version()} with {', '.join(missing)}, found only "
                       f"{', '.join(parameters)}")


def applied(path: str, hook: Callable) -> bool:
    """Whether calling `path` calls the hook."""
    found = pkgutil.resolve_name(path)
    while found is not None:
        if any(cell.cell_contents is hook for cell in getattr(found, "__closure__", None) or ()):
            return True
        found = getattr(found, "__wrapped__", None)
    return False
