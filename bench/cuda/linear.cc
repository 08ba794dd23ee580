// Dense layers of gpt-oss-120b in chains of dependent launches, compared with cuBLASLt.
#include <algorithm>
#include <map>

#include "backends/cuda/queue.h"
#include "cuda/ours.h"
#include "cuda/suites.h"
#include "ops/linear.h"

namespace sluice::bench {
namespace {

struct DenseShape {
  const char* name;
  int64_t features, width;
  DType y;
  bool bias, residual;
  int64_t tokens_max;

  std::string model() const { return "gpt-oss-120b-" + std::string(name); }
  std::string note() const {
    return std::to_string(features) + "x" + std::to_string(width) + " to " + text(y) +
           (bias ? " with bias" : "") + (residual ? " and residual" : "");
  }
  int64_t weight_bytes() const { return bytes_of(kB, features * width); }
  Linear::Problem problem(int64_t tokens) const {
    return {
        .tokens = tokens, .features = features, .width = width, .y = y, .bias = bias, .residual = residual};
  }
};
// The output layer has a row for each sequence that samples a token.
constexpr DenseShape kDenseShapes[] = {{"qkv", 5120, 2880, kB, true, false, 16384},
                                       {"o", 2880, 4096, kB, true, true, 16384},
                                       {"head", 201088, 2880, kF, false, false, 256}};

// Tensors of a shape, and expected values of some elements of y.
class Dense {
 public:
  Dense(Device& device, const DenseShape& shape, int64_t cold_bytes)
      : shape_(shape), cold_bytes_(cold_bytes), memory_(device) {}

  Status make(int64_t tokens) {
    const int64_t count = (cold_bytes_ + shape_.weight_bytes() - 1) / shape_.weight_bytes();
    SLUICE_TRY(memory_.random(kB, {shape_.features, shape_.width}, 0.02, count, &w_));
    SLUICE_TRY(memory_.random(kB, {tokens, shape_.width}, 1, kTurns, &x_));
    SLUICE_TRY(memory_.several(shape_.y, {tokens, shape_.features}, kTurns, &y_));
    if (shape_.bias) SLUICE_TRY(memory_.random(kB, {shape_.features}, 0.1, &bias_));
    if (shape_.residual)
      SLUICE_TRY(memory_.random(shape_.y, {tokens, shape_.features}, 1, kTurns, &residual_));
    return {};
  }
  Memory& memory() { return memory_; }
  Linear::Args args(int64_t tokens, int64_t i) const {
    return {.x = first_rows(turn(x_, i), tokens),
            .w = turn(w_, i),
            .bias = bias_,
            .residual = shape_.residual ? first_rows(turn(residual_, i), tokens) : Tensor{},
            .y = first_rows(turn(y_, i), tokens)};
  }
  // Checks the first and the last features of the first and the last row of run 0. Returns an empty string, or a description of the error.
  Result<std::string> check(int64_t tokens, Who who) {
    constexpr int64_t kFeatures = 256;
    const Linear::Args a = args(tokens, 0);
    for (const int64_t row : {int64_t{0}, tokens - 1})
      for (const int64_t first : {int64_t{0}, shape_.features - kFeatures}) {
        HostTensor got;
        SLUICE_TRY(to_host(memory_.device(), part(a.y, row, first, kFeatures), &got));
        const auto [known, fresh] = expected_.try_emplace(row * shape_.features + first);
        if (fresh) {
          HostTensor x, w, bias, residual;
          SLUICE_TRY(to_host(memory_.device(), part(a.x, row, 0, shape_.width), &x));
          Tensor rows = a.w;
          rows.data = static_cast<std::byte*>(rows.data) + bytes_of(kB, first * shape_.width);
          rows.shape[0] = kFeatures;
          SLUICE_TRY(to_host(memory_.device(), rows, &w));
          if (shape_.bias) {
            Tensor some = a.bias;
            some.data = static_cast<std::byte*>(some.data) + bytes_of(kB, first);
            some.shape[0] = kFeatures;
            SLUICE_TRY(to_host(memory_.device(), some, &bias));
          }
          if (shape_.residual)
            SLUICE_TRY(to_host(memory_.device(), part(a.residual, row, first, kFeatures), &residual));
          Linear::Problem p = shape_.problem(1);
          p.features = kFeatures;
          known->second = std::move(reference(p, Linear::Args{.x = x.tensor,
                                                              .w = w.tensor,
                                                              .bias = bias.tensor,
                                                              .residual = residual.tensor,
                                                              .y = got.tensor})
                                        .front());
        }
        const Comparison c = compare(known->second, got.tensor);
        if (c.wrong > 0 && (who != Who::kPeer || c.worst_share > kPeerBounds))
          return "features from " + std::to_string(first) + " of row " + std::to_string(row) + ": " + c.text;
      }
    return std::string();
  }

 private:
  // Some columns of one row.
  static Tensor part(Tensor t, int64_t row, int64_t first, int64_t columns) {
    t.data = static_cast<std::byte*>(t.data) + bytes_of(t.dtype, row * t.stride[0] + first);
    t.shape = {1, columns};
    t.stride[0] = columns;
    return t;
  }

  DenseShape shape_;
  int64_t cold_bytes_;
  Memory memory_;
  std::vector<Tensor> w_, x_, y_, residual_;
  Tensor bias_ = {};
  std::map<int64_t, Expected> expected_;  // by row and feature, because references are slow
};

// cuBLASLt uses plain launches, because it supports no dependent launch.
Status add_cublaslt(const Peers& peers, const Dense& dense, Memory& memory, Contest* contest) {
  const Stream stream = memory.stream();
  const auto args = [&dense, tokens = contest->tokens](int64_t i) {
    const Linear::Args a = dense.args(tokens, i);
    return sluice_peer_router{.tokens = tokens,
                              .experts = a.w.shape[0],
                              .hidden = a.w.shape[1],
                              .x = a.x.data,
                              .w = a.w.data,
                              .bias = a.bias.data,
                              .y = a.y.data,
                              .y_is_f32 = a.y.dtype == kF,
                              .dependent = 0,
                              .w_is_f32 = 0,
                              .residual = a.residual.data};
  };
  for (const sluice_peer* peer : peers.all()) {
    const sluice_peer_router first = args(0);
    if (std::string_view(peer->name) != "cublaslt" || peer->router_supports(&first)) continue;
    void* scratch = nullptr;
    SLUICE_TRY(memory.bytes(peer->router_scratch_bytes(&first), &scratch));
    void* prepared = peer->router_prepare(&first, scratch);
    const auto enqueue = [peer, scratch, prepared, args, stream](int64_t i) -> Status {
      const sluice_peer_router a = args(i);
      const int error = peer->router_enqueue(&a, scratch, prepared, cuda::queue_of(stream).stream);
      return error == 0 ? Status{}
                        : unsupported(std::string(peer->name) + ": error " + std::to_string(error));
    };
    contest->contenders.push_back(
        {Who::kPeer, csv_word(peer->name), csv_word(peer->version), false, enqueue});
  }
  return {};
}

// Adds every configuration whose predicted cost is at most kFar times the lowest one.
Status add_configs(Memory& memory, const Linear::Problem& problem, const Dense& dense, Contest* contest) {
  constexpr double kFar = 1.7;
  const Device& device = memory.device();
  const auto table = device.catalog().table<Linear>();
  const Decision decision = decide<Linear>(problem, device.info(), table);
  if (decision.chosen < 0) return {};
  const double limit = kFar * decision.choice().cost_us;
  for (const Verdict& v : decision.verdicts)
    for (size_t i = 0; i < v.configs.size(); ++i) {
      const Config& one = v.configs[i];
      if (one.name.empty() || !one.refusal.accepted() || one.cost_us > limit) continue;
      const std::string name = std::string(v.candidate) + ":" + one.name;
      auto step = make_step<Linear>(
          memory, problem, [&dense, tokens = problem.tokens](int64_t run) { return dense.args(tokens, run); },
          {.force = name});
      if (!step.ok()) return step.status();
      Contender contender = contender_of(name, std::move(step).value());
      contender.who = Who::kCandidate;
      contest->contenders.push_back(std::move(contender));
    }
  return {};
}

}  // namespace

Status Bench::linear() {
  std::vector<int64_t> counts = options_.tokens;
  if (counts.empty()) counts = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
  auto left = static_cast<int64_t>(std::size(kDenseShapes));
  for (const DenseShape& shape : kDenseShapes) {
    share(left--);
    if (!wants(shape.model()) && !wants("gpt-oss-120b")) continue;
    int64_t tokens_max = 0;
    for (const int64_t tokens : counts)
      if (tokens <= shape.tokens_max) tokens_max = std::max(tokens_max, tokens);
    if (tokens_max == 0) continue;
    Dense dense(device_, shape, options_.cold_bytes);
    SLUICE_TRY(dense.make(tokens_max));
    for (const int64_t tokens : counts) {
      if (tokens > shape.tokens_max || over(shape.model(), tokens)) continue;
      const Linear::Problem problem = shape.problem(tokens);
      Memory memory(device_);  // for workspaces
      Contest contest{.suite = "linear",
                      .op = "linear",
                      .model = shape.model(),
                      .note = shape.note(),
                      .tokens = tokens,
                      .bytes = Linear::bytes(problem),
                      .flops = Linear::flops(problem)};
      contest.launches = launches_for(shape.weight_bytes(), contest.bytes, contest.flops);
      contest.poison = [&] { return poison(dense.args(tokens, 0).y, memory.stream()); };
      contest.verify = [&](Who who) { return dense.check(tokens, who); };
      std::vector<std::string> complaints;
      SLUICE_TRY(add_ours<Linear>(
          memory, problem, [&dense, tokens](int64_t i) { return dense.args(tokens, i); }, true, &contest,
          &complaints));
      if (options_.candidates) SLUICE_TRY(add_configs(memory, problem, dense, &contest));
      SLUICE_TRY(add_cublaslt(peers_, dense, memory, &contest));
      SLUICE_TRY(hold(contest, std::move(complaints)));
    }
  }
  return {};
}

}  // namespace sluice::bench
