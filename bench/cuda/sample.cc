// The operations at both ends of a step: embedding lookup, RoPE, and sampling from logits.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/queue.h"
#include "base/random.h"
#include "cuda/ours.h"
#include "cuda/routes.h"
#include "cuda/suites.h"
#include "ops/embedding.h"
#include "ops/rope.h"
#include "ops/sample.h"

namespace sluice::bench {
namespace {

struct Parameters {
  const char* note;
  float temperature, top_p, min_p;
  int32_t top_k;
};
constexpr Parameters kWays[] = {
    {"greedy", 0, 1, 0, 0},         {"temperature 0.7", 0.7f, 1, 0, 0},
    {"top-p 0.9", 1, 0.9f, 0, 0},   {"top-k 50", 1, 1, 0, 50},
    {"min-p 0.05", 1, 1, 0.05f, 0}, {"top-k 50 and top-p 0.9 at 0.7", 0.7f, 0.9f, 0, 50}};
constexpr double kSpread = 3;        // standard deviation of the logits, which are normally distributed
constexpr int64_t kCheckedRows = 4;  // the reference sorts each row

template <class T>
Status put(const Tensor& to, const std::vector<T>& from) {
  return cuda::check(cudaMemcpy(to.data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
                     "inputs of a contest");
}

class Rows {
 public:
  explicit Rows(Device& device) : memory_(device) {}
  Status make(const Sample::Problem& p) {
    SLUICE_TRY(memory_.random(p.logits, {p.rows, p.vocab}, kSpread, kTurns, &logits_));
    Status status;
    Sample::slots(p, [&](const SlotSpec& spec, Tensor Sample::Args::*member) {
      if (status.ok() && spec.name != "logits") status = memory_.tensor(spec, &(args_.*member));
    });
    SLUICE_TRY(status);
    std::vector<int64_t> seed, step;
    for (int64_t r = 0; r < p.rows; ++r) seed.push_back(17 + r), step.push_back(3 * r);
    SLUICE_TRY(put(args_.seed, seed));
    return put(args_.step, step);
  }
  Status choose(const Parameters& way) {
    const auto rows = static_cast<size_t>(args_.token.shape[0]);
    SLUICE_TRY(put(args_.temperature, std::vector<float>(rows, way.temperature)));
    SLUICE_TRY(put(args_.top_p, std::vector<float>(rows, way.top_p)));
    SLUICE_TRY(put(args_.min_p, std::vector<float>(rows, way.min_p)));
    return put(args_.top_k, std::vector<int32_t>(rows, way.top_k));
  }
  Memory& memory() { return memory_; }
  Sample::Args args(int64_t i) const {
    Sample::Args a = args_;
    a.logits = turn(logits_, i);
    return a;
  }
  Status forget() {
    SLUICE_TRY(poison(args_.token, memory_.stream()));
    return poison(args_.logprob, memory_.stream());
  }
  Result<std::string> check(const Sample::Problem& p) {
    const int64_t rows = std::min(p.rows, kCheckedRows);
    Sample::Args some = args(0);
    Sample::slots(p, [&](const SlotSpec&, Tensor Sample::Args::*member) {
      some.*member = first_rows(some.*member, rows);
    });
    return check_all<Sample>(memory_.device(), Sample::at_tokens(p, rows), some);
  }

 private:
  Memory memory_;
  std::vector<Tensor> logits_;
  Sample::Args args_;
};

// Tokens or positions, each below `end`.
std::vector<int32_t> numbers(int64_t count, int64_t end) {
  Random random(3);
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(random.integer(0, end - 1)));
  return out;
}

}  // namespace

Status Bench::draws() {
  const std::vector<int64_t> all =
      options_.tokens.empty() ? std::vector<int64_t>{1, 8, 32, 64, 128, 256} : options_.tokens;
  if (!wants("201088")) return {};
  share(1);
  for (const int64_t rows : all) {
    if (over("201088", rows)) continue;
    const Sample::Problem problem{.rows = rows};
    Rows bed(device_);
    SLUICE_TRY(bed.make(problem));
    for (const Parameters& way : kWays) {
      SLUICE_TRY(bed.choose(way));
      Contest contest{.suite = "sample",
                      .op = "sample",
                      .model = "201088",
                      .note = way.note,
                      .tokens = rows,
                      .bytes = Sample::bytes(problem),
                      .flops = 0};
      contest.launches = launches_for(0, contest.bytes, contest.flops);
      contest.poison = [&] { return bed.forget(); };
      contest.verify = [&](Who) { return bed.check(problem); };
      std::vector<std::string> complaints;
      SLUICE_TRY(add_ours<Sample>(
          bed.memory(), problem, [&bed](int64_t i) { return bed.args(i); }, true, &contest, &complaints));
      SLUICE_TRY(hold(contest, std::move(complaints)));
    }
  }
  return {};
}

Status Bench::embedding(int64_t tokens) {
  const Embedding::Problem problem{.tokens = tokens, .vocab = 50000};
  Memory memory(device_);
  Embedding::Args args;
  SLUICE_TRY(memory.random(problem.table, {problem.vocab, problem.hidden}, 1, &args.table));
  SLUICE_TRY(memory.tensor(DType::kI32, {tokens}, &args.ids));
  SLUICE_TRY(memory.tensor(problem.y, {tokens, problem.hidden}, &args.y));
  SLUICE_TRY(put(args.ids, numbers(tokens, problem.vocab)));
  Contest contest{.suite = "sample",
                  .op = "embedding",
                  .model = "2880",
                  .note = "bf16",
                  .tokens = tokens,
                  .bytes = Embedding::bytes(problem),
                  .flops = 0};
  contest.launches = launches_for(0, contest.bytes, 0);
  contest.poison = [&] { return poison(args.y, memory.stream()); };
  contest.verify = [&](Who) { return check_all<Embedding>(device_, problem, args); };
  std::vector<std::string> complaints;
  SLUICE_TRY(add_ours<Embedding>(
      memory, problem, [&args](int64_t) { return args; }, true, &contest, &complaints));
  return hold(contest, std::move(complaints));
}

// In place, so each run rotates the pairs again; only the first run is checked.
Status Bench::rope(int64_t tokens) {
  const Rope::Problem problem{.tokens = tokens, .heads = 72};
  Memory memory(device_);
  Rope::Args args;
  Tensor before;
  SLUICE_TRY(memory.random(problem.x, {tokens, problem.heads, problem.head_dim}, 1, &before));
  SLUICE_TRY(memory.tensor(problem.x, {tokens, problem.heads, problem.head_dim}, &args.x));
  SLUICE_TRY(memory.tensor(DType::kF32, {problem.table_rows, problem.rotary / 2, 2}, &args.table));
  SLUICE_TRY(memory.tensor(DType::kI32, {tokens}, &args.positions));
  std::vector<float> table(static_cast<size_t>(problem.table_rows * problem.rotary));
  SLUICE_TRY(rope_table({}, problem.table_rows, problem.rotary, table.data()));
  SLUICE_TRY(put(args.table, table));
  SLUICE_TRY(put(args.positions, numbers(tokens, problem.table_rows)));
  Contest contest{.suite = "sample",
                  .op = "rope",
                  .model = "72x64",
                  .note = "bf16",
                  .tokens = tokens,
                  .bytes = Rope::bytes(problem),
                  .flops = Rope::flops(problem)};
  contest.launches = launches_for(0, contest.bytes, contest.flops);
  contest.poison = [&] {
    return cuda::check(cudaMemcpyAsync(args.x.data, before.data,
                                       static_cast<size_t>(bytes_of(problem.x, elements_of(before))),
                                       cudaMemcpyDeviceToDevice, cuda::queue_of(memory.stream()).stream),
                       "x of a contest");
  };
  contest.verify = [&](Who) -> Result<std::string> {
    HostTensor x, got, turns, positions;
    SLUICE_TRY(to_host(device_, before, &x));
    SLUICE_TRY(to_host(device_, args.x, &got));
    SLUICE_TRY(to_host(device_, args.table, &turns));
    SLUICE_TRY(to_host(device_, args.positions, &positions));
    const Comparison c =
        compare(reference(problem, {positions.tensor, turns.tensor, x.tensor}).front(), got.tensor);
    return c.wrong > 0 ? c.text : std::string();
  };
  std::vector<std::string> complaints;
  SLUICE_TRY(add_ours<Rope>(
      memory, problem, [&args](int64_t) { return args; }, true, &contest, &complaints));
  return hold(contest, std::move(complaints));
}

Status Bench::sample() {
  const std::vector<int64_t> all =
      options_.tokens.empty() ? std::vector<int64_t>{1, 32, 256, 2048, 8192} : options_.tokens;
  for (const int64_t tokens : all) {
    if (wants("2880")) SLUICE_TRY(embedding(tokens));
    if (wants("72x64")) SLUICE_TRY(rope(tokens));
  }
  return draws();
}

}  // namespace sluice::bench
