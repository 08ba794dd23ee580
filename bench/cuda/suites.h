// The measurements: for each operation and shape, a contest at every token count.
#pragma once
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cuda/contest.h"
#include "cuda/experts/experts.h"
#include "cuda/gate.h"
#include "cuda/layer.h"
#include "cuda/peers.h"

namespace sluice::bench {

class Bench {
 public:
  struct Options {
    std::vector<std::string> models;  // only these; empty: all models
    std::vector<int64_t> tokens;      // empty: the suite's counts
    int replays = 21;
    bool candidates = true;  // also time each of Sluice's kernels, forced
    int64_t cold_bytes = kColdBytes;
    double seconds = 0;  // time limit of a suite; 0: none
    // For mxfp4 and bf16.
    Pace pace = {};
    std::vector<Spread> spreads = {Spread::kUniform, Spread::kZipf};
    // Operations in which baselines take part.
    std::vector<std::string> peer_ops = {"moe_layer", "expert_gemms"};
    std::filesystem::path draws;  // --expert-ids: where to write the chosen experts; empty: nowhere
  };
  // `report` receives the outcomes of a contest and its complaints as soon as they exist.
  using Report = std::function<Status(const std::vector<Outcome>&, const std::vector<std::string>&)>;
  Bench(Device& device, const Peers& peers, Options options, Report report)
      : device_(device), peers_(peers), options_(std::move(options)), report_(std::move(report)) {}

  // Starts the clock of a suite. Counts that do not fit into its time are skipped; finish() reports them.
  void start(std::string suite);
  Status finish();
  Status router();       // router_gemm, router_gemm_pdl
  Status fused();        // router_route_fused
  Status routing();      // route_group
  Status chain();        // the chain before the experts
  Status lora();         // lora_delta
  Status expert_lora();  // moe_block_lora: layers with adapters on their experts
  Status linear();       // linear
  Status attention();    // attention_decode, attention_prefill
  Status latent();       // latent_attention, latent_attend
  Status sample();       // embedding, rope, sample
  Status formats();      // the same for the other formats of weights
  Status fp8();          // layers that keep rows of x in bf16, and layers that may round them to FP8
  Status mxfp4();        // expert_gemms, moe_layer, moe_block; read, dense_8192
  Status bf16();         // the same, and draft_step
  Status gaps();         // moe_layer_behind: MoE layers after other launches
  Status group();        // all_reduce_norm, on all GPUs of the machine
  Status configs();      // expert_gemm_up, expert_gemm_down: each configuration of each kernel

 private:
  using Clock = std::chrono::steady_clock;
  // Gives the next part 1 / `parts` of the remaining time.
  void share(int64_t parts);
  bool over(const std::string& model, int64_t tokens);
  // Runs per captured graph: just enough that rotating weights are cold and that a replay is long enough to time. With weight_bytes = 0
  // nothing has to be cold.
  int64_t launches_for(int64_t weight_bytes, double bytes, double flops) const;
  Status embedding(int64_t tokens);
  Status rope(int64_t tokens);
  Status draws();
  Status hold_paced(const Contest& contest, std::vector<std::string> complaints);
  Status card();
  // Measures the requested shapes of `all`, at powers of two and `more_counts` of tokens.
  Status configs_of(const ExpertShape& shape);
  Status configs_at(Experts& experts, const std::vector<Tensor>& x, const std::vector<Draw>& draws,
                    const char* routing, int64_t tokens);
  Status experts(const std::vector<ExpertShape>& all, const std::vector<int64_t>& more_counts);
  Status experts_of(const ExpertShape& shape, const std::vector<int64_t>& order);
  Status layers(Experts& experts, const std::vector<Tensor>& x, const std::vector<Draw>& draws, Spread spread,
                int64_t tokens);
  Status block(Experts& experts, Gate& gate, int64_t tokens);
  Status draft(Experts& experts, Gate& gate, int64_t tokens);
  Status adapted(Experts& experts, Gate& gate, int64_t tokens);
  Status adapter_ways(const ExpertShape& shape, int64_t tokens);
  // Reports the shapes and operations that could not be prepared. Returns a fault as an error.
  Status leave_out(const ExpertShape& shape, const char* op, const Status& why) const;
  bool wants(const std::string& model) const;
  std::vector<int64_t> tokens() const;  // of router, routing and chain
  int64_t tokens_max() const;
  // Measures and reports. `complaints`: from the preparation of the contest.
  Status hold(Contest contest, std::vector<std::string> complaints) const;

  Device& device_;
  const Peers& peers_;
  Options options_;
  Report report_;
  std::optional<Power> power_;  // only in mxfp4 and bf16
  std::string suite_;
  Clock::time_point end_ = {}, part_end_ = {};
  std::map<std::string, std::string> skipped_;  // token counts, by model
};

}  // namespace sluice::bench
