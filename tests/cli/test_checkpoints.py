"""Checkpoints as other tools save them: each gives the shipped model's answers, or is rejected with an error that names its defect."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

import checkpoint_variants as variants

COMMAND = os.environ["SLUICE_COMMAND"]
WATCHDOG = 120  # seconds after which the test counts as hanging
QUESTION, ANSWER = "What is 417 + 268?", "685"
END = 1012  # <|end|>, the end of an answer's reasoning
TENSORS = variants.read_tensors()
BF16 = variants.dequantized(TENSORS)


def without(key):
    def change(config):
        del config[key]
    return change


def setting(**values):
    return lambda config: config.update(values)


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.shipped = cls.reply(variants.SHIPPED)

    @classmethod
    def tearDownClass(cls):
        cls.directory.cleanup()

    def path(self, name="model"):
        return os.path.join(self.directory.name, name)

    @staticmethod
    def run_command(*words, **options):
        return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=WATCHDOG, **options)

    @classmethod
    def reply(cls, directory, *flags, **options):
        done = cls.run_command("run", directory, "-p", QUESTION, "--temperature", "0", "--json", *flags, **options)
        if done.returncode != 0:
            raise AssertionError(f"{directory}: {done.stderr}")
        reply = json.loads(done.stdout)
        return {**{key: reply[key] for key in ("text", "reasoning", "finish_reason", "recovered")},
                "completion_tokens": reply["usage"]["completion_tokens"]}

    @classmethod
    def first_logprobs(cls, directory):
        done = cls.run_command("run", directory, "-p", QUESTION, "--temperature", "0", "--json", "--logprobs", "0", "--max-tokens", "4")
        return [token["logprob"] for token in json.loads(done.stdout)["logprobs"]]

    def same(self, *args, **changes):
        """Checks that a variant gives the same tokens as the shipped checkpoint."""
        self.assertEqual(self.reply(variants.save(self.path(), *args, **changes)), self.shipped)

    def refused(self, wanted, *args, **changes):
        directory = variants.save(self.path(), *args, **changes)
        done = self.run_command("run", directory, "-p", QUESTION, "-q")
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(wanted, done.stderr)


class Weights(Checkpoints):
    def test_experts_in_bf16_whatever_the_config_kept(self):
        self.assertEqual(self.shipped["text"], ANSWER)
        self.same(BF16, config=without("quantization_config"))
        self.same(BF16)
        self.same(BF16, config=lambda c: c["quantization_config"].update(dequantize=True))

    def test_numbers_of_other_types(self):
        merged = re.compile(r"self_attn\.[qkvo]_proj\.weight")
        for tensors in (variants.convert(TENSORS, variants.as_f32),
                        variants.convert(TENSORS, variants.as_f16),
                        variants.convert(TENSORS, variants.as_f32, lambda name: "norm" in name),
                        variants.convert(TENSORS, variants.as_f32, lambda name: name.endswith(("bias", "sinks"))),
                        variants.convert(TENSORS, variants.as_f16, lambda name: merged.search(name) is not None),
                        variants.convert(TENSORS, variants.as_f32, lambda name: ".router." in name or "lm_head" in name)):
            self.same(tensors)
        for to in (variants.as_f32, variants.as_f16):
            self.same(variants.convert(BF16, to))
            self.same(variants.convert(BF16, to, lambda name: ".experts." in name), config=without("quantization_config"))

    def test_rounded_tensors_are_told_of(self):
        directory = variants.save(self.path(), variants.convert(TENSORS, variants.as_f32, lambda name: "norm" in name))
        done = self.run_command("run", directory, "-p", QUESTION, "--temperature", "0")
        self.assertIn("tensors of F32 or F16, rounded to bf16: 13 (model.layers.0.input_layernorm.weight, ...)", done.stderr)
        inspected = self.run_command("inspect", directory)
        self.assertEqual(inspected.returncode, 0, inspected.stdout)
        self.assertIn("attention.norm: copied, rounded to BF16", inspected.stdout)

    def test_numbers_that_bf16_does_not_hold(self):
        huge = dict(TENSORS)
        kind, shape, data = variants.as_f32(TENSORS["model.norm.weight"])
        for bits, said in ((b"\xff\xff\x7f\x7f", "an infinity at element 0"), (b"\x00\x00\xc0\x7f", "NaN at element 0")):
            huge["model.norm.weight"] = kind, shape, bits + data[4:]
            self.refused(f"model.norm.weight: wanted finite numbers, found {said}", huge)
        huge["model.norm.weight"] = "I16", shape, TENSORS["model.norm.weight"][2]
        self.refused("model.norm.weight: wanted BF16[256], found I16[256]", huge)

    def test_mxfp4_that_the_config_does_not_know_of(self):
        self.refused('config.json: quantization_config: wanted {"quant_method": "mxfp4"}', config=without("quantization_config"))
        self.refused("config.json: quantization_config.quant_method: wanted a value, found no such key",
                     config=setting(quantization_config={"load_in_4bit": True}))
        self.refused('quantization_config.quant_method: wanted "mxfp4"', config=setting(quantization_config={"quant_method": "bitsandbytes"}))

    def test_shards(self):
        self.same(TENSORS, shards=3)
        directory = self.path()
        os.remove(os.path.join(directory, "model-00002-of-00003.safetensors"))
        done = self.run_command("run", directory, "-p", QUESTION)
        self.assertEqual(done.returncode, 2)
        self.assertIn("model-00002-of-00003.safetensors: cannot be opened", done.stderr)

    def test_one_file_by_another_name(self):
        directory = variants.save(self.path(), TENSORS)
        os.rename(os.path.join(directory, "model.safetensors"), os.path.join(directory, "weights.safetensors"))
        self.assertEqual(self.reply(directory), self.shipped)

    def test_an_output_layer_that_is_the_embedding(self):
        embedding = TENSORS["model.embed_tokens.weight"]
        twice = {**TENSORS, "lm_head.weight": embedding}
        wanted = self.reply(variants.save(self.path(), twice), "--max-tokens", "40")
        once = {name: t for name, t in TENSORS.items() if name != "lm_head.weight"}
        tied = variants.save(self.path(), once, config=setting(tie_word_embeddings=True))
        self.assertEqual(self.reply(tied, "--max-tokens", "40"), wanted)
        self.assertNotEqual(self.first_logprobs(tied), self.first_logprobs(variants.SHIPPED))
        self.same(TENSORS, config=setting(tie_word_embeddings=True))  # the checkpoint's own lm_head takes precedence
        self.refused("wanted tensor 'lm_head.weight'", once)

    def test_a_vocabulary_that_grew(self):
        longer = dict(TENSORS)
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            kind, (rows, width), data = TENSORS[name]
            longer[name] = kind, [rows + 1, width], data + bytes(2 * width)
        self.same(longer, config=setting(vocab_size=1025))
        self.refused("model.embed_tokens.weight: wanted BF16[1024, 256], found BF16[1025, 256]", longer)

    def test_adapters_that_nobody_merged(self):
        name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
        self.refused(f"{name}: wanted a checkpoint whose adapters are merged", {**TENSORS, name: ("BF16", [8, 256], bytes(4096))})
        directory = variants.save(self.path())
        with open(os.path.join(directory, "adapter_config.json"), "w", encoding="utf-8") as file:
            json.dump({"base_model_name_or_path": "openai/gpt-oss-20b"}, file)
        for _ in ("beside a model", "alone"):
            done = self.run_command("run", directory, "-p", QUESTION)
            self.assertEqual(done.returncode, 2)
            self.assertIn("found an adapter of openai/gpt-oss-20b in it", done.stderr)
            pathlib.Path(directory, "config.json").unlink(missing_ok=True)

    def test_tensors_without_a_place(self):
        directory = variants.save(self.path(), {**TENSORS, "model.rotary_emb.inv_freq": ("F32", [16], bytes(64))})
        done = self.run_command("run", directory, "-p", QUESTION, "--temperature", "0")
        self.assertEqual(done.stdout, ANSWER + "\n")
        self.assertIn("tensors that the model does not use: 1 (model.rotary_emb.inv_freq)", done.stderr)


class OneCheckpoint(Checkpoints):
    def test_an_index_of_the_one_file(self):
        """mlx-lm saves an index beside model.safetensors; transformers loads that file."""
        directory = variants.save(self.path())
        path = os.path.join(directory, "model.safetensors.index.json")

        def index(file):
            with open(path, "w", encoding="utf-8") as f:
                json.dump({"metadata": {"total_size": 1}, "weight_map": {name: file for name in TENSORS}}, f)

        index("model.safetensors")
        self.assertEqual(self.reply(directory), self.shipped)
        index("model-00001-of-00001.safetensors")
        done = self.run_command("run", directory, "-p", QUESTION, "-q")
        self.assertEqual(done.returncode, 2)
        self.assertIn("move model.safetensors or the index out of the directory", done.stderr)
        os.remove(path)  # as the message says
        self.assertEqual(self.reply(directory), self.shipped)


def rope(nest):
    def change(config):
        joined = dict(config.pop("rope_scaling"), rope_theta=config.pop("rope_theta"))
        config["rope_parameters"] = nest(joined)
    return change


class Config(Checkpoints):
    def test_rope_parameters(self):
        self.same(config=rope(lambda r: r))
        self.same(config=rope(lambda r: {"full_attention": r, "sliding_attention": r}))
        self.same(config=lambda c: c["rope_scaling"].update(type=c["rope_scaling"].pop("rope_type")))
        self.same(config=lambda c: c["rope_scaling"].update(rope_theta=c["rope_theta"]) or c.update(rope_theta=10000))
        self.same(config=setting(rope_parameters={"rope_type": "default"}))  # overrides rope_scaling

    def test_rope_parameters_that_are_not_known(self):
        for nest, said in ((lambda r: {"full_attention": r, "sliding_attention": dict(r, factor=8)}, "rope_parameters.sliding_attention: wanted the value of full_attention"),
                           (lambda r: {"full_attention": r}, "rope_parameters: wanted full_attention and sliding_attention, found no sliding_attention"),
                           (lambda r: {"full_attention": r, "sliding_attention": r, "linear_attention": r}, "rope_parameters.linear_attention"),
                           (lambda r: {"full_attention": [], "sliding_attention": r}, "rope_parameters.full_attention: wanted an object"),
                           (lambda r: {"all": r}, "rope_parameters.all: wanted no such key"),
                           (lambda r: [r], "rope_parameters: wanted an object"),
                           (lambda r: dict(r, rope_type="linear"), 'rope_parameters.rope_type: wanted "yarn"'),
                           (lambda r: dict(r, partial_rotary_factor=0.5), "rope_parameters.partial_rotary_factor: wanted 1"),
                           (lambda r: dict(r, short_factor=[1]), "rope_parameters.short_factor: wanted no such key"),
                           (lambda r: {k: v for k, v in r.items() if k != "rope_type"}, "wanted no such key for rope_type default"),
                           (lambda r: {k: v for k, v in r.items() if k != "factor"}, "rope_parameters.factor: wanted a value, found no such key")):
            self.refused(said, config=rope(nest))

    def test_null_is_what_it_is_to_transformers(self):
        self.same(config=setting(head_dim=None))  # hidden_size / num_attention_heads
        self.same(config=lambda c: c["rope_scaling"].update(truncate=None, attention_factor=None, factor=None))
        self.same(config=setting(layer_types=None, experts_per_token=None, rope_parameters=None))
        self.refused("config.json: sliding_window: wanted an integer", config=setting(sliding_window=None))

    def test_a_type_without_an_architecture(self):
        self.same(config=without("architectures"))
        self.same(config=setting(architectures=None))
        self.refused("architectures", config=lambda c: c.pop("architectures") and c.update(model_type="llama"))
        self.refused("architectures: wanted one architecture", config=setting(architectures=[]))
        self.refused("config.json: model_type: wanted gpt_oss for architecture GptOssForCausalLM, found llama", config=setting(model_type="llama"))

    def test_what_stands_in_a_file_s_place(self):
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
        for file, text, wanted in (("model.safetensors", pointer, "wanted a safetensors file, found a git-lfs pointer"),
                                   ("tokenizer.json", pointer, "wanted JSON, found a git-lfs pointer"),
                                   ("config.json", "<!DOCTYPE html>\n<html></html>", "wanted JSON, found an HTML or XML page"),
                                   ("model.safetensors", "PK\x03\x04" + "x" * 99, "found a zip archive, as torch.save() writes it"),
                                   ("model.safetensors", None, "exactly one *.safetensors, found none, but pytorch_model.bin")):
            directory = variants.save(self.path())
            path = pathlib.Path(directory, file)
            path.unlink()
            if text is None:
                pathlib.Path(directory, "pytorch_model.bin").write_bytes(b"x")
            else:
                path.write_text(text)
            done = self.run_command("run", directory, "-p", QUESTION, "-q")
            self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done.stderr)
            self.assertIn(wanted, done.stderr)

    def test_numbers_that_json_does_not_have(self):
        """Python writes and accepts them."""
        for value, word in ((float("inf"), "Infinity"), (-float("inf"), "Infinity"), (float("nan"), "NaN")):
            self.refused(f"config.json: wanted JSON, found {word} at byte", config=setting(initializer_range=value))

    def test_numbers_by_another_name(self):
        self.same(config=lambda c: c.update(num_experts=c.pop("num_local_experts")))
        self.same(config=setting(num_experts=16))
        self.refused("config.json: num_experts: wanted num_local_experts = 16, found 8", config=setting(num_experts=8))
        self.refused("config.json: num_local_experts: wanted a value", config=without("num_local_experts"))

    def test_numbers_in_the_other_spelling(self):
        self.same(config=lambda c: c.update(rope_theta=150000.0, swiglu_limit=7) or c["rope_scaling"].update(factor=4, beta_fast=32, beta_slow=1))
        self.same(config=lambda c: c.update(dtype=c.pop("torch_dtype")))
        self.same(config=setting(swiglu_alpha=1.702))
        self.assertNotEqual(self.first_logprobs(variants.save(self.path(), config=setting(swiglu_alpha=1.2))), self.first_logprobs(variants.SHIPPED))

    def test_tokens_that_end_an_answer(self):
        """The shipped generation_config.json has eos_token_id [1007, 1004, 1017]."""
        self.same(config=setting(eos_token_id=END))
        self.same(config=setting(eos_token_id=[END, 1007]))
        self.same(generation_config=setting(eos_token_id=1007))
        for change in (without("eos_token_id"), setting(eos_token_id=None)):
            self.same(generation_config=change)
            directory = variants.save(self.path(), config=setting(eos_token_id=END), generation_config=change)
            self.assertEqual(self.reply(directory)["text"], "")  # without a value here, config.json's applies
        os.remove(os.path.join(directory, "generation_config.json"))
        self.assertEqual(self.reply(directory)["text"], "")
        self.refused("generation_config.json: eos_token_id: wanted a token id or a non-empty array", generation_config=setting(eos_token_id=[]))
        self.refused("generation_config.json: eos_token_id[0]: wanted an integer", generation_config=setting(eos_token_id=[[1007]]))
        self.refused("generation_config.json: eos_token_id: wanted an integer", generation_config=setting(eos_token_id={"id": 1007}))


# GenerationConfig options that Sluice does not support: a value that requests the option, and a value that turns it off.
ASKED = {
    "suppress_tokens": ([21, 22, 23, 24], []), "begin_suppress_tokens": ([21], []), "bad_words_ids": ([[22]], []), "min_new_tokens": (200, 0),
    "min_length": (200, 0), "forced_eos_token_id": (1007, None), "forced_bos_token_id": (1003, None), "guidance_scale": (1.5, 1.0),
    "no_repeat_ngram_size": (3, 0), "encoder_no_repeat_ngram_size": (3, 0), "encoder_repetition_penalty": (1.2, 1.0), "typical_p": (0.9, 1.0),
    "epsilon_cutoff": (0.1, 0.0), "eta_cutoff": (0.1, 0.0), "top_h": (0.4, None), "penalty_alpha": (0.6, 0.0), "num_beams": (4, 1),
    "num_return_sequences": (2, 1), "sequence_bias": ([[[22], -5.0]], {}), "exponential_decay_length_penalty": ([5, 1.1], None),
    "stop_strings": (["6"], []), "max_time": (0.5, None), "token_healing": (True, False), "dola_layers": ("high", None),
    "watermarking_config": ({"bias": 2.5}, None), "constraints": ([{}], None), "force_words_ids": ([[22]], None), "assistant_ensemble_weight": (0.5, None),
}


class Generation(Checkpoints):
    def test_what_is_asked_for_is_done_or_refused(self):
        for key, (asked, nothing) in ASKED.items():
            self.refused(f"generation_config.json: {key}: wanted ", generation_config=setting(**{key: asked}))
            self.same(generation_config=setting(**{key: nothing}))
        self.same(generation_config=lambda g: g.update({key: nothing for key, (_, nothing) in ASKED.items()}))

    def test_keys_that_nobody_knows(self):
        for value in (3, [1], {"a": 1}, "x", True):
            self.refused("generation_config.json: skip_words: wanted no such key, because Sluice does not know its meaning",
                         generation_config=setting(skip_words=value))
        self.same(generation_config=setting(skip_words=None))

    def test_keys_that_change_no_answer(self):
        self.same(generation_config=setting(use_cache=True, transformers_version="5.19.0", _from_model_config=True, cache_implementation="hybrid",
                                            output_scores=True, return_dict_in_generate=True, length_penalty=2.0, early_stopping=True))

    def test_limits(self):
        directory = variants.save(self.path(), generation_config=setting(max_new_tokens=3))
        self.assertEqual((self.reply(directory)["finish_reason"], self.reply(directory)["completion_tokens"]), ("length", 3))
        self.assertEqual(self.reply(directory, "--max-tokens", "500"), self.shipped)
        self.same(generation_config=setting(max_length=131072))
        directory = variants.save(self.path(), generation_config=setting(max_length=110))
        self.assertIn("in sequences of 110", self.run_command("run", directory, "-p", QUESTION).stderr)

    def test_a_config_alone_speaks_of_generation_too(self):
        """Generation settings in config.json apply if generation_config.json is missing, as in transformers."""
        directory = variants.save(self.path(), config=setting(suppress_tokens=[22]))
        self.assertEqual(self.reply(directory), self.shipped)
        os.remove(os.path.join(directory, "generation_config.json"))
        self.assertIn("config.json: suppress_tokens: wanted []", self.run_command("run", directory, "-p", QUESTION).stderr)


class Tokenizer(Checkpoints):
    def test_how_a_training_cut_and_padded(self):
        cut = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
        pad = {"strategy": {"Fixed": 512}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 1004, "pad_type_id": 0, "pad_token": "<|endoftext|>"}
        self.same(tokenizer=setting(truncation=cut, padding=pad))
        self.refused("tokenizer.json: truncation: unknown key 'max_words'", tokenizer=setting(truncation=dict(cut, max_words=1)))
        self.refused("tokenizer.json: padding: wanted an object", tokenizer=setting(padding=[pad]))

    def test_added_tokens(self):
        def add(content, **more):
            token = {"id": 1021, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}

            def change(tokenizer):
                tokenizer["added_tokens"] = [t for t in tokenizer["added_tokens"] if t["id"] != 1021] + [dict(token, **more)]
            return change

        self.same(tokenizer=add("[THINK]"))
        self.refused("added_tokens: wanted normalized tokens that cannot overlap others, found 'x<|', which can overlap '<|", tokenizer=add("x<|"))
        self.refused("lstrip: wanted false", tokenizer=add("[THINK]", lstrip=True))


class Names(Checkpoints):
    def cache(self, snapshots=1, main=None):
        """A Hugging Face cache that holds the shipped model as org/tiny-16e: its files are links to blobs."""
        hub = self.path("hub")
        shutil.rmtree(hub, ignore_errors=True)
        folder = os.path.join(hub, "models--org--tiny-16e")
        made = []
        os.makedirs(os.path.join(folder, "blobs"))
        for file in (*variants.JSONS, "model.safetensors"):
            os.symlink(os.path.join(variants.SHIPPED, file), os.path.join(folder, "blobs", file))
        for number in range(snapshots):
            made.append(os.path.join(folder, "snapshots", f"{number}" * 40))
            os.makedirs(made[-1])
            for file in (*variants.JSONS, "model.safetensors"):
                os.symlink(os.path.join("..", "..", "blobs", file), os.path.join(made[-1], file))
        if main is not None:
            os.makedirs(os.path.join(folder, "refs"))
            with open(os.path.join(folder, "refs", "main"), "w", encoding="utf-8") as file:
                file.write(f"{main}" * 40)
        return hub, folder, made

    def said(self, *words, **environment):
        done = self.run_command(*words, env={**os.environ, **environment})
        return done.returncode, done.stdout, done.stderr

    def test_a_name_is_looked_for_in_the_cache(self):
        hub, folder, (snapshot,) = self.cache()
        home = os.path.dirname(hub)
        for name, environment in (("org/tiny-16e", {"HF_HUB_CACHE": hub}), ("org/tiny-16e", {"HF_HUB_CACHE": "", "HF_HOME": home}), (folder, {})):
            status, out, err = self.said("run", name, "-p", QUESTION, "--temperature", "0", **environment)
            self.assertEqual((status, out), (0, ANSWER + "\n"), err)
            self.assertIn(os.path.basename(snapshot), err)
        status, _, err = self.said("run", "org/other", "-q", "-p", QUESTION, HF_HUB_CACHE=hub)
        self.assertEqual(status, 2)
        self.assertIn(f"org/other: wanted a model's directory, found neither a directory nor a model of this name in the Hugging Face cache {hub}", err)
        for root in (hub, home):
            status, _, err = self.said("run", root, "-q", "-p", QUESTION)
            self.assertEqual(status, 2)
            self.assertIn(f"found a Hugging Face cache; name a snapshot in it: {snapshot}", err)

    def test_which_snapshot(self):
        _, folder, made = self.cache(snapshots=2)
        self.assertIn(f"wanted one snapshot of a model, found {made[0]}, {made[1]}; name one of them", self.said("inspect", folder)[2])
        _, folder, made = self.cache(snapshots=2, main=1)
        self.assertIn(made[1], self.said("inspect", folder)[1])

    def test_a_directory_that_is_not_there_is_not_the_shipped_model(self):
        for words in (("run", "-q", "-p", QUESTION), ("bench", "-q"), ("eval",), ("inspect",), ("serve", "--port", "0"), ("explain", "--device", "h100")):
            for name in ("", "/nowhere/model", "./nowhere", "nowhere"):
                for flag in ((f"--model={name}",), ("--model", name), (name,)) if words[0] != "explain" else ((f"--model={name}",),):
                    status, out, err = self.said(*words, *flag, HF_HUB_CACHE=self.path("nothing"))
                    self.assertEqual((status, out), (2, ""), (words, flag))
                    self.assertIn("wanted", err)

    def test_one_file_of_a_model_names_the_directory(self):
        status, _, err = self.said("run", os.path.join(variants.SHIPPED, "model.safetensors"), "-q", "-p", QUESTION)
        self.assertEqual(status, 2)
        self.assertIn(f"name the directory that contains it: {variants.SHIPPED}", err)
        for device in ("/dev/null", "/dev/zero"):
            status, _, err = self.said("run", device, "-q", "-p", QUESTION)
            self.assertEqual(status, 2)
            self.assertIn(f"{device}: wanted a model's directory, found neither a directory nor a regular file", err)
            self.assertNotIn("around it", err)

    def test_what_can_be_downloaded(self):
        for command in (("run", "-q", "-p", QUESTION), ("serve", "--port", "0")):
            _, _, err = self.said(*command, "--model", "org/other", HF_HUB_CACHE=self.path("nothing"))
            self.assertIn("; `hf download org/other` downloads it", err)
            _, _, err = self.said(*command, "--model", "gpt-oss-20b", HF_HUB_CACHE=self.path("nothing"))
            self.assertNotIn("hf download", err)
            self.assertIn("names in the cache are OWNER/NAME, as in openai/gpt-oss-20b", err)

    def test_lists_leave_the_directory_alone(self):
        directory = variants.save(self.path())
        short = ("--output-len", "2", "--json", "-q")
        for lists in (("--input-len", "4", "--max-concurrency", "1"), ("--max-concurrency", "1,2", "--input-len", "4")):
            self.assertEqual(json.loads(self.said("bench", *short, *lists, directory)[1])["model"], directory)


class StandIn(Checkpoints):
    def test_random_weights_are_served_with_a_tokenizer(self):
        directory = self.path()
        shutil.rmtree(directory, ignore_errors=True)
        done = self.run_command("make-checkpoint", directory, "--config-only", "--layers", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(directory, "tokenizer.json"), encoding="utf-8") as file:
            tokenizer = json.load(file)
        with open(os.path.join(directory, "config.json"), encoding="utf-8") as file:
            vocab = json.load(file)["vocab_size"]
        ids = [*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])]
        self.assertEqual(sorted(ids), list(range(vocab)))  # every token that can be sampled has a text
        named = {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
        self.assertEqual([named[f"<|{word}|>"] for word in ("return", "call", "start", "end", "message", "channel")],
                         [200002, 200012, 200006, 200007, 200008, 200005])

    def test_a_config_without_a_tokenizer(self):
        directory = variants.save(self.path())
        for file in ("tokenizer.json", "model.safetensors"):
            os.remove(os.path.join(directory, file))
        reply = self.reply(directory, "--load-format", "dummy", "--max-tokens", "5", "--ignore-eos")
        self.assertEqual(reply["completion_tokens"], 5)
        done = self.run_command("run", directory, "-p", QUESTION)
        self.assertEqual(done.returncode, 2)
        self.assertIn("tokenizer.json: cannot be opened", done.stderr)


if __name__ == "__main__":
    unittest.main()
