// The command with the shipped model and with damaged models.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/command.h"
#include "harness/model_copy.h"

namespace sluice::test {
namespace {

std::vector<std::string> one_question(const std::string& model) {
  return {"run", model, "-q", "-p", "What is 1 + 1?"};
}

}  // namespace

TEST(ModelCommand, AnswersTheQuestionOfTheReadme) {
  const Outcome o = sluice({"run", "-p", "What is 417 + 268?", "--max-tokens", "500"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "685\n");
  EXPECT_NE(o.err.find("GptOssForCausalLM, "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("tokens/s"), std::string::npos) << o.err;
  // stdout is no terminal: no progress bar, no colours, no reasoning.
  EXPECT_EQ(o.err.find('\033'), std::string::npos);
  EXPECT_EQ(o.err.find('\r'), std::string::npos);
}

TEST(ModelCommand, AnswersAsJson) {
  const Outcome o = sluice({"run", "-q", "-p", "What is 417 + 268?", "--max-tokens", "500", "--json"});
  EXPECT_EQ(o.err, "");
  const auto json = parse_json(o.out, "answer");
  ASSERT_TRUE(json.ok()) << o.out;
  EXPECT_EQ(json.value()["text"], "685");
  EXPECT_EQ(json.value()["finish_reason"], "stop");
  EXPECT_EQ(json.value()["recovered"], "");
  EXPECT_GT(json.value()["usage"]["prompt_tokens"], 0);
  EXPECT_EQ(json.value()["usage"]["prompt_tokens_details"]["cached_tokens"], 0) << "nothing is cached yet";
  EXPECT_FALSE(json.value()["reasoning"].get<std::string>().empty());
}

TEST(ModelCommand, AnswersWithLogprobs) {
  const std::vector<std::string> question = {"run", "-q", "-p", "What is 417 + 268?", "--temperature", "0"};
  const auto asked = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), question.begin(), question.end());
    return sluice(flags);
  };
  const auto json = parse_json(asked({"--json", "--logprobs", "2"}).out, "answer");
  ASSERT_TRUE(json.ok());
  const auto& tokens = json.value()["logprobs"];
  ASSERT_EQ(tokens.size(), json.value()["usage"]["completion_tokens"]);
  for (const auto& token : tokens) {
    EXPECT_EQ(token["rank"], 1);
    ASSERT_EQ(token["top_logprobs"].size(), 2u);
    const auto &first = token["top_logprobs"][0], &second = token["top_logprobs"][1];
    for (const char* key : {"token", "id", "logprob", "bytes"}) EXPECT_EQ(first[key], token[key]) << key;
    EXPECT_LE(first["logprob"], 0);
    EXPECT_LT(second["logprob"], first["logprob"]);
  }
  const auto plain = parse_json(asked({"--json"}).out, "answer");
  EXPECT_EQ(plain.value()["text"], json.value()["text"]);
  EXPECT_FALSE(plain.value().contains("logprobs"));
  const auto other =
      parse_json(asked({"--json", "--repetition-penalty", "100", "--max-tokens", "50"}).out, "answer");
  EXPECT_NE(other.value()["text"], plain.value()["text"]);
  std::vector<std::string> people = question;
  people.insert(people.end(), {"--logprobs", "2"});
  expect_refusal(people, {"--logprobs: needs --json, found none"});
}

// A later turn reuses the cached pages of earlier turns and gives the same answer as without a cache.
TEST(ModelCommand, AConversationIsReadOnce) {
  const auto converse = [](const std::string& flag) {
    return run_process({"bash", "-c",
                        "printf 'What is 12 + 30?\\nWhat is 417 + 268?\\n' | " SLUICE_COMMAND
                        " run --temperature 0 --batch-invariant --max-tokens 500 " +
                            flag});
  };
  const Outcome with = converse(""), without = converse("--no-enable-prefix-caching");
  EXPECT_EQ(with.status, 0) << with.err;
  EXPECT_EQ(with.out, "42\n685\n");
  EXPECT_EQ(without.out, with.out);
  const size_t first = with.err.find(" tokens in, "), second = with.err.find(" cached), ");
  EXPECT_LT(first, second) << with.err;
  EXPECT_NE(second, std::string::npos) << with.err;
  EXPECT_EQ(without.err.find("cached"), std::string::npos) << without.err;
}

TEST(ModelCommand, EvalReportsEachTask) {
  const Outcome o = sluice({"eval", "-q", "--limit", "2", "--max-tokens", "500", "--json"});
  EXPECT_EQ(o.status, 0) << o.err;
  const auto json = parse_json(o.out, "eval");
  ASSERT_TRUE(json.ok()) << o.out;
  EXPECT_GE(json.value()["tasks"].size(), 6u);
  for (const auto& [name, task] : json.value()["tasks"].items()) EXPECT_EQ(task["questions"], 2) << name;
  EXPECT_GE(json.value()["accuracy"], 0.8);
  EXPECT_GT(json.value()["cached_tokens"], 0) << "all prompts share a prefix";
  EXPECT_LT(json.value()["cached_tokens"], json.value()["prompt_tokens"]);
}

TEST(ModelCommand, InspectNamesTheUseOfEachTensor) {
  const Outcome o = sluice({"inspect"});
  EXPECT_EQ(o.status, 0) << o.err << o.out;
  EXPECT_NE(o.out.find("layer 0 experts.up: packed as panels16"), std::string::npos);
  EXPECT_NE(o.out.find("GptOssForCausalLM, 0 wrong, 0 missing"), std::string::npos);
}

TEST(ModelCommand, RandomWeightsNeedOnlyTheConfig) {
  ModelCopy copy;
  copy.remove("model.safetensors");
  const Outcome o = sluice({"bench", copy.path(), "--load-format", "dummy", "--input-len", "4",
                            "--output-len", "2", "--max-concurrency", "1", "--json"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_NE(o.err.find("GB of random weights in "), std::string::npos) << o.err;
  const Json report = parse_json(o.out, "bench").value();
  EXPECT_EQ(report["experts"], 16);
  EXPECT_GE(report["rows"][0]["experts"], 4);  // one token reaches at least its top_k experts
  EXPECT_LE(report["rows"][0]["experts"], 4);
  EXPECT_EQ(
      sluice({"run", copy.path(), "-q", "--load-format", "dummy", "--max-tokens", "4", "-p", "Hi"}).status,
      0);
  expect_refusal({"bench", copy.path(), "--routing", "zipf"},
                 {"--routing: needs --load-format dummy, found auto"});
  expect_refusal({"bench", copy.path(), "--load-format", "dumy"},
                 {"unknown --load-format 'dumy'", "did you mean 'dummy'"});
  copy.remove("tokenizer.json");
  EXPECT_EQ(
      sluice({"run", copy.path(), "-q", "--load-format", "dummy", "--max-tokens", "4", "-p", "Hi"}).status,
      0);
  expect_refusal({"run", copy.path(), "-p", "Hi"}, {"tokenizer.json: cannot be opened", "bench does not"});
  copy.remove("config.json");
  expect_refusal({"bench", copy.path(), "--load-format", "dummy"}, {"config.json: cannot be opened"});
}

TEST(ModelCommand, ExplainsAWholeModelOnAnAbsentDevice) {
  const Outcome o = sluice({"explain", "--model", std::string(SLUICE_SOURCE_DIR) + "/tests/data/gpt-oss-20b",
                            "--tokens", "64", "--device", "cpu-avx512"});
  EXPECT_EQ(o.status, 0) << o.err << o.out;
  EXPECT_NE(o.out.find("     12  attention.sliding"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("     24  experts.up"), std::string::npos);
  expect_refusal({"explain", "--model", "/nowhere"},
                 {"--model: wanted a directory with config.json", "'/nowhere'"});
  expect_refusal({"explain", "linear", "--model", "gpt-oss-20b"}, {"found both"});
}

// --moe-backend of commands that run a model; the line about the model names the experts' kernel.
TEST(ModelCommand, KernelsOfTheExpertsByName) {
  const auto says = [](std::vector<std::string> words, const std::string& kernel) {
    const Outcome o = sluice(words);
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_NE(o.err.find("experts of a decode step: " + kernel), std::string::npos)
        << kernel << " in " << o.err;
    return o.out;
  };
  const std::vector<std::string> question = {"run", "-p", "What is 417 + 268?", "--max-tokens", "500"};
  const auto asked = [&](std::vector<std::string> more) {
    more.insert(more.begin(), question.begin(), question.end());
    return more;
  };
  const std::string slow = "cpu.expert_gemm.panels_f32";
  EXPECT_EQ(says(asked({"--moe-backend", "panels_f32"}), slow), "685\n");
  // The flag of one phase overrides the flag of both, in any order; the overridden kernel may be unsupported.
  EXPECT_EQ(says(asked({"--moe-backend-decode", slow, "--moe-backend-prefill", slow, "--moe-backend", "dot"}),
                 slow),
            "685\n");
  says({"bench", "--input-len", "4", "--output-len", "2", "--max-concurrency", "1", "--moe-backend", slow},
       slow);
  says({"eval", "--limit", "1", "--max-tokens", "4", "--moe-backend-decode", slow}, slow);
}

TEST(ModelCommand, RefusesKernelsOfTheExperts) {
  const ModelCopy copy;
  const auto with = [&](std::vector<std::string> flags) {
    std::vector<std::string> words = one_question(copy.path());
    words.insert(words.end(), flags.begin(), flags.end());
    return words;
  };
  expect_refusal(with({"--moe-backend", "dots"}), {"moe backend: wanted auto or one of cpu.expert_gemm.",
                                                   "found 'dots'; did you mean 'dot'?"});
  expect_refusal(with({"--moe-backend-decode", "dot"}),
                 {"moe experts.up", "cpu.expert_gemm.dot: needs layout row_major"});
  expect_refusal(with({"--moe-backend-decode", "panels_f32", "--batch-invariant"}),
                 {"moe backend: wanted one kernel for decode and prefill, because batch_invariant is set"});
  expect_refusal(with({"--moe-decode-tokens", "-1"}),
                 {"--moe-decode-tokens: wanted an integer from 0 to 16384"});
  expect_refusal(with({"--moe-backend-decod", "dot"}), {"did you mean '--moe-backend-decode'?"});
}

TEST(ModelCommand, ExplainsAModelWithKernelsByName) {
  const auto answer = [](std::vector<std::string> more) {
    std::vector<std::string> words = {"explain", "--model", "gpt-oss-120b", "--device", "h200"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome o = sluice(words);
    EXPECT_EQ(o.err, "");
    return o.out;
  };
  const auto has = [](const std::string& out, const std::string& part) {
    return out.find(part) != std::string::npos;
  };
  const std::string tile = "cuda.expert_gemm.mxfp4_tile_sm90", mlp = "cuda.expert_mlp.";
  const std::vector<std::string> phases = {"--moe-backend-decode",  "mxfp4_tile_sm90",
                                           "--moe-backend-prefill", "mxfp4_stream_sm90",
                                           "--moe-decode-tokens",   "8"};
  const auto at = [&](const std::string& tokens) {
    std::vector<std::string> words = phases;
    words.insert(words.end(), {"--tokens", tokens});
    return answer(words);
  };
  EXPECT_TRUE(has(answer({"--tokens", "1"}), mlp));
  for (const char* tokens : {"1", "8"}) {
    const std::string out = at(tokens);
    EXPECT_TRUE(has(out, tile)) << out;
    EXPECT_TRUE(has(out, "cuda.router_gemm.")) << out;  // other operations keep their choice
    EXPECT_FALSE(has(out, mlp) || has(out, "stream_sm90") || has(out, "none:")) << out;
  }
  const std::string prefill = at("9");
  EXPECT_TRUE(has(prefill, "cuda.expert_gemm.mxfp4_stream_sm90")) << prefill;
  EXPECT_FALSE(has(prefill, tile)) << prefill;
  // Sweeping the tokens of the experts stays in the step's phase.
  std::vector<std::string> words = phases;
  words.insert(words.end(), {"--tokens", "8", "--sweep", "tokens", "--tokens-max", "300"});
  const std::string sweep = answer(words);
  EXPECT_TRUE(has(sweep, "to 8 ")) << sweep;
  EXPECT_FALSE(has(sweep, "stream_sm90")) << sweep;
  // --force does the same for a single operation.
  const std::string forced = answer({"--tokens", "64", "--force", tile});
  EXPECT_TRUE(has(forced, tile) && has(forced, "cuda.combine.")) << forced;
  EXPECT_FALSE(has(forced, "none:")) << forced;
  expect_refusal(
      {"explain", "--model", "gpt-oss-120b", "--force", "cuda.linear.x"},
      {"policy.force: wanted a kernel of one of the operations ", "expert_gemm", "found 'cuda.linear.x'"});
  expect_refusal(
      {"explain", "--model", "gpt-oss-120b", "--moe-backend", "mxfp4_tile_sm9", "--device", "h200"},
      {"did you mean 'mxfp4_tile_sm90'?"});
  expect_refusal({"explain", "--moe-backend", "auto"}, {"--moe-backend: needs --model, found none"});
}

TEST(ModelCommand, RefusesFilesWithWrongHeaders) {
  ModelCopy copy;
  copy.change_weights([](std::string& bytes) { bytes.resize(bytes.size() / 2); });
  expect_refusal(one_question(copy.path()), {"model.safetensors", "wanted", "found"});
  copy.change_weights([](std::string& bytes) { bytes.resize(4); });
  expect_refusal(one_question(copy.path()), {"model.safetensors"});
  copy.change_weights([](std::string& bytes) { bytes.replace(0, 8, 8, '\xff'); });
  expect_refusal(one_question(copy.path()), {"model.safetensors"});
  copy.change_weights([](std::string& bytes) { bytes[8] = '['; });
  expect_refusal(one_question(copy.path()), {"model.safetensors"});
  copy.change_weights([](std::string& bytes) { bytes.replace(bytes.find("lm_head.weight"), 7, "lm_hand"); });
  expect_refusal(one_question(copy.path()), {"lm_head.weight", "lm_hand.weight"});
}

TEST(ModelCommand, RefusesAScaleThatIsNoNumber) {
  ModelCopy copy;
  const std::string tensor = "model.layers.1.mlp.experts.down_proj_scales";
  copy.change_weights(
      [&](std::string& bytes) { bytes[offset_of(bytes, tensor) + 8 * 256 * 3 + 8 * 5 + 2] = '\xff'; });
  // Expert 3, row 5, block 2 of [16, 256, 8].
  expect_refusal(one_question(copy.path()), {tensor, "expert 3", "row 5", "255"});
}

// bf16 infinity or NaN, in element 3 of the tensor.
std::function<void(std::string&)> spoiled(const std::string& tensor, uint16_t bits) {
  return [=](std::string& bytes) { std::memcpy(bytes.data() + offset_of(bytes, tensor) + 6, &bits, 2); };
}

TEST(ModelCommand, RefusesWeightsThatAreNoNumbers) {
  ModelCopy copy;
  for (const char* tensor :
       {"model.embed_tokens.weight", "model.norm.weight", "model.layers.2.input_layernorm.weight",
        "model.layers.2.post_attention_layernorm.weight", "model.layers.3.mlp.router.weight",
        "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.o_proj.bias",
        "model.layers.4.mlp.experts.down_proj_bias", "lm_head.weight"}) {
    copy.change_weights(spoiled(tensor, 0x7fc0));
    expect_refusal(one_question(copy.path()), {tensor, "wanted finite numbers, found NaN at element 3"});
  }
  copy.change_weights(spoiled("model.norm.weight", 0xff80));
  expect_refusal(one_question(copy.path()),
                 {"model.norm.weight: wanted finite numbers, found an infinity at element 3"});
  copy.change_weights(spoiled("model.layers.0.self_attn.sinks", 0x7fc0));
  expect_refusal(one_question(copy.path()), {"model.layers.0.self_attn.sinks: wanted numbers, found NaN"});
}

TEST(ModelCommand, RefusesWhatIsNotAFile) {
  ModelCopy copy;
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}) {
    copy.remove(name);
    ASSERT_EQ(mkfifo((copy.path() + "/" + name).c_str(), 0600), 0);
    expect_refusal(one_question(copy.path()),
                   {name, "wanted a regular file, found a device, pipe or socket"});
    copy.remove(name);
    fs::create_symlink(kShipped / name, fs::path(copy.path()) / name);
  }
}

// Rejected by the tensor count, before anything is built.
TEST(ModelCommand, RefusesHeadersOfTooManyTensors) {
  std::string json = "{";
  for (int i = 0; i < 1'500'000; ++i)
    json += (i ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  json += "}";
  const uint64_t length = json.size();
  ModelCopy copy;
  copy.write("model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + json);
  expect_refusal(one_question(copy.path()),
                 {"model.safetensors: wanted at most 262144 tensors in its header, found more"});
}

// Rejected by its size, before tokenization.
TEST(ModelCommand, RefusesAPromptOfFarTooManyBytes) {
  const std::string line = "yes 'hello world' | head -c 10000000 | tr '\\n' ' ' | \"$1\" run -q";
  const Outcome o = run_process({"sh", "-c", line, "sh", SLUICE_COMMAND});
  EXPECT_EQ(o.status, 2);
  EXPECT_NE(o.err.find(
                "prompt: wanted fewer than 4096 tokens (the context, --max-model-len), found 10000000 bytes"),
            std::string::npos)
      << o.err;
}

TEST(ModelCommand, NumbersOfFlagsAreCheckedBeforeTheModelIsOpened) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--temperature", "wanted a number from 0 to 100, found 'abc'"},
      {"--temperature", "found 'nan'"},
      {"--temperature", "found '101'"},
      {"--top-p", "wanted a number from 0 to 1, found '2'"},
      {"--min-p", "found '-0.1'"},
      {"--top-k", "wanted an integer from 0 to 2147483647, found '99999999999'"},
      {"--max-tokens", "found '-1'"},
      {"--repetition-penalty", "wanted a number from 0.01 to 100, found '0'"},
      {"--frequency-penalty", "wanted a number from -2 to 2, found '2.5'"},
      {"--presence-penalty", "found '-3'"},
      {"--logprobs", "wanted an integer from 0 to 20, found '21'"},
      {"--seed", "wanted an integer from 0 to 2^64 - 1, found '-1'"},
      {"--kv-cache-gib", "wanted a number from 0 to 1048576, found 'nan'"},
      {"--max-num-batched-tokens", "wanted an integer from 1 to 16384, found '10000000'"},
      {"--max-mixed-prefill-tokens", "wanted an integer from 0 to 16384, found '-1'"},
      {"--max-num-seqs", "found '0'"},
      {"--threads", "found '-1'"},
  };
  for (const auto& w : wrong) {
    const size_t end = w[1].rfind('\''), begin = w[1].rfind('\'', end - 1) + 1;
    expect_refusal({"run", "/nowhere", "-q", "-p", "x", w[0], w[1].substr(begin, end - begin)},
                   {w[0] + ": ", w[1]});
  }
  const std::pair<const char*, const char*> speculation[] = {
      {"ngram", "--speculative-config: wanted JSON, found an error at byte 2 of 5"},
      {"[]", "--speculative-config: wanted an object, found an array of 0"},
      {"{}", "--speculative-config: method: wanted a value, found no such key"},
      {R"({"method": "medusa", "model": "x"})",
       R"(--speculative-config: method: wanted ngram, suffix, eagle3 or mtp, found "medusa")"},
      {R"({"method": "eagle3", "prompt_lookup_max": 3})",
       R"(with the method eagle3, found "prompt_lookup_max")"},
      {R"({"method": "eagle3", "num_speculative_tokens": 33})",
       "num_speculative_tokens: wanted an integer from 1 to 32, found 33"},
      {R"({"method": "ngram"})",
       "--speculative-config: num_speculative_tokens: wanted a value, found no such key"},
      {R"({"method": "ngram", "num_speculative_tokens": 33})",
       "num_speculative_tokens: wanted an integer from 1 to 32, found 33"},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "model": "x"})", R"(found "model")"},
      {R"({"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 3, "prompt_lookup_max": 2})",
       "prompt_lookup_min: wanted 1 to 2, found 3"},
      {R"({"method": "suffix", "suffix_decoding_max_spec_factor": -1})",
       "suffix_decoding_max_spec_factor: wanted 0 to 32, found -1"},
      {R"({"method": "mtp", "model": "x"})", R"(with the method mtp, found "model")"},
      {R"({"method": "mtp", "moe_backend": "tpu"})", R"(moe_backend: wanted cpu or cuda, found "tpu")"},
      {R"({"method": "mtp", "router_dtype": "fp8"})",
       R"(router_dtype: wanted float32 or bfloat16, found "fp8")"},
  };
  for (const auto& [json, message] : speculation)
    expect_refusal({"run", "/nowhere", "-q", "-p", "x", "--speculative-config", json}, {message});
  const std::pair<std::vector<std::string>, const char*> sglang[] = {
      {{"--speculative-algorithm", ""},
       "--speculative-algorithm: wanted EAGLE3, NEXTN, EAGLE or NGRAM, found ''"},
      {{"--speculative-num-steps", "2"},
       "--speculative-algorithm: wanted EAGLE3, NEXTN, EAGLE or NGRAM, found none"},
      {{"--speculative-algorithm", "EAGLE3", "--speculative-eagle-topk", "2"},
       "--speculative-eagle-topk: wanted 1 (drafts are a chain), found 2"},
      {{"--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3", "--speculative-num-draft-tokens",
        "3"},
       "--speculative-num-draft-tokens: wanted --speculative-num-steps + 1 = 4, found 3"},
      {{"--speculative-algorithm", "NEXTN", "--speculative-draft-model-path", "x"},
       "needs --speculative-algorithm EAGLE3, found NEXTN"},
      {{"--speculative-algorithm", "EAGLE3", "--speculative-moe-runner-backend", "cuda"},
       "needs --speculative-algorithm NEXTN, found EAGLE3"},
  };
  for (const auto& [flags, message] : sglang) {
    std::vector<std::string> command = {"run", "/nowhere", "-q", "-p", "x"};
    command.insert(command.end(), flags.begin(), flags.end());
    expect_refusal(command, {message});
  }
  for (const char* date : {"not a date", "2025-02-29", "2025-6-28", "2025-06-28x"})
    expect_refusal({"run", "/nowhere", "-q", "-p", "x", "--current-date", date},
                   {"--current-date: wanted a date such as 2025-06-28, found '", date});
  expect_refusal({"eval", "/nowhere", "--limit", "-1"},
                 {"--limit: wanted an integer of at least 0, found '-1'"});
  for (const char* list : {"1,,2", "1,", ",", ""})
    expect_refusal({"bench", "/nowhere", "--max-concurrency", list},
                   {"--max-concurrency: wanted an integer from 1 to 16384, found ''"});
  expect_refusal({"run", "/nowhere", "-p", "x", "--show-reasoning", "--hide-reasoning"},
                 {"cannot be combined with --hide-reasoning"});
  expect_refusal({"run", "-p", "x", "--device", "gpu"}, {"did you mean 'cuda'?"});
  expect_refusal({"bench", "/nowhere", "--max-concurrency", "1,0"},
                 {"--max-concurrency: wanted", "found '0'"});
  expect_refusal({"run", "--tempo", "1"}, {"unknown flag '--tempo'; did you mean '--temp'?"});
}

TEST(ModelCommand, NamesTheKeyOfAConfigThatIsWrong) {
  ModelCopy copy;
  const auto config = [&](const std::string& json_pointer, const Json& value, const std::string& message) {
    copy.change_config([&](Json& c) { c[Json::json_pointer(json_pointer)] = value; });
    expect_refusal(one_question(copy.path()), {"config.json: " + message});
  };
  config("/rms_norm_eps", 0, "rms_norm_eps: wanted a number from 1e-12 to 1, found 0");
  config("/swiglu_limit", 0, "swiglu_limit: wanted a number from 1e-06 to 1e+06, found 0");
  config("/rope_scaling", Json::array(), "rope_scaling: wanted an object, found an array of 0");
  config("/quantization_config", Json::array(), "quantization_config: wanted an object, found an array of 0");
  config("/experts_per_token", 2, "experts_per_token: wanted num_experts_per_tok = 4, found 2");
  config("/architectures/0", "LlamaForCausalLM",
         "architectures: wanted an architecture that Sluice runs (GptOssForCausalLM, "
         "Qwen3MoeForCausalLM, DeepseekV3ForCausalLM), found LlamaForCausalLM");
  ModelCopy defaults;
  const auto generation = [&](const std::string& json, const std::string& message) {
    defaults.write("generation_config.json", json);
    expect_refusal(one_question(defaults.path()), {"generation_config.json: " + message});
  };
  generation(R"({"no_repeat_ngram_size": 3})",
             "no_repeat_ngram_size: wanted 0, because Sluice does not support it");
  generation(R"({"repetition_penalty": 0})", "repetition_penalty: wanted a number from 0.01 to 100, found 0");
  generation(R"({"temperature": 1000})", "temperature: wanted a number from 0 to 100, found 1000");
  generation("[]", "wanted an object");
}

TEST(ModelCommand, SaysWhyAFolderCannotBeWritten) {
  expect_refusal({"make-checkpoint", "/dev/null/x"}, {"/dev/null/x: cannot be created: Not a directory"});
  if (geteuid() == 0) return;  // root can write to any folder
  const fs::path path = fs::path(testing::TempDir()) / ("sluice_read_only_" + std::to_string(getpid()));
  fs::create_directories(path);
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_exec);
  expect_refusal({"make-checkpoint", path.string()}, {"cannot be created: Permission denied"});
  fs::remove(path);
}

TEST(ModelCommand, RefusesDamagedConfigs) {
  ModelCopy copy;
  copy.change_config([](Json& c) { c["hidden_size"] = 288; });
  expect_refusal(one_question(copy.path()),
                 {"model.embed_tokens.weight", "wanted BF16[1024, 288]", "found BF16[1024, 256]"});
  copy.change_config([](Json& c) { c["architectures"][0] = "LlamaForCausalLM"; });
  expect_refusal(one_question(copy.path()),
                 {"config.json: architectures", "LlamaForCausalLM", "GptOssForCausalLM"});
  copy.write("config.json", "{");
  expect_refusal(one_question(copy.path()), {"config.json: wanted JSON"});
  copy.remove("config.json");
  expect_refusal(one_question(copy.path()), {"config.json: cannot be opened"});
  expect_refusal(one_question("/nowhere"), {"/nowhere"});
}

TEST(ModelCommand, RefusesDamagedTokenizers) {
  ModelCopy copy;
  copy.remove("tokenizer.json");
  expect_refusal(one_question(copy.path()), {"tokenizer.json: cannot be opened"});
  copy.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  expect_refusal(one_question(copy.path()), {"tokenizer.json"});
  std::string text = text_of(kShipped / "tokenizer.json");
  for (size_t at; (at = text.find("<|channel|>")) != std::string::npos;) text.replace(at, 11, "<|chennel|>");
  copy.write("tokenizer.json", text);
  expect_refusal(one_question(copy.path()), {"chat template: wanted the template of a known format"});
}

TEST(ModelCommand, RefusesWhatDoesNotFit) {
  expect_refusal({"run", "-q", "-p", "What is 1 + 1?", "--max-model-len", "16"},
                 {"prompt: wanted fewer than 16 tokens (the context, max_model_len)"});
  expect_refusal({"run", "-q", "-p", "x", "--max-model-len", "100000"},
                 {"--max-model-len: wanted at most 4096"});
  expect_refusal({"bench", "-q", "--max-num-seqs", "16000", "--max-num-batched-tokens", "16000",
                  "--max-model-len", "4096"},
                 {"engine: wanted", "16000 sequences of 4096 tokens", "free; lower max_num_seqs"});
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // sanitizers map terabytes
  // Whichever resource is exhausted first (a mapping, weights, threads, the cache), one line names it.
  for (const char* kib : {"36000", "40000", "46000", "52000", "56000"}) {
    const Outcome o = run_process(
        {"bash", "-c", std::string("ulimit -v ") + kib + "; exec " SLUICE_COMMAND " run -q -p x"});
    if (o.status == 0) continue;  // the limit was high enough
    EXPECT_EQ(o.status, 2) << kib << ": " << o.err;
    EXPECT_EQ(o.err.substr(0, 8), "sluice: ") << kib << ": " << o.err;
    EXPECT_EQ(o.err.find('\n'), o.err.size() - 1) << kib << ": " << o.err;
    EXPECT_EQ(o.err.find("bad_alloc"), std::string::npos) << kib << ": " << o.err;
  }
  const Outcome crowd = run_process({"bash", "-c",
                                     "ulimit -s 8192 -v 90000; exec " SLUICE_COMMAND
                                     " run -q --threads 64 -p x"});  // 8 MiB per stack
  EXPECT_EQ(crowd.status, 2);
  EXPECT_NE(crowd.err.find("cpu: wanted 64 threads, found "), std::string::npos) << crowd.err;
#endif
  expect_refusal({"run", "-q", "-p", "x", "--dtype", "float61"}, {"--dtype", "float61", "float32"});
  expect_refusal({"run", "-q", "-p", "x", "--reasoning-effort", "hi"}, {"--reasoning-effort", "high"});
  expect_refusal({"run", "--max-seqs", "5"}, {"unknown flag '--max-seqs'; did you mean '--max-num-seqs'?"});
  expect_refusal({"run", "--json"}, {"needs a prompt (-p or -f)"});
  expect_refusal({"eval", "-q", "--questions", "/nowhere"}, {"/nowhere: cannot be opened"});
}

}  // namespace sluice::test
