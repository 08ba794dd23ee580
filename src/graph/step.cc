#include "graph/step.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/arena.h"
#include "dispatch/plan.h"

namespace sluice {
namespace {

constexpr double kGapUs = 1e12;  // cost of a stage without a kernel: above the cost of every kernel

}  // namespace

Result<Step> Step::plan(std::string name, const DeviceInfo& device, const Catalog& catalog, Graph graph,
                        int64_t tokens_max, const StepPolicy& policy, Gaps gaps) {
  if (tokens_max < 1 || tokens_max > kTableTokensMax)
    return invalid(name + ": tokens_max: wanted 1 to " + std::to_string(kTableTokensMax) + ", found " +
                   std::to_string(tokens_max));
  Step out;
  out.name_ = std::move(name);
  out.graph_ = std::make_unique<const Graph>(std::move(graph));
  out.tokens_max_ = tokens_max;
  out.gaps_ = gaps;
  out.backend_ = device.backend;
  out.phases_ = policy.phases;
  if (out.phases_.empty()) out.phases_.push_back({});
  out.phases_.back().last = tokens_max;
  Result<Pieces> pieces = Pieces::make(device, catalog, *out.graph_, out.phases_, policy);
  if (!pieces.ok()) {
    const Status& status = pieces.status();
    return Status{status.code,
                  out.name_ + (status.message.starts_with("policy.force") ? ": " : " ") + status.message};
  }
  out.pieces_ = std::move(pieces).value();
  if (Status status = out.plan_covers(policy); !status.ok()) return status;
  out.lay_out();
  return out;
}

size_t Step::phase_of(int64_t tokens) const {
  size_t i = 0;
  while (i + 1 < phases_.size() && phases_[i].last < tokens) ++i;
  return i;
}

// Dynamic programming from the last stage to the first: computes the least cost of all stages from each stage on, and the piece with
// which they begin. Among equal costs, a piece with more stages wins, as in decide_run().
std::vector<PlacedPiece> Step::cheapest(size_t phase, const Cost& cost) const {
  const auto serves = [&](const PieceKind& kind) { return cost(kind).has_value(); };
  const size_t stages = graph_->stages().size();
  std::vector<double> least_cost(stages + 1, kInfinity);
  std::vector<const PieceKind*> choice(stages, nullptr);
  least_cost[stages] = 0;
  for (size_t i = stages; i-- > 0;)
    for (const PieceKind* kind : pieces_.at(i, phase)) {
      const PlacedPiece piece{i, kind};
      if (!pieces_.allowed(piece, phase, serves)) continue;
      std::optional<double> own = cost(*kind);
      if (!own && gaps_ == Gaps::kShown && kind->stages() == 1) own = kGapUs;
      if (!own) continue;
      const double sum = *own + least_cost[piece.end()];
      if (sum < least_cost[i] || (choice[i] && sum == least_cost[i] && kind->stages() > choice[i]->stages()))
        least_cost[i] = sum, choice[i] = kind;
    }
  std::vector<PlacedPiece> out;
  for (size_t i = 0; i < stages; i = out.back().end()) {
    if (!choice[i]) return {};
    out.push_back({i, choice[i]});
  }
  return out;
}

std::vector<PlacedPiece> Step::cheapest_at(int64_t tokens) const {
  std::map<const PieceKind*, std::optional<double>> known;  // the layers of a model share kinds
  return cheapest(phase_of(tokens), [&](const PieceKind& kind) {
    const auto [at, added] = known.try_emplace(&kind);
    if (added && kind.serves(tokens)) at->second = kind.cost_us(tokens);
    return at->second;
  });
}

// Considers only kernels that accept all counts of the phase. At the counts 1, 2, 4, ... and the last, the cost of a cover is divided
// by the least cost at that count. The cover with the lowest average quotient wins.
std::vector<PlacedPiece> Step::cheapest_on_average(const StepPhase& phase, int64_t tokens_last) const {
  const size_t index = static_cast<size_t>(&phase - phases_.data());
  std::map<const PieceKind*, double> share;
  for (const auto& kind : pieces_.kinds())
    if (kind->serves_all(std::max<int64_t>(phase.first, 1), phase.last)) share[kind.get()] = 0;
  const auto serves_all = [&](const PieceKind& kind) { return share.contains(&kind); };
  for (int64_t tokens = std::max<int64_t>(phase.first, 1);; tokens = std::min(2 * tokens, tokens_last)) {
    const auto cost = [&](const PieceKind& kind) -> std::optional<double> {
      if (serves_all(kind)) return kind.cost_us(tokens);
      return {};
    };
    double least_cost = 0;
    for (const PlacedPiece& piece : cheapest(index, cost)) least_cost += piece.kind->cost_us(tokens);
    for (auto& [kind, sum] : share) sum += least_cost > 0 ? kind->cost_us(tokens) / least_cost : 0;
    if (tokens == tokens_last) break;
  }
  return cheapest(index, [&](const PieceKind& kind) -> std::optional<double> {
    const auto found = share.find(&kind);
    if (found == share.end()) return {};
    return found->second;
  });
}

// Returns the refusal of the first stage without a kernel.
Status Step::uncovered(int64_t tokens) const {
  const size_t phase = phase_of(tokens);
  for (size_t i = 0; i < graph_->stages().size(); ++i) {
    const auto& kinds = pieces_.at(i, phase);
    if (std::any_of(kinds.begin(), kinds.end(), [&](const PieceKind* k) { return k->serves(tokens); }))
      continue;
    const PieceKind* own = kinds.front();
    Status status = own->refusal();
    if (status.ok())
      status = unsupported("wanted a kernel of " + std::string(own->op()) + " for " + std::to_string(tokens) +
                           " tokens, found none");
    return {status.code, name_ + " " + name_of({i, own}) + ": " + status.message};
  }
  return unsupported(name_ + ": wanted kernels for " + std::to_string(tokens) + " tokens, found none");
}

Status Step::plan_covers(const StepPolicy& policy) {
  for (const StepPhase& phase : phases_) {
    if (policy.policy.batch_invariant) {
      const int64_t tokens_last = std::max(phase.last, policy.choice_tokens);
      covers_.push_back({phase.first, cheapest_on_average(phase, tokens_last)});
      if (covers_.back().pieces.empty() && !graph_->stages().empty()) return uncovered(phase.last);
      continue;
    }
    // Fails at once if no kernels cover the largest count.
    if (cheapest_at(phase.last).empty() && !graph_->stages().empty()) return uncovered(phase.last);
    const auto same = [&](int64_t, int64_t tokens) {
      const std::vector<PlacedPiece> found = cheapest_at(tokens);
      const std::vector<PlacedPiece>& ours = covers_.back().pieces;
      return std::equal(found.begin(), found.end(), ours.begin(), ours.end(),
                        [](const PlacedPiece& a, const PlacedPiece& b) { return a.kind == b.kind; });
    };
    const auto change = [&](int64_t tokens) -> Status {
      covers_.push_back({tokens, cheapest_at(tokens)});
      if (covers_.back().pieces.empty() && !graph_->stages().empty()) return uncovered(tokens);
      return {};
    };
    SLUICE_TRY(for_each_change(phase.last, same, change, phase.first));
  }
  return {};
}

// For each value, the largest token count at which a kernel reads or writes it; -1: the value stays inside fused kernels.
std::vector<int64_t> Step::placed_up_to() const {
  std::vector<int64_t> out(graph_->values().size(), -1);
  for (size_t c = 0; c < covers_.size(); ++c) {
    const int64_t last = c + 1 < covers_.size() ? covers_[c + 1].first - 1 : tokens_max_;
    for (const PlacedPiece& piece : covers_[c].pieces)
      for (size_t k = piece.first; k < piece.end(); ++k)
        for (const Bind& b : graph_->stages()[k].slots)
          if (b.value != kNoValue && !pieces_.hides(piece, b.value)) {
            int64_t& placed = out[static_cast<size_t>(b.value)];
            placed = std::max(placed, last);
          }
  }
  return out;
}

// Places values in the workspace; values that are live at the same time do not overlap. A value is live from
// the first stage that writes it to the last stage that reads it, and in all stages that some piece computes
// together with one of these stages.
void Step::lay_out() {
  struct Life {
    size_t first = kNowhere, last = 0;
    int64_t bytes = 0;
  };
  std::vector<Life> lives(graph_->values().size());
  const std::vector<int64_t> placed_to = placed_up_to();
  const std::vector<Stage>& stages = graph_->stages();
  for (size_t i = 0; i < stages.size(); ++i) {
    const std::vector<SlotSpec> at_most = stages[i].op->slots(tokens_max_);
    for (size_t k = 0; k < at_most.size(); ++k) {
      const Bind& bind = stages[i].slots[k];
      if (bind.value == kNoValue || !at_most[k].used) continue;
      const Value& value = graph_->values()[static_cast<size_t>(bind.value)];
      const int64_t tokens = value.kept ? tokens_max_ : placed_to[static_cast<size_t>(bind.value)];
      if (value.place != Place::kBetween || tokens < 0) continue;
      const SlotSpec spec = tokens == tokens_max_ ? at_most[k] : stages[i].op->slots(tokens)[k];
      Life& life = lives[static_cast<size_t>(bind.value)];
      const auto [from, to] = pieces_.reach(i);
      life.first = value.kept ? 0 : std::min(life.first, from);
      life.last = value.kept ? stages.size() : std::max(life.last, to - 1);
      int64_t elements = 1;
      for (int d = 0; d < spec.rank; ++d) elements *= spec.shape[static_cast<size_t>(d)];
      if (value.row > 0) elements = spec.shape[0] * value.row;
      life.bytes = std::max(life.bytes, bytes_of(spec.dtype, elements));
    }
  }
  at_.assign(lives.size(), kNowhere);
  std::vector<size_t> order;
  for (size_t v = 0; v < lives.size(); ++v)
    if (lives[v].first != kNowhere) order.push_back(v);
  // Kept values come first, so that graphs with the same kept values place them at the same offsets.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const bool kept = graph_->values()[a].kept, other = graph_->values()[b].kept;
    return kept != other ? kept : lives[a].first < lives[b].first;
  });
  size_t used = 0;
  std::vector<size_t> placed;  // ordered by offset
  for (const size_t v : order) {
    const size_t bytes = Arena::footprint(static_cast<size_t>(lives[v].bytes));
    size_t at = 0;
    for (const size_t other : placed) {
      if (lives[other].last < lives[v].first || lives[v].last < lives[other].first) continue;
      if (at + bytes <= at_[other]) break;
      at = std::max(at, at_[other] + Arena::footprint(static_cast<size_t>(lives[other].bytes)));
    }
    at_[v] = at;
    placed.insert(std::upper_bound(placed.begin(), placed.end(), v,
                                   [&](size_t a, size_t b) { return at_[a] < at_[b]; }),
                  v);
    used = std::max(used, at + bytes);
  }
  scratch_at_ = used;
  size_t scratch = 0;
  for (const Cover& cover : covers_)
    for (const PlacedPiece& piece : cover.pieces) scratch = std::max(scratch, piece.kind->workspace_bytes());
  workspace_bytes_ = used + scratch;
}

const Step::Cover& Step::at(int64_t tokens) const {
  size_t i = covers_.size() - 1;
  while (i > 0 && covers_[i].first > tokens) --i;
  return covers_[i];
}

std::string Step::name_of(const PlacedPiece& piece) const {
  return joined_name(*graph_, piece.first, piece.kind->stages());
}

Status Step::check_call(int64_t tokens, Workspace workspace) const {
  SLUICE_TRY(check_count(name_, tokens, 0, tokens_max_));
  if (workspace_bytes_ == 0 || (workspace.data && workspace.bytes >= workspace_bytes_)) return {};
  return invalid(name_ + ": workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                 std::to_string(workspace.data ? workspace.bytes : 0));
}

template <class Visit>
Status Step::each_piece(int64_t tokens, const Given& given, Workspace workspace, Backend where,
                        Visit visit) const {
  SLUICE_TRY(check_call(tokens, workspace));
  const Placed placed{.values = graph_->values(),
                      .at = at_,
                      .given = &given,
                      .base = workspace.data,
                      .tokens = tokens,
                      .where = where};
  for (const PlacedPiece& piece : at(tokens).pieces) {
    const std::span<const Stage> stages =
        std::span(graph_->stages()).subspan(piece.first, piece.kind->stages());
    Status status = visit(piece, stages, placed);
    if (!status.ok()) return {status.code, name_ + " " + name_of(piece) + ": " + status.message};
  }
  return {};
}

Status Step::run(int64_t tokens, const Given& given, Workspace workspace, Stream stream,
                 KernelRuns* runs) const {
  return run_part(-1, tokens, given, workspace, stream, runs);
}

Status Step::run_part(int32_t part, int64_t tokens, const Given& given, Workspace workspace, Stream stream,
                      KernelRuns* runs) const {
  return each_piece(
      tokens, given, workspace, backend_,
      [&](const PlacedPiece& piece, std::span<const Stage> stages, const Placed& placed) -> Status {
        if (part >= 0 && stages[0].part != part) return {};
        const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
        SLUICE_TRY(piece.kind->run(stages, placed, scratch, stream));
        if (runs) runs->add(piece.kind->kernel(tokens), 1);
        return {};
      });
}

Result<std::vector<StageCheck>> Step::check(int64_t tokens, const Given& given, Workspace workspace,
                                            Device& device, Stream stream) const {
  std::vector<StageCheck> out;
  const Status status = each_piece(
      tokens, given, workspace, backend_,
      [&](const PlacedPiece& piece, std::span<const Stage> stages, const Placed& placed) -> Status {
        const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
        auto one = piece.kind->check(stages, placed, scratch, device, stream);
        if (!one.ok()) return one.status();
        out.push_back(std::move(one).value());
        out.back().stage = name_of(piece);
        return {};
      });
  if (!status.ok()) return status;
  return out;
}

Tensor Step::between(ValueId value, DType dtype, std::initializer_list<int64_t> shape,
                     Workspace workspace) const {
  if (value == kNoValue || at_[static_cast<size_t>(value)] == kNowhere) return {};
  return make_tensor(workspace.data + at_[static_cast<size_t>(value)], dtype, shape, backend_);
}

std::vector<StageKernel> Step::kernels(int64_t tokens) const {
  std::vector<StageKernel> out;
  for (const PlacedPiece& piece : at(tokens).pieces)
    out.push_back({name_of(piece), graph_->stages()[piece.first].layer, piece.kind->choice(tokens)});
  return out;
}

std::vector<PieceProblem> Step::problems(int64_t tokens) const {
  std::vector<PieceProblem> out;
  for (const PlacedPiece& piece : at(tokens).pieces) {
    const auto stages = std::span(graph_->stages()).subspan(piece.first, piece.kind->stages());
    const bool experts = std::any_of(stages.begin(), stages.end(), [](const Stage& s) { return s.experts; });
    out.push_back({.stage = name_of(piece),
                   .layer = graph_->stages()[piece.first].layer,
                   .problem = piece.kind->problem(tokens),
                   .policy = piece.kind->policy(),
                   .choice = piece.kind->serves(tokens) ? piece.kind->choice(tokens) : "",
                   .cost_us = piece.kind->serves(tokens) ? piece.kind->cost_us(tokens) : 0,
                   .planned = piece.kind->serves(tokens) && piece.kind->planned(tokens),
                   .first = piece.first,
                   .stages = piece.kind->stages(),
                   .experts = experts});
  }
  return out;
}

double Step::cost_us(int64_t tokens) const {
  double sum = 0;
  for (const PlacedPiece& piece : at(tokens).pieces) sum += piece.kind->cost_us(tokens);
  return sum;
}

std::vector<TableStep> Step::ranges(size_t stage, int64_t tokens) const {
  const auto piece_at = [&](int64_t count) -> const PieceKind* {
    for (const PlacedPiece& p : at(count).pieces)
      if (p.first == stage) return p.kind;
    return nullptr;
  };
  const PieceKind* kind = piece_at(tokens);
  const auto choice = [&](int64_t count) {
    return piece_at(count) == kind && kind->serves(count) ? kind->choice(count) : std::string();
  };
  std::vector<TableStep> out;
  int64_t begin = 0;
  const auto end_at = [&](int64_t end) {
    const std::string one = end > begin ? choice(begin) : "";
    if (one.empty()) return;
    const size_t colon = std::min(one.find(':'), one.size());
    out.push_back({.first = begin,
                   .last = end - 1,
                   .kernel = std::string(kind->kernel(begin)),
                   .config = one.substr(std::min(colon + 1, one.size())),
                   .workspace_bytes = kind->workspace_bytes(),
                   .first_us = kind->cost_us(begin),
                   .last_us = kind->cost_us(end - 1),
                   .planned = kind->planned(begin)});
  };
  const Status never_fails = for_each_change(
      tokens_max_, [&](int64_t a, int64_t b) { return choice(a) == choice(b); },
      [&](int64_t count) -> Status { return end_at(count), begin = count, Status{}; });
  (void)never_fails;
  end_at(tokens_max_ + 1);
  return out;
}

std::vector<int64_t> Step::breakpoints() const {
  std::vector<int64_t> out;
  for (const Cover& cover : covers_) out.push_back(cover.first);
  return out;
}

}  // namespace sluice
