#include "text/answer_gate.h"

#include <algorithm>
#include <utility>

#include "text/harmony_tools.h"

namespace sluice {

Result<AnswerGate> AnswerGate::from(const Harmony& harmony, const AnswerEnds& ends) {
  if (!ends.final_message && ends.functions.empty())
    return invalid("answer: neither a final message nor a call is allowed; allow one of them");
  std::vector<Header> headers;
  // kParse is safe, because names of functions cannot contain the text of a special token.
  const auto add = [&](const std::string& text, Place leads_to, size_t function = 0) {
    headers.push_back({.tokens = {}, .leads_to = leads_to, .function = function});
    return harmony.tokenizer().encode(text, Specials::kParse, &headers.back().tokens);
  };
  if (ends.final_message) SLUICE_TRY(add("<|channel|>final<|message|>", Place::kFinal));
  for (size_t f = 0; f < ends.functions.size(); ++f)
    SLUICE_TRY(add(call_header(ends.functions[f]), Place::kCall, f));
  AnswerGate gate;
  std::vector<int32_t> next;
  SLUICE_TRY(harmony.tokenizer().encode("<|start|>assistant", Specials::kParse, &next));
  std::vector<Header> after_analysis = headers;
  for (Header& h : after_analysis) h.tokens.insert(h.tokens.begin(), next.begin(), next.end());
  SLUICE_TRY(add("<|channel|>analysis<|message|>", Place::kAnalysis));
  gate.headers_after_analysis_ = std::make_shared<const std::vector<Header>>(std::move(after_analysis));
  gate.headers_ = std::move(headers);
  gate.end_ = *harmony.tokenizer().id_of("<|end|>");
  if (ends.continues) gate.place_ = Place::kFinal;
  return gate;
}

std::vector<int32_t> AnswerGate::next() const {
  std::vector<int32_t> out;
  for (const Header& h : headers_)
    if (std::find(out.begin(), out.end(), h.tokens[at_]) == out.end()) out.push_back(h.tokens[at_]);
  return out;
}

void AnswerGate::arrive(const Header& header) {
  place_ = header.leads_to;
  function_ = header.function;
}

void AnswerGate::accept(int32_t id) {
  if (place_ == Place::kAnalysis && id == end_) {
    headers_ = *headers_after_analysis_, at_ = 0, place_ = Place::kHeader;
  } else if (place_ == Place::kHeader) {
    const Header last = headers_.back();
    std::erase_if(headers_, [&](const Header& h) { return h.tokens[at_] != id; });
    ++at_;
    if (headers_.empty()) return arrive(last);
    // No header is a prefix of another header, because all end with <|message|>, so a complete header is the only one left.
    if (headers_.front().tokens.size() == at_) arrive(headers_.front());
  }
}

}  // namespace sluice
