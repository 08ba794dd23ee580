"""The package's exceptions: they have one base class and public, documented names, and nothing else is raised."""
from __future__ import annotations

import ast
import builtins
import inspect
import pathlib
import pickle

import pytest

import sluice_moe
from sluice_moe import errors

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python" / "sluice_moe"
CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, BaseException)]
# Python's protocols require these types: a missing attribute, a missing package, and the end of a process whose engine would only log an
# exception.
NAMED_BY_PYTHON = {"AttributeError", "ModuleNotFoundError", "SystemExit"}


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_public_and_documented(cls, root) -> None:
    assert issubclass(cls, sluice_moe.Error) and getattr(sluice_moe, cls.__name__) is cls and cls.__name__ in sluice_moe.__all__
    assert cls.__doc__ and cls.__name__ in errors.__doc__ and f"`{cls.__name__}`" in (root / "docs/python.md").read_text().replace("sluice_moe.", "")
    raised = pickle.loads(pickle.dumps(cls("why")))
    assert type(raised) is cls and str(raised) == "why" and raised.status == cls.status


@pytest.mark.parametrize("name, others", [
    ("InvalidArgument", (ValueError,)), ("UnsupportedModel", (ValueError, sluice_moe.Unsupported)),
    ("UnsupportedLayer", (ValueError, sluice_moe.UnsupportedModel)), ("IncompatibleEngine", (ImportError, ValueError, sluice_moe.Unsupported)),
    ("NoGradient", (NotImplementedError, sluice_moe.Unsupported)), ("LibraryError", (ImportError,))])
def test_errors_are_also_what_callers_catch(name, others) -> None:
    assert all(issubclass(getattr(sluice_moe, name), other) for other in (RuntimeError, *others))


def test_names_of_version_0_1_still_catch() -> None:
    assert sluice_moe.SluiceError is sluice_moe.Error and sluice_moe.IoError_ is sluice_moe.IoFailure


def unnamed(source: str) -> list[str]:
    """`raise` statements that create a built-in exception with a message."""
    known = {name for name in dir(builtins) if name.endswith("Error")}
    raises = (node.exc for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call))
    return [ast.unparse(made) for made in raises
            if isinstance(made.func, ast.Name) and made.func.id in (known | {"Exception"}) - NAMED_BY_PYTHON]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_error_is_raised_without_a_public_name(path: pathlib.Path) -> None:
    assert not unnamed(path.read_text())


def test_raises_without_a_public_name_are_found() -> None:
    assert unnamed('def f():\n    raise RuntimeError("sluice: no")') == ["RuntimeError('sluice: no')"]
    assert not unnamed('raise UnsupportedLayer("no")\n') and not unnamed("def f():\n    raise NotImplementedError")


@pytest.mark.parametrize("arguments, name", [
    ({"tokens_max": 2**64 + 5}, "tokens_max"), ({"tokens_max": 1.5}, "tokens_max"), ({"tp": (0, 2**65)}, "tp[1]"), ({"tp": 1}, "tp"),
    ({"ep": (2**64, 2)}, "ep[0]"), ({"threads": 2**32}, "threads"), ({"decode_tokens": 2**70}, "decode_tokens"),
    ({"model": "gpt-oss-20b\0 experts=1"}, "model"), ({"kernel": "cpu\0"}, "kernel"), ({"kernel_decode": 5}, "kernel_decode"),
    ({"act": "swiglu\0zz"}, "fields"), ({"act": "\ud800"}, "fields")])
def test_what_the_c_abi_cannot_hold_is_refused_by_name(arguments, name) -> None:
    arguments = {"model": "gpt-oss-20b", "device": "cpu", **arguments}
    with pytest.raises(sluice_moe.InvalidArgument, match=f"^{name.replace('[', '.').replace(']', '.')}: wanted"):
        sluice_moe.MoeLayer(arguments.pop("model"), **arguments)
    with pytest.raises(sluice_moe.InvalidArgument, match="^tokens: wanted an integer"):
        sluice_moe.explain("gpt-oss-20b", tokens=[1, 2**64 + 1])
