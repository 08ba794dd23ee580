// Arbitrary bytes as a request of the OpenAI API: the request is rejected with a field or a position, or its
// values are within their bounds.
// Input: the first byte chooses the endpoint, the rest is the body.
#include <cstdint>

#include "base/utf8.h"
#include "server/requests/request.h"
#include "text/harmony_tools.h"

namespace {

using namespace sluice;
using namespace sluice;

constexpr ApiLimits kLimits{.vocab = 1000, .max_choices = 16, .temperature_max = 2};

void require(bool ok) {
  if (!ok) __builtin_trap();
}

template <class T>
const T* accepted(const Result<T, ApiError>& read) {
  if (read.ok()) return &read.value();
  const ApiError* error = &read.error();
  require(error->status == 400 && error->message.find("wanted") != std::string::npos);
  require(error->param.empty() || error->message.starts_with(error->param));
  require(error->message == valid_utf8(error->message));
  return nullptr;
}

std::shared_ptr<const StoredResponse> earlier(const std::string& id) {
  if (id != "r") return {};
  StoredResponse out;
  out.conversation = {.messages = {{.content = "q"}}, .function_of = {{"c", "f"}}};
  return std::make_shared<StoredResponse>(std::move(out));
}

void check(const ApiRequest& r) {
  require(r.choices >= 1 && r.choices <= kLimits.max_choices);
  require(r.kind == ApiKind::kChat || r.kind == ApiKind::kResponse ||
          (!r.prompts.empty() && r.sampling.max_tokens));
  require(std::ssize(r.prompts) * r.choices <= kLimits.max_choices);
  require(r.stream || !r.include_usage);
  require(r.kind == ApiKind::kCompletion || !r.conversation.messages.empty() ||
          !r.conversation.instructions.empty());
  for (const FunctionTool& f : r.tools.functions) require(functions_section({f}).ok());
  require(r.tools.choice != ApiTools::Choice::kRequired || r.tools.offered());
  for (size_t i = 0; i < r.stop.size(); ++i) require(!r.stop[i].empty());
  for (const Prompt& prompt : r.prompts)
    if (const auto* ids = std::get_if<std::vector<int32_t>>(&prompt))
      for (const int32_t id : *ids) require(id >= 0 && id < kLimits.vocab);
  const SamplingParams& s = r.sampling;
  require(!s.temperature || (*s.temperature >= 0 && *s.temperature <= kLimits.temperature_max));
  require(!s.top_p || (*s.top_p >= 0 && *s.top_p <= 1));
  require(!s.top_k || *s.top_k >= 0);
  for (const auto& [id, bias] : s.logit_bias)
    require(id >= 0 && id < kLimits.vocab && bias >= -100 && bias <= 100);
  require(!s.presence_penalty || (*s.presence_penalty >= -2 && *s.presence_penalty <= 2));
  require(!s.max_tokens || *s.max_tokens >= (r.kind == ApiKind::kCompletion && r.echo ? 0 : 1));
  require(!s.logprobs || (*s.logprobs >= 0 && *s.logprobs <= kLimits.logprobs_max));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (static_cast<uint8_t>(data[0] - '0') % 5) {
    case 0:
      if (const auto read = read_chat(body, kLimits); const auto* r = accepted(read)) check(*r);
      break;
    case 1:
      if (const auto read = read_completion(body, kLimits); const auto* r = accepted(read)) check(*r);
      break;
    case 2:
      if (const auto read = read_tokenize(body, kLimits); const auto* r = accepted(read))
        require(!r->text || r->chat.conversation.messages.empty());
      break;
    case 3:
      if (const auto read = read_detokenize(body, kLimits); const auto* r = accepted(read))
        for (const int32_t id : r->tokens) require(id >= 0 && id < kLimits.vocab);
      break;
    default:
      if (const auto read = read_response(body, kLimits, earlier); const auto* r = accepted(read)) check(*r);
  }
  return 0;
}
