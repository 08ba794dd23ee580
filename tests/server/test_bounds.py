"""Limits: memory, threads, an unread log, a client's unread bytes, and the work of one answer. Reaching a limit does not affect
other clients."""
import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest

from clock import HealthClock, own_time
from server import COMMAND, WATCHDOG, OwnServerTest, events_of, is_sanitized, wait_until

COMPLETION, RESPONSE = "/v1/completions", "/v1/responses"


class Clock(unittest.TestCase):
    """What the other tests measure with."""

    def test_the_time_of_the_server_alone(self):
        self.assertEqual(own_time(0.5, ran=0.4, starved=0, others=0), 0.5)  # held up
        self.assertAlmostEqual(own_time(0.5, ran=0.3, starved=0.1, others=0.1), 0.3)
        self.assertEqual(own_time(0.5, ran=0.01, starved=0.09, others=0.5), 0)
        self.assertIsNone(own_time(3.648, ran=0.157, starved=3.495, others=0.018))  # 350 clients connected meanwhile
        self.assertAlmostEqual(own_time(1.232, ran=0.045, starved=1.194, others=0.022), 0.016)
        self.assertAlmostEqual(own_time(60, ran=55, starved=5, others=0), 55)

    def test_a_server_that_holds_up_its_clients(self):
        program = ("import http.server, time\n"
                   "class Slow(http.server.BaseHTTPRequestHandler):\n"
                   "    def log_message(self, *words): pass\n"
                   "    def do_GET(self):\n"
                   "        begin = time.thread_time()\n"
                   "        while time.thread_time() - begin < 1: pass\n"
                   "        self.send_response(200)\n"
                   "        self.end_headers()\n"
                   "server = http.server.HTTPServer(('127.0.0.1', 0), Slow)\n"
                   "print(server.server_port, flush=True)\n"
                   "server.serve_forever()\n")
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
            self.addCleanup(process.kill)
            server = types.SimpleNamespace(port=int(process.stdout.readline()), process=process)
            with HealthClock(server) as clock:
                time.sleep(1)
            process.kill()
        self.assertGreater(max(clock.seconds), 0.9)
        if clock.blocked:  # else the machine was too busy
            self.assertGreater(clock.max_blocked, 0.1)


class Memory(OwnServerTest):
    def setUp(self):
        if is_sanitized():
            self.skipTest("a sanitizer takes all addresses that there are")

    def address_space(self, what):
        """Resident bytes of a server after its first answer."""
        server = self.start("-q")
        server.chat(max_tokens=2)
        with open(f"/proc/{server.process.pid}/status") as f:
            found = next(int(line.split()[1]) << 10 for line in f if line.startswith(what))
        self.assertEqual(server.stop(), 0)
        return found

    def test_one_request_that_wants_too_much(self):
        """The large request is rejected; a concurrent answer completes."""
        server = self.start("-q", limits=[(resource.RLIMIT_AS, self.address_space("VmPeak") + (100 << 20))])
        body = '{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"x":[' + ",".join(["[]"] * 2500000) + "]}"
        ids = '{"messages":[{"role":"user","content":"hi"}],"max_tokens":2,"n":8,"stop_token_ids":[' + ",".join(["1"] * 3000000) + "]}"
        for asked in (body, ids, body):
            connection, response = server.open_stream(ignore_eos=True, max_tokens=400, temperature=0)
            statuses = []
            clients = [threading.Thread(target=lambda: statuses.append(server.ask("/v1/chat/completions", asked)[0])) for _ in range(3)]
            for c in clients:
                c.start()
            with HealthClock(server) as clock:
                events = list(events_of(response))
                for c in clients:
                    c.join()
            connection.close()
            clock.check(self)
            self.assertEqual(events[-1], "[DONE]")
            self.assertEqual([c["finish_reason"] for e in events[:-1] for c in e["choices"] if c["finish_reason"]], ["length"])
            self.assertLessEqual(set(statuses), {200, 400, 413, 503})
            self.assertEqual(server.chat(temperature=0)["choices"][0]["message"]["content"], "685")
        wait_until(lambda: server.metric("sluice:connections") == 1, "closed connections")
        self.assertEqual(server.stop(), 0)

    def test_bodies_of_many_clients(self):
        """All bodies being read count together: 64 clients that each send 8 MB, without the last byte, must not use 512 MB."""
        server = self.start("--max-pending-bytes", str(32 << 20), "--max-body-bytes", str(8 << 20))
        whole = b'{"prompt": "x", "max_tokens": 1, "user": "' + b"a" * (7 << 20) + b'"}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(whole)
        held, refused = [], 0
        for _ in range(12):
            s = server.socket()
            self.addCleanup(s.close)
            try:
                s.sendall(head + whole[:-1])
            except OSError:
                pass  # rejected before all of it was sent
            held.append(s)
        for s in held:
            s.settimeout(1)
            try:
                answer = s.recv(65536)
            except TimeoutError:
                continue
            except ConnectionResetError:
                answer = b""
            refused += 1
            if answer:
                self.assertTrue(answer.startswith(b"HTTP/1.1 503 "), answer)
                self.assertIn(b"--max-pending-bytes", answer)
        self.assertGreaterEqual(refused, 12 - 5)
        self.assertLess(refused, 12)
        for s in held:
            s.close()
        wait_until(lambda: server.metric("sluice:connections") == 1, "closed connections")
        self.assertEqual(server.ask(COMPLETION, whole)[0], 200)  # unaffected
        self.assertEqual(server.stop(), 0)

    def test_threads_that_cannot_be_made(self):
        """For every limit, the server serves or explains in one line why it cannot."""
        stack, served, refused = 256 << 20, 0, 0
        least = self.address_space("VmPeak")
        for more in range(0, 20):
            limits = [(resource.RLIMIT_STACK, stack), (resource.RLIMIT_AS, least + more * (stack // 2))]

            def bound():
                for what, most in limits:
                    resource.setrlimit(what, (most, most))
            process = subprocess.Popen([COMMAND, "serve", "--port", "0", "--threads", "1", "-q"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=bound)
            if process.stdout.readline():
                served += 1
                process.terminate()
                _, said = process.communicate(timeout=WATCHDOG)
                self.assertEqual((process.returncode, said), (0, b""))
                continue
            _, said = process.communicate(timeout=WATCHDOG)
            self.assertEqual(process.returncode, 2, said)
            self.assertRegex(said.decode(), r"\Asluice: [^\n]*(thread|memory)[^\n]*\n\Z")
            refused += b"threads" in said
        self.assertGreater(refused, 0)
        self.assertGreater(served, 0)


LINES = 8000  # of about 200 bytes each: more than the server keeps for an unread log


class Log(OwnServerTest):
    """The log of a server that writes standard error to a pipe."""

    def start_with_pipe(self, *flags):
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        self.reader = os.fdopen(reader, "rb")
        self.addCleanup(self.reader.close)
        server = self.start("--log-format", "json", *flags, log=writer)
        os.close(writer)
        return server

    def ask_all(self, server, count):
        """Sends requests that log one line each, and a chat."""
        with HealthClock(server) as clock:
            for _ in range(count):
                self.assertEqual(server.ask("/" + "a" * 4000)[0], 404)
            self.assertEqual(server.chat(temperature=0)["choices"][0]["message"]["content"], "685")
        clock.check(self)

    def test_nobody_reads(self):
        server = self.start_with_pipe()
        self.ask_all(server, LINES)
        dropped = server.metric("sluice:log_lines_dropped_total")
        self.assertGreater(dropped, 0)
        lines = []
        reading = threading.Thread(target=lambda: lines.extend(self.reader))
        reading.start()
        wait_until(lambda: any(b"are missing here" in line for line in list(lines)), "a line that says so")
        self.assertEqual(server.stop(), 0)
        reading.join()
        read = [json.loads(line) for line in lines]  # every line is complete
        missing = [line["lines"] for line in read if "lines of the log are missing here" in line["message"]]
        self.assertEqual(sum(missing), dropped)
        # The chat's line is shorter and may have fitted into the queue.
        self.assertIn(sum(line.get("status") == 404 for line in read) + dropped, (LINES, LINES + 1))
        self.assertIn("shutting down", read[-1]["message"])

    def test_nobody_reads_to_the_end(self):
        server = self.start_with_pipe()
        self.ask_all(server, 20)
        self.assertEqual(server.stop(), 0)

    def test_the_reader_leaves(self):
        server = self.start_with_pipe()
        self.reader.readline()
        self.reader.close()
        self.ask_all(server, 20)
        self.assertGreaterEqual(server.metric("sluice:log_lines_dropped_total"), 20)
        self.assertEqual(server.stop(), 0)

    def test_a_file_that_may_not_grow(self):
        """Like a full disk: only lines are lost."""
        with tempfile.TemporaryFile() as file:
            server = self.start(log=file, limits=[(resource.RLIMIT_FSIZE, 10)])
            self.ask_all(server, 20)
            self.assertGreaterEqual(server.metric("sluice:log_lines_dropped_total"), 20)
            self.assertEqual(server.stop(), 0)


class Streams(OwnServerTest):
    """The limit applies to a client's unread bytes, not to the size of one event."""

    def whole_stream(self, server, path, body):
        events = server.stream(path, **body)
        if path == RESPONSE:
            self.assertIn(events[-1]["type"], ("response.completed", "response.incomplete"))
            return events[-1]["response"]
        self.assertEqual(events[-1], "[DONE]")
        return [c for e in events[:-1] for c in e["choices"]]

    def test_first_events_that_are_large(self):
        server = self.start()
        choices = self.whole_stream(server, COMPLETION, {"prompt": [5] * 4000, "echo": True, "logprobs": 20, "max_tokens": 1})
        self.assertEqual(sum(len(c["logprobs"]["tokens"]) for c in choices if c["logprobs"]), 4001)
        self.whole_stream(server, RESPONSE, {"input": "hi", "max_output_tokens": 2, "user": "a" * 600000})
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("client", server.logged())

    def test_last_events_that_are_large(self):
        server = self.start()
        for tokens in (200, 1200):
            # No token ends the analysis or the message.
            body = {"input": "Count.", "max_output_tokens": tokens, "ignore_eos": True, "top_logprobs": 20, "include": ["message.output_text.logprobs"],
                    "temperature": 0, "logit_bias": {str(1000 + i): -100 for i in (3, 4, 5, 6, 7, 8, 9, 16, 17)}}
            response = self.whole_stream(server, RESPONSE, body)
            self.assertEqual(response["usage"]["output_tokens"], tokens)
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("client", server.logged())

    def test_a_client_that_is_slow_with_one_large_event(self):
        server = self.start()
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            s.settimeout(WATCHDOG)
            s.connect(("127.0.0.1", server.port))
            body = json.dumps({"prompt": [5] * 3000, "echo": True, "logprobs": 20, "max_tokens": 100, "ignore_eos": True, "stream": True}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            out = b""
            while chunk := s.recv(1 << 20 if len(out) > 1 << 20 else 65536):
                out += chunk
                if len(out) < 1 << 20:
                    time.sleep(0.2)  # the answer reaches 1 MB after about 3 s
        self.assertTrue(out.endswith(b"data: [DONE]\n\n"), out[-100:])
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("client", server.logged())


class LargeAnswers(OwnServerTest):
    """Large answers, parts of which are rendered by workers."""
    ECHO = {"prompt": [5] * 1500, "echo": True, "logprobs": 20, "n": 4, "max_tokens": 2, "temperature": 0}

    def test_log_probabilities_hold_up_nobody(self):
        server = self.start("--batch-invariant")
        small = {"prompt": "Hello", "max_tokens": 20, "logprobs": 2, "temperature": 0}
        alone = server.ask(COMPLETION, small)[2]["choices"]
        with HealthClock(server) as clock:
            status, _, whole = server.ask(COMPLETION, {**self.ECHO, "n": 16})
            self.assertEqual(status, 200, whole)
            for _ in range(3):
                self.assertEqual(server.ask(COMPLETION, small)[2]["choices"], alone)
        clock.check(self)
        first = whole["choices"][0]["logprobs"]
        self.assertEqual({len(values) for values in first.values()}, {1502})
        for i, choice in enumerate(whole["choices"]):
            self.assertEqual((choice["index"], choice["logprobs"]), (i, first))
        lists = {}
        for event in server.stream(COMPLETION, **self.ECHO)[:-1]:
            for choice in event["choices"]:
                for key, values in (choice["logprobs"] or {}).items():
                    lists.setdefault((choice["index"], key), []).extend(values)
        self.assertEqual(lists, {(i, key): values for i in range(4) for key, values in first.items()})
        self.assertEqual(server.stop(), 0)

    def test_clients_that_leave_meanwhile(self):
        server = self.start()
        data = json.dumps({**self.ECHO, "prompt": [5] * 700}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)
        for i in range(12):
            with server.socket() as s:
                s.sendall(head + data)
                time.sleep(0.1 * i)
        server.wait_until_idle()
        wait_until(lambda: server.metric("sluice:connections") == 1, "closed connections")
        self.assertEqual(server.chat(temperature=0)["choices"][0]["message"]["content"], "685")
        self.assertEqual(server.stop(), 0)

    def test_too_many_log_probabilities(self):
        server = self.start()
        for path, body, param in ((COMPLETION, {"prompt": [5] * 3500, "echo": True, "logprobs": 20, "n": 128}, "logprobs"),
                                  ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "logprobs": True, "top_logprobs": 20,
                                                            "n": 128, "max_tokens": 4000}, "top_logprobs")):
            status, _, answer = server.ask(path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
            self.assertIn("wanted at most 8388608 log probabilities", answer["error"]["message"])
        self.assertEqual(server.stop(), 0)

    def test_answers_together(self):
        """The kept data of all answers is limited, and the largest answer fails."""
        server = self.start("--max-pending-bytes", str(1 << 20))
        status, _, answer = server.ask(COMPLETION, {**self.ECHO, "n": 2})
        self.assertEqual((status, answer["error"]["code"]), (503, "out_of_memory"), answer)
        self.assertIn("--max-pending-bytes", answer["error"]["message"])
        self.assertEqual(server.chat(temperature=0)["choices"][0]["message"]["content"], "685")
        self.assertEqual(server.stop(), 0)

    def open_unread(self, server, request):
        s = socket.socket()
        self.addCleanup(s.close)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(WATCHDOG)
        s.connect(("127.0.0.1", server.port))
        s.sendall(request)
        return s

    def test_answers_that_nobody_reads(self):
        """Bodies that are the same for all clients are stored once."""
        server = self.start()
        status, _, answer = server.ask(RESPONSE, {"input": "hi", "max_output_tokens": 2, "user": "u" * 7000000})
        self.assertEqual(status, 200)
        before = server.memory()
        with HealthClock(server) as clock:
            stored = f"GET /v1/responses/{answer['id']} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            held = [self.open_unread(server, stored) for _ in range(50)]
            held += [self.open_unread(server, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(300)]
            time.sleep(1)
            after, kept = server.memory(), server.kept_by_the_system()
        for s in held:
            s.close()
        if not is_sanitized():
            self.assertLess(after - before, 100, "MB")
        self.assertGreater(len(kept), 300)
        self.assertLess(max(kept), 1 << 19)
        clock.check(self)
        self.assertEqual(server.ask(f"/v1/responses/{answer['id']}")[2], answer)
        self.assertEqual(server.stop(), 0)

    def test_answers_that_nobody_reads_and_that_differ(self):
        """Beyond --max-pending-bytes the connection with the most unsent bytes is closed; a connection with few unsent bytes stays open."""
        server = self.start("--max-pending-bytes", str(12 << 20))
        small = self.open_unread(server, b"GET /openapi.json HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = json.dumps({"prompt": "x", "max_tokens": 1, "stream": False, "user": "u"})
        self.assertEqual(server.ask(COMPLETION, text)[0], 200)
        body = json.dumps({"input": "hi", "max_output_tokens": 2, "store": False, "user": "u" * 7000000}).encode()
        request = b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        held = []
        while "--max-pending-bytes" not in server.logged():
            held.append(self.open_unread(server, request))
            self.assertLess(len(held), 20)
            self.assertEqual(held[-1].recv(1), b"H")  # its answer has arrived
            time.sleep(0.3)
        whole = b""
        while chunk := small.recv(65536):
            whole += chunk
        self.assertIn(b"openapi", whole)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
