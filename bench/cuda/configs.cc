// The expert GEMMs in every configuration that dispatch lists. The cost models are fitted to these rows, which also show how much slower
// the configuration that dispatch chooses is than the best one.
#include <algorithm>

#include "cuda/ours.h"
#include "cuda/suites.h"
#include "ops/group_rows.h"
#include "report/expert_shape.h"

namespace sluice::bench {
namespace {

constexpr int64_t kConfigDraws = 4;
// Configurations whose predicted cost exceeds the best by this factor are skipped, except the cheapest kFewest.
constexpr double kFar = 1.35;
constexpr size_t kFewest = 6;

// One GEMM of a shape at one token count: its tensors, and the grouped rows of each routing sample.
class Product {
 public:
  Product(Experts& experts, const std::vector<Tensor>& x, const std::vector<Draw>& draws, int64_t tokens)
      : experts_(experts),
        x_(x),
        draws_(draws),
        mlp_(experts.shape().mlp(tokens)),
        memory_(experts.memory().device()) {}

  Status make() {
    const GroupRows::Problem group = ExpertMlp::group(mlp_);
    const auto ready = make_ready<GroupRows>(memory_, group);
    if (!ready.ok()) return ready.status();
    groups_.resize(draws_.size());
    for (size_t i = 0; i < groups_.size(); ++i) {
      GroupRows::Args& a = groups_[i];
      Status status;
      GroupRows::slots(group, [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
        if (spec.used && spec.role == Role::kOut && status.ok()) status = memory_.tensor(spec, &(a.*member));
      });
      SLUICE_TRY(status);
      a.ids = first_rows(draws_[i].ids, mlp_.tokens);
      SLUICE_TRY(ready.value()->plan.run(a, ready.value()->workspace, memory_.stream()));
    }
    const int64_t rows = ExpertMlp::rows(mlp_);
    SLUICE_TRY(memory_.random(DType::kBF16, {rows, mlp_.intermediate}, 1, &h_));
    SLUICE_TRY(memory_.tensor(DType::kF32, {rows, mlp_.hidden}, &g_));
    return memory_.device().wait(memory_.stream());
  }

  Memory& memory() { return memory_; }
  ExpertGemm::Problem problem(bool up) const { return up ? ExpertMlp::up(mlp_) : ExpertMlp::down(mlp_); }
  ExpertGemm::Args args(bool up, int64_t i) const {
    const PackedExperts& w = experts_.set(i);
    const GroupRows::Args& groups = groups_[static_cast<size_t>(i) % groups_.size()];
    const ExpertShape& s = experts_.shape();
    ExpertGemm::Args a;
    a.x = up ? first_rows(turn(x_, i), mlp_.tokens) : h_;
    a.w = first_rows(up ? w.up : w.down, s.experts());
    if (s.format().scaled()) a.w_scale = first_rows(up ? w.up_scale : w.down_scale, s.experts());
    a.bias = up ? experts_.up_bias() : experts_.down_bias();
    a.row_begin = groups.row_begin, a.row_count = groups.row_count;
    if (up) a.order = groups.order;
    a.y = up ? h_ : g_;
    a.y.dtype = problem(up).y;
    return a;
  }

 private:
  Experts& experts_;
  const std::vector<Tensor>& x_;
  const std::vector<Draw>& draws_;
  ExpertMlp::Problem mlp_;
  Memory memory_;
  std::vector<GroupRows::Args> groups_;
  Tensor h_ = {}, g_ = {};
};

// Names of the configurations to measure: they accept the problem, and their predicted cost is near the best.
std::vector<std::string> worth_measuring(const Decision& decision) {
  struct Named {
    double cost_us;
    std::string name;
  };
  std::vector<Named> all;
  for (const Verdict& v : decision.verdicts)
    for (const Config& one : v.configs)
      if (v.config >= 0 && one.refusal.accepted())
        all.push_back({one.cost_us, std::string(v.candidate) + (one.name.empty() ? "" : ":" + one.name)});
  std::stable_sort(all.begin(), all.end(),
                   [](const Named& a, const Named& b) { return a.cost_us < b.cost_us; });
  std::vector<std::string> out;
  for (const Named& one : all)
    if (one.cost_us <= kFar * all[0].cost_us || out.size() < kFewest) out.push_back(one.name);
  return out;
}

}  // namespace

Status Bench::configs() {
  power_.emplace();
  std::vector<ExpertShape> shapes = mxfp4_shapes();
  const std::vector<ExpertShape> bf16 = bf16_shapes();
  shapes.insert(shapes.end(), bf16.begin(), bf16.end());
  for (const ExpertShape& s : fp8_shapes())
    if (s.fp8_x && !options_.models.empty()) shapes.push_back(s);
  std::erase_if(shapes, [&](const ExpertShape& s) { return !wants(s.model); });
  for (size_t i = 0; i < shapes.size(); ++i) {
    share(static_cast<int64_t>(shapes.size() - i));
    const Status done = configs_of(shapes[i]);
    if (done.code != Code::kOutOfMemory) {
      SLUICE_TRY(done);
      continue;
    }
    SLUICE_TRY(report_({}, {std::string(shapes[i].model) + " skipped: " + done.message}));
  }
  power_.reset();
  return {};
}

Status Bench::configs_of(const ExpertShape& s) {
  std::vector<int64_t> counts = options_.tokens;
  if (counts.empty()) counts = {1024, 4096, 256, 8192, 512, 2048, 64, 3072, 16384, 128, 6144, 1536, 32};
  const int64_t largest = *std::max_element(counts.begin(), counts.end());
  std::vector<std::string> complaints;
  Experts experts(device_, s);
  std::vector<Tensor> x;
  SLUICE_TRY(experts.memory().random(DType::kBF16, {largest, s.hidden}, 1, 2, &x));
  SLUICE_TRY(experts.make(peers_, &complaints));
  SLUICE_TRY(report_({}, complaints));
  std::vector<std::vector<Draw>> draws(options_.spreads.size());
  for (size_t i = 0; i < draws.size(); ++i)
    SLUICE_TRY(make_draws(experts.memory(), s, options_.spreads[i], largest, kConfigDraws, &draws[i]));
  // Every third token count is enough for the second routing.
  constexpr size_t kThird = 3;
  for (size_t at = 0; at < counts.size(); ++at)
    for (size_t i = 0; i < draws.size(); ++i) {
      if ((i > 0 && at % kThird != 0) || over(s.model, counts[at])) continue;
      SLUICE_TRY(configs_at(experts, x, draws[i], word_of(options_.spreads[i]), counts[at]));
    }
  return {};
}

Status Bench::configs_at(Experts& experts, const std::vector<Tensor>& x, const std::vector<Draw>& draws,
                         const char* routing, int64_t tokens) {
  Product product(experts, x, draws, tokens);
  SLUICE_TRY(product.make());
  for (const bool up : {true, false}) {
    const ExpertGemm::Problem problem = product.problem(up);
    const auto table = device_.catalog().table<ExpertGemm>();
    const Decision decision = decide<ExpertGemm>(problem, device_.info(), table);
    Contest contest{.suite = suite_,
                    .op = up ? "expert_gemm_up" : "expert_gemm_down",
                    .model = expert_shape_name(experts.shape().mlp(tokens)),
                    .note = routing + std::string(experts.shape().held_out ? " held-out" : ""),
                    .tokens = tokens,
                    .bytes = ExpertGemm::bytes(problem),
                    .flops = ExpertGemm::flops(problem)};
    contest.poison = [] { return Status{}; };
    contest.verify = [](Who) -> Result<std::string> {
      return std::string();
    };  // the conformance tests check the results
    for (const std::string& name : worth_measuring(decision)) {
      auto ready = make_ready<ExpertGemm>(product.memory(), problem, {.force = name});
      if (!ready.ok()) return ready.status();
      contest.contenders.push_back(
          {Who::kSluice, name, commit(), true,
           [ready = ready.value(), &product, up, stream = device_.stream()](int64_t i) {
             return ready->plan.run(product.args(up, i), ready->workspace, stream);
           }});
    }
    SLUICE_TRY(hold_paced(contest, {}));
  }
  return {};
}

}  // namespace sluice::bench
