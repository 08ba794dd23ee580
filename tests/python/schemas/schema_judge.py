"""Checks with jsonschema and jsonschema_rs that answers of `sluice serve` match the schemas requested.

Each schema is requested at temperature 1.5 with random seeds: as a chat's `response_format`, and as a completion's `structured_outputs`. A
schema must be rejected with 400 before the first token, or every answer with finish reason "stop" must be valid. An answer with "length"
proves nothing.

schema_judge.py CORPUS [--sample N] [--seed S] [--answers N] [--report FILE] [--url URL]: CORPUS is a folder with the archives of
python/requirements/schemas.txt, or a file written by schema_corpus.py. Without --url it starts the server: SLUICE_COMMAND, or the package's
command.
"""
from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import functools
import http.client
import json
import math
import pathlib
import random
import re
import sys
import threading
import time
import typing
import urllib.parse
import warnings

import jsonschema
import jsonschema_rs

import schema_combinations
import schema_corpus

PROMPT_BYTES_MAX = 1024  # a chat's prompt contains the schema, so a larger schema makes a long prompt or exceeds the context
NO_TOKEN = "wanted a token that the grammar allows here, found none"  # an accepted schema led to a dead end
SECONDS_MAX = 60  # limit of one request; a longer one counts as a fault


class Answer(typing.NamedTuple):
    outcome: str  # refused, stop, length, no token, error
    text: str = ""  # the answer, or the reason why there is none
    seconds: float = 0.0


def strict(text: str):
    """Parses JSON as strict readers do: unique keys, no NaN, no number beyond a double's range, no lone surrogate."""

    def pairs(found):
        keys = [key for key, _ in found]
        if len(set(keys)) != len(keys):
            raise ValueError(f"duplicate key: {sorted(k for k in keys if keys.count(k) > 1)[0]!r}")
        return dict(found)

    def constant(name):
        raise ValueError(f"{name} is not JSON")

    def number(digits):
        if math.isinf(float(digits)):
            raise ValueError(f"{digits[:40]} is beyond a double's range")
        return float(digits)

    value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    json.dumps(value, ensure_ascii=False).encode()
    return value


@functools.lru_cache(maxsize=64)
def judges(text: str):
    """The checks of a value, by name: each returns the first fault, or None."""
    schema = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    other = jsonschema_rs.validator_for(schema, validate_formats=True, retriever=schema_corpus.refuse)
    checker = jsonschema.FormatChecker(formats=())
    checker.checkers = {name: made for name, made in kind.FORMAT_CHECKER.checkers.items() if name in schema_combinations.FORMATS}
    with_formats = kind(schema, format_checker=checker)

    def of_jsonschema(value):
        try:
            return next((error.message for error in with_formats.iter_errors(value)), None)
        except re.error:  # valid in ECMA 262 but not in Python; the other library checks it
            return None
        except RecursionError:  # a schema that refers to itself without consuming input should have been rejected
            return "the schema refers to itself without end"

    def of_jsonschema_rs(value):
        return next((error.message for error in other.iter_errors(value)), None)

    return {"jsonschema": of_jsonschema, "jsonschema_rs": of_jsonschema_rs}


def fault(schema: dict, text: str) -> str | None:
    try:
        value = strict(text)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    for name, judge in judges(json.dumps(schema)).items():
        found = judge(value)
        if found is not None:
            return f"{name}: {found[:300]}"
    return None


def post(url: str, path: str, body: dict) -> tuple[int, dict]:
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=SECONDS_MAX)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
    finally:
        connection.close()


@functools.lru_cache
def haste(url: str) -> dict[str, float]:
    """Biases towards tokens that end parts of a JSON text and against whitespace: at this temperature few answers of a small model end by
    themselves."""
    biases = {text: 10.0 for text in ('"', "}", "]")} | {blanks: -10.0 for blanks in ("\n", "\r", "\t", *(" " * n for n in range(1, 17)), "\n\n")}
    return {str(post(url, "/tokenize", {"prompt": text})[1]["tokens"][-1]): bias for text, bias in biases.items()}


def ask(url: str, schema: dict, seed: int, tokens: int, chat: bool, hasty: bool) -> Answer:
    body = {"max_tokens": tokens, "temperature": 1.5, "seed": seed}
    if hasty:
        body["logit_bias"] = haste(url)
    if chat:
        path = "/v1/chat/completions"
        body |= {"messages": [{"role": "user", "content": "An example."}], "reasoning_effort": "low",
                 "response_format": {"type": "json_schema", "json_schema": {"name": "example", "schema": schema}}}
    else:
        path = "/v1/completions"
        body |= {"prompt": "An example: ", "structured_outputs": {"json": schema}}
    start = time.monotonic()
    try:
        status, answer = post(url, path, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer("error", repr(error), time.monotonic() - start)
    seconds = time.monotonic() - start
    if status != 200:
        said = str(answer.get("error", {}).get("message", answer))
        outcome = "no token" if NO_TOKEN in said else "refused" if status == 400 else "error"
        return Answer(outcome, f"{status}: {said}", seconds)
    choice = answer["choices"][0]
    text = choice["message"]["content"] if chat else choice["text"]
    return Answer(choice["finish_reason"], text or "", seconds)


class Verdict(typing.NamedTuple):
    line: dict
    answers: list[Answer]
    faults: list[str]

    @property
    def outcome(self) -> str:
        if self.faults:
            return "fault"
        kinds = {answer.outcome for answer in self.answers}
        return next(kind for kind in ("error", "no token", "refused", "stop", "length") if kind in kinds)


def judge_one(url: str, line: dict, answers: int, tokens: int, seed: str) -> Verdict:
    draws = random.Random(f"{seed}/{line['id']}")
    schema, given, faults = line["schema"], [], []
    small = len(schema_corpus.compact(schema).encode()) <= PROMPT_BYTES_MAX
    for number in range(answers):
        answer = ask(url, schema, draws.randrange(2**31), tokens, chat=small and number % 2 == 0, hasty=number % 4 != 0)
        given.append(answer)
        if answer.outcome == "refused":
            if number > 0:
                faults.append(f"refused after an answer: {answer.text}")
            break
        if answer.outcome == "stop":
            found = fault(schema, answer.text)
            if found:
                faults.append(f"{found}\n    answer: {answer.text[:600]!r}")
        elif answer.outcome not in ("length", "no token"):
            faults.append(f"{answer.outcome}: {answer.text}")
    return Verdict(line, given, faults)


@contextlib.contextmanager
def watched(url: str, waits: list[float]):
    """Requests /health continuously and records how many seconds each answer took."""
    ended = threading.Event()
    place = urllib.parse.urlsplit(url)

    def watch():
        while not ended.wait(0.05):
            start = time.monotonic()
            connection = http.client.HTTPConnection(place.hostname, place.port, timeout=SECONDS_MAX)
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("GET", "/health")
                connection.getresponse().read()
            connection.close()
            waits.append(time.monotonic() - start)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def reason(message: str) -> str:
    """The reason of a refusal, without the parts that are specific to one schema."""
    message = re.sub(r"^400: ", "", message)
    message = re.sub(r"JSON schema[^: ]*(\.[^:]*)?: ", "", message)
    return re.sub(r"\d+", "N", message)[:110]


class Report:
    def __init__(self, verdicts: list[Verdict], waits: list[float], seconds: float):
        self.verdicts, self.waits, self.seconds = verdicts, waits, seconds
        self.faults = [verdict for verdict in verdicts if verdict.faults]

    def share(self, wanted) -> tuple[int, int]:
        """(accepted, all) among the schemas for which `wanted` is true."""
        those = [verdict for verdict in self.verdicts if wanted(verdict.line)]
        return sum(verdict.outcome != "refused" for verdict in those), len(those)

    def count(self, outcome: str) -> int:
        return sum(verdict.outcome == outcome for verdict in self.verdicts)

    def written(self, line) -> bool:
        return line["source"] != schema_combinations.SOURCE

    def objects(self, line) -> bool:
        return self.written(line) and schema_corpus.describes_objects(line["schema"])

    def rows(self):
        for name, wanted in (("written by people", self.written), ("of them describe objects", self.objects),
                             ("generated", lambda line: not self.written(line))):
            accepted, count = self.share(wanted)
            outcomes = collections.Counter(verdict.outcome for verdict in self.verdicts if wanted(verdict.line))
            yield name, count, accepted, outcomes

    def text(self) -> str:
        out = [f"{'schemas':26} {'all':>6} {'accepted':>9} {'share':>7}  outcomes"]
        for name, count, accepted, outcomes in self.rows():
            share = f"{100 * accepted / count:.1f}%" if count else "-"
            out.append(f"{name:26} {count:6} {accepted:9} {share:>7}  {dict(outcomes.most_common())}")
        ends = collections.Counter(answer.outcome for verdict in self.verdicts for answer in verdict.answers)
        out.append(f"answers: {dict(ends.most_common())}; {self.seconds:.0f} s")
        for name, wanted in (("of objects, by people", self.objects), ("all", lambda line: True)):
            reasons = collections.Counter(reason(verdict.answers[-1].text) for verdict in self.verdicts
                                          if verdict.outcome == "refused" and wanted(verdict.line))
            out.append(f"refused ({name}):")
            out.extend(f"  {count:5} {why}" for why, count in reasons.most_common(40))
        slow = sorted(((verdict.answers[0].seconds, verdict) for verdict in self.verdicts if verdict.outcome == "refused"),
                      key=lambda pair: -pair[0])[:5]
        out.append("slowest refusals: " + ", ".join(f"{seconds:.2f} s {verdict.line['id']}" for seconds, verdict in slow))
        if self.waits:
            ranked = sorted(self.waits)
            out.append(f"/health: {len(ranked)} times, P99 {ranked[int(len(ranked) * 0.99)]:.3f} s, worst {ranked[-1]:.3f} s")
        out.append(f"{len(self.faults)} schemas with faults")
        for verdict in self.faults:
            out.append(f"FAULT {verdict.line['id']}: " + "\n  and ".join(verdict.faults[:2]))
        return "\n".join(out)

    def as_json(self) -> dict:
        return {"seconds": self.seconds, "health_worst": max(self.waits, default=0),
                "rows": [{"schemas": name, "all": count, "accepted": accepted, "outcomes": outcomes}
                         for name, count, accepted, outcomes in self.rows()],
                "verdicts": [{"id": verdict.line["id"], "outcome": verdict.outcome, "objects": self.objects(verdict.line),
                              "faults": verdict.faults, "answers": [list(answer) for answer in verdict.answers]}
                             for verdict in self.verdicts]}


def judge(url: str, lines: list[dict], *, answers=2, tokens=400, seed="1", workers=8, seconds=3600.0) -> Report:
    """Judges all schemas, or as many as can be requested within the time limit."""
    waits: list[float] = []
    start = time.monotonic()

    def one(line):
        if time.monotonic() - start > seconds:
            return None
        return judge_one(url, line, answers, tokens, seed)

    with watched(url, waits), concurrent.futures.ThreadPoolExecutor(workers) as pool:
        verdicts = [verdict for verdict in pool.map(one, lines) if verdict]
    return Report(verdicts, waits, time.monotonic() - start)


def sample(lines: list[dict], count: int, seed: str) -> list[dict]:
    return random.Random(seed).sample(lines, min(count, len(lines)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("--sample", type=int, default=0, help="number of schemas to sample; 0: all")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--answers", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600, help="time limit, after which no further schema is requested")
    parser.add_argument("--match", default="", help="only schemas whose id contains this text")
    parser.add_argument("--report", type=pathlib.Path, help="a JSON file with every answer")
    parser.add_argument("--url")
    given = parser.parse_args()
    if given.corpus.is_dir():
        lines = schema_corpus.read(given.corpus)
    else:
        lines = [json.loads(line) for line in given.corpus.read_text().splitlines()]
    lines = [line for line in lines + schema_combinations.lines(given.seed) if given.match in line["id"]]
    if given.sample:
        lines = sample(lines, given.sample, given.seed)
    with contextlib.ExitStack() as stack:
        if not given.url:
            sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
            import conftest

            given.url = stack.enter_context(conftest.serve("--max-num-seqs", "16"))
        report = judge(given.url, lines, answers=given.answers, tokens=given.tokens, seed=given.seed, workers=given.workers,
                       seconds=given.seconds)
    print(report.text())
    if given.report:
        given.report.write_text(json.dumps(report.as_json(), indent=1))
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
