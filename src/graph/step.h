// A graph planned for a device: for each token count the cheapest set of kernels that computes every stage once (a
// cover). Each kernel computes one stage or a run of stages. kernels() lists exactly the kernels that run.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/device.h"
#include "graph/kernel_runs.h"
#include "graph/pieces.h"

namespace sluice {

// A stage, or a run of stages that one kernel computes ("norm+router+route"), and the kernel: "NAME" or "NAME:CONFIG".
struct StageKernel {
  std::string stage;
  int32_t layer = -1;
  std::string kernel;
  bool operator==(const StageKernel&) const = default;
};

// A piece of the cover: its problem and the kernel chosen for it.
struct PieceProblem {
  std::string stage;
  int32_t layer = -1;
  std::unique_ptr<AnyProblem> problem;
  Policy policy = {};       // policy under which the kernel was chosen
  std::string choice = {};  // "NAME" or "NAME:CONFIG"; empty: no kernel, possible only with Gaps::kShown
  double cost_us = 0;
  bool planned = false;  // Candidate::planned
  size_t first = 0, stages = 1;
  bool experts = false;  // whether Stage::experts is set for any of its stages
};

// How to treat stages without a kernel. kRefused: planning fails. kShown: the plan has gaps; it can be explained but not run.
enum class Gaps : uint8_t { kRefused, kShown };

class Step {
 public:
  // Plans for 0 to tokens_max tokens. Error messages begin with `name`. Pure: depends only on its arguments.
  // kInvalidArgument and kUnsupported as in make_plan, with every reason of the first stage without a kernel.
  static Result<Step> plan(std::string name, const DeviceInfo& device, const Catalog& catalog, Graph graph,
                           int64_t tokens_max, const StepPolicy& policy = {}, Gaps gaps = Gaps::kRefused);

  const Graph& graph() const { return *graph_; }
  int64_t tokens_max() const { return tokens_max_; }
  // Enough for every token count.
  size_t workspace_bytes() const { return workspace_bytes_; }

  // Enqueues all stages. May be captured: it neither allocates nor synchronizes. kInvalidArgument names the
  // argument that does not fit. Adds the kernels that it runs to *runs, unless `runs` is null.
  Status run(int64_t tokens, const Given& given, Workspace workspace, Stream stream,
             KernelRuns* runs = nullptr) const;
  // Enqueues only the stages of one part (Graph::cut).
  Status run_part(int32_t part, int64_t tokens, const Given& given, Workspace workspace, Stream stream,
                  KernelRuns* runs = nullptr) const;
  // Runs the step piece by piece and compares each piece with its reference. Slow: meant for a few tokens,
  // at load time and in tests.
  Result<std::vector<StageCheck>> check(int64_t tokens, const Given& given, Workspace workspace,
                                        Device& device, Stream stream) const;
  // Returns a value between stages as a contiguous tensor of this shape; absent if no stage of this graph writes it.
  Tensor between(ValueId value, DType dtype, std::initializer_list<int64_t> shape, Workspace workspace) const;

  // The pieces in execution order for `tokens` tokens.
  std::vector<StageKernel> kernels(int64_t tokens) const;
  std::vector<PieceProblem> problems(int64_t tokens) const;
  double cost_us(int64_t tokens) const;
  // For the piece that begins at `stage` in the cover of `tokens` tokens: the ranges of token counts whose covers have it, with its kernel.
  std::vector<TableStep> ranges(size_t stage, int64_t tokens) const;
  // The first token count of every cover, ascending.
  std::vector<int64_t> breakpoints() const;
  const Pieces& pieces() const { return pieces_; }

 private:
  struct Cover {
    int64_t first = 0;  // the cover applies to token counts from here up to the next cover
    std::vector<PlacedPiece> pieces;
  };
  Step() = default;
  size_t phase_of(int64_t tokens) const;
  Status uncovered(int64_t tokens) const;
  // The cheapest cover, where `cost` gives the cost of each piece; empty if there is no cover.
  using Cost = std::function<std::optional<double>(const PieceKind&)>;
  std::vector<PlacedPiece> cheapest(size_t phase, const Cost& cost) const;
  std::vector<PlacedPiece> cheapest_at(int64_t tokens) const;
  std::vector<PlacedPiece> cheapest_on_average(const StepPhase& phase, int64_t tokens_last) const;
  Status plan_covers(const StepPolicy& policy);
  std::vector<int64_t> placed_up_to() const;
  void lay_out();
  const Cover& at(int64_t tokens) const;
  std::string name_of(const PlacedPiece& piece) const;
  Status check_call(int64_t tokens, Workspace workspace) const;
  template <class Visit>
  Status each_piece(int64_t tokens, const Given& given, Workspace workspace, Backend where,
                    Visit visit) const;

  std::string name_;
  std::unique_ptr<const Graph> graph_;
  int64_t tokens_max_ = 0;
  std::vector<StepPhase> phases_;
  Pieces pieces_;
  std::vector<Cover> covers_;
  std::vector<size_t> at_;  // offset of each value between stages
  size_t scratch_at_ = 0, workspace_bytes_ = 0;
  Backend backend_ = Backend::kCpu;
  Gaps gaps_ = Gaps::kRefused;
};

}  // namespace sluice
