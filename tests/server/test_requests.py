"""Requests of clients of other servers, and bounds on the cost of a request."""
import json
import pathlib
import shutil
import tempfile
import threading
import time
import unittest

from clock import HealthClock
from server import QUESTION, OwnServerTest, ServerTest, events_of, is_sanitized

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAT, COMPLETION, RESPONSE, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize"
LONG = 7_000_000  # characters: almost the largest body
# Fields of /v1/responses with a value that asks for something, and one that does not.
OF_RESPONSES = (("previous_response_id", "resp_x", None), ("conversation", "c", None), ("include", ["message.output_text.logprobs"], []),
                ("background", True, False), ("max_tool_calls", 2, None), ("truncation", "auto", "disabled"))


def with_ends(folder, before=(), after=()):
    """The shipped model, whose tokenizer puts special tokens around a text."""
    model = pathlib.Path(folder) / "model"
    shutil.copytree(ROOT / "models" / "sluice-16e-tiny", model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    piece = [{"SpecialToken": {"id": name, "type_id": 0}} for name in (*before, *after)]
    piece.insert(len(before), {"Sequence": {"id": "A", "type_id": 0}})
    tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": piece, "pair": piece,
                                   "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in (*before, *after)}}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(model), ids


class SpecialTokens(OwnServerTest):
    """A tokenizer with a beginning of sequence: a text has it by default, a chat has not, as in vLLM."""

    def serve(self, before=(), after=()):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        model, ids = with_ends(folder.name, before, after)
        return self.start("--model", model), ids

    def test_prompts_of_text(self):
        server, ids = self.serve(["<|startoftext|>"])
        begin = [ids["<|startoftext|>"]]

        def tokens(**fields):
            return server.ask(TOKENIZE, fields)[2]["tokens"]

        plain = tokens(prompt="hello", add_special_tokens=False)
        self.assertNotIn(begin[0], plain)
        self.assertEqual(tokens(prompt="hello"), begin + plain)
        self.assertEqual(tokens(prompt="hello", add_special_tokens=True), begin + plain)
        self.assertEqual(tokens(prompt="<|startoftext|>hello", parse_special=True), begin + begin + plain)  # as in vLLM
        chat = tokens(messages=QUESTION)
        self.assertNotIn(begin[0], chat)
        self.assertEqual(tokens(messages=QUESTION, add_special_tokens=True), begin + chat)
        for path, fields, count in ((COMPLETION, {"prompt": "hello"}, 1 + len(plain)), (COMPLETION, {"prompt": plain}, len(plain)),
                                    (COMPLETION, {"prompt": ""}, 1), (COMPLETION, {"prompt": ["hello", plain]}, 1 + 2 * len(plain)),
                                    (COMPLETION, {"prompt": "hello", "add_special_tokens": False}, len(plain)),
                                    (CHAT, {"messages": QUESTION}, len(chat)), (CHAT, {"messages": QUESTION, "add_special_tokens": True}, 1 + len(chat))):
            status, _, answer = server.ask(path, {"max_tokens": 1, **fields})
            self.assertEqual((status, answer["usage"]["prompt_tokens"]), (200, count), (path, fields))
        self.assertNotIn("add_special_tokens", server.logged())
        self.assertEqual(server.stop(), 0)

    def test_scores_of_a_text(self):
        server, _ = self.serve(["<|startoftext|>"], ["<|end|>"])
        status, _, answer = server.ask(COMPLETION, {"prompt": "It is 685", "max_tokens": 2, "temperature": 0, "echo": True, "logprobs": 1, "ignore_eos": True})
        self.assertEqual(status, 200, answer)
        choice = answer["choices"][0]
        lists = choice["logprobs"]
        self.assertTrue(choice["text"].startswith("It is 685"))
        text = lists["tokens"][1:-3]
        self.assertEqual((lists["tokens"][0], "".join(text), lists["tokens"][-3]), ("<|startoftext|>", "It is 685", "<|end|>"))
        self.assertIsNone(lists["token_logprobs"][0])
        self.assertNotIn(None, lists["token_logprobs"][1:])
        # The added tokens have no part in the text.
        begins = [len("".join(text[:i])) for i in range(len(text))]
        self.assertEqual(lists["text_offset"][:-2], [0, *begins, len("It is 685")])
        self.assertEqual(lists["text_offset"][-2], len("It is 685"))
        self.assertEqual(server.stop(), 0)


class AsSent(ServerTest):
    def refused(self, path, body, param, *parts, status=400):
        found, _, answer = self.server.ask(path, body)
        self.assertEqual((found, answer["error"]["param"]), (status, param), answer)
        for part in parts:
            self.assertIn(part, answer["error"]["message"])
        return answer["error"]["message"]

    def count(self, **fields):
        status, _, answer = self.server.ask(TOKENIZE, {"messages": QUESTION, **fields})
        self.assertEqual(status, 200, answer)
        return answer["count"]

    def text(self, **fields):
        tokens = self.server.ask(TOKENIZE, {"messages": QUESTION, **fields})[2]["tokens"]
        return self.server.ask("/detokenize", {"tokens": tokens})[2]["prompt"]

    def test_effort_by_every_name(self):
        for fields in ({"reasoning_effort": "high"}, {"reasoning": {"effort": "high"}},
                       {"chat_template_kwargs": {"reasoning_effort": "high", "enable_thinking": True}}):
            with self.subTest(fields=fields):
                self.assertIn("Reasoning: high", self.text(**fields))
                self.assertEqual(self.server.chat(max_tokens=1, **fields)["usage"]["prompt_tokens"], self.count(**fields))
        self.assertIn("Reasoning: medium", self.text())
        self.assertIn("chat_template_kwargs.enable_thinking", self.server.logged())
        self.refused(CHAT, {"messages": QUESTION, "reasoning": {"effort": "huge"}}, "reasoning.effort", "huge")
        self.refused(TOKENIZE, {"messages": QUESTION, "chat_template_kwargs": {"reasoning_effort": 1}},
                     "chat_template_kwargs.reasoning_effort")

    def test_an_effort_of_a_response(self):
        said = [self.server.ask(RESPONSE, {"input": QUESTION[0]["content"], "temperature": 0, "max_output_tokens": 200, **fields})[2]["output"]
                for fields in ({"reasoning_effort": "high"}, {"reasoning": {"effort": "high"}})]
        texts = [[part["text"] for item in output for part in item["content"]] for output in said]
        self.assertEqual(*texts)
        self.refused(RESPONSE, {"input": "q", "reasoning_effort": "low", "reasoning": {"effort": "high"}}, "reasoning_effort", '"high", which another field asks for')
        self.refused(CHAT, {"messages": QUESTION, "enable_thinking": True}, "enable_thinking", "harmony")

    def test_unknown_fields_of_messages_are_logged(self):
        for _ in range(2):
            self.server.chat(max_tokens=1, messages=[{"role": "user", "content": [{"type": "text", "text": "a", "flux": 1}], "flux": 2}] * 2)
        for path in ("messages.flux", "messages.content.flux"):
            self.assertEqual(self.server.logged().count(f"ignoring the unknown field '{path}' of requests"), 1)

    def test_fields_of_other_apis_are_not_dropped(self):
        """Fields that would change the answer are rejected, unless their value means off."""
        for field, value, neutral in (
                ("top_a", 0.1, 0), ("eta_cutoff", 3, 0), ("epsilon_cutoff", 3, 0), ("typical", 0.9, 1), ("smoothing_factor", 0.2, 0), ("no_repeat_ngram_size", 2, 0),
                ("num_beams", 4, 1), ("do_sample", False, True), ("guidance_scale", 2, 1), ("penalty_alpha", 0.6, 0), ("encoder_repetition_penalty", 1.2, 1),
                ("watermark", True, False), ("min_length", 5, 0), ("min_new_tokens", 5, 0), ("max_length", 5, None), ("num_predict", 3, -1), ("n_cmpl", 2, 1),
                ("max_tokens_to_sample", 3, None), ("sampling_seed", 5, None), ("random_seed", 5, None), ("stop_sequences", ["5"], []), ("stop_words", ["5"], []),
                ("banned_tokens", [5], []), ("banned_strings", ["5"], []), ("repetition_detection", {"max_pattern_size": 2}, None), ("system", "Speak French.", ""),
                ("template", "x", ""), ("negative_prompt", "x", ""), ("truncate", 4, None), ("input_ids", [5], []), ("think", False, None),
                ("options", {"temperature": 1}, {}), ("reasoning_budget", 0, -1), ("reasoning_budget_tokens", 0, -1), ("custom_params", {"a": 1}, {}),
                ("vllm_xargs", {"a": 1}, {}), ("details", True, False), ("cache_salt", "tenant", ""), ("priority", 3, 0), ("decoder_input_details", True, False), ("return_full_text", True, False),
                ("logprob_token_ids", [5], []), ("token_ids_logprob", [5], []), ("whitespace_pattern", " ", None), ("num_return_sequences", 2, 1),
                ("suppress_tokens", [5], []), ("bad_words_ids", [[5]], []), ("stop_strings", ["5"], []), ("sequence_bias", {"5": 1}, {}), ("max_time", 3, None),
                ("return_routed_experts", True, False), ("parse_tool_calls", False, True)):
            for path, body in ((CHAT, {"messages": QUESTION}), (COMPLETION, {"prompt": "x"}), (RESPONSE, {"input": "x"})):
                with self.subTest(field=field, path=path):
                    self.refused(path, {**body, field: value}, field, "not supported")
            self.server.chat(max_tokens=1, **{field: neutral})
        # A prompt under another path's name.
        for path, body, others in ((CHAT, {"messages": QUESTION}, (("prompt", "x", ""), ("input", "x", ""), ("instructions", "x", ""))),
                                   (COMPLETION, {"prompt": "x"}, (("messages", QUESTION, []), ("input", "x", ""), ("instructions", "x", ""))),
                                   (RESPONSE, {"input": "x"}, (("messages", QUESTION, []), ("prompt", {"id": "x"}, None), ("logprobs", True, False))),
                                   # What only one path does.
                                   (CHAT, {"messages": QUESTION}, OF_RESPONSES), (COMPLETION, {"prompt": "x"}, OF_RESPONSES),
                                   (COMPLETION, {"prompt": "x"}, (("reasoning_effort", "high", None), ("reasoning", {"effort": "high"}, {})))):
            for field, value, neutral in others:
                with self.subTest(field=field, path=path):
                    self.refused(path, {**body, field: value}, field, "not supported")
                    self.assertEqual(self.server.ask(path, {**body, "max_tokens": 1, field: neutral})[0], 200)

    def test_tokenize_refuses_what_a_chat_refuses(self):
        """Otherwise the tokens would not be those of the chat's prompt."""
        for prompt in ({"messages": [{"role": "user", "content": "a"}]}, {"prompt": "a b c"}):
            for field, value in (("documents", [{"text": "x"}]), ("chat_template", "{{ x }}"), ("functions", [{}]), ("truncate_prompt_tokens", 1)):
                with self.subTest(field=field, prompt=prompt):
                    status, _, answer = self.server.ask("/tokenize", {**prompt, field: value})
                    self.assertEqual((status, answer["error"]["param"]), (400, field), answer)
                    self.assertEqual(self.server.ask("/tokenize", {**prompt, field: None})[0], 200)
        status, _, answer = self.server.ask("/detokenize", {"tokens": [1, 2], "skip_special_tokens": True})
        self.assertEqual((status, answer["error"]["param"]), (400, "skip_special_tokens"), answer)

    def test_tokens_of_another_model(self):
        for path, body in ((TOKENIZE, {"prompt": "x"}), (TOKENIZE, {"messages": QUESTION}), ("/detokenize", {"tokens": [5]})):
            self.assertEqual(self.server.ask(path, {**body, "model": "sluice-16e-tiny"})[0], 200)
            status, _, answer = self.server.ask(path, {**body, "model": "another"})
            self.assertEqual((status, answer["error"]["code"]), (404, "model_not_found"))

    def test_pieces_of_tokens(self):
        self.refused(TOKENIZE, {"prompt": "x", "with_pieces": True}, "with_pieces", "not supported")

    def test_two_limits_of_tokens_agree(self):
        self.refused(CHAT, {"messages": QUESTION, "max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens", "max_tokens, 5", "found 6")
        status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "max_tokens": 5, "max_completion_tokens": 5})
        self.assertEqual((status, answer["usage"]["completion_tokens"]), (200, 5))

    def test_tokenize_continues_what_a_chat_continues(self):
        for path in (CHAT, TOKENIZE):
            self.refused(path, {"messages": QUESTION, "continue_final_message": True, "add_generation_prompt": False}, "continue_final_message",
                         "the assistant", "found true")

    def test_what_was_found_is_a_length(self):
        self.refused(COMPLETION, {"prompt": "a", "stop": "x" * 4097}, "stop", "1 to 4096 bytes", "found 4097")
        self.refused(RESPONSE, {"input": "a", "metadata": {str(i): "v" for i in range(17)}}, "metadata", "at most 16 members", "found 17")
        message = self.refused(RESPONSE, {"input": "a", "metadata": {"k" * 65: "v"}}, "metadata." + "k" * 65)
        self.assertIn("64 characters in a key, found 65", message)

    def test_a_system_message_replaces_the_prompt_of_the_server(self):
        server = OwnServerTest.start(self, "--system-prompt", "Say nothing of zebras.")

        def text(*messages):
            tokens = server.ask(TOKENIZE, {"messages": [*messages, *QUESTION]})[2]["tokens"]
            return server.ask("/detokenize", {"tokens": tokens})[2]["prompt"]
        self.assertIn("zebras", text())
        for role in ("system", "developer"):
            self.assertNotIn("zebras", text({"role": role, "content": ""}))
        self.assertEqual(text({"role": "system", "content": ""}), self.text(messages=[{"role": "system", "content": ""}, *QUESTION]))

    def test_tokenize_is_the_prompt_of_the_chat(self):
        tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}
        named = {"type": "function", "function": {"name": "add"}}
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
        for fields in ({}, {"tools": [tool]}, {"tools": [tool], "tool_choice": named}, {"response_format": schema}):
            with self.subTest(fields=fields):
                self.assertEqual(self.server.chat(max_tokens=1, **fields)["usage"]["prompt_tokens"], self.count(**fields))

    def test_how_a_prompt_ends(self):
        self.assertTrue(self.text().endswith("<|end|><|start|>assistant"))
        self.assertTrue(self.text(add_generation_prompt=True).endswith("<|start|>assistant"))
        self.assertTrue(self.text(add_generation_prompt=False).endswith(QUESTION[0]["content"] + "<|end|>"))
        turns = [*QUESTION, {"role": "assistant", "content": "It is"}]
        self.assertTrue(self.text(messages=turns, continue_final_message=True).endswith("<|channel|>final<|message|>It is"))
        self.assertEqual(self.text(messages=[*QUESTION, {**turns[-1], "prefix": True}]), self.text(messages=turns, continue_final_message=True))
        self.assertLess(self.count(add_generation_prompt=False), self.count())
        self.refused(TOKENIZE, {"messages": turns, "continue_final_message": True, "add_generation_prompt": True}, "add_generation_prompt")
        self.refused(TOKENIZE, {"messages": QUESTION, "prompt": "x"}, "messages", "null when prompt is set")
        self.assertEqual(self.server.ask(TOKENIZE, {"messages": None, "prompt": "x"})[2]["count"], 1)
        self.refused(TOKENIZE, {"messages": [{"role": "system", "content": "x"}], "continue_final_message": True}, "continue_final_message")

    def test_a_chat_continues_a_message(self):
        turns = [*QUESTION, {"role": "assistant", "content": "The answer is"}]
        for messages, fields in ((turns, {"continue_final_message": True, "add_generation_prompt": False}), ([*QUESTION, {**turns[-1], "prefix": True}], {})):
            ids = self.server.ask(TOKENIZE, {"messages": messages, **fields})[2]["tokens"]
            limits = {"max_tokens": 30, "temperature": 0}
            plain = self.server.ask("/v1/completions", {"prompt": ids, "add_special_tokens": False, **limits})[2]
            chat = self.server.chat(messages=messages, logprobs=True, **fields, **limits)
            answer = chat["choices"][0]
            self.assertEqual(answer["message"]["content"], plain["choices"][0]["text"])
            self.assertEqual(chat["usage"]["prompt_tokens"], len(ids))
            self.assertEqual("".join(t["token"] for t in answer["logprobs"]["content"]), answer["message"]["content"])
            self.assertIsNone(answer["message"]["reasoning"])
            events = [e for e in self.server.stream(CHAT, messages=messages, **fields, **limits) if e != "[DONE]"]
            self.assertEqual("".join(e["choices"][0]["delta"].get("content") or "" for e in events if e["choices"]), answer["message"]["content"])
        self.refused(CHAT, {"messages": QUESTION, "continue_final_message": True}, "continue_final_message", "unless the last message is a text of the assistant")
        self.refused(CHAT, {"messages": turns, "add_generation_prompt": False}, "add_generation_prompt")
        self.refused(CHAT, {"messages": turns, "continue_final_message": True, "guided_choice": ["a"]}, "guided_choice", "a whole answer")

    def test_a_result_without_its_call(self):
        self.refused(RESPONSE, {"input": [{"type": "function_call_output", "call_id": "z", "output": "5"}]}, "input[0].call_id",
                     'wanted the id of an earlier call, found "z"')
        self.refused(CHAT, {"messages": [*QUESTION, {"role": "tool", "tool_call_id": "z", "content": "5"}]}, "messages[1].tool_call_id",
                     'wanted the id of an earlier call, found "z"')

    def test_usage_in_every_event(self):
        fields = {"temperature": 0, "max_tokens": 40}
        for path, more in ((CHAT, {}), ("/v1/completions", {"prompt": "Hello"})):
            options = {"include_usage": True, "continuous_usage_stats": True}
            events = [e for e in self.server.stream(path, stream_options=options, **fields, **more) if e != "[DONE]"]
            usages = [e["usage"] for e in events]
            self.assertEqual(usages[-1], usages[-2])
            counts = [u["completion_tokens"] for u in usages]
            self.assertEqual(counts, sorted(counts))
            self.assertLess(counts[0], counts[-1])
            for u in usages:
                self.assertEqual(u["total_tokens"], u["prompt_tokens"] + u["completion_tokens"])
            plain = [e for e in self.server.stream(path, stream_options={"include_usage": True}, **fields, **more) if e != "[DONE]"]
            self.assertEqual(({json.dumps(e["usage"]) for e in plain[:-1]}, plain[-1]["usage"]["completion_tokens"]), ({"null"}, counts[-1]))
            alone = self.server.stream(path, stream_options={"continuous_usage_stats": True}, **fields, **more)
            self.assertFalse(any("usage" in e for e in alone if e != "[DONE]"))

    def test_tools_that_a_server_runs(self):
        shell = {"type": "function", "name": "shell", "strict": False, "parameters": {
            "type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}},
            "required": ["command"], "additionalProperties": False}}
        search = {"type": "web_search", "external_web_access": False}
        body = {"instructions": "You are a coding agent.", "tools": [shell, search], "tool_choice": "auto", "parallel_tool_calls": False,
                "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is 417 + 268?"}]}],
                "reasoning": {"effort": "low", "summary": "auto"}, "store": False, "include": ["reasoning.encrypted_content"],
                "prompt_cache_key": "k", "max_output_tokens": 100, "temperature": 0}

        def ask(**fields):
            status, _, answer = self.server.ask(RESPONSE, {**body, **fields})
            self.assertEqual(status, 200, answer)
            return answer
        both = ask()
        self.assertEqual([t["type"] for t in both["tools"]], ["function"])
        self.assertEqual(both["usage"]["input_tokens"], ask(tools=[shell])["usage"]["input_tokens"])
        self.assertEqual(self.server.logged().count("'web_search'"), 1)
        for wish in ("a summary of the reasoning", "encrypted reasoning"):
            self.assertEqual(self.server.logged().count(wish + ", which this server does not provide"), 1)
        self.refused(RESPONSE, {**body, "include": ["file_search_call.results"]}, "include[0]", "reasoning.encrypted_content")
        self.assertEqual(ask(tools=[search, {"type": "local_shell"}])["usage"]["input_tokens"], ask(tools=[])["usage"]["input_tokens"])
        self.refused(RESPONSE, {**body, "tools": [search], "tool_choice": "required"}, "tool_choice")
        self.refused(RESPONSE, {**body, "tools": [{"type": "functon"}]}, "tools[0].type")

    def test_more_answers_than_the_queue_has_places_for(self):
        server = OwnServerTest.start(self, "--max-num-seqs", "4", "--max-queue", "8")
        status, headers, answer = server.ask(CHAT, {"messages": QUESTION, "n": 13, "max_tokens": 1})
        self.assertEqual((status, answer["error"]["param"], headers["Retry-After"]), (400, "n", None))
        self.assertIn("at most 12", answer["error"]["message"])
        self.assertEqual(len(server.chat(n=12, max_tokens=1)["choices"]), 12)

    def test_names_are_cut(self):
        name = "x" * LONG
        before = len(self.server.logged())
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for path, body, status, param in (
                (CHAT, {"messages": QUESTION, "model": name}, 404, "model"),
                (RESPONSE, {"input": "x", "previous_response_id": name}, 400, "previous_response_id"),
                (CHAT, {"messages": [{"role": name, "content": ""}]}, 400, "messages[0].role"),
                (CHAT, {"messages": [*QUESTION, {"role": "assistant", "tool_calls": [{**call, "id": name}]}]}, 400, "messages[1].tool_calls[0].id"),
                (CHAT, {"messages": [*QUESTION, {"role": "tool", "tool_call_id": name, "content": ""}]}, 400, "messages[1].tool_call_id"),
                (CHAT, {"messages": QUESTION, "tools": [{"type": "function", "function": {"name": name}}]}, 400, "tools[0].function.name"),
                (RESPONSE, {"input": "x", "tools": [{"type": name}]}, 400, "tools[0].type"),
                (RESPONSE, {"input": "x", "metadata": {name: "x"}}, 400, None),
                (CHAT, {"messages": QUESTION, "logit_bias": {name: 1}}, 400, None),
                (CHAT, {"messages": QUESTION, "reasoning_effort": name}, 400, "reasoning_effort")):
            found, _, answer = self.server.ask(path, body)
            self.assertEqual(found, status)
            if param:
                self.assertEqual(answer["error"]["param"], param)
            self.assertLess(len(json.dumps(answer)), 3000)
        self.assertEqual(self.server.ask(CHAT, {"messages": QUESTION, "max_tokens": 1, name: 1})[0], 200)
        self.assertLess(len(self.server.logged()) - before, 20000)

    def test_what_is_no_object(self):
        self.assertIn("body: wanted an object, found an array of 0", self.refused(CHAT, "[]", None))
        self.assertIn("ends too early, after 1 byte", self.refused(CHAT, "{", None))


class Unharmed(OwnServerTest):
    """Expensive requests must not delay others."""

    def beside(self, server, path, body, copies=2):
        """The statuses of concurrent requests with `body`, during which /health and chats must work."""
        statuses, slowest = [], 0
        threads = [threading.Thread(target=lambda: statuses.append(server.ask(path, body)[0])) for _ in range(copies)]
        with HealthClock(server) as clock:
            for t in threads:
                t.start()
            while any(t.is_alive() for t in threads):
                begin = time.monotonic()
                server.chat(max_tokens=2)
                slowest = max(slowest, time.monotonic() - begin)
        self.assertLess(slowest, 60, "seconds of a chat; with these requests it once took minutes")
        clock.check(self)  # with these requests it once took many seconds
        return statuses

    def test_objects_of_many_members(self):
        """Each of these once took minutes, on the loop's thread or on both workers."""
        server = self.start("-q")
        many = ",".join(f'"k{i}":1' for i in range(300000))
        chat, schema = '"messages":[{"role":"user","content":"hi"}],"max_tokens":2', '"schema":{"type":"object"}'
        for path, body, allowed in (
                (RESPONSE, f'{{"input":"hi","max_output_tokens":2,"metadata":{{{many}}}}}', {400}),
                (RESPONSE, f'{{"input":"hi","max_output_tokens":2,"text":{{{many}}}}}', {200}),
                (RESPONSE, f'{{"input":"hi","max_output_tokens":2,"reasoning":{{{many}}}}}', {200}),
                (RESPONSE, f'{{"input":"hi","max_output_tokens":2,"stream":true,"text":{{"format":{{"type":"text",{many}}}}}}}', {200}),
                (CHAT, f'{{{chat},"response_format":{{"type":"text",{many}}}}}', {200}),
                (CHAT, f'{{{chat},"response_format":{{"type":"json_schema",{many},"json_schema":{{"name":"a",{schema}}}}}}}', {200, 400}),
                (CHAT, f'{{{chat},"structured_outputs":{{{many},"json":{{"type":"object"}}}}}}', {200, 400}),
                (CHAT, f'{{{chat},"guided_json":{{{many}}}}}', {400}),
                (CHAT, f'{{{chat},"chat_template_kwargs":{{{many}}}}}', {200}),
                (CHAT, f'{{{chat},"tools":[{{"type":"function","function":{{"name":"f","parameters":{{{many}}}}}}}]}}', {400})):
            with self.subTest(body=body[:120]):
                self.assertLessEqual(set(self.beside(server, path, body)), allowed)

    def test_stop_tokens_are_kept_once(self):
        server = self.start("-q")
        before = server.memory()
        ids = "[" + ",".join(["1"] * 3_900_000) + "]"
        statuses = self.beside(
            server, CHAT, f'{{"messages":[{{"role":"user","content":"hi"}}],"max_tokens":20,"n":128,"stop_token_ids":{ids}}}', copies=1)
        self.assertEqual(statuses, [200])
        self.assertLess(server.peak_memory() - before, 600)

    def test_stored_responses_are_counted(self):
        server = self.start("-q")
        before = server.memory()
        for i in range(60):
            reasoning = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": f"{i:05d}" + "x" * 3_000_000}]}
            status, _, _ = server.ask(RESPONSE, {"input": [reasoning, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "."},
                                                           {"role": "user", "content": "hi"}], "max_output_tokens": 2,
                                                 "user": "u" * 3_000_000})
            self.assertEqual(status, 200)
        self.assertLess(server.memory() - before, 400)
        call = {"type": "function_call", "call_id": "x" * LONG, "name": "f", "arguments": "{}"}
        status, _, answer = server.ask(RESPONSE, {"input": [call, {"role": "user", "content": "hi"}], "max_output_tokens": 2})
        self.assertEqual((status, answer["error"]["param"]), (400, "input[0].call_id"))

    def test_log_probabilities_of_a_streamed_response(self):
        server = self.start("-q")
        specials = {str(i): -100 for i in range(1003, 1018)}
        fields = {"input": "Count.", "max_output_tokens": 200, "ignore_eos": True, "top_logprobs": 20, "temperature": 1, "seed": 1,
                  "include": ["message.output_text.logprobs"], "logit_bias": specials}
        connection, response = server.open_stream(RESPONSE, **fields)
        events = list(events_of(response))
        connection.close()
        self.assertEqual(events[-1]["type"], "response.incomplete")
        deltas = [t for e in events if e["type"] == "response.output_text.delta" for t in e["logprobs"]]
        whole = [t for item in events[-1]["response"]["output"] for part in item.get("content", []) for t in part.get("logprobs", [])]
        self.assertEqual(whole, deltas)
        self.assertTrue(all(len(t["top_logprobs"]) == 20 for t in deltas))
        for e in events:
            if e["type"].endswith((".done", ".added")):
                self.assertLess(len(json.dumps(e)), 100_000)


if __name__ == "__main__":
    unittest.main()
