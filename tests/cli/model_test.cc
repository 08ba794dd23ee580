// The command on models: the one that ships, and damaged ones.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "base/json.h"
#include "harness/process.h"

namespace sluice::test {
namespace {

namespace fs = std::filesystem;

const fs::path kShipped = fs::path(SLUICE_SOURCE_DIR) / "models/sluice-16e-tiny";

Outcome sluice(std::vector<std::string> words) {
  words.insert(words.begin(), SLUICE_COMMAND);
  return run_process(words);
}

std::string text_of(const fs::path& path) { return read_file(path.string(), 1 << 30).value(); }

// The shipped model in a directory of its own, to be damaged: files that stay unchanged are links.
class Copy {
 public:
  Copy() : path_(fs::path(testing::TempDir()) / ("sluice_copy_" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    for (const auto& file : fs::directory_iterator(kShipped))
      fs::create_symlink(file.path(), path_ / file.path().filename());
  }
  ~Copy() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  void write(const std::string& name, const std::string& text) {
    fs::remove(path_ / name);
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void remove(const std::string& name) { fs::remove(path_ / name); }
  void change_config(const std::function<void(Json&)>& change) {
    Json config = parse_json(text_of(kShipped / "config.json"), "config").value();
    change(config);
    write("config.json", config.dump());
  }
  // The weights with `change` applied to their bytes.
  void change_weights(const std::function<void(std::string&)>& change) {
    std::string bytes = text_of(kShipped / "model.safetensors");
    change(bytes);
    write("model.safetensors", bytes);
  }

 private:
  fs::path path_;
};

// Where the bytes of a tensor begin in the file.
size_t offset_of(const std::string& file, const std::string& tensor) {
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const Json json = Json::parse(file.substr(8, header));
  return 8 + header + json.at(tensor).at("data_offsets").at(0).get<size_t>();
}

// Status 2, nothing on standard output, one line that says `parts`.
void expect_refusal(const std::vector<std::string>& words, const std::vector<std::string>& parts) {
  const Outcome o = sluice(words);
  EXPECT_EQ(o.status, 2) << o.err << o.out;
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(o.err.substr(0, 8), "sluice: ") << o.err;
  EXPECT_EQ(o.err.find('\n'), o.err.size() - 1) << o.err;
  for (const std::string& part : parts)
    EXPECT_NE(o.err.find(part), std::string::npos) << part << "\nin " << o.err;
}

std::vector<std::string> ask(const std::string& model) {
  return {"run", model, "-q", "-p", "What is 1 + 1?"};
}

}  // namespace

TEST(ModelCommand, AnswersTheQuestionOfTheReadme) {
  const Outcome o = sluice({"run", "-p", "What is 417 + 268?", "--max-tokens", "500"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "685\n");
  EXPECT_NE(o.err.find("GptOssForCausalLM, "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("tokens/s"), std::string::npos) << o.err;
  // Not a terminal: no bar, no colours, no reasoning.
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
  EXPECT_FALSE(json.value()["reasoning"].get<std::string>().empty());
}

TEST(ModelCommand, EvalReportsEachTask) {
  const Outcome o = sluice({"eval", "-q", "--limit", "2", "--max-tokens", "500", "--json"});
  EXPECT_EQ(o.status, 0) << o.err;
  const auto json = parse_json(o.out, "eval");
  ASSERT_TRUE(json.ok()) << o.out;
  EXPECT_GE(json.value()["tasks"].size(), 6u);
  for (const auto& [name, task] : json.value()["tasks"].items()) EXPECT_EQ(task["questions"], 2) << name;
  EXPECT_GE(json.value()["accuracy"], 0.8);
}

TEST(ModelCommand, InspectSaysWhatBecomesOfEachTensor) {
  const Outcome o = sluice({"inspect"});
  EXPECT_EQ(o.status, 0) << o.err << o.out;
  EXPECT_NE(o.out.find("layer 0 experts: packed as panels16"), std::string::npos);
  EXPECT_NE(o.out.find("GptOssForCausalLM, 0 wrong, 0 missing"), std::string::npos);
}

TEST(ModelCommand, MakeCheckpointRunsInBenchAndRefusesToOverwrite) {
  const fs::path path = fs::path(testing::TempDir()) / ("sluice_made_" + std::to_string(getpid()));
  fs::remove_all(path);
  expect_refusal({"make-checkpoint", path.string(), "--like", "gpt-os-20b"}, {"gpt-os-20b", "gpt-oss-20b"});
  EXPECT_FALSE(fs::exists(path));
  fs::create_directories(path);
  std::ofstream(path / "mine") << "x";
  expect_refusal({"make-checkpoint", path.string()}, {"wanted a new or empty directory"});
  EXPECT_EQ(text_of(path / "mine"), "x");
  fs::remove_all(path);
}

TEST(ModelCommand, ExplainsAWholeModelOnADeviceThatIsNotHere) {
  const Outcome o = sluice({"explain", "--model", std::string(SLUICE_SOURCE_DIR) + "/tests/data/gpt-oss-20b",
                            "--tokens", "64", "--device", "cpu-avx512"});
  EXPECT_EQ(o.status, 0) << o.err << o.out;
  EXPECT_NE(o.out.find("     12  attention.sliding"), std::string::npos) << o.out;
  EXPECT_NE(o.out.find("     24  experts.up"), std::string::npos);
  expect_refusal({"explain", "--model", "/nowhere"},
                 {"--model: wanted a directory with config.json", "'/nowhere'"});
  expect_refusal({"explain", "linear", "--model", "gpt-oss-20b"}, {"found both"});
}

TEST(ModelCommand, RefusesFilesThatLie) {
  Copy copy;
  copy.change_weights([](std::string& bytes) { bytes.resize(bytes.size() / 2); });
  expect_refusal(ask(copy.path()), {"model.safetensors", "wanted", "found"});
  copy.change_weights([](std::string& bytes) { bytes.resize(4); });
  expect_refusal(ask(copy.path()), {"model.safetensors"});
  copy.change_weights([](std::string& bytes) { bytes.replace(0, 8, 8, '\xff'); });
  expect_refusal(ask(copy.path()), {"model.safetensors"});
  copy.change_weights([](std::string& bytes) { bytes[8] = '['; });
  expect_refusal(ask(copy.path()), {"model.safetensors"});
  copy.change_weights([](std::string& bytes) { bytes.replace(bytes.find("lm_head.weight"), 7, "lm_hand"); });
  expect_refusal(ask(copy.path()), {"lm_head.weight", "lm_hand.weight"});
}

TEST(ModelCommand, RefusesAScaleThatIsNoNumber) {
  Copy copy;
  const std::string tensor = "model.layers.1.mlp.experts.down_proj_scales";
  copy.change_weights(
      [&](std::string& bytes) { bytes[offset_of(bytes, tensor) + 8 * 256 * 3 + 8 * 5 + 2] = '\xff'; });
  // [16, 256, 8]: expert 3, row 5, block 2.
  expect_refusal(ask(copy.path()), {tensor, "expert 3", "row 5", "255"});
}

TEST(ModelCommand, RefusesConfigsThatLie) {
  Copy copy;
  copy.change_config([](Json& c) { c["hidden_size"] = 288; });
  expect_refusal(ask(copy.path()),
                 {"model.embed_tokens.weight", "wanted BF16[1024, 288]", "found BF16[1024, 256]"});
  copy.change_config([](Json& c) { c["architectures"][0] = "LlamaForCausalLM"; });
  expect_refusal(ask(copy.path()), {"config.json: architectures", "LlamaForCausalLM", "GptOssForCausalLM"});
  copy.write("config.json", "{");
  expect_refusal(ask(copy.path()), {"config.json: wanted JSON"});
  copy.remove("config.json");
  expect_refusal(ask(copy.path()), {"config.json: cannot be opened"});
  expect_refusal(ask("/nowhere"), {"/nowhere"});
}

TEST(ModelCommand, RefusesTokenizersThatLie) {
  Copy copy;
  copy.remove("tokenizer.json");
  expect_refusal(ask(copy.path()), {"tokenizer.json: cannot be opened"});
  copy.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
  expect_refusal(ask(copy.path()), {"tokenizer.json"});
  std::string text = text_of(kShipped / "tokenizer.json");
  for (size_t at; (at = text.find("<|channel|>")) != std::string::npos;) text.replace(at, 11, "<|chennel|>");
  copy.write("tokenizer.json", text);
  expect_refusal(ask(copy.path()), {"tokenizer.json", "<|channel|>"});
}

TEST(ModelCommand, RefusesWhatDoesNotFit) {
  expect_refusal({"run", "-q", "-p", "What is 1 + 1?", "--max-model-len", "16"},
                 {"prompt: wanted fewer than 16 tokens (the context, --max-model-len)"});
  expect_refusal({"run", "-q", "-p", "x", "--max-model-len", "100000"},
                 {"--max-model-len: wanted at most 4096"});
  expect_refusal({"bench", "-q", "--max-num-seqs", "16000", "--max-num-batched-tokens", "16000",
                  "--max-model-len", "4096"},
                 {"engine: wanted", "16000 sequences of 4096 tokens", "free; lower --max-num-seqs"});
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they map terabytes of their own
  // Whatever the limit is short of (a mapping, weights, threads, the cache), one line names it.
  for (const char* kib : {"36000", "40000", "46000", "52000", "56000"}) {
    const Outcome o = run_process(
        {"bash", "-c", std::string("ulimit -v ") + kib + "; exec " SLUICE_COMMAND " run -q -p x"});
    if (o.status == 0) continue;  // it was enough
    EXPECT_EQ(o.status, 2) << kib << ": " << o.err;
    EXPECT_EQ(o.err.substr(0, 8), "sluice: ") << kib << ": " << o.err;
    EXPECT_EQ(o.err.find('\n'), o.err.size() - 1) << kib << ": " << o.err;
    EXPECT_EQ(o.err.find("bad_alloc"), std::string::npos) << kib << ": " << o.err;
  }
  const Outcome crowd = run_process({"bash", "-c",
                                     "ulimit -s 8192 -v 90000; exec " SLUICE_COMMAND
                                     " run -q --threads 64 -p x"});  // 8 MiB a stack
  EXPECT_EQ(crowd.status, 2);
  EXPECT_NE(crowd.err.find("cpu: wanted 64 threads, the system gave "), std::string::npos) << crowd.err;
#endif
  expect_refusal({"run", "-q", "-p", "x", "--dtype", "float61"}, {"--dtype", "float61", "float32"});
  expect_refusal({"run", "-q", "-p", "x", "--reasoning-effort", "hi"}, {"--reasoning-effort", "high"});
  expect_refusal({"run", "--max-seqs", "5"}, {"unknown flag '--max-seqs'; did you mean '--max-num-seqs'?"});
  expect_refusal({"run", "--json"}, {"wanted a prompt"});
  expect_refusal({"eval", "-q", "--questions", "/nowhere"}, {"/nowhere: cannot be opened"});
}

}  // namespace sluice::test
