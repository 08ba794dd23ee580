"""schemathesis tests `sluice serve` against its OpenAPI document, with requests that follow the document and requests that violate it."""
import json
import subprocess
import sys
import urllib.request

import pytest
from conftest import serve

pytest.importorskip("schemathesis")


def test_every_endpoint(tmp_path):
    # A short context, because answers run until the context is full.
    with serve("--max-model-len", "256") as url:
        with urllib.request.urlopen(url + "/openapi.json") as answer:
            document = json.load(answer)
        # The document is read from a file, because schemathesis does not test the endpoint from which a document was fetched.
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        words = ["run", "openapi.json", "--url", url, "--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--seed", "7",
                 "--no-color", "--generation-deterministic",
                 # The server may reject requests that the document allows, such as a prompt that is too long or an unknown id.
                 "--exclude-checks", "positive_data_acceptance"]
        run = subprocess.run([sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", *words],
                             capture_output=True, text=True, timeout=600, cwd=tmp_path)  # schemathesis stores its findings there
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr
    operations = sum(len(methods) for methods in document["paths"].values())
    assert operations == 13
    assert f"Tested: {operations}" in run.stdout, run.stdout[-3000:]
