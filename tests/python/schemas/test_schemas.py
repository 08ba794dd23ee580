"""Answers under schemas written by people and under generated combinations of keywords, checked by two libraries: a sample.

To check all of them: build/python/venv/bin/python tests/python/schemas/schema_judge.py build/python/schemas
"""
import pytest
import schema_combinations
import schema_corpus
import schema_dead_ends
import schema_judge
from conftest import ROOT, serve

SAMPLE, SEED = 200, "1"
OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "when": {"type": "string", "format": "date"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def corpus() -> list[dict]:
    return schema_corpus.read(ROOT / "build" / "python" / "schemas")


@pytest.fixture(scope="module")
def report(corpus) -> schema_judge.Report:
    lines = schema_judge.sample(corpus + schema_combinations.lines(SEED), SAMPLE, SEED)
    with serve("--max-num-seqs", "16") as url:
        return schema_judge.judge(url, lines, answers=2, tokens=200, seed=SEED)


def test_the_corpus_is_large(corpus):
    assert len(corpus) >= 2500
    assert sum(schema_corpus.describes_objects(line["schema"]) for line in corpus) >= 1500
    assert len({line["source"] for line in corpus}) >= 20
    assert len(schema_combinations.lines(SEED)) >= 500


def test_every_answer_that_ends_is_valid(report):
    print(report.text())
    assert not report.faults, report.text()


def test_accepted_schemas_have_no_dead_ends():
    """A schema under which an answer could reach a point without an allowed token must be rejected before the first token."""
    with serve("--max-num-seqs", "16") as url:
        report = schema_judge.judge(url, schema_dead_ends.lines(SEED, 60), answers=2, tokens=300, seed=SEED)
    assert not report.faults and report.count("no token") == 0, report.text()
    assert report.count("stop") >= 25, report.text()


def test_most_schemas_are_judged(report):
    """If no answer ended, the test above would prove nothing."""
    ended = sum(any(answer.outcome == "stop" for answer in verdict.answers) for verdict in report.verdicts)
    assert ended >= 100, report.text()


def test_objects_are_accepted(report):
    accepted, count = report.share(report.objects)
    assert count >= 80 and accepted >= 0.95 * count, report.text()


def test_nobody_waits(report):
    assert max(report.waits) < 1, report.text()  # as seen by the client, which also checks answers meanwhile


@pytest.mark.parametrize("text, said", [
    ('{"a":1}', None), ('{ "a" : 1.0 }', None), ('{"a":1,"when":"2024-02-29"}', None), ('{"a":"1"}', "not of type"), ("{}", "required property"), ('{"a":1e400}', "double's range"),
    ('{"a":1', "not JSON"), ('{"a":1,"a":2}', "duplicate key"), ('{"a":NaN}', "not JSON"), ('{"a":1,"b":"\\ud800"}', "not JSON"),
    ('{"a":1} ]', "not JSON"), ('{"a":1,"when":"2023-02-29"}', "not a 'date'"),
])
def test_faults_are_found(text, said):
    found = schema_judge.fault(OBJECT, text)
    assert found is None if said is None else said in found


@pytest.mark.parametrize("dialect, schema, text, valid", [
    ("http://json-schema.org/draft-07/schema#", {"items": [{"type": "string"}], "additionalItems": False}, "[1]", False),
    ("https://json-schema.org/draft/2020-12/schema", {"prefixItems": [{"type": "string"}], "items": False}, '["a",1]', False),
    ("http://json-schema.org/draft-04/schema#", {"minimum": 0, "exclusiveMinimum": True}, "0", False),
    ("http://json-schema.org/draft-07/schema#", {"pattern": "^\\d$"}, '"7"', True),
    ("https://json-schema.org/draft/2020-12/schema", {"unevaluatedProperties": False, "anyOf": [{"properties": {"a": {}}}]}, '{"b":1}', False),
])
def test_dialects_are_known(dialect, schema, text, valid):
    assert (schema_judge.fault({"$schema": dialect, **schema}, text) is None) == valid


def test_parts_of_documents_stand_alone():
    document = {"definitions": {"a/b": {"type": "object", "properties": {"next": {"$ref": "#/definitions/a~1b"}, "c": {"$ref": "#/definitions/c"}}},
                                "c": {"type": "string"}, "d": {"$ref": "other.json"}}}
    made = schema_corpus.alone(document, document["definitions"]["a/b"], "$defs")
    assert schema_corpus.stands_alone(made) and set(made["$defs"]) == {"a_1b", "c"}
    assert schema_judge.fault(made, '{"next":{"next":{"c":"x"}}}') is None
    assert "not of type" in schema_judge.fault(made, '{"next":{"next":{"c":1}}}')
    assert schema_corpus.alone(document, document["definitions"]["d"], "$defs") is None
