#!/usr/bin/env python3
"""vllm_contract.py FOLDER...: records which of the names that the plug-in uses exist in unpacked wheels of vLLM.

Each FOLDER holds one wheel, unpacked (python3 -m zipfile -e; its .py files are enough). Adds its version to
tests/python/vllm_plugin/vllm_contract.json: the parameters of each function, method and class that sluice_moe.vllm.compat.SEAMS names.
It parses the sources and imports nothing.
"""
import importlib.util
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests/python/vllm_plugin/vllm_contract.json"


def compat():
    """Loads sluice_moe/vllm/compat.py alone, because its package needs the library and vLLM."""
    spec = importlib.util.spec_from_file_location("vllm_compat", ROOT / "python/sluice_moe/vllm/compat.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def recorded(folder: pathlib.Path, seams, definitions) -> dict[str, list[str]]:
    """Returns {"path name": parameters} of each seam that exists."""
    out = {}
    for seam in seams:
        path = folder / seam.path
        found = definitions(path.read_text()) if path.is_file() else {}
        if seam.name in found:
            out[f"{seam.path} {seam.name}"] = list(found[seam.name])
    return out


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    seams = compat()
    record = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
    for folder in map(pathlib.Path, sys.argv[1:]):
        metadata = list(folder.glob("vllm*.dist-info/METADATA"))
        if len(metadata) != 1:
            sys.exit(f"{folder}: wanted one vllm*.dist-info/METADATA, found {len(metadata)}")
        version = seams.release(re.search(r"^Version: (.*)$", metadata[0].read_text(), re.M)[1])
        record[version] = recorded(folder, seams.SEAMS, seams.definitions)
        print(f"{version}: {len(record[version])} of {len(seams.SEAMS)}")
    RECORD.write_text(json.dumps(dict(sorted(record.items())), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
