"""Structured answers of a model that was not trained for them, with random sampling and among other requests."""
import json
import re
import threading
import time
import unittest

from server import QUESTION, ServerTest, is_sanitized, joined, run_json

CHAT = "/v1/chat/completions"
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                           "kind": {"enum": ["cat", "dög"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
          "required": ["name", "age", "kind", "tags"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "description": "who it is", "strict": True, "schema": PERSON}}

TOOL = {"type": "function", "function": {"name": "person", "description": "Keeps one.", "strict": True, "parameters": PERSON}}


class Structured(ServerTest):
    # Random answers determine which pages of a prompt are still cached. The sampled bits must not depend on that.
    FLAGS = ("--max-num-seqs", "8", "--batch-invariant", "-q")

    def check_person(self, text):
        person = json.loads(text)
        self.assertEqual(list(person), ["name", "age", "kind", "tags"])
        self.assertIsInstance(person["name"], str)
        self.assertLessEqual(len(person["name"]), 12)
        self.assertTrue(type(person["age"]) is int and 0 <= person["age"] <= 150)
        self.assertIn(person["kind"], ["cat", "dög"])
        self.assertTrue(all(type(tag) is bool for tag in person["tags"]) and len(person["tags"]) <= 2)

    def choices(self, **fields):
        """The messages of finished answers."""
        answer = self.server.chat(**{"temperature": 1, "max_tokens": 700, "reasoning_effort": "low", **fields})
        for choice in answer["choices"]:
            self.assertIn(choice["finish_reason"], ["stop", "length", "tool_calls"])
            self.assertEqual(choice["finish_reason"] == "tool_calls", "tool_calls" in choice["message"] and choice["finish_reason"] != "length")
        return [c["message"] for c in answer["choices"] if c["finish_reason"] != "length"]

    def test_schema_with_many_seeds(self):
        ended = [m for seed in range(4) for m in self.choices(response_format=FORMAT, n=8, seed=100 * seed)]
        self.assertGreater(len(ended), 16)
        for message in ended:
            self.check_person(message["content"])
        self.assertTrue(any(m["reasoning"] for m in ended))

    def test_greedy_and_with_penalties(self):
        for sampling in ({"temperature": 0}, {"temperature": 2, "top_k": 0, "top_p": 1}, {"frequency_penalty": 1.5, "presence_penalty": 1},
                         {"logit_bias": {"10": 100, "11": 100}, "seed": 3}):
            for message in self.choices(response_format=FORMAT, **sampling):
                self.check_person(message["content"])

    def test_run_answers_alike(self):
        """`sluice run --json-schema` uses the same gate and grammar: prompt, reasoning and text."""
        named = {"type": "json_schema", "json_schema": {"name": "answer", "schema": PERSON}}
        for sampling in ({"temperature": 0}, {"temperature": 1, "seed": 5}):
            flags = [word for name, value in sampling.items() for word in (f"--{name}", str(value))]
            want = run_json("-p", QUESTION[0]["content"], "--json-schema", json.dumps(PERSON), "--batch-invariant", *flags)
            got = self.server.chat(response_format=named, **sampling)
            message = got["choices"][0]["message"]
            self.assertEqual((message["reasoning"], message["content"]), (want["reasoning"], want["text"]))
            self.assertEqual(got["usage"]["prompt_tokens"], want["usage"]["prompt_tokens"])
            self.check_person(want["text"])

    def test_any_object(self):
        ended = self.choices(response_format={"type": "json_object"}, n=8, seed=1)
        for message in ended:
            self.assertIsInstance(json.loads(message["content"]), dict)

    def calls(self, **fields):
        """The calls of finished answers."""
        tools = [TOOL, {"type": "function", "function": {"name": "list", "parameters": {
            "type": "object", "properties": {"n": {"type": "boolean"}}, "required": ["n"], "additionalProperties": False}}}]
        messages = self.choices(tools=tools, n=8, max_tokens=900, **fields)
        return [c["function"] for m in messages for c in m.get("tool_calls", [])], messages

    def test_a_call_that_must_be_made(self):
        calls, messages = self.calls(tool_choice="required", seed=3)
        self.assertEqual(len(calls), len(messages))
        self.assertEqual({c["name"] for c in calls} - {"person", "list"}, set())
        self.assertGreater(len(calls), 2)
        for call in calls:
            arguments = json.loads(call["arguments"])
            if call["name"] == "person":
                self.check_person(call["arguments"])
            else:
                self.assertEqual((list(arguments), type(arguments["n"])), (["n"], bool))

    def test_one_function_that_must_be_called(self):
        calls, messages = self.calls(tool_choice={"type": "function", "function": {"name": "person"}}, seed=5)
        self.assertEqual(len(calls), len(messages))
        for call in calls:
            self.assertEqual(call["name"], "person")
            self.check_person(call["arguments"])

    def test_a_call_or_an_answer_of_a_form(self):
        calls, messages = self.calls(response_format=FORMAT, seed=9, temperature=1.5)
        for message in messages:
            if not message.get("tool_calls"):
                self.check_person(message["content"])

    def test_a_function_with_a_schema_that_cannot_be_kept(self):
        tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"pattern": r"\bx"}}, "required": ["a"]}}
        choice = {"type": "function", "function": {"name": "f"}}
        for message in self.choices(tools=[{"type": "function", "function": tool}], tool_choice=choice, n=4, seed=1):
            self.assertIsInstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)
        strict = {"messages": QUESTION, "tools": [{"type": "function", "function": {**tool, "strict": True}}]}
        status, _, answer = self.server.ask(CHAT, strict)
        self.assertEqual((status, answer["error"]["param"]), (400, "tools[0]"))

    def test_responses(self):
        text = {"format": {"type": "json_schema", "name": "person", "schema": PERSON}}
        for seed in range(8):
            status, _, answer = self.server.ask("/v1/responses", {"input": "Who?", "text": text, "seed": seed, "max_output_tokens": 700})
            self.assertEqual((status, answer["text"]), (200, text))
            if answer["status"] == "completed":
                self.check_person(answer["output"][-1]["content"][0]["text"])
        self.assertEqual(self.server.ask("/v1/responses", {"input": "Who?", "text": {"format": {"type": "json_schema", "name": "x"}}})[2]["error"]["param"],
                         "text.format.schema")

    def test_what_vllm_calls_structured_outputs(self):
        for field in ({"guided_choice": ["yes", "no", "may\"be"]}, {"structured_outputs": {"choice": ["yes", "no", "may\"be"]}}):
            for message in self.choices(n=4, seed=5, **field):
                self.assertIn(message["content"], ["yes", "no", "may\"be"])
        for message in self.choices(n=4, seed=5, guided_regex=r"[A-Z]{3}-\d{2}"):
            self.assertRegex(message["content"], r"^[A-Z]{3}-\d{2}$")
        for message in self.choices(n=4, seed=5, guided_grammar='root ::= "<" [a-z]+ ">"'):
            self.assertTrue(re.fullmatch("<[a-z]+>", message["content"]))
        for message in self.choices(n=4, seed=5, guided_json=json.dumps(PERSON)):
            self.check_person(message["content"])

    def ended(self, **fields):
        """The texts of finished completions, as many as end."""
        status, _, answer = self.server.ask("/v1/completions", {"prompt": "a", "temperature": 1.5, "max_tokens": 300, "n": 8, "seed": 3, **fields})
        self.assertEqual(status, 200, answer)
        return [c["text"] for c in answer["choices"] if c["finish_reason"] == "stop"]

    def test_choices_keep_their_accents(self):
        words = ["café", "cafe", "naïve"]
        texts = self.ended(guided_choice=words)
        self.assertEqual(len(texts), 8)
        self.assertLessEqual(set(texts), set(words))
        self.assertEqual(self.ended(guided_choice=["é"]), ["é"] * 8)

    def test_integer_or_null_by_one_of(self):
        schema = {"type": "object", "properties": {"n": {"oneOf": [{"type": "integer"}, {"type": "null"}]}}, "required": ["n"],
                  "additionalProperties": False}
        texts = self.ended(guided_json=schema)
        self.assertTrue(texts)
        for text in texts:
            value = json.loads(text)
            self.assertEqual(list(value), ["n"])
            self.assertIn(type(value["n"]), (int, type(None)))

    def test_fields_of_other_servers(self):
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
        for fields in ({"response_format": {"type": "json_object", "schema": schema}}, {"response_format": {"type": "json_schema", "schema": schema}},
                       {"json_schema": schema}, {"json_schema": json.dumps(schema)}):
            for message in self.choices(n=4, seed=5, **fields):
                self.assertIn(json.loads(message["content"]), [{"a": True}, {"a": False}])
        for fields in ({"grammar": 'root ::= "yes"'}, {"ebnf": 'root ::= "yes"'}, {"regex": "yes"}):
            ended = self.choices(n=2, seed=5, **fields)
            self.assertEqual({m["content"] for m in ended}, {"yes"})
            status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "guided_regex": "a", **fields})
            self.assertEqual(status, 400, answer)
        for fields, param in (({"response_format": {"type": "structural_tag"}}, "response_format.type"), ({"structural_tag": "{}"}, "structural_tag")):
            status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, **fields})
            self.assertEqual((status, answer["error"]["param"]), (400, param))

    def test_arguments_are_an_object(self):
        ended = []
        for parameters in ({}, {"properties": {}}, {"description": "nothing"}, {"type": ["null", "object"]}):
            tool = {"type": "function", "function": {"name": "now", "parameters": parameters}}
            for choice in ("required", {"type": "function", "function": {"name": "now"}}):
                ended += self.choices(tools=[tool], tool_choice=choice, n=4, seed=1)
        self.assertTrue(ended)
        for message in ended:
            self.assertIsInstance(json.loads(message["tool_calls"][0]["function"]["arguments"]), dict)
        status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "tools": [
            {"type": "function", "function": {"name": "now", "parameters": {"type": "string"}}}]})
        self.assertEqual((status, answer["error"]["param"]), (400, "tools[0].function.parameters.type"))

    def test_completions_match_from_their_first_token(self):
        status, _, answer = self.server.ask("/v1/completions", {"prompt": "A person:", "guided_json": PERSON, "temperature": 1, "max_tokens": 900, "n": 8, "seed": 9})
        self.assertEqual(status, 200, answer)
        ended = [c["text"] for c in answer["choices"] if c["finish_reason"] == "stop"]
        self.assertTrue(ended)
        for text in ended:
            self.check_person(text)

    def test_streams_say_the_same(self):
        fields = {"response_format": FORMAT, "seed": 12, "temperature": 1, "max_tokens": 700}
        whole = self.server.chat(**fields)["choices"][0]
        events = self.server.stream(**fields)
        self.assertEqual(joined(events, "content"), whole["message"]["content"])
        self.assertEqual(joined(events, "reasoning"), whole["message"]["reasoning"] or "")

    def test_others_are_left_alone(self):
        plain = {"temperature": 0, "max_tokens": 120}
        want = self.server.chat(**plain)["choices"]
        got, threads = [], []
        for seed in range(3):
            threads.append(threading.Thread(target=lambda s=seed: self.choices(response_format=FORMAT, seed=s)))
            threads.append(threading.Thread(target=lambda: got.append(self.server.chat(**plain)["choices"])))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(got, [want] * 3)

    def test_model_is_told_the_schema(self):
        tokens = self.server.chat(response_format=FORMAT, max_tokens=1)["usage"]["prompt_tokens"]
        self.assertGreater(tokens, self.server.chat(max_tokens=1)["usage"]["prompt_tokens"] + 40)

    def refused(self, body, param, *parts):
        status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, "max_tokens": 1, **body})
        self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
        for part in parts:
            self.assertIn(part, answer["error"]["message"])

    def test_an_object_is_an_object(self):
        """With each schema next to "json_object", and with drafts in which "$ref" has no other keywords beside it."""
        for schema in ({}, {"minimum": 3}, {"type": ["string", "object"]}, {"anyOf": [{"const": 5}, {"type": "object"}]},
                       {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a", "definitions": {"a": {"enum": [5, {"b": 1}]}}}):
            for message in self.choices(response_format={"type": "json_object", "schema": schema}, n=4, seed=2, temperature=1.6):
                self.assertIsInstance(json.loads(message["content"]), dict)
        for schema in ({"type": "array"}, {"const": 5}, {"enum": ["a", 1]}, {"type": ["string", "null"]}):
            self.refused({"response_format": {"type": "json_object", "schema": schema}}, "response_format", "some object")

    def test_empty_texts_are_no_grammars(self):
        for field in ("regex", "guided_regex", "guided_grammar", "ebnf", "guided_json", "json_schema"):
            self.refused({field: ""}, field, "wanted", 'found ""')
        for field in ("regex", "grammar", "json"):
            self.refused({"structured_outputs": {field: ""}}, f"structured_outputs.{field}", "wanted", 'found ""')
        self.assertEqual(self.server.ask(CHAT, {"messages": QUESTION, "max_tokens": 1, "grammar": ""})[0], 200)  # llama.cpp's default

    def test_integers_of_more_than_64_bits(self):
        wide = 12345678901234567890123
        for schema, place in (({"const": wide}, "const"), ({"enum": [1, -wide]}, "enum[1]"), ({"properties": {"a": {"const": [{"b": 2 ** 64}]}}}, "properties.a.const[0].b"),
                              ({"type": "integer", "minimum": wide}, "minimum"), ({"maximum": 2 ** 256 - 1}, "maximum"), ({"exclusiveMinimum": -2 ** 63 - 1}, "exclusiveMinimum"),
                              ({"multipleOf": wide}, "multipleOf"), ({"type": "object", "default": {"a": wide}}, "default.a")):
            self.refused({"guided_json": schema}, "guided_json." + place, "64 bits")
            self.refused({"guided_json": json.dumps(schema)}, "guided_json", place, "64 bits")
            self.refused({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
                         "response_format.json_schema.schema." + place, "64 bits")
            if "default" in schema:
                self.refused({"tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]},
                             "tools[0].function.parameters." + place, "64 bits")
        for value in (2 ** 64 - 1, -2 ** 63, 9007199254740993, 1e22):
            status, _, answer = self.server.ask("/v1/completions", {"prompt": "x", "max_tokens": 60, "guided_json": {"const": value}})
            self.assertEqual((status, json.loads(answer["choices"][0]["text"])), (200, value))
        # Programs without integers write bounds as doubles; the bound applies as written.
        self.assertEqual(self.server.ask("/v1/completions", {"prompt": "x", "max_tokens": 1, "guided_json": {"type": "integer", "maximum": 18446744073709552000}})[0], 200)
        self.refused({"guided_json": {"type": "integer", "const": 18446744073709552000}}, "guided_json.const", "64 bits")
        # Next to a schema these members have no effect.
        self.assertEqual(self.server.ask(CHAT, {"messages": QUESTION, "max_tokens": 1, "guided_json": {"const": 1}, "x": wide})[0], 200)

    def test_many_values(self):
        """Each of these once occupied a worker for seconds to minutes, comparing all pairs. Now the time is linear, or bounded by the step
        budget."""
        words = [f"{i * 7919 % 1000003:06d}" for i in range(40000)]
        half = len(words) // 4
        chain = {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}, "required": ["x"]} for i in range(5000)}
        bodies = [({"guided_json": schema}, allowed) for schema, allowed in (
            ({"enum": words}, {200}), ({"enum": list(range(60000))}, {200}), ({"enum": [{"a": w} for w in words[:20000]]}, {200}),
            ({"const": "ab" * 200000}, {200}), ({"allOf": [{"enum": words[:half]}, {"enum": words[half:2 * half]}]}, {400}),
            ({"allOf": [{"enum": words[:half]}, {"enum": words[:half][::-1]}]}, {200}), ({"enum": words[:half], "not": {"enum": words[:half][::-1]}}, {400}),
            ({"enum": words[:20000], "anyOf": [{"minLength": i % 3} for i in range(500)]}, {400}),
            ({"type": "integer", "not": {"enum": list(range(40000))}}, {200}),
            ({"type": "object", "required": [f"{i:05d}" for i in range(50000)]}, {400}),
            ({"type": "object", "propertyNames": {"enum": words[:half]}, "minProperties": 1}, {200, 400}),
            ({"type": "object", "allOf": [{"properties": {w: {}}} for w in words[:12000]]}, {200, 400}),
            ({"type": "object", "allOf": [{"properties": {w: {}}, "unevaluatedProperties": {}} for w in words[:3000]]}, {200, 400}),
            ({"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(12000)} | {"a12000": {"type": "null"}}, "$ref": "#/$defs/a0"}, {200, 400}),
            ({"$defs": chain | {"a5000": {"type": "null"}}, "$ref": "#/$defs/a0"}, {200, 400}),
            ({"type": "object", "properties": {w: {} for w in words[:12000]}, "additionalProperties": {}, "minProperties": 3}, {200, 400}))]
        bodies += [({"guided_choice": [f"{i:04d}" * 500 for i in range(1000)]}, {400}), ({"guided_choice": [f"{i:04d}" * 120 for i in range(1000)]}, {200})]
        slowest = 0
        for body, allowed in bodies:
            with self.subTest(body=str(body)[:100]):
                begin = time.monotonic()
                status, _, answer = self.server.ask("/v1/completions", {"prompt": "x", "max_tokens": 1, **body})
                slowest = max(slowest, time.monotonic() - begin)
                self.assertIn(status, allowed, str(answer)[:300])
        if not is_sanitized():
            self.assertLess(slowest, 20, "seconds; each request takes about one")

    def test_numbers_of_which_none_is_left(self):
        """In validators that divide doubles, 0.3 is no multiple of 0.1, so no value satisfies the schema. The server once noticed this only at
        the first token."""
        for schema in ({"type": "number", "multipleOf": 0.1, "minimum": 0.25, "maximum": 0.35},
                       {"type": "integer", "minimum": 0, "maximum": 3, "not": {"enum": [0, 1, 2, 3]}}):
            self.refused({"guided_json": schema}, "guided_json", "nothing matches")
        schema = {"type": "number", "multipleOf": 0.1, "minimum": 0.25, "maximum": 0.55}  # excludes 0.3; allows 0.4 and 0.5
        _, _, answer = self.server.ask("/v1/completions", {"prompt": "x", "max_tokens": 40, "guided_json": schema, "n": 8, "temperature": 1.5, "seed": 1})
        self.assertEqual({c["finish_reason"] for c in answer["choices"]}, {"stop"})
        self.assertLessEqual({json.loads(c["text"]) for c in answer["choices"]}, {0.4, 0.5})

    def test_an_end_that_is_ignored(self):
        for path, fields in ((CHAT, {"messages": QUESTION, "response_format": FORMAT}), ("/v1/completions", {"prompt": "a", "guided_choice": ["yes"]})):
            status, _, answer = self.server.ask(path, {**fields, "ignore_eos": True, "max_tokens": 20})
            self.assertEqual((status, answer["error"]["param"]), (400, "ignore_eos"), answer)
            self.assertEqual(self.server.ask(path, {**fields, "ignore_eos": False, "max_tokens": 20})[0], 200)

    def test_a_stop_in_the_middle_is_told(self):
        fields = {"prompt": "a", "guided_json": PERSON, "max_tokens": 50, "temperature": 0}
        choice = self.server.ask("/v1/completions", {**fields, "stop": ["name"]})[2]["choices"][0]
        self.assertEqual((choice["finish_reason"], choice["stop_reason"]), ("stop", "name"))
        alone = self.server.ask("/v1/completions", fields)[2]["choices"][0]
        self.assertIsNone(alone["stop_reason"])
        tokens = self.server.ask("/tokenize", {"prompt": alone["text"]})[2]["tokens"]
        whole = self.server.ask("/v1/completions", {**fields, "stop_token_ids": tokens})[2]["choices"][0]
        self.assertEqual(whole["finish_reason"], "stop")
        self.assertIn(whole["stop_reason"], tokens)
        events = self.server.stream("/v1/completions", **fields, stop_token_ids=tokens)
        self.assertEqual([e["choices"][0]["stop_reason"] for e in events if e != "[DONE]" and e["choices"][0]["finish_reason"]], [whole["stop_reason"]])

    def test_refusals_name_the_schema(self):
        def schema(text):
            return {"type": "json_schema", "json_schema": {"name": "x", "schema": text}}
        for body, param in (({"response_format": schema({"type": "strin"})}, "response_format.json_schema"),
                            ({"response_format": schema({"not": {}})}, "response_format.json_schema"),
                            ({"response_format": schema({"type": "string", "pattern": r"\bx"})}, "response_format.json_schema"),
                            ({"response_format": {"type": "yaml"}}, "response_format.type"),
                            ({"guided_regex": "(" * 400}, "guided_regex"),
                            ({"guided_grammar": "root ::= root"}, "guided_grammar"),
                            ({"structured_outputs": {"json": {"$ref": "#/nowhere"}}}, "structured_outputs.json")):
            status, _, answer = self.server.ask(CHAT, {"messages": QUESTION, **body})
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
            self.assertIn(param + ": ", answer["error"]["message"])

    def test_cancelled(self):
        connection, response = self.server.open_stream(response_format={"type": "json_object"}, temperature=1)
        response.close()
        connection.close()
        self.server.wait_until_idle()


if __name__ == "__main__":
    unittest.main()
