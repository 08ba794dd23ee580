"""`sluice bench serve` and `sluice eval --server`, run against sluice serve and against a fake server with known answers and timing."""
import collections
import json
import os
import re
import resource
import statistics
import subprocess
import tempfile
import threading
import unittest

from fake_server import FIRST, GAP, RAW, FakeServer
from server import COMMAND, WATCHDOG, ServerTest

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../models/sluice-16e-tiny")


def sluice(*words, status=0, memory=None):
    def bound():
        if memory:
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    out = subprocess.run([COMMAND, *map(str, words)], capture_output=True, timeout=WATCHDOG, preexec_fn=bound)
    if out.returncode != status:
        raise AssertionError(f"{words}: {out.returncode}, {out.stdout.decode()}{out.stderr.decode()}")
    return out.stdout.decode(), out.stderr.decode()


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as f:
            f.write(text)
        return self.path(name)

    def lines(self, name, rows):
        return self.write(name, "".join(json.dumps(r) + "\n" for r in rows))

    def read(self, name):
        with open(self.path(name)) as f:
            return json.load(f)

    def bench(self, url, *words, status=0):
        """Returns standard output, standard error, and the result with the times of each request."""
        result = self.path("result.json")
        out, err = sluice("bench", "serve", "--base-url", url, "--output-json", result, "--save-detailed", *words, status=status)
        return out, err, self.read("result.json")


class AgainstFake(Files):
    def setUp(self):
        super().setUp()
        self.fake = FakeServer()
        self.addCleanup(self.fake.close)

    def custom(self, behaviours, tokens=4):
        return ("--dataset-name", "custom", "--dataset-path",
                self.lines("prompts.jsonl", [{"prompt": b, "output_tokens": tokens} for b in behaviours]),
                "--num-prompts", len(behaviours))

    def test_times_are_those_of_the_server(self):
        out, _, result = self.bench(self.fake.url, *self.custom(["ok"] * 5, 6), "--max-concurrency", 1, "--percentile-metrics", "ttft,tpot,itl,e2el")
        log = self.fake.asked("/v1/completions")[1:]  # the first request only tests the server
        self.assertEqual((len(log), self.fake.max_open), (5, 1))
        self.assertEqual((result["completed"], result["failed"], result["total_input_tokens"], result["total_output_tokens"]), (5, 0, 55, 30))
        for i, asked in enumerate(log):
            writes, ttft, itl = asked["writes"], result["ttfts"][i], result["itls"][i]
            self.assertGreaterEqual(ttft, writes[0] - asked["received"], "sent before, read after")
            self.assertEqual(len(itl), len(writes) - 1)
            self.assertAlmostEqual(result["latencies"][i], ttft + sum(itl))
            self.assertGreaterEqual(result["latencies"][i], writes[-1] - asked["received"])
        self.assertAlmostEqual(result["mean_tpot_ms"], statistics.mean(
            1000 * (total - first) / 5 for total, first in zip(result["latencies"], result["ttfts"])))
        self.assertGreaterEqual(result["duration"], sum(result["latencies"]))
        # The server sleeps before its first chunk and between chunks; the machine adds further delay.
        self.assertGreaterEqual(result["median_ttft_ms"], 1000 * FIRST)
        self.assertGreaterEqual(result["median_e2el_ms"], 1000 * (FIRST + 5 * GAP))
        self.assertIn(f"{'Mean TTFT (ms):':<40} {result['mean_ttft_ms']:<10.2f}\n", out)
        self.assertIn(f"{'Output token throughput (tok/s):':<40} {result['output_throughput']:<10.2f}\n", out)

    def test_connections_are_kept(self):
        self.bench(self.fake.url, *self.custom(["ok"] * 4, 1), "--max-concurrency", 1)
        self.assertEqual(len({r["connection"] for r in self.fake.asked("/v1/completions")}), 1)

    def test_a_connection_that_was_closed_meanwhile(self):
        _, _, result = self.bench(self.fake.url, *self.custom(["stale"] * 4, 1), "--max-concurrency", 1)
        self.assertEqual((result["completed"], result["failed"]), (4, 0))

    def test_as_many_at_once_as_were_asked_for(self):
        self.fake.barrier = threading.Barrier(300)
        _, _, result = self.bench(self.fake.url, *self.custom(["together"] * 300, 1))
        self.assertEqual((result["completed"], self.fake.max_open), (300, 300))
        self.fake.barrier = threading.Barrier(3)
        self.fake.max_open = 0
        self.fake.log.clear()
        _, _, result = self.bench(self.fake.url, *self.custom(["together"] * 12, 1), "--max-concurrency", 3)
        self.assertEqual((result["completed"], self.fake.max_open), (12, 3))
        self.assertGreaterEqual(sum(t > FIRST / 2 for t in result["queue_times"]), 9, "three are sent at once, the others wait")

    def test_arrivals(self):
        _, _, result = self.bench(self.fake.url, *self.custom(["ok"] * 20, 1), "--request-rate", 40, "--seed", 5)
        starts = result["start_times"]
        self.assertEqual(starts, sorted(starts))
        self.assertGreaterEqual(starts[-1], 0.5)
        self.assertEqual((result["request_rate"], result["completed"]), (40, 20))

    def test_failures_are_counted_with_their_reasons(self):
        bad = {"500": "HTTP 500: out of order", "close": "the server closed the connection without an answer",
               "cut": "the server closed the connection before its answer was complete", "no end": "stream: wanted [DONE] at its end, found none",
               "error event": "error in the stream: lost the thread", "hang": "no complete answer within 6 seconds"}
        rows = ["ok"] * 4 + ["no usage"] + [b for b in bad for _ in range(2)]
        out, err, result = self.bench(self.fake.url, *self.custom(rows, 2), "--timeout", 6)
        self.assertEqual((result["completed"], result["failed"]), (5, 12))
        self.assertEqual(result["total_output_tokens"], 10, "without usage, chunks are counted")
        self.assertEqual(collections.Counter(result["errors"]), {"": 5, **{reason: 2 for reason in bad.values()}})
        for reason in bad.values():
            self.assertIn("2 failed: " + reason + "\n", err)
        self.assertIn(f"{'Failed requests:':<40} {12:<10}\n", out)

    REASONS = {
        f"length {2**64 - 1}": "wanted an answer of at most 268435456 bytes, found more",
        f"length {2**63 - 1}": "wanted an answer of at most 268435456 bytes, found more",
        f"length {200 * 10**9}": "wanted an answer of at most 268435456 bytes, found more",
        f"length {200 * 10**6}": "the server closed the connection before its answer was complete",
        f"length {10**30}": "wanted an HTTP answer, found an error: bad Content-Length",
        "length -1": "wanted an HTTP answer, found an error: bad Content-Length",
        "chunk zz": "wanted an HTTP answer, found an error: bad chunk",
        "chunk huge": "wanted an HTTP answer, found an error: bad chunk",
        "chunk cut": "the server closed the connection before its answer was complete",
        "chunk of words": "wanted ", "head": "wanted ", "heads": "wanted ",
        "interims": "wanted at most 100 interim answers, found more",
        "interim and no more": "the server closed the connection before its answer was complete",
        "switch": "HTTP 101", "mail": "wanted an HTTP answer, found an error: bad version",
        "event": "stream: wanted events of at most 16777216 bytes, found a longer one",
        'usage {"prompt_tokens": -5}': "usage: prompt_tokens: wanted an integer from 0 to 2147483647, found -5",
        'usage {"completion_tokens": 1e300}': "usage: completion_tokens: wanted an integer from 0 to 2147483647, found 1e+300",
        'usage {"completion_tokens": 18446744073709551615}': "usage: completion_tokens: wanted an integer from 0 to 2147483647, found 184467",
        'usage {"prompt_tokens": "many"}': "usage: prompt_tokens: wanted an integer from 0 to 2147483647, found \"many\"",
    }

    def test_one_absurd_answer_is_one_failed_request(self):
        self.assertLessEqual(set(RAW), set(self.REASONS))
        rows = ["ok", *self.REASONS, "interim", "ok"]
        _, _, result = self.bench(self.fake.url, *self.custom(rows, 2), "--max-concurrency", "1,4")
        for run in result:
            self.assertEqual((run["completed"], run["failed"], run["total_output_tokens"]), (3, len(self.REASONS), 6), run["errors"])
            failed = [e for e in run["errors"] if e]
            for reason in self.REASONS.values():
                self.assertTrue(any(e.startswith(reason) for e in failed), f"wanted {reason} in {failed}")

    def test_memory_is_taken_for_what_came_and_not_for_what_was_promised(self):
        self.fake.barrier = threading.Barrier(12, timeout=WATCHDOG)
        result = self.path("result.json")
        sluice("bench", "serve", "--base-url", self.fake.url, *self.custom(["ok", *["long together"] * 12], 1), "--output-json", result,
               memory=1 << 30)
        told = self.read("result.json")
        self.assertEqual((told["completed"], told["failed"]), (1, 12))

    def test_one_absurd_answer_is_one_wrong_question(self):
        reasons = {name: reason for name, reason in self.REASONS.items() if name in RAW and name != "event"}
        names = list(reasons)

        def question(body):
            return int(re.findall(r"Question: Q(\d+)\?", body["messages"][0]["content"])[-1])
        self.fake.answer = lambda body: f"so\n#### {question(body)}"
        self.fake.raw = lambda body: names[question(body)] if question(body) < len(names) else None
        self.fake.usage = lambda body: {"prompt_tokens": -1 if question(body) == len(names) else 3, "completion_tokens": 2}
        result = self.path("eval.json")
        sluice("eval", "--server", self.fake.url, "--task", "gsm8k", "--data", self.gsm8k(len(names) + 5), "--num-fewshot", 0,
               "--output-json", result, "--max-concurrency", 3, status=1)
        told = self.read("eval.json")
        self.assertEqual((told["strict"]["right"], told["failed"], told["prompt_tokens"]), (4, len(names) + 1, 12))
        errors = {a["question"]: a["error"] for a in told["answers"]}
        for i, name in enumerate(names):
            self.assertTrue(errors[i].startswith(reasons[name]), f"wanted {reasons[name]}, found {errors[i]}")
        self.assertIn("usage.prompt_tokens: wanted an integer from 0 to 2147483647, found -1", errors[len(names)])

    def test_words_of_a_refusal_are_bounded(self):
        self.fake.refusal = "x" * (1 << 20)
        _, _, result = self.bench(self.fake.url, *self.custom(["ok", "500 long"], 1))
        self.assertEqual(sorted(map(len, result["errors"]))[0], 0)
        self.assertLess(max(map(len, result["errors"])), 400)

    def test_metadata(self):
        words = self.custom(["ok"] * 2, 1)
        _, _, result = self.bench(self.fake.url, *words, "--metadata", "gpu=H200", "note=a = b", "empty=", "--max-concurrency", "1,2")
        for run in result:
            self.assertEqual((run["gpu"], run["note"], run["empty"], run["completed"]), ("H200", "a = b", "", 2))
        self.fake.log.clear()
        for bad, said in (("gpu", "wanted KEY=VALUE, found 'gpu'"), ("=x", "wanted KEY=VALUE, found '=x'"),
                          ("completed=9", "wanted unique keys that the result does not have, found 'completed'"),
                          ("p99_ttft_ms=9", "found 'p99_ttft_ms'"), ("errors=9", "found 'errors'")):
            self.assertIn("--metadata: " + said if "wanted" in said else said,
                          sluice("bench", "serve", "--base-url", self.fake.url, *words, "--metadata", bad, status=2)[1])
        self.assertIn("found 'a'", sluice("bench", "serve", "--base-url", self.fake.url, *words, "--metadata", "a=1", "a=2", status=2)[1])
        self.assertEqual(self.fake.log, [], "found before any request")

    def test_extra_body(self):
        words = self.custom(["ok"] * 2, 1)
        extra = {"top_k": 5, "chat_template_kwargs": {"enable_thinking": False}, "ignore_eos": True}
        self.bench(self.fake.url, *words, "--extra-body", json.dumps(extra))
        for asked in self.fake.asked("/v1/completions"):
            self.assertEqual({k: asked["body"][k] for k in extra}, extra)
            self.assertEqual(asked["body"]["max_tokens"], 1)
        self.fake.log.clear()
        for bad, said in (("[1]", "--extra-body: wanted an object, found "), ("{", "--extra-body: wanted JSON"),
                          ('{"stream": false}', "--extra-body: wanted only fields that no other option sets, found 'stream'"),
                          ('{"max_tokens": 3}', "found 'max_tokens'"), ('{"prompt": 3}', "found 'prompt'")):
            self.assertIn(said, sluice("bench", "serve", "--base-url", self.fake.url, *words, "--extra-body", bad, status=2)[1])
        self.assertIn("found 'ignore_eos'", sluice("bench", "serve", "--base-url", self.fake.url, *words, "--ignore-eos", "--extra-body",
                                                   json.dumps(extra), status=2)[1])
        self.assertEqual(self.fake.log, [], "found before any request")

    def test_acceptance_of_two_engines(self):
        pages = [self.drafts_page(5, 15, 6, [3, 2, 1]), self.drafts_page(9, 31, 16, [7, 5, 4])]
        self.fake.metrics = lambda: pages.pop(0)
        out, _, result = self.bench(self.fake.url, *self.custom(["ok"] * 2, 1))
        self.assertEqual(pages, [], "read once before the run and once after it")
        self.assertEqual({k: v for k, v in result.items() if k.startswith("spec_decode")}, {
            "spec_decode_acceptance_rate": 62.5, "spec_decode_acceptance_length": 3.5, "spec_decode_num_drafts": 8,
            "spec_decode_draft_tokens": 32, "spec_decode_accepted_tokens": 20, "spec_decode_per_position_acceptance_rates": [1, 0.75, 0.75]})
        self.assertIn(f"{'Acceptance rate (%):':<40} {62.5:<10.2f}\n", out)
        self.assertIn(f"{'  Position 2:':<40} {75:<10.2f}\n{'':=<50}\n", out)

    def test_servers_without_drafts(self):
        for page in (None, "", "python_info 1\n", self.drafts_page(5, 15, 6, [3, 2, 1])):
            self.fake.metrics = lambda page=page: page
            out, err, result = self.bench(self.fake.url, *self.custom(["ok"], 1))
            self.assertNotIn("Speculative", out + err)
            self.assertFalse([k for k in result if k.startswith("spec_decode")])

    @staticmethod
    def drafts_page(drafts, draft_tokens, accepted, accepted_at):
        """The counters of two engines, which both have these values."""
        rows = [("num_drafts_total", "", drafts), ("num_draft_tokens_total", "", draft_tokens), ("num_accepted_tokens_total", "", accepted),
                *(("num_accepted_tokens_per_pos_total", f',position="{i}"', n) for i, n in enumerate(accepted_at))]
        return "".join(f'# TYPE vllm:spec_decode_{name} counter\n' + "".join(
            f'vllm:spec_decode_{name}{{engine="{engine}",model_name="a \\"b\\""{label}}} {value:e}\n' for engine in range(2))
            for name, label, value in rows)

    def test_a_prefix_that_all_random_prompts_share(self):
        self.bench(self.fake.url, "--num-prompts", 5, "--num-warmups", 2, "--random-prefix-len", 30, "--random-input-len", 10,
                   "--random-output-len", 1, "--vocab-size", 5000)
        prompts = [r["body"]["prompt"] for r in self.fake.asked("/v1/completions")]
        self.assertEqual((len(prompts), {len(p) for p in prompts}), (8, {40}))
        self.assertEqual(len({tuple(p[:30]) for p in prompts}), 1)
        self.assertEqual(len({tuple(p[30:]) for p in prompts}), 8)

    def test_a_tokenizer_here_counts_and_makes_tokens(self):
        asked = []
        self.fake.asked_tokens = asked
        _, _, result = self.bench(self.fake.url, "--num-prompts", 3, "--random-input-len", 12, "--random-output-len", 2, "--tokenizer", MODEL)
        self.assertEqual(result["tokenizer_id"], MODEL)
        self.assertEqual({len(r["body"]["prompt"]) for r in self.fake.asked("/v1/completions")}, {12})
        self.fake.log.clear()
        self.bench(self.fake.url, "--num-prompts", 3, "--random-input-len", 12, "--random-output-len", 2, "--tokenizer", MODEL,
                   "--backend", "openai-chat")
        for r in self.fake.asked("/v1/chat/completions"):
            self.assertRegex(r["body"]["messages"][0]["content"], r"^[ a-z0-9]+$")
        talk = self.write("talk.json", json.dumps([{"conversations": [{"value": "How many are there?"}, {"value": "There are five of them."}]}]))
        self.bench(self.fake.url, "--num-prompts", 1, "--dataset-name", "sharegpt", "--dataset-path", talk, "--tokenizer", MODEL)
        self.assertEqual(asked, [], "the server is not asked to tokenize")
        # Without usage, the client counts the answer's tokens. Each chunk is "x", and five of them are at most five tokens.
        _, _, result = self.bench(self.fake.url, *self.custom(["no usage"], 5), "--tokenizer", MODEL)
        prompt, output = (int(t) for t in (result["total_input_tokens"], result["total_output_tokens"]))
        self.assertGreater(prompt, 0)
        self.assertTrue(1 <= output <= 5, output)
        self.assertIn("--tokenizer: /nowhere/tokenizer.json: cannot be opened", sluice(
            "bench", "serve", "--base-url", self.fake.url, "--tokenizer", "/nowhere", status=2)[1])

    def test_nothing_is_measured_of_a_server_that_fails(self):
        result = self.path("none.json")
        words = ("bench", "serve", "--num-prompts", 1, "--vocab-size", 9, "--output-json", result)
        self.assertIn("--base-url: wanted http://", sluice(*words, "--base-url", "https://127.0.0.1", status=2)[1])
        self.fake.close()
        _, err = sluice(*words, "--base-url", self.fake.url, status=2)
        self.assertRegex(err, r"cannot connect to 127\.0\.0\.1:\d+: Connection refused")
        self.assertFalse(os.path.exists(result))

    def test_when_no_request_of_a_run_succeeds(self):
        _, err, result = self.bench(self.fake.url, *self.custom(["500"] * 3), status=2)
        self.assertEqual((result["completed"], result["failed"], result["mean_ttft_ms"]), (0, 3, 0))
        self.assertIn("requests: wanted at least one success", err)

    def test_random_prompts(self):
        words = ("--num-prompts", 8, "--num-warmups", 3, "--random-input-len", 40, "--random-output-len", 2, "--ignore-eos", "--seed", 3)
        self.bench(self.fake.url, *words, "--random-range-ratio", 0.25, "--api-key", "secret")
        bodies = [r["body"] for r in self.fake.asked("/v1/completions")]
        self.assertEqual({r["key"] for r in self.fake.asked("/v1/completions")}, {"Bearer secret"})
        self.assertEqual(len(bodies), 1 + 3 + 8)
        self.assertEqual(len({tuple(b["prompt"]) for b in bodies}), 12, "no prompt repeats")
        for b in bodies:
            self.assertTrue(30 <= len(b["prompt"]) <= 50 and 1 <= b["max_tokens"] <= 3 and b["ignore_eos"], b)
            self.assertTrue(all(i >= 10 for i in b["prompt"]), "ids returned by /tokenize")
        self.fake.log.clear()
        self.bench(self.fake.url, *words, "--vocab-size", 7)
        again = [r["body"]["prompt"] for r in self.fake.asked("/v1/completions")]
        self.assertEqual({i for p in again for i in p}, set(range(7)))
        self.assertEqual({len(p) for p in again}, {40})
        self.bench(self.fake.url, *words, "--backend", "openai-chat")
        chat = [r["body"] for r in self.fake.asked("/v1/chat/completions")]
        self.assertEqual({b["messages"][0]["content"] for b in chat}, {" ".join("w" * 40)})
        self.assertEqual({b["max_completion_tokens"] for b in chat}, {2})

    def test_conversations(self):
        def talk(prompt, answer):
            return {"conversations": [{"from": "human", "value": prompt}, {"from": "gpt", "value": answer}]}
        rows = [talk("a b c d e", "1 2 3 4 5 6"), talk("too short", "1 2 3 4"), talk("f g h i", "1 2 3 4 5"), talk("a b c d", "short"),
                talk("w " * 1025, "1 2 3 4"), talk("v " * 1000, "1 " * 1049), {"conversations": [{"value": "alone"}]}, {"id": 1}]
        file = self.write("talk.json", json.dumps(rows))
        self.bench(self.fake.url, "--dataset-name", "sharegpt", "--dataset-path", file, "--num-prompts", 5)
        asked = [(r["body"]["prompt"], r["body"]["max_tokens"]) for r in self.fake.asked("/v1/completions")]
        self.assertEqual(collections.Counter(asked), {("a b c d e", 6): 3, ("f g h i", 5): 3}, "the two conversations alternate")

    def gsm8k(self, count):
        return self.lines("gsm8k.jsonl", [{"question": f"Q{i}?", "answer": f"W\n#### {i}"} for i in range(count)])

    def test_gsm8k(self):
        def answer(body):
            n = int(re.findall(r"Question: Q(\d+)\?", body["messages"][0]["content"])[-1])
            return None if n == 9 else f"so\n#### {n}" if n % 2 else f"It is {n}."
        self.fake.answer = answer
        self.fake.barrier = threading.Barrier(2, timeout=20)  # two questions are answered concurrently
        result = self.path("eval.json")
        out, _ = sluice("eval", "--server", self.fake.url, "--task", "gsm8k", "--data", self.gsm8k(13), "--num-fewshot", 3,
                        "--output-json", result, "--max-concurrency", 2, status=1)
        eval_ = self.read("eval.json")
        self.assertEqual((eval_["strict"]["right"], eval_["flexible"]["right"], eval_["failed"]), (4, 9, 1))
        self.assertEqual((eval_["strict"]["questions"], eval_["prompt_tokens"], self.fake.max_open), (10, 27, 2))
        self.assertIn("1 x HTTP 500: no idea", out)
        self.assertRegex(out, r"gsm8k +flexible +9\.0 +10 +90\.0%   \[59\.6%, 98\.2%\]")
        body = self.fake.asked("/v1/chat/completions")[0]["body"]
        self.assertEqual((body["temperature"], body["stop"]), (0, ["Question:", "</s>", "<|im_end|>"]))
        self.assertTrue(body["messages"][0]["content"].startswith("Question: Q0?\nAnswer: W\n#### 0\n\nQuestion: Q1?"))

    def test_gpqa_repeats_and_comparison(self):
        rows = [{"Question": f"Q{i}", "Correct Answer": "yes", **{f"Incorrect Answer {k}": f"no{k}" for k in (1, 2, 3)}} for i in range(20)]
        data = self.lines("gpqa.jsonl", rows)

        def run(name, answer):
            self.fake.answer = answer
            sluice("eval", "--server", self.fake.url, "--task", "gpqa", "--data", data, "--repeat", 4, "--seed", 2, "--output-json", self.path(name))
            return self.read(name)
        a = run("a.json", lambda body: "Answer: A")
        wanted = [x["wanted"] for x in a["answers"]]
        self.assertEqual(set(wanted), set("ABCD"), "the right option has different letters")
        self.assertAlmostEqual(a["strict"]["right"], wanted.count("A") / 4)
        self.assertEqual(len(a["strict"]["repeats"]), 4)
        b = run("b.json", lambda body: "It is (" + re.search(r"([A-D])\) yes", body["messages"][0]["content"])[1] + ")")
        self.assertEqual((b["strict"]["right"], b["flexible"]["accuracy"]), (0, 1))
        self.assertEqual([x["wanted"] for x in b["answers"]], wanted, "the same seed, the same shuffles")
        out, _ = sluice("eval", "--compare", self.path("a.json"), self.path("b.json"))
        self.assertRegex(out, r"B better at (1\d|20)\np +0\.0\d+ ")
        self.assertIn("p           1.0000", sluice("eval", "--compare", self.path("a.json"), self.path("a.json"))[0])

    def test_answers_of_other_seeds_are_not_compared(self):
        data = self.lines("q.jsonl", [{"task": "t", "question": f"Q{i}", "answer": "yes"} for i in range(3)])
        self.fake.answer = lambda body: "yes"
        for name, seed in (("a.json", 1), ("b.json", 2)):
            sluice("eval", "--server", self.fake.url, "--data", data, "--seed", seed, "--output-json", self.path(name))
        said = sluice("eval", "--compare", self.path("a.json"), self.path("b.json"), status=2)[1]
        self.assertIn(f"b.json: wanted the questions, the seed and the repeats of {self.path('a.json')}, found different ones", said)

    def test_wrong_flags(self):
        for words, said in (((), "--data: needs --server"), (("--server", "x"), "--server: wanted a URL"),
                            (("--server", self.fake.url, "--threads", 2), "--threads: cannot be combined with --server"),
                            (("--server", self.fake.url, "--questions", "x"), "--questions: cannot be combined with --data"),
                            (("--server", self.fake.url, "--num-fewshot", 3), "--num-fewshot: need --task gsm8k"),
                            (("--server", self.fake.url, "--backend", "openai", "--reasoning-effort", "low"), "needs --backend openai-chat"),
                            (("--server", self.fake.url, "--task", "gpqa", "--data", "/nowhere"), "/nowhere")):
            words = words if "--data" in words else (*words, "--data", "x")
            self.assertIn(said, sluice("eval", *words, status=2)[1])
        self.assertIn("--data: wanted the questions of gsm8k", sluice("eval", "--server", self.fake.url, "--task", "gsm8k", status=2)[1])
        # A resolver would reduce the port modulo 65536, which is another server.
        for port in (65536 + int(self.fake.url.rsplit(":", 1)[1]), 0, 65536, "00000", "9" * 30):
            for words in (("bench", "serve", "--base-url"), ("eval", "--data", "x", "--server")):
                self.assertIn("wanted a port from 1 to 65535", sluice(*words, f"http://127.0.0.1:{port}", status=2)[1])
        # An empty variable in a script is neither a server nor a file.
        for flag in ("--base-url", "--host", "--model", "--output-json", "--svg", "--result-dir", "--result-filename", "--tokenizer", "--dataset-path", "--extra-body"):
            self.assertIn(f"{flag}: wanted some text, found none", sluice("bench", "serve", flag, "", status=2)[1])
        for flag in ("--server", "--data", "--train", "--output-json"):
            self.assertIn(f"{flag}: wanted some text, found none", sluice("eval", flag, "", status=2)[1])
        self.assertIn("--goodput: wanted", sluice("bench", "serve", "--goodput", "ttft", status=2)[1])
        self.assertIn("--endpoint: wanted a path", sluice("bench", "serve", "--endpoint", "/v1 x", status=2)[1])
        self.assertIn("--api-key: wanted a key", sluice("bench", "serve", "--api-key", "a\r\nb: c", status=2)[1])
        self.assertIn("'itls'", sluice("bench", "serve", "--percentile-metrics", "itls", status=2)[1])
        self.assertIn("--num-prompt", sluice("bench", "serve", "--num-promptz", 3, status=2)[1])


    def test_results_without_a_place(self):
        """Errors that can be detected before the run are reported before it."""
        nowhere = self.path("none/x")
        for words, said in ((("--output-json", nowhere), "--output-json: cannot write"), (("--output-json", self.folder), "it is a folder"),
                            (("--max-concurrency", 1, "--svg", nowhere), "--svg: cannot write"), (("--svg", self.path("a.svg")), "--svg: needs --max-concurrency"),
                            (("--save-result", "--result-dir", self.write("file", "") + "/x"), "--result-dir: cannot make the folder"),
                            (("--result-dir", self.folder), "--result-dir: needs --save-result, found none"),
                            (("--result-filename", "a.json"), "--result-filename: needs --save-result, found none"),
                            (("--save-detailed",), "--save-detailed: needs --save-result or --output-json, found neither")):
            self.assertIn(said, sluice("bench", "serve", "--base-url", self.fake.url, *words, status=2)[1])
        questions = self.lines("q.jsonl", [{"question": "x", "answer": "y"}])
        self.assertIn("--output-json: cannot write", sluice("eval", "--server", self.fake.url, "--data", questions, "--output-json", nowhere, status=2)[1])
        self.assertEqual(self.fake.log, [])


class AgainstSluice(ServerTest, Files):
    FLAGS = ("-q",)

    def setUp(self):
        Files.setUp(self)

    def test_a_sweep(self):
        words = ("--num-prompts", 6, "--random-input-len", 20, "--random-output-len", 8, "--ignore-eos", "--num-warmups", 2)
        svg = self.path("load.svg")
        before = self.server.metric("vllm:generation_tokens_total")
        out, _, result = self.bench(self.server.url + "/v1", *words, "--max-concurrency", "1,3", "--svg", svg, "--goodput", "ttft:0", "tpot:1e9")
        self.assertEqual([r["max_concurrency"] for r in result], [1, 3])
        for r in result:
            self.assertEqual((r["completed"], r["failed"], r["total_input_tokens"], r["total_output_tokens"]), (6, 0, 120, 48))
            self.assertEqual((r["output_lens"], r["request_goodput"]), ([8] * 6, 0))
            self.assertAlmostEqual(r["output_throughput"] * r["duration"], 48)
        self.assertEqual(self.server.metric("vllm:generation_tokens_total") - before, (1 + 2 * (2 + 6)) * 8)
        self.assertEqual(out.count("Serving Benchmark Result"), 2)
        with open(svg) as f:
            self.assertIn("Time to First Token", f.read())

    def test_chat(self):
        _, _, result = self.bench(self.server.url, "--backend", "openai-chat", "--num-prompts", 3, "--random-input-len", 30,
                                  "--random-output-len", 6, "--ignore-eos", "--max-concurrency", 3)
        self.assertEqual((result["completed"], result["total_output_tokens"], result["backend"]), (3, 18, "openai-chat"))

    def test_saved_results_have_vllms_names(self):
        sluice("bench", "serve", "--base-url", self.server.url, "--num-prompts", 1, "--random-input-len", 5, "--random-output-len", 2,
               "--save-result", "--result-dir", self.path("results"))
        names = os.listdir(self.path("results"))
        self.assertEqual(len(names), 1)
        self.assertRegex(names[0], r"^openai-infqps-sluice-16e-tiny-\d{8}-\d{6}\.json$")

    def test_accuracy_is_that_of_the_engine_alone(self):
        here = json.loads(sluice("eval", "-q", "--limit", 2, "--max-tokens", 400, "--json")[0])
        there = json.loads(sluice("eval", "-q", "--limit", 2, "--max-tokens", 400, "--json", "--server", self.server.url)[0])
        self.assertEqual((there["strict"]["right"], there["strict"]["questions"], there["failed"]),
                         (here["right"], here["questions"], 0))


class AgainstDrafts(ServerTest, Files):
    FLAGS = ("-q", "--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3, "enable_adaptive_verification": false}')

    def setUp(self):
        Files.setUp(self)

    def counts(self):
        p = "vllm:spec_decode_num_"
        return [self.server.metric(p + name + "_total") for name in ("drafts", "draft_tokens", "accepted_tokens")] + [
            self.server.metric(p + "accepted_tokens_per_pos_total", f'position="{i}"') for i in range(3)]

    def test_acceptance_is_that_of_the_metrics(self):
        # With this seed, the row of one token, which has no drafts, is in the first request, which is not measured.
        rows = [{"prompt": f"What is {n} + 268?", "output_tokens": 1 if n == 410 else 24} for n in range(410, 415)]
        before = self.counts()
        out, _, result = self.bench(self.server.url, "--backend", "openai-chat", "--dataset-name", "custom", "--dataset-path",
                                    self.lines("prompts.jsonl", rows), "--num-prompts", 4, "--temperature", 0, "--ignore-eos", "--seed", 5)
        self.assertEqual(result["output_lens"], [24] * 4)
        drafts, draft_tokens, accepted, *accepted_at = (b - a for a, b in zip(before, self.counts(), strict=True))
        self.assertEqual((result["completed"], result["spec_decode_num_drafts"], result["spec_decode_draft_tokens"],
                          result["spec_decode_accepted_tokens"]), (4, drafts, draft_tokens, accepted))
        self.assertGreater(result["spec_decode_acceptance_length"], 1)
        self.assertAlmostEqual(result["spec_decode_acceptance_length"], 1 + accepted / drafts)
        self.assertAlmostEqual(result["spec_decode_acceptance_rate"], 100 * accepted / draft_tokens)
        self.assertEqual(result["spec_decode_per_position_acceptance_rates"], [n / drafts for n in accepted_at])
        self.assertIn(f"{'Speculative Decoding':-^50}\n{'Acceptance rate (%):':<40} {100 * accepted / draft_tokens:<10.2f}\n", out)


if __name__ == "__main__":
    unittest.main()
