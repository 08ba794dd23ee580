"""Hostile requests: each gets a clear 4xx or a closed connection, and the server keeps serving."""
import http.client
import json
import resource
import socket
import threading
import time
import unittest

from server import WATCHDOG, OwnServerTest, ServerTest, close, events_of, read_all, wait_until

COMPLETION = "/v1/completions"


def request(body, path=COMPLETION, *headers):
    body = body if isinstance(body, bytes) else body.encode()
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Bodies(ServerTest):
    def refused(self, body, *parts):
        status, _, answer = self.server.ask(COMPLETION, body)
        self.assertEqual(status, 400, answer)
        for part in parts:
            self.assertIn(part, answer["error"]["message"])

    def test_json(self):
        whole = json.dumps({"prompt": "Hello", "max_tokens": 1, "stop": ["a", "b"], "stream_options": None})
        for bytes_sent in range(len(whole)):
            self.refused(whole[:bytes_sent], "wanted")
        self.refused(b'{"prompt": "\xff\xfe"}', "wanted JSON", "byte")
        self.refused('{"prompt": "\\ud800"}', "wanted JSON")
        self.refused("[" * 100000, "64 levels")
        self.refused('{"prompt":' * 5000, "64 levels")
        self.refused('{"a":' * 60 + "[" * 60 + "]" * 60 + "}" * 60, "64 levels")
        self.refused('{"prompt": "a", "prompt": "b"}', "twice")
        self.refused('{"prompt": "a", "seed": 1e999}', "number")
        self.refused('{"prompt": "a", "max_tokens": 99999999999999999999}', "max_tokens")
        self.refused("null", "object")
        self.refused('{"prompt": [' + "[1]," * 200 + "[1]]}", "at most 128")
        self.refused('{"prompt": {"a": 1}}', "prompt")
        self.refused('{"prompt": "a", "stop": ' + json.dumps(["x"] * 65) + "}", "64")
        self.refused(json.dumps({"prompt": "a", "stop": "x" * 5000}), "4096")
        self.refused('{"model": "' + "\\u0000" * 100 + '", "prompt": 7}', "prompt")

    def test_objects_of_many_members(self):
        many = {f"k{i}": i for i in range(150000)}
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "properties": many}}}
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        # Each of these members would be part of the prompt.
        for path, body, param in (("/v1/chat/completions", {**chat, "response_format": schema}, "messages"),
                                  ("/v1/chat/completions", {**chat, "guided_json": many}, "guided_json"),
                                  ("/v1/chat/completions", {**chat, "tools": [{**tool, "x": many}]}, "tools"),
                                  ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_schema", **schema["json_schema"]}}},
                                   "input")):
            status, _, answer = self.server.ask(path, body)
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer["error"]["message"])
            self.assertLess(len(answer["error"]["message"]), 1000)
        # In values whose member order is kept, and in unread fields, many members cost no more than elsewhere.
        self.assertEqual(self.server.ask("/v1/chat/completions", {**chat, "junk": many, "tools": [tool]})[0], 200)

    def test_text_of_every_kind_is_answered(self):
        for text in ("\0", "\u202e", "\U0010ffff", "a\u0300" * 200, "<|return|>" * 50, "\r\n\r\n", '"}]}', " " * 2000):
            status, _, answer = self.server.ask(COMPLETION, {"prompt": text, "max_tokens": 2, "echo": True})
            self.assertEqual(status, 200, answer)
            self.assertTrue(answer["choices"][0]["text"].startswith(text))


class Protocol(ServerTest):
    FLAGS = ("--max-body-bytes", "100000", "--read-timeout", "1")

    def first_line(self, data, **how):
        return self.server.raw(data, **how).split("\r\n")[0]

    def in_pieces(self, head, pieces):
        """The first line of the answer to a request sent in several parts."""
        with self.server.socket() as s:
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                s.sendall(head)
                for piece in pieces:
                    time.sleep(0.005)
                    s.sendall(piece)
            except OSError:
                pass  # rejected before all of it was sent
            return read_all(s).decode("latin-1").split("\r\n")[0]

    def test_one_host(self):
        """RFC 9112, 3.2: an HTTP/1.1 request must have a Host header, even if it is empty."""
        for path in ("/version", "http://localhost/version", "*"):
            for hosts, status in (("", "400"), ("Host: x\r\nHost: x\r\n", "400"), ("Host: x\r\nHOST: y\r\n", "400")):
                self.assertIn(f" {status} ", self.first_line(f"GET {path} HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode()), (path, hosts))
        for head in ("HTTP/1.1\r\nHost:\r\n", "HTTP/1.1\r\nHost: x\r\n", "HTTP/1.0\r\nHost: x\r\n", "HTTP/1.0\r\n"):
            self.assertIn(" 200 ", self.first_line(f"GET /version {head}Connection: close\r\n\r\n".encode()), head)

    def test_what_is_not_http(self):
        for data in (b"\0" * 1000, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01" * 50,
                     b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nA: \0\r\n\r\n",
                     b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
                     b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
                     b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"):
            with self.subTest(data=data):
                answer = self.server.raw(data)
                self.assertTrue(answer.startswith("HTTP/1.1 400 "), answer)
                self.assertIn("invalid_request_error", answer)

    def test_bodies_that_are_too_large(self):
        for data in (request("x" * 200000), b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n",
                     b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"4000\r\n" + b"x" * 0x4000 + (b"\r\n4000\r\n" + b"x" * 0x4000) * 7):
            answer = self.server.raw(data)
            self.assertTrue(answer.startswith("HTTP/1.1 413 "), answer)
            self.assertIn("100000", answer)

    def test_chunks(self):
        head = b"POST " + COMPLETION.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b'{"prompt":"x","max_tokens":1}'
        pieces = b"".join(b"1\r\n" + body[i:i + 1] + b"\r\n" for i in range(len(body)))
        self.assertTrue(self.server.raw(head + pieces + b"0\r\n\r\n").startswith("HTTP/1.1 200 "))
        for bad in (b"zz\r\n", b"-1\r\nx\r\n0\r\n\r\n", b"3\r\nabcd\r\n0\r\n\r\n", b"ffffffffffffffffff\r\n", b"1\nx\n0\n\n"):
            self.assertRegex(self.server.raw(head + bad), r"^HTTP/1.1 400 ", bad)
        # RFC 9112, 2.2: LF alone never ends a line.
        for bad in (b"1d\n" + body + b"\n0\n\n", b"1\r\n{\r\n1c\n" + body[1:] + b"\r\n0\r\n\r\n", b"1d;a=b\n" + body, b"1d\r\n" + body + b"\r\n0\n\n"):
            for pieces in ([bad], [bad[i:i + 1] for i in range(len(bad))]):
                self.assertIn(" 400 ", self.in_pieces(head, pieces), bad)

    def test_trailers_are_no_headers(self):
        """RFC 9110, 6.5.1: trailers do not change the fields of the header section."""
        body = b'1d\r\n{"prompt":"x","max_tokens":1}\r\n0\r\n'
        head = b"POST " + COMPLETION.encode() + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
        json_type = b"Content-Type: application/json\r\n"
        for trailer, status in ((json_type, 415), (b"", 415)):
            self.assertIn(f" {status} ", self.first_line(head + b"\r\n" + body + trailer + b"\r\n"))
        for trailer in (b"Content-Encoding: gzip\r\n", b"Host: evil.example\r\n", b"x-request-id: late\r\n", b"Origin: https://evil.example\r\n"):
            answer = self.server.raw(head + json_type + b"\r\n" + body + trailer + b"\r\n")
            self.assertTrue(answer.startswith("HTTP/1.1 200 "), answer)
            self.assertNotIn("late", answer)

    def test_empty_lines_before_a_request(self):
        """RFC 9112, 2.2: some clients send an empty line after a body."""
        last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        body = b'{"prompt":"x","max_tokens":1}'
        first = b"POST " + COMPLETION.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.assertEqual(self.server.raw(first + body + b"\r\n" + last).count("HTTP/1.1 200 "), 2)
        self.assertEqual(self.server.raw(b"\r\n" * 50000 + last).count("HTTP/1.1 200 "), 1)
        with self.server.socket() as s:
            for part in (b"\r", b"\n", b"\r", b"\n" + last[:1], last[1:]):
                s.sendall(part)
                time.sleep(0.05)
            self.assertTrue(read_all(s).startswith(b"HTTP/1.1 200 "))
        for wrong in (b"\n", b"\r\r\n", b" \r\n"):
            self.assertIn(" 400 ", self.first_line(wrong + last))

    def test_lines_without_end_behind_the_head(self):
        head = b"POST " + COMPLETION.encode() + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        for rest in (b"1;a=" + b"x" * 200000, b"1\r\n{\r\n0\r\n" + b"a: b\r\n" * 50000):
            self.assertRegex(self.first_line(head + rest), " (400|431) ")

    def test_headers_without_end(self):
        flood = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"\r\n"
        self.assertIn("431", self.first_line(flood))
        self.assertIn("431", self.first_line(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 100000))
        self.assertRegex(self.first_line(b"GET /" + b"a" * 100000), r" 4\d\d ")

    def test_requests_that_do_not_end(self):
        for data in (b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n", request("{")[:-1] + b"", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"):
            self.assertIn("408", self.first_line(data))
        self.assertEqual(self.server.raw(b""), "")  # sends nothing and receives nothing
        with self.server.socket() as s:  # a byte at a time, forever
            got = b""
            s.settimeout(0.05)
            for byte in b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * WATCHDOG * 20:
                try:
                    s.sendall(bytes([byte]))
                    got += s.recv(1000)
                except TimeoutError:
                    continue
                except OSError:
                    break
                if got:
                    break
            self.assertIn(b"408", got)

    def test_half_closed(self):
        self.assertEqual(self.server.raw(b"GET / HT", then_close_writing=True), "")
        self.assertTrue(self.server.raw(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n", then_close_writing=True).startswith("HTTP/1.1 200 "))
        long = request('{"prompt":"x","max_tokens":4000,"ignore_eos":true}')
        self.assertEqual(self.server.raw(long, then_close_writing=True), "")
        self.server.wait_until_idle()

    def test_pipelined(self):
        asked = b"".join(
            request('{"prompt":"x","max_tokens":2,"temperature":0}', COMPLETION, f"x-request-id: p{i}") if i % 3 else
            b"GET /version HTTP/1.1\r\nHost: x\r\nx-request-id: p%d\r\n\r\n" % i for i in range(60))
        answer = self.server.raw(asked + b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        ids = [line.split(": ")[1] for line in answer.split("\r\n") if line.startswith("x-request-id: p")]
        self.assertEqual(ids, [f"p{i}" for i in range(60)])
        self.assertEqual(answer.count("HTTP/1.1 200 OK"), 61)

    def test_pipelined_without_reading(self):
        with self.server.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            s.settimeout(2)
            try:
                for _ in range(2000):
                    s.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 100)
            except TimeoutError:
                pass  # the server has stopped reading, as it should
            else:
                self.fail("200000 requests were read before their answers")

    def test_http_1_0(self):
        body = '{"prompt":"Hello","max_tokens":3,"stream":true}'
        answer = self.server.raw(request(body).replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, events = answer.split("\r\n\r\n", 1)
        self.assertIn("Connection: close", head)
        self.assertNotIn("chunked", head)
        self.assertTrue(events.startswith("data: {") and events.endswith("data: [DONE]\n\n"), events)

    def test_expects_to_be_asked_for_the_body(self):
        whole = request('{"prompt":"x","max_tokens":1}', COMPLETION, "Expect: 100-continue", "Connection: close")
        head, body = whole.split(b"\r\n\r\n")
        with self.server.socket() as s:
            s.sendall(head + b"\r\n\r\n")
            self.assertEqual(s.recv(1000), b"HTTP/1.1 100 Continue\r\n\r\n")
            s.sendall(body)
            self.assertTrue(read_all(s).startswith(b"HTTP/1.1 200 "))

    def test_connections_that_are_reset(self):
        for _ in range(50):
            s = self.server.socket()
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            s.sendall(request('{"prompt":"x","max_tokens":4000,"ignore_eos":true,"stream":true}'))
            s.close()
        self.server.wait_until_idle()
        wait_until(lambda: self.server.metric("sluice:connections") == 1, "closed connections")


class Many(OwnServerTest):
    def test_two_hundred_streams(self):
        server = self.start("--max-num-seqs", "16")
        want = server.ask(COMPLETION, {"prompt": "Hello", "max_tokens": 20, "temperature": 0})[2]["choices"][0]["text"]
        streams = [server.open_later("Hello", 20) for _ in range(200)]
        idle = [server.socket() for _ in range(200)]
        for connection in streams:
            events = list(events_of(connection.getresponse()))
            self.assertEqual("".join(e["choices"][0]["text"] for e in events[:-1]), want)
            connection.close()
        for s in idle:
            s.close()
        wait_until(lambda: server.metric("sluice:connections") == 1, "closed connections")
        self.assertEqual(server.stop(), 0)

    def test_a_reader_that_is_too_slow(self):
        server = self.start("--max-num-seqs", "32", "--max-output-bytes", "4096")
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(WATCHDOG)
        s.connect(("127.0.0.1", server.port))
        s.sendall(request('{"prompt":"x","max_tokens":4000,"ignore_eos":true,"stream":true,"n":32}'))
        other = server.ask(COMPLETION, {"prompt": "Hello", "max_tokens": 5})  # unaffected
        self.assertEqual(other[0], 200)
        wait_until(lambda: "client too slow" in server.logged(), "the end of the slow reader")
        server.wait_until_idle()
        s.close()
        self.assertEqual(server.stop(), 0)

    def test_more_connections_than_allowed(self):
        server = self.start("--max-connections", "20")

        def connections():
            try:
                return server.metric("sluice:connections")
            except (OSError, http.client.HTTPException):
                return None  # a connection that its client has closed may still count
        held = [server.socket() for _ in range(19)]
        wait_until(lambda: connections() == 20, "19 connections and this one")
        # The connection of the metrics request may still count; then the 20th connection is rejected. The 22nd always is.
        held += [server.socket() for _ in range(3)]
        self.assertEqual(read_all(held[-1]), b"")
        wait_until(lambda: "connection refused" in server.logged(), "a line in the log")
        for s in held:
            s.close()
        wait_until(lambda: connections() == 1, "closed connections")
        self.assertEqual(server.stop(), 0)

    def test_clients_that_leave_at_every_point(self):
        server = self.start()

        def client(at):
            stream = server.open_stream(ignore_eos=True, max_tokens=200)
            for _, _ in zip(range(at), events_of(stream[1])):
                pass
            close(stream)
        threads = [threading.Thread(target=client, args=(at,)) for at in range(1, 60)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        server.wait_until_idle()
        self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)
        self.assertEqual(server.stop(), 0)


class Crowds(OwnServerTest):
    def setUp(self):
        wanted, (soft, most) = 10500, resource.getrlimit(resource.RLIMIT_NOFILE)
        if most != resource.RLIM_INFINITY and most < wanted:
            self.skipTest(f"wanted {wanted} open files for a process, found a limit of {most}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))  # the server inherits it
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, most))

    def test_ten_thousand_connections(self):
        server = self.start()
        held = [server.socket() for _ in range(9999)]
        wait_until(lambda: server.metric("sluice:connections") == 10000, "9999 connections and this one")
        self.assertEqual(server.ask(COMPLETION, {"prompt": "Hello", "max_tokens": 5})[0], 200)
        for s in held:
            s.close()
        wait_until(lambda: server.metric("sluice:connections") == 1, "closed connections")
        self.assertEqual(server.stop(), 0)

    def test_a_thousand_streams(self):
        server = self.start("--batch-invariant", "--max-num-seqs", "256")
        prompts = [f"What is {i} + {i % 7}?" for i in range(1000)]
        streams = [server.open_later(prompt, 12) for prompt in prompts]
        wait_until(lambda: server.metric("sluice:connections") >= 1000, "1000 open streams")
        for prompt, stream in zip(prompts, streams):
            response = stream.getresponse()
            self.assertEqual(response.status, 200)
            events = list(events_of(response))
            self.assertEqual(events[-1], "[DONE]")
            said = "".join(choice["text"] for event in events[:-1] for choice in event["choices"])
            alone = server.ask(COMPLETION, {"prompt": prompt, "max_tokens": 12, "temperature": 0})
            self.assertEqual(said, alone[2]["choices"][0]["text"], prompt)
            stream.close()
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
