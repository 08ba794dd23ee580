"""schemathesis holds `sluice serve` to its OpenAPI document: requests as it has them, and requests that break it."""
import json
import subprocess
import sys
import urllib.request

import pytest
from conftest import serve

pytest.importorskip("schemathesis")


def test_every_endpoint(tmp_path):
    # A short context: answers are as long as they are left to be.
    with serve("--max-model-len", "256") as url:
        with urllib.request.urlopen(url + "/openapi.json") as answer:
            document = json.load(answer)
        # From a file: of a document that comes from a server, schemathesis does not test the endpoint that it came from.
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        words = ["run", "openapi.json", "--url", url, "--phases", "examples,coverage,fuzzing", "--max-examples", "15", "--seed", "7",
                 "--no-color", "--generation-deterministic",
                 # What the document allows may still be refused: a prompt that is too long, an id that is unknown.
                 "--exclude-checks", "positive_data_acceptance"]
        run = subprocess.run([sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()", *words],
                             capture_output=True, text=True, timeout=600, cwd=tmp_path)  # where it keeps what it found
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr
    operations = sum(len(methods) for methods in document["paths"].values())
    assert operations == 13
    assert f"Tested: {operations}" in run.stdout, run.stdout[-3000:]
