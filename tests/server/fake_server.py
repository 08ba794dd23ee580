"""A server with known answers and timing, to check a client's measurements."""
import http.server
import json
import threading
import time

FIRST, GAP = 0.3, 0.1  # seconds until the first chunk, and between chunks


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
# Invalid answers by name. The connection is closed after them.
RAW = {
    **{f"length {n}": HEAD + b"Content-Length: %d\r\n\r\ndata: " % n for n in (2**64 - 1, 2**63 - 1, 10**30, 200 * 10**9, 200 * 10**6)},
    "length -1": HEAD + b"Content-Length: -1\r\n\r\n",
    "chunk zz": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n",
    "chunk huge": HEAD + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
    "chunk cut": HEAD + b"Transfer-Encoding: chunked\r\n\r\nff\r\ndata: {",
    "chunk of words": HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * (1 << 20),
    "head": HEAD + b"X-Word: " + b"x" * (1 << 20),
    "heads": HEAD + b"X-Word: x\r\n" * 100000,
    "interims": b"HTTP/1.1 103 Early Hints\r\n\r\n" * 101,
    "interim and no more": b"HTTP/1.1 100 Continue\r\n\r\n",
    "switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
    "mail": b"220 mail.example.com ESMTP\r\n",
    "event": HEAD + b"Content-Length: %d\r\n\r\ndata: " % (18 << 20) + b"x" * (18 << 20),
}


class FakeServer:
    """A prompt of /v1/completions names the server's behaviour, except that the first request is answered normally. See _Handler.behave."""

    def __init__(self):
        self.lock = threading.Lock()
        self.log = []  # one entry per request to /v1/*: {"path", "body", "received", "writes", "connection"}
        self.open = self.max_open = 0
        # This many requests with complete answers, or with the prompt "together", wait for each other.
        self.barrier = threading.Barrier(1)
        self.released = threading.Event()  # releases hanging requests
        self.answer = lambda body: ""  # the text of /v1/chat/completions without a stream
        self.refusal = "out of order"  # the message for the prompt "500 long"
        self.asked_tokens = []  # bodies of /tokenize and /detokenize
        self.raw = lambda body: None  # returns the name of an answer in RAW
        self.metrics = lambda: None  # returns the text of /metrics
        self.usage = lambda body: {"prompt_tokens": 3, "completion_tokens": 2}
        fake = self

        class Handler(_Handler):
            server_of = fake
        self.server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def asked(self, path):
        with self.lock:
            return [r for r in self.log if r["path"] == path]

    def close(self):
        self.released.set()
        self.barrier.abort()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # simultaneous connections


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def whole(self, body, status=200):
        self.whole_bytes(json.dumps(body).encode(), "application/json", status)

    def whole_bytes(self, data, content_type, status=200):
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        page = self.server_of.metrics() if self.path == "/metrics" else None
        if page is not None:
            return self.whole_bytes(page.encode(), "text/plain; version=0.0.4")
        self.whole({"data": [{"id": "fake"}]} if self.path == "/v1/models" else {}, 200 if self.path == "/v1/models" else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        fake = self.server_of
        if self.path in ("/tokenize", "/detokenize"):
            fake.asked_tokens.append(body)
        if self.path == "/tokenize":  # each word is a token
            return self.whole({"tokens": list(range(10, 10 + len(body["prompt"].split())))})
        if self.path == "/detokenize":
            return self.whole({"prompt": " ".join("w" for _ in body["tokens"])})
        entry = {"path": self.path, "body": body, "received": time.monotonic(), "writes": [], "connection": id(self),
                 "key": self.headers["Authorization"]}
        with fake.lock:
            first = not fake.log
            fake.log.append(entry)
            fake.open += 1
            fake.max_open = max(fake.max_open, fake.open)
        if not body.get("stream"):
            return self.answer_whole(body)
        try:
            self.behave("ok" if first or not isinstance(body.get("prompt"), str) else body["prompt"], entry, body.get("max_tokens") or body["max_completion_tokens"])
        except OSError:  # the client disconnected
            self.hang_up()
        finally:
            self.done()

    def done(self):
        with self.server_of.lock:
            self.server_of.open -= 1

    def answer_whole(self, body):
        self.server_of.barrier.wait()
        text = self.server_of.answer(body)
        self.done()  # before the answer: a client may send its next request once it has read the answer
        if name := self.server_of.raw(body):
            return self.answer_raw(name)
        if text is None:
            return self.whole({"error": {"message": "no idea"}}, 500)
        self.whole({"choices": [{"message": {"role": "assistant", "content": text}}],
                    "usage": self.server_of.usage(body)})

    def answer_raw(self, name):
        try:
            self.wfile.write(RAW[name])
        except OSError:  # the client disconnected
            pass
        self.hang_up()

    def behave(self, how, entry, tokens):
        if how == "500":
            return self.whole({"error": {"message": "out of order"}}, 500)
        if how == "500 long":
            return self.whole({"error": {"message": self.server_of.refusal}}, 500)
        if how == "close":
            return self.hang_up()
        if how == "hang":
            self.server_of.released.wait()
            return self.hang_up()
        if how in RAW:
            return self.answer_raw(how)
        if how == "long together":  # promises 200 MB, and waits until as many requests as the barrier counts have done so
            self.wfile.write(RAW[f"length {200 * 10**6}"] + b"data: ")
            self.server_of.barrier.wait()
            return self.hang_up()
        if how == "interim":  # before the final answer
            self.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
        if how == "together":  # answers once as many requests as the barrier counts have arrived
            self.server_of.barrier.wait()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for i in range(tokens):
            time.sleep(GAP if i else FIRST)
            entry["writes"].append(time.monotonic())
            self.event({"choices": [{"index": 0, "text": "x", "delta": {"content": "x"}}]})
            if how == "cut":
                return self.hang_up()
        if how == "error event":
            self.event({"error": {"message": "lost the thread"}})
        if how.startswith("usage "):
            self.event({"choices": [], "usage": json.loads(how[len("usage "):])})
        elif how != "no usage":
            self.event({"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": tokens}})
        if how != "no end":
            self.chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        if how == "stale":  # closes the connection although it was to be kept alive
            self.hang_up()

    def event(self, body):
        self.chunk(b"data: " + json.dumps(body).encode() + b"\n\n")

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def hang_up(self):
        self.close_connection = True
