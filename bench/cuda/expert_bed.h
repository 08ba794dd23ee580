// Experts of one shape at one token count: tensors, our kernels as steps of a way, and layers of peers.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "cuda/experts.h"
#include "cuda/layer.h"
#include "ops/combine.h"

namespace sluice::bench {

constexpr int64_t kDraws = 8;
// The root of the mean square of a token's errors over that of the token: a bf16 between the GEMMs and a bf16 at the end
// leave 2^-9 or so each; peers also round what the first GEMM and the second one give.
constexpr double kOurShare = 0x1p-7, kPeerShare = 0x1p-6;

class Bed {
 public:
  // `shape` is that of the experts, or with_shared_slot() of it. x and draws may be empty: then they come with each call.
  Bed(Experts& experts, const ExpertShape& shape, const std::vector<Tensor>& x,
      const std::vector<Draw>& draws, int64_t tokens)
      : experts_(experts),
        shape_(shape),
        memory_(experts.memory().device()),
        x_(x),
        draws_(draws),
        tokens_(tokens) {}
  Status make();

  Memory& memory() { return memory_; }
  int64_t tokens() const { return tokens_; }
  Experts& experts() const { return experts_; }
  const ExpertShape& shape() const { return shape_; }
  GroupRows::Problem group_problem() const;
  Combine::Problem combine_problem() const;
  Tensor x(int64_t i) const { return first_rows(turn(x_, i), tokens_); }
  const Tensor& y() const { return y_; }
  const Draw& draw(int64_t i) const { return draws_[static_cast<size_t>(i) % draws_.size()]; }
  const GroupRows::Args& groups(int64_t i) const { return groups_[static_cast<size_t>(i) % groups_.size()]; }
  ExpertGemm::Args up(int64_t i, const Tensor& x, const GroupRows::Args& groups) const;
  ExpertGemm::Args down(int64_t i, const GroupRows::Args& groups) const;
  Combine::Args combine(const Tensor& weights, const Tensor& position) const;
  ExpertMlp::Args mlp(int64_t i, const Tensor& x, const Tensor& ids, const Tensor& weights) const;
  Status poison_outputs();
  // Of the layer: weights of the experts that it reaches, x and y; and what `rows` rows of experts multiply.
  double bytes(double experts_reached) const;
  double flops(double rows) const;
  // A contest between layers with these draws; bytes and flops are the mean over them.
  Contest contest(const std::string& suite, const char* op, const std::string& note) const;
  // Holds an output of run 0 of the draws against the reference.
  Result<std::string> check(const Tensor& y, Who who) const;

 private:
  Experts& experts_;
  ExpertShape shape_;
  Memory memory_;
  const std::vector<Tensor>& x_;
  const std::vector<Draw>& draws_;
  int64_t tokens_;
  std::vector<GroupRows::Args> groups_;
  Tensor h_ = {}, g_ = {}, y_ = {};
};

// Adds an operation to a way; args(i) are the tensors of run i.
template <class Op, class MakeArgs>
Status add_step(Memory& memory, Way* way, const typename Op::Problem& problem, MakeArgs args) {
  const auto ready = make_ready<Op>(memory, problem);
  if (!ready.ok()) return ready.status();
  way->cost_us += ready.value()->plan.cost_us();
  way->steps.push_back([ready = ready.value(), args, stream = memory.stream()](int64_t i) {
    return ready->plan.run(args(i), ready->workspace, stream);
  });
  return {};
}

// The experts as one operation where a kernel of its own is chosen; else way->cost_us is infinite, for that is the parts. args(i)
// are the tensors of run i.
template <class MakeArgs>
Status add_as_one(Memory& memory, Way* way, const ExpertMlp::Problem& problem, MakeArgs args) {
  const auto plan = make_plan<ExpertMlp>(memory.device(), problem);
  if (!plan.ok()) return plan.status();
  if (!plan.value().is_composition()) return add_step<ExpertMlp>(memory, way, problem, args);
  way->cost_us = std::numeric_limits<double>::infinity();
  return {};
}

// Up, down, as the groups of run i say; x(i) and groups(i) are its tensors.
template <class MakeX, class MakeGroups>
Status add_gemms(Bed& bed, Way* way, MakeX x, MakeGroups groups) {
  const ExpertShape& s = bed.shape();
  SLUICE_TRY(add_step<ExpertGemm>(bed.memory(), way, s.up(bed.tokens()),
                                  [&bed, x, groups](int64_t i) { return bed.up(i, x(i), groups(i)); }));
  return add_step<ExpertGemm>(bed.memory(), way, s.down(bed.tokens()),
                              [&bed, groups](int64_t i) { return bed.down(i, groups(i)); });
}

// A peer's layer, or its GEMMs alone, with scratch and rows by expert for every draw.
struct PeerRun {
  PackedByPeer by;
  sluice_peer_layer call = {};
  Stream stream = {};
  Tensor y = {};
  std::vector<void*> metas = {};

  Status enqueue(const Bed& bed, int64_t i, int32_t part) const;
};
Status make_peer_runs(Bed& bed, std::vector<PeerRun>* out);

// `ran` gets the run that was enqueued last.
Contender contender_of(const Bed& bed, const PeerRun& run, int32_t part, const PeerRun** ran);

}  // namespace sluice::bench
