// Experts of any format: the two GEMMs, and the layer from ids and weights, in bursts and sustained, with the baselines'
// layers and the GPU's ceilings in the same run. experts/blocks.cc has the layers from activations on.
#include <algorithm>
#include <fstream>

#include "cuda/experts/bed.h"
#include "cuda/suites.h"

namespace sluice::bench {
namespace {

constexpr int64_t kDraftTokens = 8;  // maximum number of tokens of a draft_step

// Writes the ids of all routing samples as raw i32.
Status write_draws(const ExpertShape& shape, Spread spread, const std::vector<Draw>& draws,
                   const std::filesystem::path& folder) {
  const auto path = folder / (std::string(shape.model) + "_" + word_of(spread) + ".i32");
  std::ofstream file(path, std::ios::binary);
  for (const Draw& d : draws)
    file.write(reinterpret_cast<const char*>(d.on_host.data()),
               static_cast<std::streamsize>(d.on_host.size() * sizeof(int32_t)));
  return file.flush() ? Status{} : Status{Code::kIo, "could not write " + path.string()};
}

// Early counts are spread over the range, so that the rows cover all of it even if time runs out.
std::vector<int64_t> in_order(const std::vector<int64_t>& wanted, const std::vector<int64_t>& more) {
  std::vector<int64_t> order = {1, 64, 1024, 4096, 8, 256, 16384, 16, 2, 512, 32, 128, 2048, 4, 8192};
  order.insert(order.end(), more.begin(), more.end());
  if (wanted.empty()) return order;
  const auto in = [](const std::vector<int64_t>& list, int64_t n) {
    return std::find(list.begin(), list.end(), n) != list.end();
  };
  std::erase_if(order, [&](int64_t n) { return !in(wanted, n); });
  for (const int64_t n : wanted)
    if (!in(order, n)) order.push_back(n);
  return order;
}

}  // namespace

// Combinations of Sluice's kernels are measured only up to this many times the cost of the chosen one.
constexpr double kNearWays = 1.3;

// The two GEMMs with grouped rows, and the layer from ids and weights.
Status Bench::layers(Experts& experts, const std::vector<Tensor>& x, const std::vector<Draw>& draws,
                     Spread spread, int64_t tokens) {
  Bed bed(experts, x, draws, tokens);
  SLUICE_TRY(bed.make());
  std::vector<PeerRun> peers;
  SLUICE_TRY(make_peer_runs(bed, &peers));
  std::vector<std::string> complaints;
  const Result<Step> layer = bed.layer(), gemms = bed.gemms(), group = bed.group(), combine = bed.combine();
  for (const Result<Step>* step : {&layer, &gemms, &group, &combine})
    if (!step->ok()) complaints.push_back("sluice skipped: " + step->status().message);
  const bool has_gemms = gemms.ok() && group.ok() && combine.ok();
  const Stream stream = bed.memory().stream();
  for (const bool whole : {false, true}) {
    Contest contest = bed.contest(suite_, whole ? "moe_layer" : "expert_gemms", word_of(spread));
    if (whole ? layer.ok() : has_gemms)
      contest.contenders.push_back(contender_of("sluice", whole ? layer.value() : gemms.value()));
    if ((whole ? layer.ok() : has_gemms) && options_.candidates)
      for (const ForcedWay& way : whole ? bed.ways(kNearWays) : bed.ways_of_gemms(kNearWays)) {
        Result<Step> step = whole ? bed.layer(way.policy) : bed.gemms(way.policy);
        if (!step.ok()) return step.status();
        contest.contenders.push_back({Who::kCandidate, way.name, commit(), true, std::move(step).value()});
      }
    const PeerRun* ran = nullptr;
    const auto& with_peers = options_.peer_ops;
    if (std::find(with_peers.begin(), with_peers.end(), contest.op) != with_peers.end())
      for (const PeerRun& run : peers)
        contest.contenders.push_back(
            contender_of(bed, run, whole ? SLUICE_PEER_LAYER : SLUICE_PEER_GEMMS, &ran));
    contest.poison = [&]() -> Status {
      for (const PeerRun& run : peers) SLUICE_TRY(poison(run.y, stream));
      SLUICE_TRY(bed.poison_outputs());
      if (whole) return {};
      // The GEMMs alone need the outputs of the stages before them. A baseline's GEMMs write no y, so its layer, which uses the
      // same kernels, is checked.
      for (int64_t i = 0; has_gemms && i < kDraws; ++i) SLUICE_TRY(group.value()(i));
      for (const PeerRun& run : peers) (void)run.enqueue(bed, 0, SLUICE_PEER_LAYER);
      return {};
    };
    contest.verify = [&](Who who) -> Result<std::string> {
      if (who != Who::kPeer) {
        if (!whole) SLUICE_TRY(combine.value()(0));
        return bed.check(bed.y(), who);
      }
      return bed.check(ran->y, who);
    };
    SLUICE_TRY(hold_paced(contest, std::move(complaints)));
    complaints.clear();
  }
  return {};
}

Status Bench::mxfp4() { return experts(mxfp4_shapes(), {}); }
Status Bench::formats() { return experts(format_shapes(), {}); }
Status Bench::fp8() { return experts(fp8_shapes(), {}); }
Status Bench::bf16() { return experts(bf16_shapes(), {3, 5}); }  // token counts of steps that verify a draft

// Layers with adapters on their experts.
Status Bench::expert_lora() {
  power_.emplace();
  std::vector<ExpertShape> shapes = mxfp4_shapes();
  for (ExpertShape& s : bf16_shapes()) shapes.push_back(std::move(s));
  const std::vector<int64_t> counts =
      options_.tokens.empty() ? std::vector<int64_t>{1, 4, 16, 64, 256, 1024, 8192} : options_.tokens;
  for (const ExpertShape& s : shapes) {
    const std::string_view model = s.model;
    if (options_.models.empty()
            ? model != "gpt-oss-20b" && model != "gpt-oss-120b" && model != "qwen3-30b-a3b"
            : !wants(s.model))
      continue;
    Experts experts(device_, s);
    std::vector<std::string> complaints;
    SLUICE_TRY(experts.make({}, &complaints));
    SLUICE_TRY(report_({}, complaints));
    Gate gate(device_, s.gate(), options_.cold_bytes);
    SLUICE_TRY(gate.make(*std::max_element(counts.begin(), counts.end())));
    for (const int64_t tokens : counts) {
      SLUICE_TRY(adapted(experts, gate, tokens));
      if (options_.candidates) SLUICE_TRY(adapter_ways(s, tokens));
    }
  }
  return power_.reset(), Status{};
}

Status Bench::experts(const std::vector<ExpertShape>& all, const std::vector<int64_t>& more_counts) {
  power_.emplace();
  if (!power_->problem().empty())
    SLUICE_TRY(report_({}, {"power and clock are not recorded: " + power_->problem()}));
  SLUICE_TRY(card());
  std::vector<ExpertShape> shapes;
  for (const ExpertShape& s : all)
    if (wants(s.model) && !(s.held_out && options_.models.empty())) shapes.push_back(s);
  const std::vector<int64_t> order = in_order(options_.tokens, more_counts);
  for (size_t i = 0; i < shapes.size(); ++i) {
    share(static_cast<int64_t>(shapes.size() - i));
    const Status done = experts_of(shapes[i], order);
    if (done.code != Code::kOutOfMemory) {
      SLUICE_TRY(done);
      continue;
    }
    SLUICE_TRY(report_({}, {std::string(shapes[i].model) + " skipped: " + done.message}));
  }
  power_.reset();
  return {};
}

Status Bench::experts_of(const ExpertShape& s, const std::vector<int64_t>& order) {
  const int64_t largest = *std::max_element(order.begin(), order.end());
  std::vector<std::string> complaints;
  Experts experts(device_, s);
  std::vector<Tensor> x;
  SLUICE_TRY(experts.memory().random(DType::kBF16, {largest, s.hidden}, 1, kTurns, &x));
  SLUICE_TRY(experts.make(peers_, &complaints));
  SLUICE_TRY(report_({}, complaints));
  std::vector<std::vector<Draw>> draws(options_.spreads.size());
  for (size_t i = 0; i < draws.size(); ++i) {
    SLUICE_TRY(make_draws(experts.memory(), s, options_.spreads[i], largest, kDraws, &draws[i]));
    if (!options_.draws.empty()) SLUICE_TRY(write_draws(s, options_.spreads[i], draws[i], options_.draws));
  }
  Gate gate(device_, s.gate(), options_.cold_bytes);
  SLUICE_TRY(gate.make(largest));
  for (const int64_t tokens : order) {
    if (over(s.model, tokens)) continue;
    Status done;
    for (size_t i = 0; i < draws.size(); ++i)
      if (done.ok()) done = layers(experts, x, draws[i], options_.spreads[i], tokens);
    if (done.ok()) done = block(experts, gate, tokens);
    if (done.ok() && s.shared > 0 && tokens <= kDraftTokens) done = draft(experts, gate, tokens);
    if (done.code == Code::kOutOfMemory)
      done =
          report_({}, {std::string(s.model) + " M=" + std::to_string(tokens) + " skipped: " + done.message});
    SLUICE_TRY(done);
  }
  return {};
}

}  // namespace sluice::bench
