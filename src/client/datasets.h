// The prompts of a benchmark: random tokens, ShareGPT conversations, or a file of prompts.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "client/api_client.h"
#include "text/tokenizer/tokenizer.h"

namespace sluice {

enum class DatasetKind : uint8_t { kRandom, kShareGpt, kCustom };

// The names of options in error messages, as users know them. The defaults are the names of the fields.
struct DatasetNames {
  const char *path = "path", *vocab_size = "vocab_size", *custom_output_len = "custom_output_len";
  const char* tokenizer = "tokenizer";  // LoadTarget::tokenizer
};

struct DatasetOptions {
  DatasetKind kind = DatasetKind::kRandom;
  // kShareGpt: JSON, [{"conversations": [{"value"}, {"value"}]}]; kCustom: lines {"prompt", "output_tokens"}.
  std::string path = {};
  int64_t random_input_len = 1024, random_output_len = 128;
  // All prompts start with the same random_prefix_len random tokens. In each prompt, random_input_len other tokens follow.
  int64_t random_prefix_len = 0;
  // input and output lengths are sampled from (1 - ratio) to (1 + ratio) times the above
  double random_range_ratio = 0;
  // random token ids are less than this; 0: the ids of ordinary text are used
  int64_t vocab_size = 0;
  int64_t sharegpt_output_len = 0;  // 0: the length of the reply in the conversation
  int64_t custom_output_len = 0;    // 0: output_tokens in the prompt's line
  uint64_t seed = 0;
  DatasetNames names = {};
};

struct LoadPrompt {
  Json prompt;  // a string, or token ids
  int64_t output_len = 0;
};

// The server and model that receive the prompts. /v1/chat/completions accepts only text.
struct LoadTarget {
  HttpClient& client;
  ApiBackend backend;
  std::string model, api_key;
  // The model's tokenizer; nullopt: use the server's /tokenize and /detokenize.
  std::optional<Tokenizer> tokenizer = {};
};
// The number of tokens of `text` by `target.tokenizer`, which must be set.
Result<int64_t> count_tokens(const std::string& text, const LoadTarget& target);

class Dataset {
 public:
  // Reads the file, or determines the token ids for random prompts. The messages of kInvalidArgument, kIo and kCorrupt name the problem
  // and its place.
  static Result<Dataset> open(const DatasetOptions& options, const LoadTarget& target);
  // Returns the next prompts. A file with too few prompts starts over; random prompts never repeat.
  Result<std::vector<LoadPrompt>> draw(int64_t count, const LoadTarget& target);

 private:
  struct Row {
    std::string prompt, answer;
    int64_t output_len = 0;
  };
  explicit Dataset(const DatasetOptions& options) : options_(options), random_(options.seed) {}
  Status find_ids(const LoadTarget& target);
  Status read_sharegpt();
  Status read_custom();
  void shuffle();
  int64_t draw_id();
  Result<LoadPrompt> draw_random(const LoadTarget& target);
  Result<LoadPrompt> draw_row(const LoadTarget& target);
  DatasetOptions options_;
  Random random_;
  std::vector<int64_t> prefix_;
  // random tokens are sampled from these ids; empty: from all ids below vocab_size
  std::vector<int32_t> ids_;
  std::vector<Row> rows_;
  size_t next_ = 0;
};

}  // namespace sluice
