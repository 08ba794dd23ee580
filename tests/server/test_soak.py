"""Concurrent requests of every kind, together with hostile ones, from clients that often disconnect, with a cache that is too small for all of
them. Every accepted request gets the answer that it gets alone, or fails with a reason; no resource leaks, and memory stays constant.
SLUICE_SOAK_SECONDS is the duration (default 20; 600 before a release). The latency of /health on a second, idle server shows the machine's
own delay."""
import json
import os
import random
import threading
import time
import unittest

import hostile
from clock import HealthClock
from server import WATCHDOG, OwnServerTest, close, events_of, is_sanitized, joined

SECONDS = float(os.environ.get("SLUICE_SOAK_SECONDS", "20"))
CLIENTS, HOSTILE_CLIENTS = 12, 3
DRAIN = 3  # value of --drain-seconds
CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
FLAGS = ("--batch-invariant", "--max-model-len", "768", "--max-num-batched-tokens", "128", "--kv-cache-gib", "0.0008", "--max-num-seqs", "8", "--max-queue", "6", "--max-output-bytes", "100000", "--drain-seconds", str(DRAIN))
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}


def requests():
    """(path, body) of every kind of request; deterministic."""
    chance = random.Random(5)
    out = []
    for i in range(6):
        question = [{"role": "user", "content": f"What is {chance.randrange(1000)} + {chance.randrange(1000)}?"}]
        out.append((CHAT, {"messages": question, "temperature": 0, "max_tokens": 150}))
        out.append((CHAT, {"messages": question, "seed": i, "n": 2, "max_tokens": 60, "logprobs": True, "top_logprobs": 2}))
        out.append((CHAT, {"messages": question, "seed": i, "max_tokens": 80, "frequency_penalty": 0.5, "stop": ["9", "one"]}))
        out.append((CHAT, {"messages": question, "temperature": 0, "max_tokens": 20, "tools": [ADD],
                           "tool_choice": {"type": "function", "function": {"name": "add"}}}))
        out.append((RESPONSE, {"input": question[0]["content"], "seed": i, "max_output_tokens": 100, "store": i % 2 == 0}))
        out.append((COMPLETION, {"prompt": ["ab " * chance.randrange(1, 200), [5, 6, 7]], "seed": i, "max_tokens": 40, "logprobs": 1}))
        out.append((COMPLETION, {"prompt": ["x" * (i + 1), "y", "z"], "seed": i, "max_tokens": 150, "ignore_eos": True}))
    return out


def said(path, answer):
    """An answer without its ids and times."""
    if path == RESPONSE:
        return [(i["type"], i["content"][0]["text"]) for i in answer["output"]]
    return [(c.get("text"), c.get("message", {}).get("content"), c.get("message", {}).get("reasoning"),
             [t["function"] for t in c.get("message", {}).get("tool_calls", [])], c["finish_reason"], c["logprobs"])
            for c in answer["choices"]]


class Soak(OwnServerTest):
    def test_soak(self):
        server, idle = self.start(*FLAGS), self.start("-q")
        self.kinds = requests()
        self.alone = [self.ask(server, *kind) for kind in self.kinds]
        self.counts, self.wrong, self.lock = {}, [], threading.Lock()
        self.warm(server)  # now every buffer has its final size
        with HealthClock(idle) as idle_clock, HealthClock(server) as clock:
            working = threading.Thread(target=self.work, args=(server, SECONDS))
            memory = []
            working.start()
            while working.is_alive():
                memory.append(self.memory(server))
                working.join(SECONDS / 10)
        server.wait_until_idle()
        memory.append(self.memory(server))
        print(f"{sum(self.counts.values())} requests: {self.counts}\nbusy: {clock.summary()}\nidle: {idle_clock.summary()}\n"
              f"MB of memory: {[m >> 20 for m in memory]}")
        self.assertEqual(self.wrong, [])
        clock.check(self)
        for what in ("whole", "stream", "left", "never read", "refused", "hostile"):
            self.assertGreater(self.counts.get(what, 0), 0, self.counts)
        self.assertGreater(server.metric("vllm:num_preemptions_total"), 0)
        self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
        if not is_sanitized():
            half = len(memory) // 2
            self.assertLess(min(memory[-3:]), max(memory[:half]) * 1.1 + (32 << 20), "bytes of memory at the end, and in the first half")
        self.assertEqual([self.ask(server, *kind) for kind in self.kinds], self.alone)
        self.end_beside_work(server)

    def warm(self, server):
        """Memory grows until every thread has processed the largest requests and the stored responses are at their limit."""
        for _ in range(2):
            clients = [threading.Thread(target=hostile.send_all, args=(server,)) for _ in range(HOSTILE_CLIENTS)]
            for c in clients:
                c.start()
            for c in clients:
                c.join()
        for _ in range(20):
            server.ask(RESPONSE, {"input": "hi", "max_output_tokens": 2, "user": "u" * 4000000})

    def end_beside_work(self, server):
        """SIGTERM under load; the clients' results do not matter here."""
        self.wrong = []
        ending = threading.Thread(target=self.work, args=(server, 2))
        ending.start()
        time.sleep(1)
        start = time.monotonic()
        self.assertEqual(server.stop(), 0)
        seconds = time.monotonic() - start
        print(f"ended {seconds:.1f} s after SIGTERM")
        self.assertLess(seconds, DRAIN + 10)
        ending.join()

    def memory(self, server):
        with open(f"/proc/{server.process.pid}/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def ask(self, server, path, body):
        status, _, answer = server.ask(path, body)
        self.assertEqual(status, 200, answer)
        return said(path, answer)

    def work(self, server, seconds):
        end = time.monotonic() + seconds
        clients = [threading.Thread(target=self.client, args=(server, random.Random(i), end)) for i in range(CLIENTS)]
        clients += [threading.Thread(target=self.hostile_client, args=(server, random.Random(-1 - i), end)) for i in range(HOSTILE_CLIENTS)]
        for c in clients:
            c.start()
        for c in clients:
            c.join(seconds + WATCHDOG)
            self.assertFalse(c.is_alive(), "a client waits for ever")

    def client(self, server, chance, end):
        while time.monotonic() < end and len(self.wrong) < 3 and not server.has_ended():
            which = chance.randrange(len(self.kinds))
            try:
                what = chance.choice((self.whole, self.whole, self.stream, self.stream, self.leave, self.never_read))(server, which, chance)
            except Exception as fault:  # any exception: the test reports it
                what = f"fault: {fault!r}"
                with self.lock:
                    self.wrong.append((self.kinds[which], what))
            with self.lock:
                self.counts[what] = self.counts.get(what, 0) + 1
            if what == "refused":
                time.sleep(0.05)

    def hostile_client(self, server, chance, end):
        while time.monotonic() < end and len(self.wrong) < 3 and not server.has_ended():
            try:
                hostile.one(server, chance)
            except Exception as fault:  # any exception: the test reports it
                with self.lock:
                    self.wrong.append(("hostile", repr(fault)))
            with self.lock:
                self.counts["hostile"] = self.counts.get("hostile", 0) + 1

    def whole(self, server, which, chance):
        path, body = self.kinds[which]
        status, headers, answer = server.ask(path, body)
        if status == 429:
            assert headers["Retry-After"] and answer["error"]["code"] == "queue_full", answer
            return "refused"
        assert status == 200, answer
        assert said(path, answer) == self.alone[which], (said(path, answer), self.alone[which])
        return "whole"

    def open(self, server, which):
        path, body = self.kinds[which]
        connection = server.connect()
        connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        return connection

    def stream(self, server, which, chance):
        path, _ = self.kinds[which]
        connection = self.open(server, which)
        response = connection.getresponse()
        if response.status == 429:
            connection.close()
            return "refused"
        events = list(events_of(response))
        connection.close()
        for index, wanted in enumerate(self.alone[which]):
            if path == RESPONSE:
                assert events[-1]["type"] in ("response.completed", "response.incomplete"), events[-1]
                text = events[-1]["response"]["output"][index]["content"][0]["text"]
                assert text == wanted[1], (text, wanted)
            elif path == CHAT:
                assert events[-1] == "[DONE]" and joined(events, "content", index) == (wanted[1] or ""), wanted
                assert joined(events, "reasoning", index) == (wanted[2] or ""), wanted
            else:
                text = "".join(c["text"] for e in events[:-1] for c in e["choices"] if c["index"] == index)
                assert text == wanted[0], (text, wanted)
        return "stream"

    def leave(self, server, which, chance):
        connection = self.open(server, which)
        response = connection.getresponse()
        if response.status == 429:
            connection.close()
            return "refused"
        for _, _ in zip(range(chance.randrange(20)), events_of(response)):
            pass
        close((connection, response))
        return "left"

    def never_read(self, server, which, chance):
        connection = self.open(server, which)
        time.sleep(chance.random() / 20)
        connection.close()
        return "never read"


if __name__ == "__main__":
    unittest.main()
