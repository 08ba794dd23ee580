"""The package's import graph, read from its source, has no cycle. Imports inside functions and importlib.import_module() count."""
from __future__ import annotations

import ast
import graphlib
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python" / "sluice_moe"


def sources(package: pathlib.Path) -> dict[str, str]:
    """The source of each module by its dotted name; a package's source is its __init__.py."""
    out = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return out


def imports(name: str, source: str, modules: set[str], packages: set[str]) -> set[str]:
    """The modules of `modules` that a source imports, including imports inside functions. Python imports a module's parents itself, so a parent counts only
    if a name is imported from it. If a source calls import_module(), each of its strings that names a module counts."""
    tree, out = ast.parse(source), set()
    calls = {getattr(node.func, "attr", getattr(node.func, "id", "")) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    package = name if name in packages else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: len(name.split(".")) - node.level + (name in packages)]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:  # `from package import x`: x is a module or a name in the package
                out.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base)
        elif "import_module" in calls and isinstance(node, ast.Constant) and isinstance(node.value, str):
            out |= {node.value, f"{package}.{node.value.lstrip('.')}"}
    return (out & modules) - ({name} if "import_module" in calls else set())


def import_graph(texts: dict[str, str]) -> dict[str, set[str]]:
    packages = {parent for name in texts for parent in [name.rpartition(".")[0]] if parent}
    return {name: imports(name, text, set(texts), packages) for name, text in texts.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one cycle, each importing the next, with the first repeated at the end; empty if there is no cycle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as why:
        return why.args[1]
    return []


def text(found: list[str]) -> str:
    return " imports ".join(reversed(found))


def test_the_package_has_no_circle() -> None:
    graph = import_graph(sources(PACKAGE))
    assert len(graph) > 20 and graph["sluice_moe.layer"] >= {"sluice_moe.capi", "sluice_moe.ops"}
    assert graph["sluice_moe"] >= {"sluice_moe.layer", "sluice_moe.devices"}  # imported by import_module() when a name is first used
    assert graph["sluice_moe.doctor"] >= {"sluice_moe.transformers", "sluice_moe.vllm", "sluice_moe.sglang"}
    assert not circle(graph), text(circle(graph))


@pytest.mark.parametrize("texts", [
    {"p": "", "p.a": "from . import b", "p.b": "from .a import x"},
    {"p": "", "p.a": "import p.b", "p.b": "def f():\n    from p.a import x"},
    {"p": "def f():\n    from . import a", "p.a": "from . import NAME"},
    {"p": "", "p.q": "from .a import x", "p.q.a": "from ..b import x", "p.b": "import p.q"},
    {"p": "", "p.a": "if True:\n    from . import a"},
    {"p": "import importlib\nNAMES = {'x': '.a'}\ndef f(name):\n    return importlib.import_module(NAMES[name], 'p')", "p.a": "from p import x"},
])
def test_circles_are_found(texts: dict[str, str]) -> None:
    assert circle(import_graph(texts))


def test_a_circle_is_named() -> None:
    found = text(circle(import_graph({"p": "", "p.a": "from . import b", "p.b": "def f():\n    import p.c", "p.c": "from .a import x"})))
    turns = ["p.a imports p.b imports p.c imports p.a", "p.b imports p.c imports p.a imports p.b", "p.c imports p.a imports p.b imports p.c"]
    assert found in turns


@pytest.mark.parametrize("texts", [
    {"p": "from . import a", "p.a": "from . import b", "p.b": "import json"},
    {"p": "from .q import a", "p.q": "", "p.q.a": "from ..b import x", "p.b": "import torch"},
])
def test_imports_in_one_direction_are_no_circle(texts: dict[str, str]) -> None:
    assert not circle(import_graph(texts))
