"""Chats with DeepSeek's chat formats: the shipped weights with another tokenizer, which generate arbitrary text."""
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from server import COMMAND, QUESTION, WATCHDOG, joined
from test_chatml import CHAT, DATA, FORMAT, TOOLS, ChatMlTest, made_model

NAMED = {"type": "function", "function": {"name": "points"}}
# A conversation that ends with the result of a call.
RESULTS = [*QUESTION, {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "points", "arguments": "{}"}}]},
           {"role": "tool", "tool_call_id": "c", "content": "7"}]


class DeepSeekTest(ChatMlTest):
    TOKENIZER, END = "pattern_deepseek", "<｜end▁of▁sentence｜>"

    def check_structure(self, **fields):
        """Structured output and required calls; returns how many messages have reasoning."""
        thought = 0
        for seed in range(2):
            for message in self.choices(response_format=FORMAT, seed=seed * 100, **fields):
                self.check(message["content"])
                thought += bool(message["reasoning"])
        names = []
        for parallel in (True, False):
            for seed in range(2):
                for message in self.choices(tools=TOOLS, tool_choice="required", seed=seed * 100, temperature=1.5, parallel_tool_calls=parallel, **fields):
                    called = self.check_calls(message, 99 if parallel else 1)
                    self.assertGreaterEqual(len(called), 1)
                    names += called
                    thought += bool(message["reasoning"])
        self.assertEqual(set(names), {"point", "points"})
        messages = self.choices(tools=TOOLS, tool_choice=NAMED, seed=5, **fields)
        self.assertGreater(len(messages), 4)
        for message in messages:
            self.assertEqual(self.check_calls(message), ["points"])
            self.assertIsNone(message["reasoning"])
        for message in self.choices(tools=TOOLS, seed=9, temperature=1.5, **fields):
            self.check_calls(message)
        return thought

    def check_streams(self, **more):
        for fields in ({"response_format": FORMAT}, {"tools": TOOLS, "tool_choice": "required"}, {}):
            fields = {"seed": 11, "temperature": 1, "max_tokens": 200, **fields, **more}
            whole = self.server.chat(**fields)["choices"][0]["message"]
            events = self.server.stream(**fields)
            self.assertEqual(joined(events, "content"), whole["content"] or "")
            self.assertEqual(joined(events, "reasoning"), whole["reasoning"] or "")
            calls = [c for e in events if e != "[DONE]" for x in e["choices"] for c in x["delta"].get("tool_calls", [])]
            for i, call in enumerate(whole.get("tool_calls", [])):
                mine = [c["function"] for c in calls if c["index"] == i]
                self.assertEqual(mine[0]["name"], call["function"]["name"])
                self.assertEqual("".join(c["arguments"] for c in mine), call["function"]["arguments"])


class Flags(unittest.TestCase):
    def refused(self, model, *flags):
        done = subprocess.run([COMMAND, "serve", "--port", "0", str(model), *flags], capture_output=True, text=True, timeout=WATCHDOG)
        self.assertEqual(done.returncode, 2)
        return done.stderr

    def test_parsers_and_quantization(self):
        for template, name, reasoning, tools in (
                ("deepseek-v3-tools", "deepseek-v3", "deepseek_v3, deepseek-v3", "deepseek_v3, deepseekv3"),
                ("deepseek-r1", "deepseek-r1", "deepseek_r1, deepseek-r1", "deepseek_v3, deepseekv3"),
                ("deepseek-v3.1", "deepseek-v3.1", "deepseek_v3, deepseek-v3", "deepseek_v31, deepseekv31")):
            with tempfile.TemporaryDirectory() as folder:
                model = made_model(folder, template, "pattern_deepseek", DeepSeekTest.END)
                for flag, names in (("--reasoning-parser", reasoning), ("--tool-call-parser", tools)):
                    self.assertEqual(self.refused(model, flag, "hermes"),
                                     f"sluice: {flag}: wanted auto, {names} (names of the model's chat format, {name}), found 'hermes'\n")
                    for known in names.split(", "):
                        self.assertIn("--quantization: wanted auto, mxfp4", self.refused(model, flag, known, "--quantization", "fp8"))

    def test_a_checkpoint_in_fp8(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model"
            shutil.copytree(DATA / "deepseek_v3" / "fp8", model)
            shutil.copy(DATA / "tokenizer" / "pattern_deepseek.json", model / "tokenizer.json")
            self.assertIn("--quantization: wanted auto, fp8 (the checkpoint has FP8 blocks), found 'mxfp4'", self.refused(model, "--quantization", "mxfp4"))
            for known in ("fp8", "auto"):  # the next error is another
                self.assertNotIn("--quantization", self.refused(model, "--quantization", known))


class V31(DeepSeekTest):
    TEMPLATE = "deepseek-v3.1"

    def test_a_chat_continues_a_message(self):
        self.check_continuation()

    def test_structure(self):
        self.assertEqual(self.check_structure(), 0)
        self.assertEqual(self.check_structure(chat_template_kwargs={"thinking": False}), 0)
        self.assertGreater(self.check_structure(chat_template_kwargs={"thinking": True}), 0)

    def test_streams_say_the_same(self):
        self.check_streams()
        self.check_streams(chat_template_kwargs={"enable_thinking": True})

    def test_answers_to_results_have_no_reasoning(self):
        for fields in ({}, {"response_format": FORMAT}, {"tools": TOOLS, "tool_choice": "required"}):
            for message in self.choices(messages=RESULTS, seed=3, chat_template_kwargs={"thinking": True}, **fields):
                self.assertIsNone(message["reasoning"])
                if "response_format" in fields:
                    self.check(message["content"])

    def test_both_names_of_the_switch_are_known(self):
        prompts = []
        for name in ("thinking", "enable_thinking"):
            prompts.append(self.server.ask("/tokenize", {"messages": QUESTION, "chat_template_kwargs": {name: True}})[2]["tokens"])
            self.server.chat(max_tokens=1, chat_template_kwargs={name: True})
        self.assertNotIn("chat_template_kwargs", self.server.logged())
        for name in ("thinking", "enable_thinking"):
            status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "chat_template_kwargs": {name: "no"}})
            self.assertEqual((status, answer["error"]["param"]), (400, f"chat_template_kwargs.{name}"))
        self.assertEqual(*prompts)
        self.assertNotEqual(prompts[0], self.server.ask("/tokenize", {"messages": QUESTION})[2]["tokens"])


class R1(DeepSeekTest):
    TEMPLATE = "deepseek-r1"

    def test_reasoning_is_open(self):
        message = self.server.chat(max_tokens=20, temperature=1, seed=4)["choices"][0]["message"]
        self.assertEqual(message["content"], "")
        self.assertTrue(message["reasoning"])

    def test_a_chat_continues_a_message(self):
        self.check_continuation()

    def test_structure(self):
        self.assertGreater(self.check_structure(), 0)

    def test_streams_say_the_same(self):
        self.check_streams()


class R1Of0528(DeepSeekTest):
    TEMPLATE = "deepseek-r1-0528"

    def test_a_chat_continues_a_message(self):
        self.check_continuation()

    def test_structure(self):
        self.check_structure()


class V3(DeepSeekTest):
    TEMPLATE = "deepseek-v3-tools"

    def test_a_chat_continues_a_message(self):
        self.check_continuation()

    def test_structure(self):
        self.assertEqual(self.check_structure(), 0)

    def test_a_switch_that_it_has_not_is_ignored(self):
        self.server.chat(max_tokens=1, chat_template_kwargs={"thinking": True})
        self.assertIn("chat_template_kwargs.thinking", self.server.logged())


if __name__ == "__main__":
    unittest.main()
