#include "apps/run/reply_json.h"

#include "apps/common/json.h"

namespace sluice::apps {

// As in OpenAI's API, the bytes of a token are listed, too, because a token may be only a part of a character.
static OrderedJson token_json(const Tokenizer& tokenizer, int32_t id, float logprob) {
  const std::string_view piece = tokenizer.piece(id);
  return {{"token", piece},
          {"id", id},
          {"logprob", logprob},
          {"bytes", std::vector<uint8_t>(piece.begin(), piece.end())}};
}

static OrderedJson logprobs_json(const std::vector<GeneratedToken>& tokens, const Tokenizer& tokenizer) {
  OrderedJson out = OrderedJson::array();
  for (const GeneratedToken& t : tokens) {
    OrderedJson one = token_json(tokenizer, t.id, t.logprob), top = OrderedJson::array();
    for (const TokenLogprob& other : t.top_logprobs)
      top.push_back(token_json(tokenizer, other.id, other.logprob));
    one["rank"] = t.rank;
    one["top_logprobs"] = std::move(top);
    out.push_back(std::move(one));
  }
  return out;
}

std::string reply_json(const Reply& r, const Tokenizer& tokenizer) {
  OrderedJson out = {{"text", r.text},
                     {"reasoning", r.reasoning},
                     {"finish_reason", text(r.finish)},
                     {"recovered", r.recovered},
                     {"usage",
                      {{"prompt_tokens", r.prompt_tokens},
                       {"prompt_tokens_details", {{"cached_tokens", r.cached_tokens}}},
                       {"completion_tokens", r.completion_tokens}}},
                     {"first_token_seconds", r.first_token_seconds},
                     {"seconds", r.seconds}};
  const bool with_logprobs = !r.tokens.empty() && r.tokens.front().rank > 0;
  if (with_logprobs) out["logprobs"] = logprobs_json(r.tokens, tokenizer);
  return json_text(out);
}

}  // namespace sluice::apps
