"""Schemas generated from combinations of keywords: per type, single keywords, pairs, and randomly sampled triples (with a seed); and formats."""
from __future__ import annotations

import itertools
import random

import jsonschema_rs

SOURCE = "generated"
SHARED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
FORMATS = ("date", "time", "date-time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uuid", "uri",
           "uri-reference", "uri-template", "iri", "iri-reference", "json-pointer", "relative-json-pointer", "regex")
# Values that are satisfiable in most combinations; the server reports the unsatisfiable ones.
KEYWORDS = {
    "string": {
        "minLength": [0, 2, 5], "maxLength": [3, 7, 40], "pattern": ["^[a-c]+$", "é", "^\\d{2,4}", "[\"\\\\]x$", "^(a|bc)*$", "^\\S+\\s?"],
        "format": ["date", "date-time", "email", "uuid", "ipv4", "hostname"], "enum": [["abc", "é\"\\\n", "2024-02-29", "x"]],
        "const": ["abc", "naïve \"quotes\""], "not": [{"const": "abc"}, {"maxLength": 2}, {"pattern": "^a"}],
        "allOf": [[{"minLength": 1}, {"maxLength": 9}], [{"pattern": "a"}, {"pattern": "c"}]],
    },
    "integer": {
        "minimum": [-3, 0, 7], "maximum": [5, 99, 1000], "exclusiveMinimum": [-10, 1], "exclusiveMaximum": [8, 12],
        "multipleOf": [1, 3, 7], "enum": [[0, 3, 21, -6]], "const": [21], "not": [{"const": 3}, {"minimum": 50}],
        "anyOf": [[{"minimum": 3}, {"maximum": -5}]],
    },
    "number": {
        "minimum": [-2.5, 0, 0.001], "maximum": [4.75, 1e3], "exclusiveMinimum": [-1.5, 0], "exclusiveMaximum": [3, 9.25],
        "multipleOf": [0.5, 2], "enum": [[0.5, 2, 3e2, -1.25]], "const": [2.5],
        "oneOf": [[{"minimum": 3}, {"maximum": -0.5}, {"const": 1}]],
    },
    "array": {
        "items": [{"type": "integer"}, {"enum": ["a", "b", "c", "d"]}, False], "minItems": [0, 1, 2], "maxItems": [2, 4], "uniqueItems": [True],
        "prefixItems": [[{"type": "string"}, {"type": "integer"}], [{"const": "a"}]], "contains": [{"type": "integer"}, {"const": "b"}],
        "minContains": [0, 2], "maxContains": [2], "unevaluatedItems": [False, {"type": "boolean"}],
        "allOf": [[{"minItems": 1}, {"items": {"maxLength": 4}}]],
    },
    "object": {
        "properties": [{"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 5}}, {"ä": {"type": "null"}, "a\"b": {"type": "boolean"}}],
        "required": [["a"], ["b", "c"], ["ä"]], "additionalProperties": [False, {"type": "boolean"}], "patternProperties": [{"^x": {"type": "integer"}}],
        "propertyNames": [{"pattern": "^[a-x]"}, {"maxLength": 4}], "minProperties": [1, 2], "maxProperties": [2, 3],
        "dependentRequired": [{"a": ["b"]}], "dependentSchemas": [{"a": {"required": ["c"]}}], "unevaluatedProperties": [False],
        "anyOf": [[{"required": ["a"]}, {"required": ["b"]}]], "oneOf": [[{"properties": {"a": {"const": 1}}, "required": ["a"]}, {"required": ["b"]}]],
        "allOf": [[{"properties": {"c": {"type": "string", "maxLength": 3}}}, {"required": ["c"]}]], "not": [{"required": ["b"]}],
        "if": [{"properties": {"a": {"const": 1}}, "required": ["a"]}], "then": [{"required": ["b"]}], "else": [{"required": ["c"]}],
        "$ref": ["#/$defs/shared"], "enum": [[{"a": 1}, {"a": 2, "b": "é"}]],
    },
}


def one(kind: str, names: tuple[str, ...], draws: random.Random) -> dict:
    """A schema with these keywords; one in four has no type, and one in four is nested in a property."""
    schema = {name: draws.choice(KEYWORDS[kind][name]) for name in names}
    if draws.random() < 0.75:
        schema = {"type": kind, **schema}
    if "$ref" in schema:
        schema["$defs"] = {"shared": SHARED}
    elif kind != "object" and draws.random() < 0.25:
        schema = {"type": "object", "properties": {"value": schema}, "required": ["value"], "additionalProperties": False}
    return schema


def lines(seed: str, threes: int = 40) -> list[dict]:
    out = []
    for kind, keywords in KEYWORDS.items():
        draws = random.Random(f"{seed}/{kind}")
        every = list(itertools.combinations(keywords, 3))
        for names in [*((name,) for name in keywords), *itertools.combinations(keywords, 2), *draws.sample(every, min(threes, len(every)))]:
            schema = one(kind, names, draws)
            jsonschema_rs.meta.validate(schema)
            out.append({"id": f"{SOURCE}:{kind}:{'+'.join(names)}", "source": SOURCE, "schema": schema})
    for name in FORMATS:
        schema = {"type": "array", "items": {"type": "string", "format": name}, "minItems": 3, "maxItems": 3}
        out.append({"id": f"{SOURCE}:format:{name}", "source": SOURCE, "schema": schema})
    return out
