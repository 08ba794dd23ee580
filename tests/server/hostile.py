"""Hostile requests, for tests that mix them into ordinary load. Each must get an answer or a closed
connection; none may affect other clients."""
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


def in_chunks(body, extension=b"", trailers=b""):
    chunks = b"".join(b"%x%s\r\n%c\r\n" % (1, extension, byte) for byte in body)
    return HEAD.format(path=COMPLETION).encode() + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailers + b"\r\n"


def chat(**fields):
    return posted(CHAT, json.dumps({"messages": QUESTION, "max_tokens": 3, **fields}))


def of_properties(count, schema):
    return {"type": "object", "properties": {f"k{i}": schema for i in range(count)}, "required": [f"k{i}" for i in range(count)]}


MANY = {f"k{i}": i for i in range(150000)}
SMALL = b'{"prompt":"x","max_tokens":1}'

# Answered or rejected at once; given as bytes.
RAW = [
    b"\0" * 4000,
    b"GET /" + b"a" * 100000,
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"\r\n",
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
    # Schemas and grammars that compile slowly or have slow masks.
    chat(guided_json=of_properties(100, {"type": "string", "pattern": "([a-z]{1,99}[0-9]{1,99}){1,99}"})),
    chat(guided_json={"type": "object", "properties": {f"k{i}": {"type": "string", "maxLength": 1000 + i} for i in range(200)}}),
    chat(guided_json={"anyOf": [of_properties(20, {"type": "integer", "minimum": i}) for i in range(200)]}),
    chat(guided_json={"$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(60)} | {"d60": {"type": "null"}}, "$ref": "#/$defs/d0"}),
    chat(guided_grammar="root ::= s\ns ::= s s s | s s | [a-zA-Z0-9 \\n.,]"),
    chat(guided_grammar="root ::= " + "(" * 2000 + '"a"' + ")" * 2000),
    chat(guided_regex="(" + ".*" * 250 + ")*x"),
    chat(guided_regex="((.?){2,})*", max_tokens=30),
    chat(guided_choice=["x" * 4000 + str(i) for i in range(500)]),
    # Objects with many members, where the order of members is kept.
    chat(metadata=MANY),
    chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": MANY}}),
    posted(RESPONSE, json.dumps({"input": "hi", "max_output_tokens": 2, "text": MANY})),
    posted(RESPONSE, json.dumps({"input": "hi", "max_output_tokens": 2, "user": "u" * 4000000, "stream": True})),
    posted(RESPONSE, json.dumps({"max_output_tokens": 2, "input": [{"type": "message", "role": "user", "content": "hi"}] +
                                 [{"type": "function_call", "call_id": f"{i}" * 2000, "name": "f", "arguments": "{}"} for i in range(20)]})),
    # Repeated fields and values.
    chat(n=128, stop_token_ids=list(range(1000)), logit_bias={str(i): -1 for i in range(1000)}),
    chat(n=128, stop=["a" * 4000, "b" * 4000, "ab" * 2000, "c"]),
    posted(COMPLETION, json.dumps({"prompt": [[5] * 700] * 4, "n": 2, "echo": True, "logprobs": 20, "max_tokens": 1})),
    posted(COMPLETION, json.dumps({"prompt": [5] * 700, "n": 3, "echo": True, "logprobs": 20, "max_tokens": 1, "stream": True})),
    posted(COMPLETION, json.dumps({"prompt": ["x"] * 128, "max_tokens": 1, "logprobs": 20})),
    # Ambiguous ends of requests.
    HEAD.format(path=COMPLETION).encode() + b"Transfer-Encoding: gzip, chunked\r\n\r\n1d\r\n" + SMALL + b"\r\n0\r\n\r\n",
    HEAD.format(path=COMPLETION).encode() + b"Transfer-Encoding: xchunked\r\n\r\nGET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    in_chunks(SMALL, b";a=" + b"x" * 1000),
    in_chunks(SMALL, b";a=" + b"x" * 100000),
    in_chunks(SMALL, trailers=b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nHost: evil.example\r\n"),
    in_chunks(SMALL, trailers=b"".join(b"X-%d: y\r\n" % i for i in range(20000))),
    posted(COMPLETION, SMALL).replace(b"HTTP/1.1", b"HTTP/1.0"),
    posted(COMPLETION, SMALL, "Expect: 100-continue\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"),
    b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 100 + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 200 + b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
]


def send(server, data):
    with server.socket() as s:
        try:
            s.sendall(data)
        except OSError:
            pass  # rejected before all of it was sent
        answer = read_all(s)
    if answer and not answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 4", b"HTTP/1.1 503 ")):
        raise AssertionError(answer[:200])


def send_all(server):
    for data in RAW:
        try:
            send(server, data)
        except (ConnectionResetError, BrokenPipeError, TimeoutError):
            pass  # closing the connection is allowed


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


def leave_answers_unread(server, chance):
    held = []
    for _ in range(30):
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.settimeout(5)
        s.connect(("127.0.0.1", server.port))
        s.sendall(b"GET " + chance.choice((b"/openapi.json", b"/metrics", b"/")) + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        held.append(s)
    time.sleep(chance.random() / 4)
    for s in held:
        s.close()


def close_one_half(server, chance):
    with server.socket() as s:
        s.sendall(posted(COMPLETION, json.dumps({"prompt": "x", "ignore_eos": True, "max_tokens": 500})))
        s.shutdown(socket.SHUT_WR)
        s.recv(1000)


def ask_without_patience(server, chance):
    """Disconnects while workers process the request."""
    s = server.socket()
    s.sendall(chance.choice(RAW))
    time.sleep(chance.random() / 5)
    reset(s)


def hold_connections(server, chance):
    held = [server.socket() for _ in range(50)]
    time.sleep(chance.random() / 4)
    for s in held:
        s.close()


def one(server, chance):
    """A random hostile request."""
    how = chance.choice((None, None, None, leave_in_the_middle, leave_behind_input, read_slowly, send_bytes_alone, hold_connections,
                         leave_answers_unread, close_one_half, ask_without_patience))
    try:
        return how(server, chance) if how else send(server, chance.choice(RAW))
    except (ConnectionResetError, BrokenPipeError, TimeoutError):
        return None  # closing the connection is allowed
