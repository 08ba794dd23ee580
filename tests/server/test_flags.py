"""The flags of `sluice serve`, and its log."""
import json
import os
import pathlib
import re
import subprocess
import unittest

from server import COMMAND, QUESTION, WATCHDOG, OwnServerTest

MODEL = str(pathlib.Path(__file__).resolve().parents[2] / "models" / "sluice-16e-tiny")
# Flags from scripts for vLLM, SGLang and llama.cpp, without the model's name.
SCRIPTS = (
    "--tensor-parallel-size 1 --max-model-len 2048 --gpu-memory-utilization 0.9 --max-num-seqs 4 --max-num-batched-tokens 256 "
    "--long-prefill-token-threshold 64 --enforce-eager --trust-remote-code --async-scheduling --reasoning-parser openai_gptoss --tool-call-parser openai "
    "--enable-auto-tool-choice --quantization mxfp4 --kv-cache-dtype auto --no-enable-log-requests --served-model-name gpt",
    "--tp 1 --ep-size 1 --context-length 2048 --mem-fraction-static 0.9 --max-running-requests 4 --chunked-prefill-size 256 "
    "--disable-cuda-graph --disable-radix-cache --reasoning-parser gpt-oss --tool-call-parser gpt-oss --served-model-name gpt",
    "--ctx-size 2048 --parallel 4 --batch-size 256 -t 2 --jinja --reasoning-format auto --metrics --alias gpt",
    # Long names with one dash.
    "-tp 1 -pp 1 -dp=1 -ngl 99 -np 4 --max-model-len 2048 -tool-call-parser openai --reasoning-parser openai_gptoss --served-model-name gpt")


def refusal(*flags):
    done = subprocess.run([COMMAND, "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=WATCHDOG)
    return done.returncode, done.stderr


class Flags(OwnServerTest):
    def test_scripts_for_other_servers(self):
        for script in SCRIPTS:
            server = self.start(*script.split())
            models = server.ask("/v1/models")[2]["data"]
            self.assertEqual([(m["id"], m["max_model_len"]) for m in models], [("gpt", 2048)])
            self.assertEqual(server.chat(model="gpt", temperature=0)["choices"][0]["message"]["content"], "685")
            self.assertEqual(server.stop(), 0)
            for word in ("--reasoning-", "--jinja" if "--jinja" in script else "--tool-call-parser"):
                self.assertEqual(sum(f" {word}" in line for line in server.logged().splitlines()), 1, server.logged())

    def test_names_that_nobody_can_have_are_refused(self):
        for flag, values in (("--allowed-hosts", ("http://a.b", "*.example.com", '["e.f",5]', "a b", "a/b")),
                             ("--allowed-origins", ("a.b", "https://*.x.y", "https://a.b/c", '["https://e.f",5]', "https://a.b:443"))):
            for value in values:
                status, said = refusal(flag, value)
                self.assertEqual(status, 2, said)
                self.assertIn(f"{flag}: wanted ", said)
                self.assertEqual(len(said.strip().splitlines()), 1, said)

    def test_what_would_mean_something_else_is_refused(self):
        for flag, value in (("--pipeline-parallel-size", "2"), ("--tensor-parallel-size", "9"), ("--reasoning-format", "none"),
                            ("--kv-cache-dtype", "fp8_e5m2"), ("--log-format", "xml"), ("--n-gpu-layers", "20")):
            status, said = refusal(flag, value)
            self.assertEqual(status, 2)
            self.assertIn(flag, said)
            self.assertIn(value, said)

    def test_parsers_and_quantization_are_those_of_the_model(self):
        for flag, value, allowed in (
                ("--reasoning-parser", "deepseek_r1", "auto, openai_gptoss, openai, gpt-oss, gpt_oss (names of the model's chat format, harmony)"),
                ("--tool-call-parser", "hermes", "auto, openai, openai_gptoss, gpt-oss, gpt_oss (names of the model's chat format, harmony)"),
                ("--quantization", "fp8", "auto, mxfp4 (the checkpoint has MXFP4 experts)")):
            self.assertEqual(refusal(flag, value), (2, f"sluice: {flag}: wanted {allowed}, found '{value}'\n"))

    def test_an_empty_key_in_the_environment_is_refused(self):
        for value, said in (("", "SLUICE_API_KEY: wanted a key, found none"), (" ", "wanted printable ASCII")):
            done = subprocess.run([COMMAND, "serve", "--port", "0"], capture_output=True, text=True, timeout=WATCHDOG,
                                  env={**os.environ, "SLUICE_API_KEY": value})
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(said, done.stderr)

    def test_one_dash_is_as_good_as_two(self):
        for words, said in ((("-tp", "9"), "--tensor-parallel-size: wanted an integer from 1 to 8, found '9'"),
                            (("-pp=2",), "--pipeline-parallel-size: wanted 1 (Sluice splits a model only by --tensor-parallel-size), found '2'"),
                            (("-dp", "x"), "--data-parallel-size: wanted 1 (Sluice splits a model only by --tensor-parallel-size), found 'x'"),
                            (("-ngl", "0"), "--n-gpu-layers: wanted all, auto, 99, 999 (a whole model runs on one device: --device), found '0'"),
                            (("-t", "p"), "--threads: wanted an integer from 0 to 1024, found 'p'")):
            self.assertEqual(refusal(*words), (2, f"sluice: {said} (see sluice serve --help)\n"))
        self.assertEqual(refusal("-tq", "2"), (2, "sluice: --threads: wanted an integer from 0 to 1024, found 'q' (see sluice serve --help)\n"))

    def test_a_list_of_names_and_a_directory(self):
        for words, names in ((("--served-model-name", "gpt", MODEL), ["gpt"]), (("--alias", "gpt", "org/b", MODEL), ["gpt", "org/b"]),
                             ((MODEL, "--served-model-name", "gpt", "org/b"), ["gpt", "org/b"]),
                             (("--served-model-name", "gpt", "--max-num-seqs", "2", MODEL), ["gpt"])):
            server = self.start(*words)
            self.assertEqual([m["id"] for m in server.ask("/v1/models")[2]["data"]], names)
            self.assertEqual(server.stop(), 0)
        for words, said in ((("gpt", "/nowhere/model"), "/nowhere/model: wanted a model's directory, found no such file or directory"),
                            ((MODEL,), f"--served-model-name: wanted a name, found the model's directory '{MODEL}'"),
                            (("gpt", ""), "--served-model-name: wanted some text, found none")):
            status, err = refusal("--served-model-name", *words)
            self.assertEqual(status, 2)
            self.assertIn(said, err)

    def test_an_address_in_brackets(self):
        def first_line(host):
            with subprocess.Popen([COMMAND, "serve", "-q", "--port", "0", "--host", host], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                line = process.stdout.readline()
                process.kill()
            return re.sub(r":\d+$", "", line.strip())
        self.assertEqual(first_line("[::1]"), first_line("::1"))
        self.assertIn("[localhost]", first_line("[localhost]"))

    def test_a_system_prompt_of_other_bytes_is_refused(self):
        done = subprocess.run([COMMAND, "serve", "--port", "0", "--system-prompt", b"a\xffb"], capture_output=True, timeout=WATCHDOG)
        self.assertEqual((done.returncode, done.stderr), (2, b"sluice: --system-prompt: wanted text in UTF-8, found other bytes\n"))

    def test_an_unknown_flag_names_the_nearest(self):
        for wrong, near in (("--max-model-length", "--max-model-len"), ("--ctx-sise", "--ctx-size"), ("--tool-parser", "--tool-call-parser"),
                            ("--mem-fraction", "--mem-fraction-static"), ("-prot", "-port")):
            status, said = refusal(wrong, "1")
            self.assertEqual(status, 2)
            self.assertEqual(said, f"sluice: unknown flag '{wrong}'; did you mean '{near}'?\n")


class Help(unittest.TestCase):
    def test_it_can_be_read(self):
        for words in (["serve"], ["run"], ["eval"], ["bench"], ["bench", "serve"], ["explain"], ["inspect"], ["moe"], ["make-checkpoint"]):
            said = subprocess.run([COMMAND, *words, "--help"], capture_output=True, text=True, timeout=WATCHDOG)
            self.assertEqual((said.returncode, said.stderr), (0, ""), words)
            self.assertTrue(said.stdout.replace("\n", "").isprintable(), words)
            self.assertNotIn("ENUM", said.stdout, words)


class Log(OwnServerTest):
    def test_json(self):
        server = self.start("--log-format", "json")
        server.chat(temperature=0, flux=1)
        server.ask("/v1/chat/completions", {"messages": QUESTION, "top_k": "many"}, {"x-request-id": "wrong-7"})
        server.raw(b"nonsense\r\n\r\n")
        connection, response = server.open_stream(ignore_eos=True)
        response.readline()
        response.close()
        connection.close()
        server.wait_until_idle()
        self.assertEqual(server.stop(), 0)
        all_lines = [json.loads(line) for line in server.logged().splitlines()]
        lines = all_lines[3:]
        self.assertEqual([line["message"].split()[0] for line in lines],
                         ["serving", "ignoring", "chat", "refused", "refused", "chat", "shutting"])
        for line in all_lines:
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            about_a_request = line in lines and line["message"].split()[0] not in ("serving", "shutting")
            self.assertEqual("request_id" in line, about_a_request, line)
        _, unknown, whole, wrong, nonsense, left, _ = lines
        self.assertEqual(unknown["request_id"], whole["request_id"])
        self.assertEqual((whole["kind"], whole["prompt_tokens"], whole["completion_tokens"], whole["end"]), ("chat", 85, 95, "stop"))
        self.assertLessEqual(0, whole["first_token_seconds"])
        self.assertLessEqual(whole["first_token_seconds"], whole["seconds"])
        self.assertEqual((wrong["request_id"], wrong["status"]), ("wrong-7", 400))
        self.assertIn("refused with 400", nonsense["message"])
        self.assertEqual(left["end"], "client gone")

    def test_what_was_loaded(self):
        """Both formats have the same messages except for the seconds; JSON also has the numbers as fields."""
        flags = ("--max-num-seqs", "4", "--max-num-batched-tokens", "96")
        text, as_json = self.start(*flags), self.start(*flags, "--log-format", "json")
        said = [line for server in (text, as_json) for line in server.logged().splitlines()[:3]]
        model, experts, memory = (json.loads(line) for line in said[3:])
        self.assertEqual(said[1:3], [experts["message"], memory["message"]])
        without_seconds = [re.sub(r" in \d+\.\d s$", "", line) for line in (said[0], model["message"])]
        self.assertEqual(*without_seconds)
        self.assertEqual([line["kind"] for line in (model, experts, memory)], ["model", "experts", "memory"])
        self.assertEqual((model["architecture"], model["layers"], model["experts"], model["top_k"]), ("GptOssForCausalLM", 6, 16, 4))
        self.assertIn("{model}: GptOssForCausalLM, 6 layers, 16 experts (top 4), ".format(**model), model["message"])
        self.assertIn(f" {1e-9 * model['weight_bytes']:.2f} GB in {model['seconds']:.1f} s", model["message"])
        self.assertEqual(experts["message"], "{device}: experts of a decode step: {kernel}".format(**experts))
        self.assertEqual((memory["step_tokens"], memory["step_sequences"]), (96, 4))
        self.assertTrue(memory["message"].startswith(
            f"{memory['device']}: cache of {memory['cache_tokens']} tokens of {memory['cache_type']} in sequences of {memory['sequence_tokens']}, "
            f"{1e-9 * memory['cache_bytes']:.2f} GB, "
            f"workspace {1e-9 * memory['workspace_bytes']:.2f} GB, steps of up to 96 tokens and 4 sequences; "), memory)

    def test_quiet(self):
        server = self.start("--log-format", "json", "-q", "--jinja")
        server.chat(temperature=0)
        self.assertEqual(server.stop(), 0)
        self.assertEqual(server.logged(), "")


if __name__ == "__main__":
    unittest.main()
