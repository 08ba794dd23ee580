#include "client/datasets.h"

#include <cmath>
#include <set>
#include <sstream>

namespace sluice {
namespace {

constexpr int64_t kDatasetBytesMax = int64_t{2} << 30;
// Limits in tokens. As in vLLM's and SGLang's clients, conversations outside of them are omitted.
constexpr int64_t kShareGptMin = 4, kShareGptPromptMax = 1024, kShareGptMax = 2048;

// Text with every pair of letters and many numbers, from which random prompts get their token ids. None of its tokens is special.
std::string plain_words() {
  std::string out;
  for (char a = 'a'; a <= 'z'; ++a)
    for (char b = 'a'; b <= 'z'; ++b) out += std::string{' ', a, b};
  for (int i = 0; i < 100; ++i) out += " " + std::to_string(i);
  return out;
}

Result<std::vector<int32_t>> local_tokens(const std::string& text, const LoadTarget& target) {
  std::vector<int32_t> ids;
  SLUICE_TRY(target.tokenizer->encode(text, Specials::kAsText, &ids));
  return ids;
}

Result<Json> tokens_of(const std::string& text, const LoadTarget& target) {
  if (target.tokenizer) {
    const auto ids = local_tokens(text, target);
    return ids.ok() ? Result<Json>(Json(ids.value())) : Result<Json>(ids.status());
  }
  // add_special_tokens is false, because a beginning-of-sequence token is not part of the text.
  const Json body = {{"model", target.model}, {"prompt", text}, {"add_special_tokens", false}};
  const auto answer =
      fetch_json(target.client, {.path = "/tokenize", .body = body.dump(), .api_key = target.api_key});
  if (!answer.ok()) return answer.status();
  const auto tokens = JsonAt(answer.value(), "/tokenize").at("tokens");
  if (!tokens.ok()) return tokens.status();
  if (!tokens.value().value().is_array()) return tokens.value().wrong("an array");
  return tokens.value().value();
}

Result<std::string> text_of(const Json& ids, const LoadTarget& target) {
  if (target.tokenizer) return valid_utf8(target.tokenizer->decode(ids.get<std::vector<int32_t>>()));
  const Json body = {{"model", target.model}, {"tokens", ids}};
  const auto answer =
      fetch_json(target.client, {.path = "/detokenize", .body = body.dump(), .api_key = target.api_key});
  if (!answer.ok()) return answer.status();
  return JsonAt(answer.value(), "/detokenize").string("prompt");
}

}  // namespace

Result<int64_t> count_tokens(const std::string& text, const LoadTarget& target) {
  const auto ids = local_tokens(text, target);
  return ids.ok() ? Result<int64_t>(std::ssize(ids.value())) : Result<int64_t>(ids.status());
}

Result<Dataset> Dataset::open(const DatasetOptions& options, const LoadTarget& target) {
  Dataset out(options);
  if (options.kind != DatasetKind::kRandom && options.path.empty())
    return invalid(options.names.path + std::string(": wanted the data set's file, found none"));
  if (options.kind == DatasetKind::kRandom && options.vocab_size == 0) SLUICE_TRY(out.find_ids(target));
  if (options.kind == DatasetKind::kShareGpt) SLUICE_TRY(out.read_sharegpt());
  if (options.kind == DatasetKind::kCustom) SLUICE_TRY(out.read_custom());
  out.shuffle();
  if (options.kind == DatasetKind::kRandom)
    for (int64_t i = 0; i < options.random_prefix_len; ++i) out.prefix_.push_back(out.draw_id());
  return out;
}

Status Dataset::find_ids(const LoadTarget& target) {
  const auto tokens = tokens_of(plain_words(), target);
  const DatasetNames& names = options_.names;
  if (!tokens.ok())
    return {tokens.status().code, std::string(names.vocab_size) + ": wanted a number, a " + names.tokenizer +
                                      ", or a server that has /tokenize; found " + tokens.status().message};
  std::set<int32_t> ids;
  for (const Json& id : tokens.value())
    if (id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX)
      ids.insert(id.get<int32_t>());
  if (ids.empty()) return {Code::kCorrupt, "/tokenize: wanted token ids, found " + tokens.value().dump()};
  ids_.assign(ids.begin(), ids.end());
  return {};
}

Status Dataset::read_sharegpt() {
  const auto json = read_json(options_.path, kDatasetBytesMax);
  if (!json.ok()) return json.status();
  const auto entries = JsonAt(json.value(), options_.path).items();
  if (!entries.ok()) return entries.status();
  for (const JsonAt& entry : entries.value()) {
    if (!entry.value().is_object() || !entry.has("conversations")) continue;
    const auto turns = entry.at("conversations").value().items();
    if (!turns.ok()) return turns.status();
    if (turns.value().size() < 2) continue;
    const auto prompt = turns.value()[0].string("value"), answer = turns.value()[1].string("value");
    if (!prompt.ok()) return prompt.status();
    if (!answer.ok()) return answer.status();
    rows_.push_back({prompt.value(), answer.value(), options_.sharegpt_output_len});
  }
  if (rows_.empty())
    return {Code::kCorrupt, options_.path + ": wanted a conversation of two turns, found none"};
  return {};
}

Status Dataset::read_custom() {
  const auto text = read_file(options_.path, kDatasetBytesMax);
  if (!text.ok()) return text.status();
  std::istringstream lines(text.value());
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = options_.path + " line " + std::to_string(number);
    const auto json = parse_json(line, where);
    if (!json.ok()) return json.status();
    const JsonAt at(json.value(), where);
    const auto prompt = at.string("prompt");
    if (!prompt.ok()) return prompt.status();
    Row row{prompt.value(), "", options_.custom_output_len};
    if (row.output_len == 0) {
      const auto length = at.integer("output_tokens", 1, INT32_MAX);
      if (!length.ok())
        return {length.status().code,
                length.status().message + " (or " + options_.names.custom_output_len + " for all)"};
      row.output_len = length.value();
    }
    rows_.push_back(std::move(row));
  }
  if (rows_.empty()) return {Code::kCorrupt, options_.path + ": wanted at least one prompt, found none"};
  return {};
}

void Dataset::shuffle() {
  for (size_t i = rows_.size(); i > 1; --i)
    std::swap(rows_[i - 1], rows_[static_cast<size_t>(random_.integer(0, static_cast<int64_t>(i) - 1))]);
}

int64_t Dataset::draw_id() {
  const int64_t all = ids_.empty() ? options_.vocab_size : std::ssize(ids_);
  const int64_t index = random_.integer(0, all - 1);
  return ids_.empty() ? index : ids_[static_cast<size_t>(index)];
}

Result<LoadPrompt> Dataset::draw_random(const LoadTarget& target) {
  const auto length = [this](int64_t mean) {
    const double low = static_cast<double>(mean) * (1 - options_.random_range_ratio);
    const double high = static_cast<double>(mean) * (1 + options_.random_range_ratio);
    return std::max<int64_t>(
        1, random_.integer(static_cast<int64_t>(std::floor(low)), static_cast<int64_t>(std::ceil(high))));
  };
  const int64_t tokens = length(options_.random_input_len);
  LoadPrompt out{.prompt = prefix_, .output_len = length(options_.random_output_len)};
  for (int64_t i = 0; i < tokens; ++i) out.prompt.push_back(draw_id());
  if (target.backend == ApiBackend::kOpenai) return out;
  const auto text = text_of(out.prompt, target);
  if (!text.ok()) return text.status();
  out.prompt = text.value();
  return out;
}

Result<LoadPrompt> Dataset::draw_row(const LoadTarget& target) {
  for (size_t seen = 0; seen < rows_.size(); ++seen) {
    Row& row = rows_[next_];
    next_ = (next_ + 1) % rows_.size();
    if (options_.kind == DatasetKind::kCustom) return LoadPrompt{row.prompt, row.output_len};
    const auto prompt = tokens_of(row.prompt, target);
    if (!prompt.ok()) return prompt.status();
    const auto in = static_cast<int64_t>(prompt.value().size());
    int64_t out = row.output_len;
    if (out == 0) {
      const auto answer = tokens_of(row.answer, target);
      if (!answer.ok()) return answer.status();
      out = static_cast<int64_t>(answer.value().size());
    }
    const bool short_answer = options_.sharegpt_output_len == 0 && out < kShareGptMin;
    if (in >= kShareGptMin && in <= kShareGptPromptMax && in + out <= kShareGptMax && !short_answer)
      return LoadPrompt{row.prompt, out};
  }
  return Status{Code::kCorrupt,
                options_.path +
                    ": wanted a conversation of 4 to 1024 tokens and at most 2048 with its answer, "
                    "found none"};
}

Result<std::vector<LoadPrompt>> Dataset::draw(int64_t count, const LoadTarget& target) {
  std::vector<LoadPrompt> out;
  for (int64_t i = 0; i < count; ++i) {
    auto one = options_.kind == DatasetKind::kRandom ? draw_random(target) : draw_row(target);
    if (!one.ok()) return one.status();
    out.push_back(std::move(one).value());
  }
  return out;
}

}  // namespace sluice
