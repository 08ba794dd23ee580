"""Clients that disconnect, and the server's shutdown."""
import json
import pathlib
import signal
import subprocess
import tempfile
import unittest

from server import COMMAND, QUESTION, WATCHDOG, OwnServerTest, close, events_of, wait_until


class Cancellation(OwnServerTest):
    def test_a_client_that_leaves_a_stream(self):
        server = self.start()
        stream = server.open_stream(ignore_eos=True, n=4)
        next(events_of(stream[1]))
        self.assertEqual(server.metric("vllm:num_requests_running"), 4)
        close(stream)
        server.wait_until_idle()
        wait_until(lambda: server.finished("abort") == 4, "four that were cancelled")
        self.assertEqual(server.finished("length"), 0)
        self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
        wait_until(lambda: "client gone" in server.logged(), "a line of the log")
        self.assertEqual(server.stop(), 0)

    def test_a_client_that_leaves_before_any_answer(self):
        server = self.start("--max-num-seqs", "1")
        for _ in range(3):  # the first one runs, the others wait
            connection = server.connect()
            body = '{"prompt": "x", "max_tokens": 4000, "ignore_eos": true}'
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            self.addCleanup(connection.close)
            self.connections = [*getattr(self, "connections", []), connection]
        wait_until(lambda: server.metric("vllm:num_requests_waiting") == 2, "two that wait")
        for connection in reversed(self.connections):
            connection.close()
        server.wait_until_idle()
        wait_until(lambda: server.finished("abort") == 3, "three that were cancelled")
        self.assertEqual(server.finished("length"), 0)
        self.assertEqual(server.stop(), 0)


class Drain(OwnServerTest):
    def test_running_requests_end_and_new_ones_are_refused(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            server = self.start("--drain-seconds", str(WATCHDOG))
            stream = server.open_stream(ignore_eos=True, n=4, max_tokens=1500)
            events = events_of(stream[1])
            next(events)
            server.signal(number)
            wait_until(lambda: server.ask("/health")[0] == 503, "the drain")
            status, _, answer = server.ask("/v1/chat/completions", {"messages": QUESTION})
            self.assertEqual((status, answer["error"]["code"]), (503, "shutting_down"))
            rest = list(events)
            self.assertEqual(rest[-1], "[DONE]")
            reasons = [c["finish_reason"] for e in rest[:-1] for c in e["choices"] if c["finish_reason"]]
            self.assertEqual(reasons, ["length"] * 4)
            self.assertEqual(server.exit_status(), 0)
            stream[0].close()

    def test_what_waits_or_takes_too_long_gets_an_error(self):
        server = self.start("--max-num-seqs", "1", "--drain-seconds", "0.2")
        stream = server.open_stream(ignore_eos=True)
        events = events_of(stream[1])
        next(events)
        waiting = server.connect()
        waiting.request("POST", "/v1/completions", '{"prompt": "x"}', {"Content-Type": "application/json"})
        wait_until(lambda: server.metric("vllm:num_requests_waiting") == 1, "one that waits")
        server.signal(signal.SIGTERM)
        response = waiting.getresponse()
        self.assertEqual(response.status, 503)
        self.assertIn(b"shutting_down", response.read())
        waiting.close()
        rest = list(events)
        self.assertEqual(rest[-2]["error"]["code"], "shutting_down")
        self.assertEqual(server.exit_status(), 0)
        stream[0].close()

    def test_a_second_signal_ends_it_at_once(self):
        server = self.start()
        stream = server.open_stream(ignore_eos=True, n=8)
        next(events_of(stream[1]))
        server.signal(signal.SIGTERM)
        wait_until(lambda: server.ask("/health")[0] == 503, "the drain")
        server.signal(signal.SIGTERM)
        self.assertEqual(server.exit_status(), -signal.SIGTERM)
        close(stream)


class Fault(OwnServerTest):
    def test_a_step_that_fails(self):
        """The last norm's weights are so large that every logit is NaN."""
        shipped = pathlib.Path(__file__).parents[2] / "models" / "sluice-16e-tiny"
        with tempfile.TemporaryDirectory() as broken:
            for file in shipped.iterdir():
                (pathlib.Path(broken) / file.name).symlink_to(file)
            data = bytearray((shipped / "model.safetensors").read_bytes())
            header = int.from_bytes(data[:8], "little")
            begin, end = json.loads(data[8:8 + header])["model.norm.weight"]["data_offsets"]
            data[8 + header + begin:8 + header + end] = b"\x7f\x7f" * ((end - begin) // 2)
            weights = pathlib.Path(broken) / "model.safetensors"
            weights.unlink()
            weights.write_bytes(data)
            server = self.start(broken)
        self.assertEqual(server.ask("/health")[0], 200)
        for body in ({"messages": QUESTION}, {"messages": QUESTION, "stream": True, "n": 3}):
            status, _, answer = server.ask("/v1/chat/completions", body)
            self.assertEqual((status, answer["error"]["type"]), (500, "server_error"))
            self.assertIn("wanted finite logits", answer["error"]["message"])
            self.assertEqual(server.ask("/health")[0], 503)
        server.wait_until_idle()
        self.assertEqual(server.metric("vllm:request_success_total", 'finished_reason="error"'), 4)
        self.assertEqual(server.stop(), 0)


class Start(OwnServerTest):
    def refused(self, *words):
        out = subprocess.run([COMMAND, "serve", *words], capture_output=True, timeout=WATCHDOG, text=True)
        self.assertEqual((out.returncode, out.stdout), (2, ""))
        self.assertTrue(out.stderr.splitlines()[-1].startswith("sluice: "), out.stderr)
        return out.stderr.splitlines()[-1]

    def test_wrong_use(self):
        self.assertIn("--port", self.refused("--prot", "1"))
        self.assertIn("70000", self.refused("--port", "70000"))
        self.assertIn("/nowhere", self.refused("/nowhere"))
        server = self.start()
        self.assertIn(f"127.0.0.1 port {server.port}", self.refused("--port", str(server.port)))
        self.assertIn("cannot listen", self.refused("--host", "192.0.2.1", "--port", "0"))

    def test_the_address_is_checked_before_the_model_is_loaded(self):
        server = self.start()
        for words in (("--port", str(server.port)), ("--host", "192.0.2.1", "--port", "0"), ("--host", "nowhere.invalid", "--port", "0")):
            out = subprocess.run([COMMAND, "serve", *words], capture_output=True, timeout=WATCHDOG, text=True)
            self.assertEqual(out.returncode, 2)
            self.assertRegex(out.stderr, r"\Asluice: cannot listen on .*\n\Z")  # no line about a model


if __name__ == "__main__":
    unittest.main()
