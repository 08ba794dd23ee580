"""Chats with Qwen3's chat format and with an unknown format: the shipped weights with another tokenizer, which generate arbitrary text."""
import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from server import COMMAND, QUESTION, WATCHDOG, OwnServerTest, ServerTest, joined, run_json

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
CHAT = "/v1/chat/completions"
POINT = {"type": "object", "properties": {"x": {"type": "boolean"}, "kind": {"enum": ["a", "dög"]}}, "required": ["x", "kind"], "additionalProperties": False}
LIST = {"type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": "point", "description": "Keeps one.", "strict": True, "parameters": POINT}},
         {"type": "function", "function": {"name": "points", "parameters": LIST}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "point", "strict": True, "schema": POINT}}
SCHEMAS = {"point": POINT, "points": LIST}


def added_tokens(tokenizer):
    return {t["content"]: t["id"] for t in json.loads((DATA / "tokenizer" / f"{tokenizer}.json").read_text())["added_tokens"]}


def made_model(folder, template=None, tokenizer="pattern_qwen", end="<|im_end|>"):
    model = pathlib.Path(folder) / "model"
    shutil.copytree(ROOT / "models" / "sluice-16e-tiny", model)
    shutil.copy(DATA / "tokenizer" / f"{tokenizer}.json", model / "tokenizer.json")
    for name in ("config.json", "generation_config.json"):
        if (model / name).exists():
            config = json.loads((model / name).read_text())
            config["eos_token_id"] = [added_tokens(tokenizer)[end]]
            (model / name).write_text(json.dumps(config))
    if template:
        shutil.copy(DATA / "chat_templates" / f"{template}.jinja", model / "chat_template.jinja")
    return str(model)


class ChatMlTest(ServerTest):
    """Tests that every chat format with <think> shares."""
    TEMPLATE, TOKENIZER, END = "qwen3", "pattern_qwen", "<|im_end|>"

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = made_model(cls.folder.name, cls.TEMPLATE, cls.TOKENIZER, cls.END)
        tokens = added_tokens(cls.TOKENIZER)
        # Arbitrary text seldom contains these tokens.
        cls.ENDS = {str(tokens["</think>"]): 6, str(tokens[cls.END]): 4}
        cls.FLAGS = ("--model", cls.model, "--max-num-seqs", "8", "--batch-invariant")
        super().setUpClass()

    def choices(self, **fields):
        """The messages of finished answers."""
        answer = self.server.chat(**{"temperature": 1, "max_tokens": 400, "n": 8, "logit_bias": self.ENDS, **fields})
        for choice in answer["choices"]:
            self.assertIn(choice["finish_reason"], ["stop", "length", "tool_calls"])
        return [c["message"] for c in answer["choices"] if c["finish_reason"] != "length"]

    def check(self, text, schema=POINT):
        value = json.loads(text)
        self.assertEqual(list(value), schema["required"])
        self.assertTrue(all(type(value[k]) is bool for k in value if k in "xn"))
        self.assertIn(value.get("kind", "a"), ["a", "dög"])

    def check_calls(self, message, most=99):
        calls = message.get("tool_calls", [])
        self.assertLessEqual(len(calls), most)
        self.assertEqual(len({c["id"] for c in calls}), len(calls))
        for call in calls:
            self.check(call["function"]["arguments"], SCHEMAS[call["function"]["name"]])
        return [c["function"]["name"] for c in calls]


    def check_continuation(self):
        """The answer is the text after the prompt's tokens, even if the format reasons or functions are offered."""
        turns = [*QUESTION, {"role": "assistant", "content": "The answer\n"}]
        for fields in ({"continue_final_message": True}, {"messages": [*QUESTION, {**turns[-1], "prefix": True}]}, {"continue_final_message": True, "tools": TOOLS[1:]}):
            fields = {"messages": turns, **fields}
            ids = self.server.ask("/tokenize", fields)[2]["tokens"]
            limits = {"max_tokens": 40, "temperature": 1, "seed": 3, "logit_bias": {str(t): -100 for t in added_tokens(self.TOKENIZER).values()}}
            whole = self.server.chat(**fields, **limits, logprobs=True)["choices"][0]
            self.assertIsNone(whole["message"]["reasoning"])
            self.assertEqual(len(whole["logprobs"]["content"]), limits["max_tokens"])
            self.assertEqual(joined(self.server.stream(**fields, **limits), "content"), whole["message"]["content"])
            plain = self.server.ask("/v1/completions", {"prompt": ids, "add_special_tokens": False, **limits})[2]["choices"][0]
            self.assertEqual(whole["message"]["content"], plain["text"])
        # Constrained to one call, and nevertheless free within the text.
        for message in self.choices(messages=turns, continue_final_message=True, tools=TOOLS, parallel_tool_calls=False, seed=7):
            self.assertIsNone(message["reasoning"])
            self.check_calls(message, 1)


class Switch(ChatMlTest):
    def test_schema(self):
        thought = 0
        for thinking in (True, False):
            ended = [m for seed in range(3) for m in self.choices(response_format=FORMAT, seed=seed * 100, chat_template_kwargs={"enable_thinking": thinking})]
            self.assertGreater(len(ended), 4)
            for message in ended:
                self.check(message["content"])
                self.assertTrue(thinking or not message["reasoning"])
                thought += bool(message["reasoning"])
        for message in self.choices(response_format={"type": "json_object"}, seed=1):
            self.assertIsInstance(json.loads(message["content"]), dict)

    def test_calls_that_must_be_made(self):
        names = []
        for parallel in (True, False):
            for seed in range(3):
                for message in self.choices(tools=TOOLS, tool_choice="required", seed=seed * 100, temperature=1.5, parallel_tool_calls=parallel):
                    called = self.check_calls(message, 99 if parallel else 1)
                    self.assertGreaterEqual(len(called), 1)
                    names += called
        self.assertEqual(set(names), {"point", "points"})

    def test_one_function_that_must_be_called(self):
        for name in ("point", "points"):
            messages = self.choices(tools=TOOLS, tool_choice={"type": "function", "function": {"name": name}}, seed=5)
            self.assertGreater(len(messages), 4)
            for message in messages:
                self.assertEqual(self.check_calls(message), [name])
                self.assertIsNone(message["reasoning"])

    def test_calls_that_may_be_made(self):
        for form in ({}, {"response_format": FORMAT}):
            for message in self.choices(tools=TOOLS, seed=9, temperature=1.5, **form):
                called = self.check_calls(message)
                if form and not called:
                    self.check(message["content"])

    def test_tools_that_may_not_be_called(self):
        for message in self.choices(tools=TOOLS, tool_choice="none", seed=3):
            self.assertNotIn("tool_calls", message)

    def test_a_chat_continues_a_message(self):
        self.check_continuation()

    def test_streams_say_the_same(self):
        for fields in ({"response_format": FORMAT}, {"tools": TOOLS, "tool_choice": "required"}, {}):
            fields = {"seed": 11, "temperature": 1, "max_tokens": 200, **fields}
            whole = self.server.chat(**fields)["choices"][0]["message"]
            events = self.server.stream(**fields)
            self.assertEqual(joined(events, "content"), whole["content"] or "")
            self.assertEqual(joined(events, "reasoning"), whole["reasoning"] or "")
            calls = [c for e in events if e != "[DONE]" for x in e["choices"] for c in x["delta"].get("tool_calls", [])]
            for i, call in enumerate(whole.get("tool_calls", [])):
                mine = [c["function"] for c in calls if c["index"] == i]
                self.assertEqual(mine[0]["name"], call["function"]["name"])
                self.assertEqual("".join(c["arguments"] for c in mine), call["function"]["arguments"])

    def test_responses_go_on(self):
        text = {"format": {"type": "json_schema", "name": "point", "schema": POINT}}
        answer = self.server.ask("/v1/responses", {"input": "Who?", "text": text, "seed": 1, "max_output_tokens": 300})[2]
        if answer["status"] == "completed":
            self.check(answer["output"][-1]["content"][0]["text"])
        status, _, more = self.server.ask("/v1/responses", {"input": "And?", "previous_response_id": answer["id"], "max_output_tokens": 8})
        self.assertEqual(status, 200)
        self.assertGreater(more["usage"]["input_tokens"], answer["usage"]["input_tokens"])

    def test_log_probabilities_are_of_the_text(self):
        for seed in range(4):
            choice = self.server.chat(seed=seed, temperature=1, max_tokens=60, logprobs=True)["choices"][0]
            content = choice["logprobs"]["content"]
            said = b"".join(bytes(t["bytes"]) for t in content).decode(errors="replace")
            # Ids above the tokenizer's decode to no bytes, and white space before the first word is not listed.
            self.assertEqual(said.replace("\ufffd", "").strip(), choice["message"]["content"].replace("\ufffd", "").strip())

    def test_efforts_are_refused_and_thinking_is_not(self):
        status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "reasoning_effort": "high"})
        self.assertEqual((status, answer["error"]["param"]), (400, "reasoning_effort"))
        self.assertIn("qwen3", answer["error"]["message"])
        self.server.chat(reasoning_effort="medium", max_tokens=1, chat_template_kwargs={"enable_thinking": False})
        self.assertNotIn("enable_thinking", self.server.logged())
        status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "chat_template_kwargs": {"enable_thinking": "no"}})
        self.assertEqual((status, answer["error"]["param"]), (400, "chat_template_kwargs.enable_thinking"))

    def test_the_switch_outside_the_template(self):
        def tokens(**fields):
            return self.server.ask("/tokenize", {"messages": QUESTION, **fields})[2]["tokens"]
        for thinking in (True, False):
            self.assertEqual(tokens(enable_thinking=thinking), tokens(chat_template_kwargs={"enable_thinking": thinking}))
            count = self.server.ask("/v1/responses", {"input": QUESTION[0]["content"], "max_output_tokens": 1, "enable_thinking": thinking})[2]["usage"]["input_tokens"]
            self.assertEqual(count, len(tokens(enable_thinking=thinking)))
        self.assertNotEqual(tokens(enable_thinking=True), tokens(enable_thinking=False))

    def test_run_answers_alike(self):
        schema = {"type": "json_schema", "json_schema": {"name": "answer", "schema": POINT}}
        for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 5}):
            flags = [word for name, value in sampling.items() for word in (f"--{name}", str(value))]
            for thinking in (True, False):
                want = run_json("-m", self.model, "-p", QUESTION[0]["content"], "--json-schema", json.dumps(POINT), "--batch-invariant", "--max-tokens", "200",
                                "--thinking" if thinking else "--no-thinking", *flags)
                got = self.server.chat(response_format=schema, max_tokens=200, chat_template_kwargs={"enable_thinking": thinking}, **sampling)
                message = got["choices"][0]["message"]
                self.assertEqual((message["reasoning"] or "", message["content"]), (want["reasoning"], want["text"]))
                self.assertEqual(got["usage"]["prompt_tokens"], want["usage"]["prompt_tokens"])


class Always(ChatMlTest):
    TEMPLATE = "qwen3-thinking"

    def test_reasoning_is_open(self):
        for message in self.choices(response_format=FORMAT, seed=2):
            self.check(message["content"])
        answer = self.server.chat(max_tokens=20, temperature=1, seed=4)
        message = answer["choices"][0]["message"]
        self.assertEqual(message["content"], "")
        self.assertTrue(message["reasoning"])
        self.assertGreater(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 10)

    def test_calls(self):
        for choice in ("required", {"type": "function", "function": {"name": "point"}}):
            for message in self.choices(tools=TOOLS, tool_choice=choice, seed=7):
                self.assertGreaterEqual(len(self.check_calls(message)), 1)

    def test_a_switch_that_it_has_not_is_ignored(self):
        self.server.chat(max_tokens=1, chat_template_kwargs={"enable_thinking": False})
        self.assertIn("chat_template_kwargs.enable_thinking", self.server.logged())
        status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "enable_thinking": False})
        self.assertEqual((status, answer["error"]["param"]), (400, "enable_thinking"))
        self.assertEqual(answer["error"]["message"], "enable_thinking: wanted null, because the chat format qwen3-thinking does not support it, found false")


class Never(ChatMlTest):
    TEMPLATE = "qwen3-instruct"

    def test_nothing_is_reasoned(self):
        for fields in ({"response_format": FORMAT}, {"tools": TOOLS, "tool_choice": "required"}, {"tools": TOOLS}):
            for message in self.choices(seed=2, **fields):
                self.check_calls(message)
                if "response_format" in fields:
                    self.check(message["content"])
                self.assertIsNone(message["reasoning"])


class Unknown(OwnServerTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.model = made_model(folder.name)

    def test_completions_need_no_format(self):
        for template in (None, "{% for m in messages %}{{ m.content }}{% endfor %}"):
            if template:
                (pathlib.Path(self.model) / "chat_template.jinja").write_text(template)
            server = self.start("--model", self.model)
            self.assertIn("chats are disabled, only completions are served: chat template: wanted the template of a known format", server.logged())
            for path, body in ((CHAT, {"messages": QUESTION}), ("/v1/responses", {"input": "q"}), (CHAT, {"messages": QUESTION, "tools": TOOLS}),
                               ("/tokenize", {"messages": QUESTION})):
                status, _, answer = server.ask(path, body)
                self.assertEqual(status, 400)
                self.assertIn("found another" if template else "found none", answer["error"]["message"])
            status, _, answer = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 40, "guided_json": POINT, "seed": 1})
            self.assertEqual(status, 200)
            if answer["choices"][0]["finish_reason"] == "stop":
                self.assertEqual(list(json.loads(answer["choices"][0]["text"])), ["x", "kind"])

    def without_special_end(self, ids):
        for name in ("config.json", "generation_config.json"):
            path = pathlib.Path(self.model) / name
            if path.exists():
                config = json.loads(path.read_text())
                config.pop("eos_token_id", None)
                path.write_text(json.dumps({**config, **({"eos_token_id": ids} if ids else {})}))

    def test_completions_need_no_special_end(self):
        for ids in (None, 5, [5, 7]):
            self.without_special_end(ids)
            server = self.start("--model", self.model)
            self.assertIn("chats are disabled", server.logged())
            status, _, answer = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 4, "logit_bias": {"9": 100}})
            self.assertEqual((status, answer["choices"][0]["finish_reason"]), (200, "length"))
            if ids:
                answer = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 4, "logit_bias": {"5": 100}})[2]
                self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
            status, _, answer = server.ask("/v1/completions", {"prompt": "a", "guided_json": POINT})
            self.assertEqual((status, answer["error"]["param"]), (400, "guided_json"))
            self.assertIn("guided_json: wanted null, since the model's eos_token_id has no special token to end a text", answer["error"]["message"])
            self.assertEqual(server.stop(), 0)

    def test_names_of_parsers(self):
        harmony = ("openai_gptoss", "openai")
        for template, parsers in (
                ("qwen3", ("qwen3 deepseek_r1 deepseek-r1", "hermes qwen25 qwen")),
                ("qwen3-thinking", ("qwen3 qwen3-thinking deepseek_r1 deepseek-r1", "hermes qwen25 qwen")),
                ("qwen3-instruct", ("qwen3", "hermes qwen25 qwen")),
                (None, ("", ""))):
            if template:
                shutil.copy(DATA / "chat_templates" / f"{template}.jinja", pathlib.Path(self.model) / "chat_template.jinja")
            elif (pathlib.Path(self.model) / "chat_template.jinja").exists():
                (pathlib.Path(self.model) / "chat_template.jinja").unlink()
            known = f"names of the model's chat format, {template}" if template else "the model's chat format is unknown: --chat-format"
            for flag, names, other in zip(("--reasoning-parser", "--tool-call-parser"), parsers, harmony):
                wanted = ", ".join(["auto", *names.split()])
                self.assertEqual(self.fails("serve", "--port", "0", self.model, flag, other),
                                 f"sluice: {flag}: wanted {wanted} ({known}), found '{other}'\n")
                # A name that passes leads to the next error.
                for name in ["auto", *names.split()]:
                    self.assertIn("--quantization", self.fails("serve", "--port", "0", self.model, flag, name, "--quantization", "fp8"))
        server = self.start(self.model, "--chat-format", "qwen3", "--reasoning-parser", "qwen3", "--tool-call-parser", "hermes", "--quantization", "auto")
        for flag in ("--reasoning-parser", "--tool-call-parser", "--quantization"):
            self.assertEqual(server.logged().count(f" {flag}: "), 1, server.logged())

    def fails(self, *words):
        done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual(done.returncode, 2)
        return done.stderr

    def test_run_and_eval_refuse_it(self):
        for words in (("run", "-p", "q"), ("eval",)):
            self.assertIn("chat template: wanted the template of a known format (harmony, qwen3, qwen3-thinking, qwen3-instruct, "
                          "deepseek-v3, deepseek-r1, deepseek-v3.1), found none",
                          self.fails(*words, "-m", self.model))

    def test_a_format_that_is_named(self):
        run_json("-m", self.model, "-p", "q", "--max-tokens", "3", "--chat-format", "qwen3-instruct")
        self.assertIn("chat format", self.fails("run", "-m", self.model, "-p", "q", "--chat-format", "qwen"))
        self.assertIn("found no <|start|>", self.fails("run", "-m", self.model, "-p", "q", "--chat-format", "harmony"))
        for flags in (("--thinking",), ("--reasoning-effort", "low"), ("--current-date", "2025-06-28")):
            self.assertIn("because the chat format qwen3-instruct does not support it",
                          self.fails("run", "-m", self.model, "-p", "q", "--chat-format", "qwen3-instruct", *flags))


if __name__ == "__main__":
    unittest.main()
