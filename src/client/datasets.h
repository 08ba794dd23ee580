// The prompts of a load: random tokens, conversations of ShareGPT's form, or a file of prompts.
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

struct DatasetOptions {
  DatasetKind kind = DatasetKind::kRandom;
  std::string path =
      {};  // kShareGpt: JSON, [{"conversations": [{"value"}, {"value"}]}]; kCustom: lines {"prompt", "output_tokens"}
  int64_t random_input_len = 1024, random_output_len = 128;
  int64_t random_prefix_len =
      0;  // random tokens that all prompts begin with, before random_input_len of their own
  double random_range_ratio = 0;    // lengths are drawn from (1 - ratio) to (1 + ratio) of these
  int64_t vocab_size = 0;           // random ids are below it; 0: ids of plain words
  int64_t sharegpt_output_len = 0;  // 0: as many tokens as the conversation's answer
  int64_t custom_output_len = 0;    // 0: output_tokens of the line
  uint64_t seed = 0;
};

struct LoadPrompt {
  Json prompt;  // a string, or token ids
  int64_t output_len = 0;
};

// Whom prompts are for: /v1/chat/completions takes text alone.
struct LoadTarget {
  HttpClient& client;
  ApiBackend backend;
  std::string model, api_key;
  // Of the model; none: the server's /tokenize and /detokenize are asked.
  std::optional<Tokenizer> tokenizer = {};
};
// How many tokens a text is for the target's own tokenizer, which is there.
Result<int64_t> count_tokens(const std::string& text, const LoadTarget& target);

class Dataset {
 public:
  // Reads the file; finds out tokens where they must be known. kInvalidArgument, kIo or kCorrupt says what is missing, and where.
  static Result<Dataset> open(const DatasetOptions& options, const LoadTarget& target);
  // The next prompts; a file that has too few begins again. Random ones never repeat.
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
  std::vector<int32_t> ids_;  // random tokens are of these; empty: of all below vocab_size
  std::vector<Row> rows_;
  size_t next_ = 0;
};

}  // namespace sluice
