"""Requests that no client of good will sends, for tests that mix them into ordinary load. Each must end in an answer of its own or in a closed
connection; none may be felt by anybody else."""
import json
import socket
import struct
import time

from server import QUESTION, read_all

CHAT, COMPLETION, RESPONSE = "/v1/chat/completions", "/v1/completions", "/v1/responses"
HEAD = "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"


def posted(path, body, more=""):
    body = body if isinstance(body, bytes) else body.encode()
    return HEAD.format(path=path).encode() + f"{more}Content-Length: {len(body)}\r\n\r\n".encode() + body


# Answered or refused at once, as bytes.
RAW = [
    b"\0" * 4000,
    b"GET /" + b"a" * 100000,
    b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"\r\n",
    posted(CHAT, "[" * 200000),
    posted(CHAT, '{"messages":' * 5000),
    posted(CHAT, b'{"messages": "\xff\xfe"}'),
    posted(CHAT, '{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"x":[' + ",".join(["[]"] * 300000) + "]}"),
    posted(CHAT, '{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"x":"' + "a" * 4000000 + '"}'),
    posted(COMPLETION, json.dumps({"prompt": "a" * 4000000})),
    posted(COMPLETION, json.dumps({"prompt": ["a"] * 100000})),
    posted(COMPLETION, json.dumps({"prompt": "x", "stop": ["a"] * 100000})),
    posted(COMPLETION, json.dumps({"prompt": "x", "n": 1 << 40})),
    posted(CHAT, json.dumps({"messages": QUESTION * 20000, "max_tokens": 1})),
    posted("/tokenize", json.dumps({"prompt": "\u0300" * 300000})),
    posted("/detokenize", json.dumps({"tokens": [5] * 500000})),
    posted(COMPLETION, "x" * 9000000),
    posted(CHAT, "{}", "Transfer-Encoding: gzip\r\n"),
    posted(CHAT, "{}", "Content-Encoding: gzip\r\n"),
    posted(CHAT, "{}", "Host: evil.example\r\n"),
    b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\n\r\n" * 200 + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
]


def send(server, data):
    with server.socket() as s:
        try:
            s.sendall(data)
        except OSError:
            pass  # refused before all of it was sent
        answer = read_all(s)
    if answer and not answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 4", b"HTTP/1.1 503 ")):
        raise AssertionError(answer[:200])


def reset(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    s.close()


def leave_in_the_middle(server, chance):
    data = chance.choice(RAW)
    s = server.socket()
    try:
        s.sendall(data[:chance.randrange(len(data))])
    except OSError:
        pass
    (reset if chance.random() < 0.5 else socket.socket.close)(s)


def leave_behind_input(server, chance):
    with server.socket() as s:
        s.sendall(posted(COMPLETION, json.dumps({"prompt": "x", "ignore_eos": True, "max_tokens": 500})) + b"x" * chance.choice((10, 70000, 1 << 20)))
        time.sleep(chance.random() / 10)


def read_slowly(server, chance):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    s.settimeout(5)
    s.connect(("127.0.0.1", server.port))
    s.sendall(posted(COMPLETION, json.dumps({"prompt": [5] * 300, "echo": True, "logprobs": 20, "ignore_eos": True, "max_tokens": 300, "stream": True})))
    time.sleep(chance.random())
    s.recv(100)
    reset(s)


def send_bytes_alone(server, chance):
    with server.socket() as s:
        for byte in posted(CHAT, "{}")[:chance.randrange(20)]:
            s.sendall(bytes([byte]))
            time.sleep(0.01)


def hold_connections(server, chance):
    held = [server.socket() for _ in range(50)]
    time.sleep(chance.random() / 4)
    for s in held:
        s.close()


def one(server, chance):
    """A hostile request by chance."""
    how = chance.choice((None, None, None, leave_in_the_middle, leave_behind_input, read_slowly, send_bytes_alone, hold_connections))
    try:
        return how(server, chance) if how else send(server, chance.choice(RAW))
    except (ConnectionResetError, BrokenPipeError, TimeoutError):
        return None  # closed, as it may be
