"""The import graph of the package, read from its source: no module imports itself through others, imports inside functions counted."""
from __future__ import annotations

import ast
import graphlib
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "python" / "sluice_moe"


def sources(package: pathlib.Path) -> dict[str, str]:
    """The source of each module by its dotted name; a package's is that of its __init__.py."""
    out = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return out


def imports(name: str, source: str, modules: set[str], packages: set[str]) -> set[str]:
    """The modules of `modules` that a source imports at any depth. Python imports the parents of a module by itself: they count only where
    a name is taken from them."""
    out = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")[: len(name.split(".")) - node.level + (name in packages)]
                base = ".".join([*parents, *([node.module] if node.module else [])])
            for alias in node.names:  # `from package import x`: a module of it, or a name inside it
                out.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in modules else base)
    return out & modules


def import_graph(texts: dict[str, str]) -> dict[str, set[str]]:
    packages = {parent for name in texts for parent in [name.rpartition(".")[0]] if parent}
    return {name: imports(name, text, set(texts), packages) for name, text in texts.items()}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, first and last the same; empty: there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as why:
        return why.args[1]
    return []


def test_no_module_imports_itself_through_others() -> None:
    graph = import_graph(sources(PACKAGE))
    assert len(graph) > 20 and graph["sluice_moe.layer"] >= {"sluice_moe.capi", "sluice_moe.ops"}
    assert not circle(graph), " imports ".join(reversed(circle(graph)))


@pytest.mark.parametrize("texts", [
    {"p": "", "p.a": "from . import b", "p.b": "from .a import x"},
    {"p": "", "p.a": "import p.b", "p.b": "def f():\n    from p.a import x"},
    {"p": "def f():\n    from . import a", "p.a": "from . import NAME"},
    {"p": "", "p.q": "from .a import x", "p.q.a": "from ..b import x", "p.b": "import p.q"},
    {"p": "", "p.a": "if True:\n    from . import a"},
])
def test_circles_are_found(texts: dict[str, str]) -> None:
    assert circle(import_graph(texts))


@pytest.mark.parametrize("texts", [
    {"p": "from . import a", "p.a": "from . import b", "p.b": "import json"},
    {"p": "from .q import a", "p.q": "", "p.q.a": "from ..b import x", "p.b": "import torch"},
])
def test_one_way_imports_are_no_circle(texts: dict[str, str]) -> None:
    assert not circle(import_graph(texts))
