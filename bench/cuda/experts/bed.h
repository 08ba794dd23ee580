// The experts of one shape at one token count, from ids and weights: tensors, the plan that dispatch chooses, the baselines' layers.
#pragma once
#include <string>
#include <vector>

#include "cuda/experts/experts.h"
#include "cuda/ours.h"

namespace sluice::bench {

constexpr int64_t kDraws = 8;
// Bounds for the RMS of a token's errors relative to the RMS of the token. Each rounding to bf16, after a GEMM and at the end,
// leaves about 2^-9. Baselines round more often.
constexpr double kOurShare = 0x1p-7, kPeerShare = 0x1p-6, kFp8Share = 0x1p-4;
inline double our_share(const ExpertShape& shape) { return shape.fp8_x ? kFp8Share : kOurShare; }

class Bed {
 public:
  Bed(Experts& experts, const std::vector<Tensor>& x, const std::vector<Draw>& draws, int64_t tokens)
      : experts_(experts),
        problem_(experts.shape().mlp(tokens)),
        memory_(experts.memory().device()),
        x_(x),
        draws_(draws) {}
  Status make();

  Memory& memory() { return memory_; }
  int64_t tokens() const { return problem_.tokens; }
  Experts& experts() const { return experts_; }
  const ExpertShape& shape() const { return experts_.shape(); }
  Tensor x(int64_t i) const { return first_rows(turn(x_, i), tokens()); }
  const Tensor& y() const { return y_; }
  const Draw& draw(int64_t i) const { return draws_[static_cast<size_t>(i) % draws_.size()]; }
  Result<Step> layer(const Policy& policy = {});  // ExpertMlp
  // Combinations of Sluice's kernels whose predicted cost is at most `ratio` times the cost of dispatch's choice.
  std::vector<ForcedWay> ways(double ratio);
  // The two GEMMs alone, after group() of the same run; combine() computes y from their result.
  Result<Step> gemms(const Policy& policy = {});  // GroupedMlp
  std::vector<ForcedWay> ways_of_gemms(double ratio);
  Result<Step> group();
  Result<Step> combine();
  Status poison_outputs();
  // A contest between layers with these routing samples. Bytes and flops are means over the samples.
  Contest contest(const std::string& suite, const char* op, const std::string& note) const;
  // Checks an output of run 0 against the reference.
  Result<std::string> check(const Tensor& y, Who who) const;

 private:
  ExpertMlp::Args args(int64_t i) const;
  const GroupRows::Args& groups(int64_t i) const { return groups_[static_cast<size_t>(i) % groups_.size()]; }

  Experts& experts_;
  ExpertMlp::Problem problem_;
  Memory memory_;
  const std::vector<Tensor>& x_;
  const std::vector<Draw>& draws_;
  std::vector<GroupRows::Args> groups_;
  Tensor g_ = {}, y_ = {};
};

// A baseline's layer, or its GEMMs alone, with scratch and grouped rows for every routing sample.
struct PeerRun {
  PackedByPeer by;
  sluice_peer_layer call = {};
  Stream stream = {};
  Tensor y = {};
  std::vector<void*> metas = {};

  Status enqueue(const Bed& bed, int64_t i, int32_t part) const;
};
Status make_peer_runs(Bed& bed, std::vector<PeerRun>* out);

// `ran` receives the run that was enqueued last.
Contender contender_of(const Bed& bed, const PeerRun& run, int32_t part, const PeerRun** ran);

}  // namespace sluice::bench
