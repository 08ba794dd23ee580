"""Speculative decoding: a server gives the answers of a server without it, bit for bit under --batch-invariant."""
import json
import shutil
import struct
import tempfile
import unittest
from pathlib import Path

from server import QUESTION, Server, joined

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MODEL = str(Path(__file__).resolve().parents[2] / "models" / "sluice-16e-tiny")
# All drafts are verified, including unlikely ones, so that many are rejected.
CONFIG = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "prompt_lookup_max": 3, "enable_adaptive_verification": False}
# The shipped model's draft head.
HEAD = {"method": "eagle3", "num_speculative_tokens": 4, "enable_adaptive_verification": False}
TOOL = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}, "note": {"enum": ["sum", "total"]}},
    "required": ["a", "b", "note"], "additionalProperties": False}}}
SCHEMA = {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
                                     "required": ["name", "n"], "additionalProperties": False}, "minItems": 2, "maxItems": 4}
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 0.8, "seed": 5},
    {"temperature": 1.4, "top_p": 0.9, "top_k": 40, "min_p": 0.02, "seed": 6},
    {"temperature": 0.7, "seed": 7, "frequency_penalty": 0.6, "presence_penalty": 0.3, "repetition_penalty": 1.2},
    {"temperature": 1, "seed": 8, "logit_bias": {"20": 3, "33": -5}, "logprobs": True, "top_logprobs": 4},
]


SHIPPED_HEAD = Path(__file__).parents[2] / "models/sluice-16e-tiny-eagle3"


def fill(path, name, element):
    """Sets all elements of one tensor of a safetensors file."""
    with open(path, "r+b") as file:
        size, = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(size))[name]["data_offsets"]
        file.seek(8 + size + begin)
        file.write(element * ((end - begin) // len(element)))


def said(answer):
    """An answer without the values that differ between two equal requests."""
    choices = []
    for choice in answer["choices"]:
        message = choice.get("message") or {}
        choices.append({"text": choice.get("text"), "message": {**message, "tool_calls": [call["function"] for call in message.get("tool_calls") or []]}, "finish": choice["finish_reason"],
                        "logprobs": choice.get("logprobs")})
    return choices, answer["usage"]["completion_tokens"]


def requests():
    for sampling in SAMPLINGS:
        yield CHAT, {"messages": QUESTION, "max_tokens": 60, "n": 2, **sampling}
        yield CHAT, {"messages": QUESTION, "max_tokens": 80, "ignore_eos": True, "stop": ["8", "the "], **sampling}
        yield CHAT, {"messages": QUESTION, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200, **sampling}
        yield CHAT, {"messages": QUESTION, "max_tokens": 300, "response_format": {"type": "json_schema", "json_schema": {"name": "list", "schema": SCHEMA}},
                     **sampling}
    for sampling in SAMPLINGS[:4]:
        yield COMPLETION, {"prompt": "one two three one two three one two", "max_tokens": 70, "ignore_eos": True, **sampling}
        yield COMPLETION, {"prompt": list(range(60, 90)) * 3, "max_tokens": 40, "echo": True, "logprobs": 2, **sampling}
        yield COMPLETION, {"prompt": "Date: ", "max_tokens": 40, "structured_outputs": {"regex": r"(\d{4}-\d{2}-\d{2}, ){3}end"}, **sampling}


def answers(*flags):
    server = Server("--batch-invariant", "-t", "2", *flags)
    try:
        out = []
        for path, body in requests():
            status, _, answer = server.ask(path, body)
            if status != 200:
                raise AssertionError(f"{status}: {answer} to {body}")
            out.append(said(answer))
        streamed = server.stream(messages=QUESTION, max_tokens=60, ignore_eos=True, temperature=0)
        return out, streamed, server.ask("/metrics")[2]
    finally:
        server.close()


def counter(metrics, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in metrics.splitlines() if line.startswith(name + "{"))


class Speculation(unittest.TestCase):
    def test_answers_are_those_without_drafts(self):
        wanted, streamed, metrics = answers()
        self.assertNotIn("spec_decode", metrics)
        for config in (CONFIG, HEAD):
            with self.subTest(config["method"]):
                self.expect_same(config, wanted, streamed)

    def expect_same(self, config, wanted, streamed):
        found, streamed_too, metrics = answers("--speculative-config", json.dumps(config))
        for (path, body), want, got in zip(requests(), wanted, found, strict=True):
            self.assertEqual(got, want, f"{path} {body}")
        self.assertEqual(joined(streamed_too, "content"), joined(streamed, "content"))
        drafts, drafted, accepted = (counter(metrics, f"vllm:spec_decode_num_{name}_total") for name in ("drafts", "draft_tokens", "accepted_tokens"))
        self.assertGreater(drafts, 50)
        self.assertGreater(accepted, 0)
        self.assertLess(accepted, drafted)
        self.assertEqual(counter(metrics, "vllm:spec_decode_num_accepted_tokens_per_pos_total"), accepted)
        self.assertIn('vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=', metrics)
        self.assertIn('position="3"', metrics)

    def test_the_shipped_head_is_right_most_of_the_time(self):
        """The head's card reports 0.93 for the third draft, on questions like those of the model's training."""
        server = Server("-t", "2", "--speculative-config", json.dumps({"method": "eagle3", "enable_adaptive_verification": False}))
        try:
            for question in ("What is 417 + 268?", "What is 90 - 33?", "What is 12 * 7?"):
                self.assertEqual(server.ask(CHAT, {"messages": [{"role": "user", "content": question}], "temperature": 0})[0], 200)
            metrics = server.ask("/metrics")[2]
            drafts = counter(metrics, "vllm:spec_decode_num_drafts_total")
            accepted = counter(metrics, "vllm:spec_decode_num_accepted_tokens_total")
            self.assertGreater(drafts, 10)
            self.assertGreater(accepted / drafts, 2)
        finally:
            server.close()

    def test_a_head_whose_scores_overflow_costs_only_its_drafts(self):
        """Its weights are finite, its scores are not: the answers stay the same, and the log says so once."""
        body = {"messages": QUESTION, "temperature": 0, "max_tokens": 40}
        with tempfile.TemporaryDirectory() as head:
            shutil.copytree(SHIPPED_HEAD, head, dirs_exist_ok=True)
            fill(f"{head}/model.safetensors", "fc.weight", b"\x61\x7f")  # 3e38 in bf16
            answers = []
            for flags in ((), ("--speculative-config", json.dumps({**HEAD, "model": head}))):
                server = Server("--batch-invariant", "-t", "2", *flags)
                try:
                    answers.append([said(server.ask(CHAT, body)[2]) for _ in range(2)])
                    log, metrics = server.logged(), server.ask("/metrics")[2]
                finally:
                    server.close()
        self.assertEqual(*answers)
        self.assertEqual(log.count("the draft layer computes scores that are not finite"), 1, log)
        self.assertEqual(counter(metrics, "vllm:spec_decode_num_draft_tokens_total"), 0)

    def test_the_shipped_model_by_its_path(self):
        for config in ("none", json.dumps(HEAD)):
            server = Server("-t", "2", MODEL, "--speculative-config", config)
            try:
                self.assertEqual(server.ask(CHAT, {"messages": QUESTION, "temperature": 0})[2]["choices"][0]["message"]["content"], "685")
                if config != "none":
                    self.assertGreater(counter(server.ask("/metrics")[2], "vllm:spec_decode_num_drafts_total"), 0)
            finally:
                server.close()

    def test_a_short_cache_and_many_requests(self):
        """Preemptions, prefix cache hits and disconnecting clients while drafts are in flight."""
        config = json.dumps({"method": "suffix", "num_speculative_tokens": 7})
        server = Server("--batch-invariant", "-t", "2", "--max-num-seqs", "4", "--max-model-len", "512", "--kv-cache-gib", "0.004",
                        "--speculative-config", config)
        try:
            body = {"prompt": "a b c a b c a b c a b", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
            alone = said(server.ask(COMPLETION, body)[2])
            left = [server.open_stream(COMPLETION, **{**body, "n": 2}) for _ in range(3)]
            waiting = [server.open_later(body["prompt"], 200) for _ in range(3)]
            for connection, response in left:
                response.read(200)
                connection.close()
            self.assertEqual(said(server.ask(COMPLETION, body)[2]), alone)
            for connection in waiting:
                connection.close()
            self.assertEqual(said(server.ask(COMPLETION, {**body, "n": 3})[2])[0], alone[0] * 3)
            self.assertEqual(server.stop(), 0)
        finally:
            server.close()


if __name__ == "__main__":
    unittest.main()
