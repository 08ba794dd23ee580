#include "text/final_gate.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace sluice {

Result<FinalMessageGate> FinalMessageGate::from(const Harmony& harmony) {
  const auto words = [&](std::string_view text, std::vector<int32_t>* ids) {
    return harmony.tokenizer().encode(text, Specials::kAsText, ids);
  };
  const auto header = [&](std::string_view channel, std::vector<int32_t>* ids) -> Status {
    ids->push_back(harmony.channel_);
    SLUICE_TRY(words(channel, ids));
    ids->push_back(harmony.message_);
    return {};
  };
  FinalMessageGate gate;
  Header analysis{.tokens = {}, .leads_to = Place::kAnalysis}, final{.tokens = {}, .leads_to = Place::kFinal};
  SLUICE_TRY(header("analysis", &analysis.tokens));
  SLUICE_TRY(header("final", &final.tokens));
  Header next{.tokens = {harmony.start_}, .leads_to = Place::kFinal};
  SLUICE_TRY(words(text(ChatRole::kAssistant), &next.tokens));
  next.tokens.insert(next.tokens.end(), final.tokens.begin(), final.tokens.end());
  gate.behind_analysis_ = std::make_shared<const Header>(std::move(next));
  gate.headers_ = {std::move(analysis), std::move(final)};
  gate.end_ = harmony.end_;
  return gate;
}

std::vector<int32_t> FinalMessageGate::next() const {
  std::vector<int32_t> out;
  for (const Header& h : headers_)
    if (std::find(out.begin(), out.end(), h.tokens[at_]) == out.end()) out.push_back(h.tokens[at_]);
  return out;
}

void FinalMessageGate::accept(int32_t id) {
  if (place_ == Place::kAnalysis && id == end_) {
    headers_ = {*behind_analysis_}, at_ = 0, place_ = Place::kHeader;
  } else if (place_ == Place::kHeader) {
    std::erase_if(headers_, [&](const Header& h) { return h.tokens[at_] != id; });
    ++at_;
    if (headers_.empty())
      place_ = Place::kFinal;
    else if (headers_.front().tokens.size() == at_)
      place_ = headers_.front().leads_to;
  }
}

}  // namespace sluice
