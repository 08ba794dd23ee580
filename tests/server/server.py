"""Runs `sluice serve` for a test and sends requests with Python's standard library."""
import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
import unittest

COMMAND = os.environ["SLUICE_COMMAND"]
WATCHDOG = 120  # seconds after which the test counts as hanging; the tests measure no time
QUESTION = [{"role": "user", "content": "What is 417 + 268?"}]


def wait_until(condition, what):
    end = time.monotonic() + WATCHDOG
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {WATCHDOG} s for {what}")
        time.sleep(0.01)


def is_sanitized():
    """Whether the server is built with a sanitizer, which maps all addresses and does not return freed memory."""
    with open(COMMAND, "rb") as f:
        program = f.read()
    return b"__asan_init" in program or b"__tsan_init" in program


class Server:
    def __init__(self, *flags, log=None, limits=()):
        """`log`: receives standard error instead of logged(). `limits`: resource limits of the process as (resource, bytes)."""
        def bound():
            for what, most in limits:
                resource.setrlimit(what, (most, most))

        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen([COMMAND, "serve", "--port", "0", *flags], stdout=subprocess.PIPE, stderr=self.log if log is None else log,
                                        preexec_fn=bound if limits else None)
        self.url = self.process.stdout.readline().decode().strip()
        if not self.url.startswith("http://127.0.0.1:"):
            raise AssertionError(f"no server: {self.url!r}, {self.logged()}")
        self.port = int(self.url.rsplit(":", 1)[1])

    def logged(self):
        self.log.seek(0)
        return self.log.read().decode()

    def signal(self, number):
        self.process.send_signal(number)

    def has_ended(self):
        return self.process.poll() is not None

    def exit_status(self):
        return self.process.wait(WATCHDOG)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def stop(self):
        self.signal(signal.SIGTERM)
        return self.exit_status()

    def memory(self, kind="VmRSS"):
        """Resident megabytes of the process."""
        with open(f"/proc/{self.process.pid}/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(kind)) // 1024

    def peak_memory(self):
        return self.memory("VmHWM")

    def kept_by_the_system(self):
        """Of each open connection the bytes that the server has passed to the system and that the client's system has not acknowledged."""
        with open("/proc/net/tcp") as lines:
            fields = [line.split() for line in lines][1:]
        return [int(queues.split(":")[0], 16) for _, local, _, state, queues, *_ in fields
                if state == "01" and int(local.split(":")[1], 16) == self.port]

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=WATCHDOG)

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=WATCHDOG)

    def ask(self, path, body=None, headers=None, method=None):
        """Status, headers and the body, parsed if it is JSON."""
        connection = self.connect()
        all_headers = {"Content-Type": "application/json"} if body is not None else {}
        all_headers.update(headers or {})
        data = json.dumps(body) if isinstance(body, dict) else body
        connection.request(method or ("GET" if body is None else "POST"), path, data, all_headers)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, response.headers, json.loads(text) if is_json and text else text.decode()

    def chat(self, **fields):
        status, _, answer = self.ask("/v1/chat/completions", {"messages": QUESTION, **fields})
        if status != 200:
            raise AssertionError(f"{status}: {answer}")
        return answer

    def open_stream(self, path="/v1/chat/completions", **fields):
        connection = self.connect()
        prompt = {"messages": QUESTION} if "chat" in path else {}
        connection.request("POST", path, json.dumps({"stream": True, **prompt, **fields}), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise AssertionError(f"{response.status}: {response.read()}")
        return connection, response

    def open_later(self, prompt, max_tokens):
        """Starts a stream without reading any of it."""
        connection = self.connect()
        body = json.dumps({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True})
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection

    def stream(self, path="/v1/chat/completions", **fields):
        connection, response = self.open_stream(path, **fields)
        events = list(events_of(response))
        connection.close()
        return events

    def metric(self, name, label=""):
        """The value of a metric; `label` selects one of several, such as 'finished_reason="stop"'."""
        for line in self.ask("/metrics")[2].splitlines():
            if line.startswith(name + "{") and label in line:
                return float(line.rsplit(" ", 1)[1])
        raise AssertionError(f"no metric {name}")

    def finished(self, reason):
        return self.metric("vllm:request_success_total", f'finished_reason="{reason}"')

    def wait_until_idle(self):
        wait_until(lambda: self.metric("vllm:num_requests_running") == 0, "no running requests")
        wait_until(lambda: self.metric("vllm:num_requests_waiting") == 0, "no waiting requests")

    def raw(self, data, then_close_writing=False):
        """Sends these bytes and returns everything until the server closes the connection, as text."""
        with self.socket() as s:
            try:
                s.sendall(data)
                if then_close_writing:
                    s.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # rejected before all of it was sent
            return read_all(s).decode("latin-1")


def read_all(s):
    out = b""
    try:
        while chunk := s.recv(65536):
            out += chunk
    except ConnectionResetError:
        pass
    return out


def events_of(response):
    """The events of a stream: objects, and "[DONE]"."""
    kind = None
    for line in response:
        line = line.decode().rstrip("\n")
        if line.startswith("event: "):
            kind = line[7:]
            continue
        if not line:
            kind = None
            continue
        if not line.startswith("data: "):
            raise AssertionError(f"not an event: {line!r}")
        event = line[6:] if line == "data: [DONE]" else json.loads(line[6:])
        if kind and event["type"] != kind:
            raise AssertionError(f"an event {kind} with the data {event}")
        yield event


def close(stream):
    """Disconnects in the middle of a stream from open_stream(): the response holds the socket, too."""
    connection, response = stream
    response.close()
    connection.close()


def joined(events, key, index=0):
    return "".join(
        c["delta"].get(key, "") for e in events if e != "[DONE]" for c in e["choices"] if c["index"] == index)


def run_json(*words):
    out = subprocess.run([COMMAND, "run", "-q", "--json", *words], capture_output=True, check=True, timeout=WATCHDOG)
    return json.loads(out.stdout)


class ServerTest(unittest.TestCase):
    """One server for all tests of a class. It must still serve after each test and exit with 0."""
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS)

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        cls.server.close()
        if status != 0:
            raise AssertionError(f"sluice serve ended with {status}")

    def tearDown(self):
        self.assertEqual(self.server.ask("/health")[0], 200)


class OwnServerTest(unittest.TestCase):
    def start(self, *flags, **how):
        server = Server(*flags, **how)
        self.addCleanup(server.close)
        return server
