#include "text/chat_turns.h"

namespace sluice {
namespace {

Turn::Part part_of(const Message& m) {
  if (!called_function(m.recipient).empty()) return Turn::Part::kCalls;
  if (is_reasoning(m)) return Turn::Part::kReasoning;
  return is_final_text(m) ? Turn::Part::kFinalText : Turn::Part::kText;
}

bool goes_on(const Turn& turn, Turn::Part part) {
  if (turn.role != ChatRole::kAssistant || turn.last == Turn::Part::kFinalText) return false;
  if (part == Turn::Part::kCalls) return true;
  return turn.last == Turn::Part::kReasoning && part != Turn::Part::kReasoning;
}

}  // namespace

std::vector<Turn> turns_of(const std::vector<Message>& messages) {
  std::vector<Turn> turns;
  for (const Message& m : messages) {
    if (m.role != ChatRole::kAssistant) {
      turns.push_back({.role = m.role, .reasoning = {}, .text = m.content, .calls = {}});
      continue;
    }
    const Turn::Part part = part_of(m);
    if (turns.empty() || !goes_on(turns.back(), part))
      turns.push_back({.role = ChatRole::kAssistant, .reasoning = {}, .text = {}, .calls = {}});
    Turn& turn = turns.back();
    turn.last = part;
    if (part == Turn::Part::kCalls)
      turn.calls.push_back(&m);
    else
      (part == Turn::Part::kReasoning ? turn.reasoning : turn.text) = m.content;
  }
  return turns;
}

}  // namespace sluice
