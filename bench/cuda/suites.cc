#include "cuda/suites.h"

#include <algorithm>
#include <cmath>

#include "report/panels.h"

namespace sluice::bench {

bool Bench::wants(const std::string& model) const {
  const auto& models = options_.models;
  return models.empty() || std::find(models.begin(), models.end(), model) != models.end();
}

std::vector<int64_t> Bench::tokens() const {
  if (!options_.tokens.empty()) return options_.tokens;
  return {1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384};
}

int64_t Bench::tokens_max() const {
  const std::vector<int64_t> all = tokens();
  return *std::max_element(all.begin(), all.end());
}

void Bench::start(std::string suite) {
  suite_ = std::move(suite);
  skipped_.clear();
  end_ = part_end_ = Clock::now() + std::chrono::microseconds(static_cast<int64_t>(1e6 * options_.seconds));
}

void Bench::share(int64_t parts) {
  const auto now = Clock::now();
  part_end_ = end_ > now ? now + (end_ - now) / std::max<int64_t>(parts, 1) : end_;
}

bool Bench::over(const std::string& model, int64_t tokens) {
  if (options_.seconds == 0 || Clock::now() < part_end_) return false;
  std::string& list = skipped_[model];
  list += (list.empty() ? "" : " ") + std::to_string(tokens);
  return true;
}

Status Bench::finish() {
  std::vector<std::string> lines;
  for (const auto& [model, list] : skipped_)
    lines.push_back(suite_ + " " + model + ": skipped, its share of --seconds was used up: M = " + list);
  return report_({}, lines);
}

Status Bench::hold(Contest contest, std::vector<std::string> complaints) const {
  if (!options_.candidates)
    std::erase_if(contest.contenders, [](const Contender& c) { return c.who == Who::kCandidate; });
  std::vector<Outcome> outcomes;
  const Status status = measure(device_, contest, options_.replays, &outcomes, &complaints);
  SLUICE_TRY(report_(outcomes, complaints));
  return status;
}

Status Bench::hold_paced(const Contest& contest, std::vector<std::string> complaints) {
  std::vector<Outcome> outcomes;
  const Status status =
      measure_paced(device_, contest, options_.pace, options_.replays, *power_, &outcomes, &complaints);
  // One kind of row at a time, because a printed line compares rows with the same note.
  std::vector<Outcome> sustained;
  for (size_t i = outcomes.size(); i-- > 0;)
    if (outcomes[i].row.note.starts_with("sustained")) {
      sustained.insert(sustained.begin(), std::move(outcomes[i]));
      outcomes.erase(outcomes.begin() + static_cast<std::ptrdiff_t>(i));
    }
  SLUICE_TRY(report_(outcomes, complaints));
  SLUICE_TRY(report_(sustained, {}));
  return status;
}

int64_t Bench::launches_for(int64_t weight_bytes, double bytes, double flops) const {
  constexpr double kShortestUs = 400;  // per captured graph: a hundred times the cost of its launch
  constexpr double kOverheadUs = 1.5;  // per run, in addition to the time for its bytes
  constexpr int64_t kFewest = 10, kMax = 200;
  const double us = floor_us(bytes, flops) + kOverheadUs;
  const int64_t timed = std::clamp(static_cast<int64_t>(std::ceil(kShortestUs / us)), kFewest, kMax);
  if (weight_bytes == 0) return timed;
  // Bytes between two uses of a weight: all other weights, and the rotating activations.
  const double others = std::min(kTurns * (bytes - static_cast<double>(weight_bytes)),
                                 static_cast<double>(options_.cold_bytes));
  const double cold = (static_cast<double>(options_.cold_bytes) - others) / static_cast<double>(weight_bytes);
  return std::max(timed, static_cast<int64_t>(std::ceil(cold)));
}

}  // namespace sluice::bench
