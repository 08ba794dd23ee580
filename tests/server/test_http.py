"""Edge cases of HTTP: ends of requests, access control, and clients that disconnect."""
import json
import re
import subprocess
import time
import unittest

from server import COMMAND, QUESTION, WATCHDOG, OwnServerTest, ServerTest, read_all, wait_until

CHAT = "/v1/chat/completions"


def statuses(answer):
    return re.findall(r"HTTP/1\.1 (\d+)", answer)


class WhereARequestEnds(ServerTest):
    def test_codings_other_than_chunked(self):
        """RFC 9112, 6.3: otherwise the body would be read as the next request."""
        inner = "GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        for coding in ("gzip", "xchunked", "chunked, identity", "identity", "gzip, chunked", "chunked, chunked", "", "chunked;x=1"):
            head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: {coding}\r\n\r\n"
            for body in (inner, f"{len(inner):x}\r\n{inner}\r\n0\r\n\r\n{inner}"):
                with self.subTest(coding=coding):
                    answer = self.server.raw((head + body).encode())
                    self.assertEqual(statuses(answer), ["400"], answer)
                    self.assertIn("Connection: close", answer)
                    self.assertNotIn('{"version"', answer)

    def test_several_lines_of_connection_are_one_list(self):
        for lines in ("Connection: Upgrade\r\nConnection: close", "Connection: keep-alive, close", "Connection: close\r\nConnection: x"):
            with self.subTest(lines=lines):
                request = f"GET /version HTTP/1.1\r\nHost: x\r\n{lines}\r\n\r\n"
                answer = self.server.raw((request + request).encode())
                self.assertEqual(statuses(answer), ["200"], answer)
                self.assertIn("Connection: close", answer)

    def test_two_lengths(self):
        both = ("Content-Length: 5", "Transfer-Encoding: chunked")
        for lines in (both, both[::-1], ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
                      ("Transfer-Encoding: chunked", "Transfer-Encoding: identity")):
            answer = self.server.raw(("POST / HTTP/1.1\r\nHost: x\r\n" + "\r\n".join(lines) + "\r\n\r\n0\r\n\r\nGET /version HTTP/1.1\r\nHost: x\r\n\r\n").encode())
            self.assertEqual(statuses(answer), ["400"], answer)
        answer = self.server.raw(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
        self.assertEqual(statuses(answer), ["400"], answer)

    def test_lines_of_chunks_end_in_two_bytes(self):
        """Rejected at once: a parser that waits for more makes the client wait, too. Bodies may contain LF, in chunks of any size."""
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        body = b'{\n "prompt": "x",\n "max_tokens": 1\n}\n'
        started = time.monotonic()
        for chunks in (b"%x\n%b\r\n0\r\n\r\n", b"%x\r\n%b\n0\r\n\r\n"):
            answer = self.server.raw(head + chunks % (len(body), body))
            self.assertEqual(statuses(answer), ["400"], answer)
        self.assertLess(time.monotonic() - started, 10)
        whole = head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        for step in (1, 7, 1000):
            with self.server.socket() as s:
                for i in range(0, len(whole), step):
                    s.sendall(whole[i:i + step])
                self.assertEqual(statuses(read_all(s).decode()), ["200"], step)

    def test_chunked_in_any_letters(self):
        body = json.dumps({"prompt": "x", "max_tokens": 1})
        answer = self.server.raw((f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: Chunked\r\n\r\n"
                                  f"{len(body):x}\r\n{body}\r\n0\r\n\r\n").encode())
        self.assertEqual(statuses(answer), ["200"], answer)

    def test_absolute_targets(self):
        """RFC 9112, 3.2.2: clients of proxies send absolute targets, and the target's host overrides the Host header."""
        for target, status in (("http://127.0.0.1:1/version", "200"), ("HTTP://localhost/version?x=/y", "200"), ("https://h/version", "200"),
                               ("http://h", "200"), ("http://evil.example/version", "403"), ("http://h/nowhere", "404")):
            answer = self.server.raw(f"GET {target} HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n".encode())
            self.assertEqual(statuses(answer), [status], (target, answer))

    def test_bodies_of_other_types(self):
        for kind, status in (("application/jsonx", 415), ("application/json-patch+json", 415), ("application/json, text/plain", 415), ("", 415),
                             ("Application/JSON; charset=utf-8", 200), ("application/json ;x=y", 200), ("application/json;", 200)):
            found, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "max_tokens": 1}, {"Content-Type": kind})
            self.assertEqual(found, status, kind)
            if status == 415:
                self.assertIn(f"wanted application/json, found '{kind}'", answer["error"]["message"])

    def test_bodies_in_other_codings(self):
        for coding, status in (("gzip", 415), ("br", 415), ("gzip, identity", 415), ("identity", 200), ("Identity", 200)):
            found, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "max_tokens": 1}, {"Content-Encoding": coding})
            self.assertEqual(found, status, answer)
            if status == 415:
                self.assertIn("Content-Encoding", answer["error"]["message"])


class ClientsThatLeave(OwnServerTest):
    def test_behind_input_of_any_size(self):
        server = self.start()
        body = json.dumps({"messages": QUESTION, "ignore_eos": True, "n": 8}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        for number, pad in enumerate((0, 70000, 1 << 20, 20 << 20), 1):
            with server.socket() as s:
                s.sendall(head + body + b"x" * pad)
                wait_until(lambda: server.metric("vllm:num_requests_running") == 8, "eight that run")
            server.wait_until_idle()
            wait_until(lambda: server.finished("abort") == 8 * number, "eight that were cancelled")
        self.assertEqual(server.finished("length"), 0)
        self.assertEqual(server.stop(), 0)

    def test_what_stands_behind_is_not_kept(self):
        """A connected client gets its answer before the connection is closed."""
        server = self.start()
        body = json.dumps({"prompt": "x", "max_tokens": 300, "ignore_eos": True}).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        with server.socket() as s:
            s.sendall(head + body + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * 20000)
            self.assertEqual(statuses(read_all(s).decode()), ["200"])
        self.assertEqual(server.stop(), 0)

    def test_without_having_read_an_answer_that_is_whole(self):
        """The log must not report success for an unread answer."""
        server = self.start("--max-num-seqs", "2")
        with server.socket() as s:
            body = json.dumps({"prompt": [5] * 4000, "echo": True, "logprobs": 20, "max_tokens": 1, "n": 4}).encode()
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            wait_until(lambda: "end after" in server.logged(), "the whole answer")
        wait_until(lambda: re.search(r"client gone: \d+ bytes of the whole answer were not read", server.logged()), "a line of the log")
        self.assertEqual(server.stop(), 0)


class Names(OwnServerTest):
    """In a browser, a foreign page whose host name resolves to the server has the server's origin, so the server accepts only known host
    names."""

    def host(self, server, name, path="/v1/models"):
        return server.ask(path, headers={"Host": name})[0]

    def test_names_of_the_server(self):
        server = self.start()
        for name in ("localhost", "LOCALHOST:8000", "a.localhost", "localhost.", "127.0.0.1", "10.1.2.3:8000", "[::1]", "[fe80::1]:80", "[::1]:", "sluice", "sluice:8000", "sluice:"):
            self.assertEqual(self.host(server, name), 200, name)
        for name in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", "1.2.3", "localhost.evil.example", "evil.example."):
            for path in ("/v1/models", "/", "/health", "/metrics"):
                self.assertEqual(self.host(server, name, path), 403, name)
            status, _, answer = server.ask(CHAT, {"messages": QUESTION, "max_tokens": 1}, {"Host": name})
            self.assertEqual((status, answer["error"]["code"]), (403, "host_not_allowed"))
            self.assertIn("--allowed-hosts", answer["error"]["message"])
        self.assertEqual(server.stop(), 0)

    def test_what_is_no_name(self):
        """RFC 9112, 3.2: a Host header that is no host gets 400, also if any host is allowed."""
        for flags in ((), ("--api-key", "k"), ("--allowed-hosts", "*")):
            server = self.start(*flags)
            for name in ("a b", "a@b", "a,b", "a:b", "a:1:x", "[::1", "[::1]x", "[a]", "[]", "http://a", "a/b", ".", "a..b", "a%20b"):
                status, _, answer = server.ask("/health", headers={"Host": name})
                self.assertEqual(status, 400, (flags, name, answer))
                self.assertIn(f"Host: wanted a name or an address, with or without a port, found '{name}'", answer["error"]["message"])
            self.assertEqual(server.stop(), 0)

    def test_other_names(self):
        for flags in (("--allowed-hosts", "a.example,b.example"), ("--allowed-hosts", "A.example", "--allowed-hosts", "b.example."),
                      ("--allowed-hosts", '["a.example", "b.example"]')):
            server = self.start(*flags)
            self.assertEqual([self.host(server, n) for n in ("a.example", "b.example:80", "c.example")], [200, 200, 403])
            self.assertEqual(server.stop(), 0)
        server = self.start("--allowed-hosts", "a.example:8000,[fe80::1],10.0.0.1", "--allowed-hosts", "b_c.example")
        self.assertEqual([self.host(server, n) for n in ("a.example", "b_c.example", "c.example")], [200, 200, 403])
        self.assertEqual(server.stop(), 0)
        for flags in (("--allowed-hosts", "*"), ("--api-key", "k")):
            server = self.start(*flags)
            self.assertEqual(server.ask("/v1/models", headers={"Host": "c.example", "Authorization": "Bearer k"})[0], 200)
            self.assertEqual(server.stop(), 0)


class Origins(OwnServerTest):
    def ask(self, server, origin, method="GET", path="/v1/models", body=None, **headers):
        status, found, answer = server.ask(path, body, {"Origin": origin, **headers}, method)
        return status, {name.lower(): value for name, value in found.items() if name.lower().startswith("access-control") or name == "Vary"}

    def test_none_by_default(self):
        server = self.start()
        self.assertEqual(self.ask(server, "https://a.example"), (200, {}))
        self.assertEqual(self.ask(server, "https://a.example", "OPTIONS", **{"Access-Control-Request-Method": "POST"}), (405, {}))
        self.assertEqual(server.stop(), 0)

    def test_those_that_are_named(self):
        server = self.start("--allowed-origins", '["https://a.example"]', "--api-key", "k")
        shown = {"access-control-allow-origin": "https://a.example", "access-control-expose-headers": "x-request-id, Retry-After", "vary": "Origin"}
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
        # Browsers send preflights without the key.
        self.assertEqual(self.ask(server, "https://a.example", "OPTIONS", CHAT, **asks),
                         (200, {**shown, "access-control-allow-methods": "GET, POST, DELETE", "access-control-max-age": "600",
                                "access-control-allow-headers": "authorization, content-type"}))
        for origin in ("https://b.example", "http://a.example", "https://a.example.evil.example", "null"):
            self.assertEqual(self.ask(server, origin, "OPTIONS", CHAT, **asks), (200, {"vary": "Origin"}))
            self.assertEqual(self.ask(server, origin, Authorization="Bearer k"), (200, {"vary": "Origin"}))
        # The page can read the message.
        self.assertEqual(self.ask(server, "https://a.example"), (401, shown))
        for stream in (False, True):
            body = {"messages": QUESTION, "max_tokens": 2, "stream": stream}
            self.assertEqual(self.ask(server, "https://a.example", "POST", CHAT, body, Authorization="Bearer k"), (200, shown))
        self.assertEqual(server.stop(), 0)

    def test_forms_of_origins(self):
        server = self.start("--allowed-origins", "HTTP://localhost:3000/,http://[::1]:8080,chrome-extension://abc,null", "--allowed-origins", "https://a.example:8443")
        for origin in ("http://localhost:3000", "http://[::1]:8080", "chrome-extension://abc", "null", "https://a.example:8443"):
            self.assertEqual(self.ask(server, origin)[1]["access-control-allow-origin"], origin)
        self.assertEqual(server.stop(), 0)

    def test_any(self):
        server = self.start("--allowed-origins", "*")
        self.assertEqual(self.ask(server, "https://a.example")[1]["access-control-allow-origin"], "*")
        self.assertEqual(server.stop(), 0)


class Flags(unittest.TestCase):
    def test_values_that_would_open_the_server(self):
        for flag, value, said in (("--host", "", "some text"), ("--api-key", "", "wanted a key, found none"), ("--api-key", "a ", "without blanks"),
                                  ("--api-key", "secret\n", "without blanks"), ("--allowed-hosts", "", "wanted names"), ("--allowed-origins", "a,,b", "wanted names"),
                                  ("--allowed-origins", "a b", "wanted names"), ("--allowed-hosts", '["e.f", 5]', "wanted names"),
                                  ("--allowed-origins", "[]", "wanted names"),
                                  *(("--allowed-hosts", name, "wanted host names") for name in (
                                      "http://a.b", "*.example.com", "a.b/", ".example.com", "a..b", "a.b:x", "a.b,c/d", "ä.example", "[::1]:x", "[::1", "[::1]x")),
                                  *(("--allowed-origins", name, "wanted origins") for name in (
                                      "c.d", "https://*.x.y", "https://a.b/c", "https://", "//a.b", "https://a.b:x", "https://a@b", "https://a.b:443",
                                      "http://a.b:80", "https://a.b,c.d", "https:/a.b", "https://a.b?x"))):
            done = subprocess.run([COMMAND, "serve", "--port", "0", flag, value], capture_output=True, text=True, timeout=WATCHDOG)
            self.assertEqual((done.returncode, done.stdout), (2, ""), flag)
            self.assertIn(flag, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertNotIn("secret", done.stderr)


if __name__ == "__main__":
    unittest.main()
