// Ctrl-C, and control characters on a terminal.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "harness/model_copy.h"
#include "harness/process.h"

namespace sluice::test {
namespace {

// A model that generates token 0 until the context is full: zero weights in the last norm make all logits 0.
class EndlessModel : public ModelCopy {
 public:
  EndlessModel() {
    change_weights([](std::string& bytes) {
      bytes.replace(offset_of(bytes, "model.norm.weight"), 256 * 2, 256 * 2, '\0');
    });
    change_config([](Json& c) { c["max_position_embeddings"] = 131072; });
  }
  std::vector<std::string> ask() const {
    return {SLUICE_COMMAND,    "run",    path(),           "-q", "-p", "x",
            "--max-model-len", "131072", "--max-num-seqs", "1"};
  }
  // Makes a byte the text of token 0.
  void say(const std::string& letter) {
    Json json = parse_json(text_of(kShipped / "tokenizer.json"), "tokenizer").value();
    Json& vocab = json["model"]["vocab"];
    for (auto& [text, id] : vocab.items())
      if (id == 0) id = vocab[letter];
    vocab[letter] = 0;
    write("tokenizer.json", json.dump());
  }
};

fs::path fresh_path(const std::string& name) {
  const fs::path path = fs::path(testing::TempDir()) / (name + std::to_string(getpid()));
  fs::remove_all(path);
  return path;
}

// Waits until make-checkpoint begins to write weights.
bool writing(const fs::path& directory) {
  for (int tries = 0; tries < 3000; ++tries) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(directory, error), end; !error && it != end; it.increment(error))
      if (it->path().filename().string().starts_with("model.safetensors.partial")) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

}  // namespace

TEST(Interrupt, CtrlCEndsTheAnswer) {
  const EndlessModel model;
  Process process(model.ask());
  ASSERT_TRUE(process.wait_for_out(10));
  process.send(SIGINT);
  const Outcome o = process.finish();
  EXPECT_EQ(o.status, 130) << o.err;  // the program ended normally and reported an incomplete answer
  EXPECT_EQ(o.out.back(), '\n');
}

// The program blocks on a full pipe and cannot check its stop flag: the first signal requests a stop, the
// second signal kills it.
TEST(Interrupt, ASecondCtrlCEndsTheProgram) {
  const EndlessModel model;
  Process process(model.ask(), Process::Out::kNarrow);
  ASSERT_TRUE(process.wait_until_full());
  process.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ASSERT_TRUE(process.wait_until_full()) << "the first signal ended the program";
  process.send(SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const Outcome o = process.finish();
  EXPECT_EQ(o.signal, SIGINT) << "status " << o.status << ": " << o.err;
}

TEST(Interrupt, JsonSaysThatTheAnswerIsNotWhole) {
  const EndlessModel model;
  std::vector<std::string> words = model.ask();
  words.insert(words.end(), {"--json"});
  words.erase(std::find(words.begin(), words.end(), "-q"));
  Process process(words);
  ASSERT_TRUE(process.wait_for_err(10));  // the line about the model; the answer follows at once
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  process.send(SIGINT);
  const Outcome o = process.finish();
  EXPECT_EQ(o.status, 130) << o.err;
  const auto json = parse_json(o.out, "output");
  ASSERT_TRUE(json.ok()) << o.out;
  EXPECT_EQ(json.value()["finish_reason"], "abort");
}

TEST(Interrupt, MakeCheckpointLeavesNothing) {
  const fs::path path = fresh_path("sluice_interrupted_");
  const std::vector<std::string> words = {SLUICE_COMMAND, "make-checkpoint", path.string(), "--layers", "1"};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Process process(words);
    ASSERT_TRUE(writing(path));
    process.send(signal);
    const Outcome o = process.finish();
    if (signal == SIGINT)
      EXPECT_EQ(o.status, 130) << o.err;
    else
      EXPECT_EQ(o.signal, signal) << o.err;
    EXPECT_NE(o.err.find("interrupted"), std::string::npos) << o.err;
    EXPECT_FALSE(fs::exists(path));
  }
}

// A killed process leaves its folder; the next process cleans it up and uses it.
TEST(Interrupt, MakeCheckpointTakesAKilledOnesFolder) {
  const fs::path path = fresh_path("sluice_killed_");
  const std::vector<std::string> words = {SLUICE_COMMAND, "make-checkpoint", path.string(), "--layers", "1"};
  Process killed(words);
  ASSERT_TRUE(writing(path));
  killed.send(SIGKILL);
  EXPECT_EQ(killed.finish().signal, SIGKILL);
  ASSERT_TRUE(fs::exists(path));
  const fs::path left = fs::directory_iterator(path)->path();
  Process next(words);
  while (fs::exists(left)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(writing(path));
  next.send(SIGINT);
  EXPECT_EQ(next.finish().status, 130);
  fs::remove_all(path);
}

// Token 0 is ESC: a terminal must not interpret what a model generates, and a file gets it unchanged.
TEST(Terminal, ShowsControlCharactersOfTheModel) {
  EndlessModel model;
  model.say("\xc4\x9b");  // the byte-level spelling of byte 27
  std::vector<std::string> words = model.ask();
  words.insert(words.end(), {"--max-tokens", "1100"});  // longer than a message header may be
  const Outcome shown = Process(words, Process::Out::kTerminal).finish();
  EXPECT_EQ(shown.status, 0) << shown.err;
  EXPECT_EQ(shown.out.find('\x1b'), std::string::npos);
  EXPECT_NE(shown.out.find("\\x1b\\x1b"), std::string::npos) << shown.out;
  const Outcome plain = run_process(words);
  EXPECT_NE(plain.out.find("\x1b\x1b"), std::string::npos) << plain.out;
}

TEST(Terminal, ShowsControlCharactersOfTensorNames) {
  ModelCopy copy;
  copy.change_weights([](std::string& bytes) {
    // The JSON escape of ESC is as long as the six letters that it replaces.
    bytes.replace(bytes.find("lm_head.weight"), 7, "\\u001b_");
  });
  const Outcome inspected = run_process({SLUICE_COMMAND, "inspect", copy.path()});
  EXPECT_EQ(inspected.out.find('\x1b'), std::string::npos);
  EXPECT_NE(inspected.out.find("\\x1b_.weight"), std::string::npos) << inspected.out;
  copy.change_weights([](std::string& bytes) {
    const size_t name = bytes.find("lm_head.weight");
    bytes.replace(name, 7, "\\u001b_");
    bytes.replace(bytes.find("\"BF16\"", name), 6, "\"FF16\"");
  });
  const Outcome refused = run_process({SLUICE_COMMAND, "run", copy.path(), "-q", "-p", "x"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(refused.err.find('\x1b'), std::string::npos) << refused.err;
  EXPECT_NE(refused.err.find("\\x1b_.weight.dtype"), std::string::npos) << refused.err;
}

}  // namespace sluice::test
