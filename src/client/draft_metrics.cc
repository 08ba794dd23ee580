#include "client/draft_metrics.h"

#include <algorithm>
#include <charconv>

#include "client/prometheus_text.h"

namespace sluice {
namespace {

constexpr double kCountMax = 1e15;  // doubles count exactly up to this number
// Limit of the positions, because a vector is allocated up to the largest position that the server sends.
constexpr size_t kPositionsMax = 1024;

// The number in the label position="3"; nullopt if the label is missing or is not such a number.
std::optional<size_t> position_of(const MetricSample& sample) {
  const std::string* text = sample.label("position");
  if (!text) return {};
  size_t out = 0;
  const auto [stop, error] = std::from_chars(text->data(), text->data() + text->size(), out);
  if (error != std::errc() || stop != text->data() + text->size() || out >= kPositionsMax) return {};
  return out;
}

}  // namespace

double DraftCounters::acceptance_rate() const {
  return draft_tokens > 0 ? static_cast<double>(accepted) / static_cast<double>(draft_tokens) : 0;
}

double DraftCounters::acceptance_length() const {
  return drafts > 0 ? 1 + static_cast<double>(accepted) / static_cast<double>(drafts) : 1;
}

std::vector<double> DraftCounters::acceptance_by_position() const {
  std::vector<double> out;
  for (const int64_t count : accepted_at)
    out.push_back(drafts > 0 ? static_cast<double>(count) / static_cast<double>(drafts) : 0);
  return out;
}

DraftCounters draft_counters(std::string_view page) {
  DraftCounters out;
  for_each_sample(page, [&](const MetricSample& s) {
    if (!(s.value >= 0 && s.value <= kCountMax)) return;  // also skips NaN
    const auto count = static_cast<int64_t>(s.value);
    if (s.name == "vllm:spec_decode_num_drafts_total") out.drafts += count;
    if (s.name == "vllm:spec_decode_num_draft_tokens_total") out.draft_tokens += count;
    if (s.name == "vllm:spec_decode_num_accepted_tokens_total") out.accepted += count;
    if (s.name != "vllm:spec_decode_num_accepted_tokens_per_pos_total") return;
    const std::optional<size_t> position = position_of(s);
    if (!position) return;
    out.accepted_at.resize(std::max(out.accepted_at.size(), *position + 1));
    out.accepted_at[*position] += count;
  });
  return out;
}

std::optional<DraftCounters> drafts_between(const DraftCounters& before, const DraftCounters& after) {
  DraftCounters out{.drafts = after.drafts - before.drafts,
                    .draft_tokens = after.draft_tokens - before.draft_tokens,
                    .accepted = after.accepted - before.accepted,
                    .accepted_at = after.accepted_at};
  out.accepted_at.resize(std::max(before.accepted_at.size(), after.accepted_at.size()));
  bool decreased = out.draft_tokens < 0 || out.accepted < 0;
  for (size_t i = 0; i < before.accepted_at.size(); ++i) {
    out.accepted_at[i] -= before.accepted_at[i];
    decreased |= out.accepted_at[i] < 0;
  }
  if (decreased || out.drafts <= 0) return {};
  return out;
}

}  // namespace sluice
