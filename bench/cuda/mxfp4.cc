// Experts with MXFP4 weights: the two GEMMs, the layer from ids and weights, the block from activations; in bursts and
// sustained, beside the layers of others, and what the card gives in the same run.
#include <algorithm>
#include <fstream>
#include <optional>

#include "backends/cuda/queue.h"
#include "cuda/experts.h"
#include "cuda/kernels.h"
#include "cuda/layer.h"
#include "cuda/suites.h"
#include "ops/combine.h"

namespace sluice::bench {
namespace {

constexpr int64_t kDraws = 8;
// The root of the mean square of a token's errors over that of the token: a bf16 between the GEMMs and a bf16 at the end
// leave 2^-9 or so each; peers also round what the first GEMM and the second one give.
constexpr double kOurShare = 0x1p-7, kPeerShare = 0x1p-6;

// Tensors of one shape at one token count, for one way of choosing experts.
class Bed {
 public:
  Bed(Experts& experts, const std::vector<Tensor>& x, const std::vector<Draw>& draws, int64_t tokens)
      : experts_(experts), memory_(experts.memory().device()), x_(x), draws_(draws), tokens_(tokens) {}

  Status make() {
    const ExpertShape& s = experts_.shape();
    const int64_t rows = tokens_ * s.top_k;
    const GroupRows::Problem group = group_problem();
    groups_.resize(draws_.size());
    for (size_t i = 0; i < groups_.size(); ++i) {
      GroupRows::Args& a = groups_[i];
      Status status;
      GroupRows::slots(group, [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
        if (spec.used && spec.role == Role::kOut && status.ok()) status = memory_.tensor(spec, &(a.*member));
      });
      SLUICE_TRY(status);
      a.ids = first_rows(draws_[i].ids, tokens_);
    }
    SLUICE_TRY(memory_.tensor(DType::kBF16, {rows, s.intermediate}, &h_));
    SLUICE_TRY(memory_.tensor(s.down(tokens_).y, {rows, s.hidden}, &g_));
    return memory_.tensor(DType::kBF16, {tokens_, s.hidden}, &y_);
  }

  Memory& memory() { return memory_; }
  int64_t tokens() const { return tokens_; }
  const Experts& experts() const { return experts_; }
  GroupRows::Problem group_problem() const {
    const ExpertShape& s = experts_.shape();
    return {.tokens = tokens_, .slots = s.top_k, .experts = s.experts};
  }
  Combine::Problem combine_problem() const {
    const ExpertShape& s = experts_.shape();
    return {.tokens = tokens_,
            .slots = s.top_k,
            .rows = tokens_ * s.top_k,
            .hidden = s.hidden,
            .experts = s.experts,
            .g = g_.dtype};
  }
  Tensor x(int64_t i) const { return first_rows(turn(x_, i), tokens_); }
  const Tensor& y() const { return y_; }
  const Draw& draw(int64_t i) const { return draws_[static_cast<size_t>(i) % draws_.size()]; }
  const GroupRows::Args& groups(int64_t i) const { return groups_[static_cast<size_t>(i) % groups_.size()]; }
  ExpertGemm::Args up(int64_t i, const Tensor& x, const GroupRows::Args& groups) const {
    ExpertGemm::Args a;
    a.x = x, a.w = experts_.set(i).up, a.w_scale = experts_.set(i).up_scale, a.bias = experts_.up_bias();
    a.row_begin = groups.row_begin, a.row_count = groups.row_count, a.order = groups.order, a.y = h_;
    return a;
  }
  ExpertGemm::Args down(int64_t i, const GroupRows::Args& groups) const {
    ExpertGemm::Args a;
    a.x = h_, a.w = experts_.set(i).down, a.w_scale = experts_.set(i).down_scale,
    a.bias = experts_.down_bias();
    a.row_begin = groups.row_begin, a.row_count = groups.row_count, a.y = g_;
    return a;
  }
  Combine::Args combine(const Tensor& weights, const Tensor& position) const {
    Combine::Args a;
    a.g = g_, a.position = position, a.weights = weights, a.y = y_;
    return a;
  }
  Status poison_outputs() {
    for (const Tensor& t : {h_, g_, y_}) SLUICE_TRY(poison(t, memory_.stream()));
    Status status;
    GroupRows::slots(group_problem(), [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
      if (groups_.empty() || !spec.used || spec.role != Role::kOut || !status.ok()) return;
      status = poison(groups_[0].*member, memory_.stream());
    });
    return status;
  }
  // The mean over runs: weights of the experts that they reach, x and y.
  double bytes() const {
    const ExpertShape& s = experts_.shape();
    int64_t active = 0;
    for (const Draw& d : draws_) active += d.active(tokens_, s.top_k, s.experts);
    return bytes_of_active(static_cast<double>(active) / static_cast<double>(draws_.size()));
  }
  double bytes_of_active(double active) const {
    const ExpertShape& s = experts_.shape();
    return active * static_cast<double>(s.weight_bytes()) + 4.0 * static_cast<double>(tokens_ * s.hidden);
  }
  double flops() const {
    const ExpertShape& s = experts_.shape();
    return 2.0 * static_cast<double>(tokens_ * s.top_k) * static_cast<double>(s.weights());
  }

 private:
  Experts& experts_;
  Memory memory_;
  const std::vector<Tensor>& x_;
  const std::vector<Draw>& draws_;
  int64_t tokens_;
  std::vector<GroupRows::Args> groups_;
  Tensor h_ = {}, g_ = {}, y_ = {};
};

// Adds an operation to a way; args(i) are the tensors of run i.
template <class Op, class MakeArgs>
Status add(Memory& memory, Way* way, const typename Op::Problem& problem, MakeArgs args) {
  const auto ready = make_ready<Op>(memory, problem);
  if (!ready.ok()) return ready.status();
  way->steps.push_back([ready = ready.value(), args, stream = memory.stream()](int64_t i) {
    return ready->plan.run(args(i), ready->workspace, stream);
  });
  return {};
}

// Up, down, as the groups of run i say; x(i) and groups(i) are its tensors.
template <class MakeX, class MakeGroups>
Status add_gemms(Bed& bed, Way* way, MakeX x, MakeGroups groups) {
  const ExpertShape& s = bed.experts().shape();
  SLUICE_TRY(add<ExpertGemm>(bed.memory(), way, s.up(bed.tokens()),
                             [&bed, x, groups](int64_t i) { return bed.up(i, x(i), groups(i)); }));
  return add<ExpertGemm>(bed.memory(), way, s.down(bed.tokens()),
                         [&bed, groups](int64_t i) { return bed.down(i, groups(i)); });
}

Contest contest_of(const Bed& bed, const char* op, const std::string& note) {
  return {.suite = "mxfp4",
          .op = op,
          .model = bed.experts().shape().model,
          .note = note,
          .tokens = bed.tokens(),
          .bytes = bed.bytes(),
          .flops = bed.flops()};
}

// A peer's layer, or its GEMMs alone, with scratch and rows by expert for every draw.
struct PeerRun {
  PackedByPeer by;
  sluice_peer_layer call = {};
  Stream stream = {};
  Tensor y = {};
  std::vector<void*> metas = {};

  Status enqueue(const Bed& bed, int64_t i, int32_t part) const {
    sluice_peer_layer a = call;
    a.x = bed.x(i).data;
    a.ids = bed.draw(i).ids.as<const int32_t>();
    a.weights = bed.draw(i).weights.as<const float>();
    a.packed = by.sets[static_cast<size_t>(i) % by.sets.size()];
    a.meta = metas[static_cast<size_t>(i) % metas.size()];
    const int error = by.peer->enqueue(&a, part, cuda::queue_of(stream).stream);
    return error == 0 ? Status{}
                      : unsupported(std::string(by.peer->name) + ": error " + std::to_string(error));
  }
};

Status make_peer_runs(Bed& bed, std::vector<PeerRun>* out) {
  Memory& memory = bed.memory();
  cudaStream_t stream = cuda::queue_of(memory.stream()).stream;
  for (const PackedByPeer& by : bed.experts().peers()) {
    PeerRun run{
        .by = by, .call = bed.experts().shape().peer_problem(bed.tokens()), .stream = memory.stream()};
    const int64_t columns = by.peer->columns(&run.call);
    SLUICE_TRY(memory.tensor(DType::kBF16, {bed.tokens(), columns}, &run.y));
    const size_t bytes = by.peer->scratch_bytes(&run.call);
    SLUICE_TRY(memory.bytes(bytes, &run.call.scratch));
    SLUICE_TRY(cuda::check(cudaMemsetAsync(run.call.scratch, 0, bytes, stream), "clearing a peer's scratch"));
    run.call.y = run.y.data;
    run.metas.resize(kDraws);
    for (void*& meta : run.metas) SLUICE_TRY(memory.bytes(by.peer->meta_bytes(&run.call), &meta));
    for (int64_t i = 0; i < kDraws; ++i) {
      const Status grouped = run.enqueue(bed, i, SLUICE_PEER_GROUP);
      if (!grouped.ok() && grouped.code != Code::kUnsupported) return grouped;
    }
    out->push_back(std::move(run));
  }
  return memory.device().wait(memory.stream());
}

// `ran` gets the run that was enqueued last.
Contender contender_of(const Bed& bed, const PeerRun& run, int32_t part, const PeerRun** ran) {
  return {Who::kPeer, csv_word(run.by.peer->name), csv_word(run.by.peer->version), false,
          [&bed, &run, part, ran](int64_t i) {
            *ran = &run;
            return run.enqueue(bed, i, part);
          }};
}

// Holds the layer's output of run 0 against the reference. GEMMs alone have none: their layer is run behind them.
Result<std::string> check(Bed& bed, Experts& experts, const Tensor& y, Who who) {
  const double share = who == Who::kPeer ? kPeerShare : kOurShare;
  return experts.check(bed.x(0), bed.draw(0).ids, bed.draw(0).weights, y, share);
}

// Ids of all draws, as they lie in memory.
Status write_draws(const ExpertShape& shape, Spread spread, const std::vector<Draw>& draws,
                   const std::filesystem::path& folder) {
  const auto path = folder / (std::string(shape.model) + "_" + word_of(spread) + ".i32");
  std::ofstream file(path, std::ios::binary);
  for (const Draw& d : draws)
    file.write(reinterpret_cast<const char*>(d.on_host.data()),
               static_cast<std::streamsize>(d.on_host.size() * sizeof(int32_t)));
  return file.flush() ? Status{} : Status{Code::kIo, "could not write " + path.string()};
}

// The front of the layer: gate and routing of the same model.
std::optional<LayerShape> front_of(const ExpertShape& s) {
  for (const LayerShape& layer : layer_shapes())
    if (layer.gate.hidden == s.hidden && layer.gate.experts == s.experts && layer.route.top_k == s.top_k)
      return layer;
  return {};
}

}  // namespace

// The two GEMMs, metadata ready, and the layer from ids and weights.
Status Bench::layers(Experts& experts, const std::vector<Tensor>& x, const std::vector<Draw>& draws,
                     Spread spread, int64_t tokens) {
  Bed bed(experts, x, draws, tokens);
  SLUICE_TRY(bed.make());
  std::vector<PeerRun> peers;
  SLUICE_TRY(make_peer_runs(bed, &peers));
  std::vector<std::string> complaints;
  const auto bed_x = [&bed](int64_t i) { return bed.x(i); };
  const auto groups = [&bed](int64_t i) { return bed.groups(i); };
  Way layer{.impl = "sluice"}, gemms{.impl = "sluice"}, group{.impl = "sluice"}, combine{.impl = "sluice"};
  Status status = add<GroupRows>(bed.memory(), &group, bed.group_problem(), groups);
  if (status.ok()) status = add_gemms(bed, &gemms, bed_x, groups);
  if (status.ok())
    status = add<Combine>(bed.memory(), &combine, bed.combine_problem(), [&bed](int64_t i) {
      return bed.combine(first_rows(bed.draw(i).weights, bed.tokens()), bed.groups(i).position);
    });
  if (!status.ok()) complaints.push_back("sluice left out: " + status.message);
  for (const Way* part : {&group, &gemms, &combine})
    layer.steps.insert(layer.steps.end(), part->steps.begin(), part->steps.end());
  const Stream stream = bed.memory().stream();
  for (const bool whole : {false, true}) {
    Contest contest = contest_of(bed, whole ? "moe_layer" : "expert_gemms", word_of(spread));
    if (status.ok()) contest.contenders.push_back(contender_of(whole ? layer : gemms, true));
    const PeerRun* ran = nullptr;
    for (const PeerRun& run : peers)
      contest.contenders.push_back(
          contender_of(bed, run, whole ? SLUICE_PEER_LAYER : SLUICE_PEER_GEMMS, &ran));
    contest.poison = [&]() -> Status {
      for (const PeerRun& run : peers) SLUICE_TRY(poison(run.y, stream));
      SLUICE_TRY(bed.poison_outputs());
      if (whole) return {};
      // GEMMs alone find what comes before them. A peer's write no y: what is looked at is its layer, of the same kernels.
      for (int64_t i = 0; status.ok() && i < kDraws; ++i) SLUICE_TRY(group.steps.front()(i));
      for (const PeerRun& run : peers) (void)run.enqueue(bed, 0, SLUICE_PEER_LAYER);
      return {};
    };
    contest.verify = [&](Who who) -> Result<std::string> {
      if (who != Who::kPeer) {
        if (!whole) SLUICE_TRY(combine.steps.front()(0));
        return check(bed, experts, bed.y(), who);
      }
      return check(bed, experts, ran->y, who);
    };
    SLUICE_TRY(hold_paced(contest, std::move(complaints)));
    complaints.clear();
  }
  return {};
}

// From activations: router, routing, experts, combine.
Status Bench::block(Experts& experts, Gate& gate, const LayerShape& shape, int64_t tokens) {
  const ExpertShape& s = experts.shape();
  Layer layer(gate, shape, tokens, 0);  // the experts' kernels make their own tiles
  SLUICE_TRY(layer.make());
  const std::vector<Tensor> no_x;
  const std::vector<Draw> no_draws;
  Bed bed(experts, no_x, no_draws, tokens);
  SLUICE_TRY(bed.make());
  // In front whatever the cost models take for faster.
  std::vector<std::string> complaints;
  Way separate{.impl = "sluice"}, fused{.impl = "sluice"};
  Status one = layer.gate(&separate), two = layer.gate_route(&fused);
  if (one.ok()) one = layer.route_group(&separate);
  if (two.ok()) two = layer.group(&fused);
  if (!one.ok() && !two.ok()) {
    complaints.push_back(std::string(s.model) + " moe_block left out: " + one.message);
    return report_({}, complaints);
  }
  Way& way = !two.ok() || (one.ok() && separate.cost_us <= fused.cost_us) ? separate : fused;
  const auto x = [&](int64_t i) { return gate.args(tokens, i).x; };
  const auto groups = [&layer](int64_t i) { return RouteGroup::group(layer.routes(i)); };
  Status status = add_gemms(bed, &way, x, groups);
  if (status.ok())
    status = add<Combine>(bed.memory(), &way, bed.combine_problem(), [&](int64_t i) {
      const RouteGroup::Args a = layer.routes(i);
      return bed.combine(a.weights, a.position);
    });
  if (!status.ok()) {
    complaints.push_back(std::string(s.model) + " moe_block left out: " + status.message);
    return report_({}, complaints);
  }
  // The ids are what the router makes of x, so the experts that they reach are counted behind a run of each turn.
  double active = 0;
  for (int64_t i = 0; i < kTurns; ++i) {
    for (const auto& step : way.steps) SLUICE_TRY(step(i));
    HostTensor ids;
    SLUICE_TRY(to_host(device_, layer.routes(i).ids, &ids));
    Draw draw;
    draw.on_host.assign(ids.tensor.as<int32_t>(), ids.tensor.as<int32_t>() + tokens * s.top_k);
    for (const int32_t id : draw.on_host)
      if (id < 0 || id >= s.experts)
        return report_({}, {std::string(s.model) + " moe_block left out, wrong: id " + std::to_string(id)});
    active += static_cast<double>(draw.active(tokens, s.top_k, s.experts)) / kTurns;
  }
  Contest contest{
      .suite = "mxfp4", .op = "moe_block", .model = s.model, .note = "by router", .tokens = tokens};
  contest.bytes = bed.bytes_of_active(active) + static_cast<double>(shape.gate.weight_bytes());
  contest.flops = bed.flops() + RouterGemm::flops(shape.gate.problem(tokens));
  contest.contenders.push_back(contender_of(way, true));
  contest.poison = [&]() -> Status {
    SLUICE_TRY(layer.poison_outputs());
    return bed.poison_outputs();
  };
  contest.verify = [&](Who who) -> Result<std::string> {
    Result<std::string> wrong = layer.check_choice();
    if (!wrong.ok() || !wrong.value().empty()) return wrong;
    const RouteGroup::Args a = layer.routes(0);
    return experts.check(x(0), a.ids, a.weights, bed.y(), who == Who::kPeer ? kPeerShare : kOurShare);
  };
  return hold_paced(contest, std::move(complaints));
}

// What the card gives in this run: bytes of a stream that is only read, flops of a large bf16 product (cuBLASLt, if the
// peers have it).
Status Bench::card() {
  Memory memory(device_);
  const Stream stream = memory.stream();
  constexpr int64_t kBytes = int64_t{4} << 30, kSide = 8192;
  Tensor words, sums;
  SLUICE_TRY(memory.random(DType::kF32, {kBytes / 4}, 1, &words));
  SLUICE_TRY(memory.tensor(DType::kI32, {kReadBlocks}, &sums));
  Contest read{.suite = "mxfp4", .op = "read", .model = "4 GiB", .note = "", .tokens = 1};
  read.bytes = static_cast<double>(kBytes);
  read.contenders.push_back({Who::kPeer, "ceiling", SLUICE_VERSION, false, [&](int64_t) {
                               return read_all(words.data, kBytes, sums.as<uint32_t>(), stream);
                             }});
  read.poison = [] { return Status{}; };
  read.verify = [](Who) { return Result<std::string>(std::string()); };
  SLUICE_TRY(hold_paced(read, {}));

  Tensor x, w, y;
  SLUICE_TRY(memory.random(DType::kBF16, {kSide, kSide}, 1, &x));
  SLUICE_TRY(memory.random(DType::kBF16, {kSide, kSide}, 1, &w));
  SLUICE_TRY(memory.tensor(DType::kBF16, {kSide, kSide}, &y));
  const sluice_peer_router call{.tokens = kSide,
                                .experts = kSide,
                                .hidden = kSide,
                                .x = x.data,
                                .w = w.data,
                                .bias = nullptr,
                                .y = y.data,
                                .y_is_f32 = 0,
                                .dependent = 0};
  for (const sluice_peer* peer : peers_.all()) {
    if (std::string_view(peer->name) != "cublaslt") continue;
    if (const char* why = peer->router_supports(&call))
      return report_({}, {std::string("dense_8192 left out: ") + why});
    void* scratch = nullptr;
    SLUICE_TRY(memory.bytes(std::max<size_t>(peer->router_scratch_bytes(&call), 1), &scratch));
    void* prepared = peer->router_prepare(&call, scratch);
    const double side = kSide;
    Contest dense{.suite = "mxfp4", .op = "dense_8192", .model = "bf16", .note = "", .tokens = kSide};
    dense.bytes = 6 * side * side;
    dense.flops = 2 * side * side * side;
    dense.contenders.push_back(
        {Who::kPeer, "cublaslt", csv_word(peer->version), false, [=](int64_t) -> Status {
           const int error = peer->router_enqueue(&call, scratch, prepared, cuda::queue_of(stream).stream);
           return error == 0 ? Status{} : unsupported("cublaslt: error " + std::to_string(error));
         }});
    dense.poison = read.poison;
    dense.verify = read.verify;
    return hold_paced(dense, {});
  }
  return report_({}, {"dense_8192 left out: no peer named cublaslt, see --peers"});
}

Status Bench::mxfp4() {
  power_.emplace();
  if (!power_->problem().empty()) SLUICE_TRY(report_({}, {"no power, no clock: " + power_->problem()}));
  SLUICE_TRY(card());
  // Counts far from each other first: if time runs out, what is there says most.
  std::vector<int64_t> order;
  for (const int64_t tokens : {1, 64, 1024, 4096, 8, 256, 16384, 16, 2, 512, 32, 128, 2048, 4, 8192})
    if (std::find(options_.tokens.begin(), options_.tokens.end(), tokens) != options_.tokens.end())
      order.push_back(tokens);
  for (const int64_t tokens : options_.tokens)
    if (std::find(order.begin(), order.end(), tokens) == order.end() && (tokens & (tokens - 1)) == 0)
      order.push_back(tokens);
  std::vector<ExpertShape> shapes;
  for (const ExpertShape& s : expert_shapes())
    if (wants(s.model)) shapes.push_back(s);
  for (size_t i = 0; i < shapes.size() && !order.empty(); ++i) {
    const ExpertShape& s = shapes[i];
    share(static_cast<int64_t>(shapes.size() - i));
    std::vector<std::string> complaints;
    const int64_t most = *std::max_element(order.begin(), order.end());
    Experts experts(device_, s);
    std::vector<Tensor> x;
    Status made = experts.memory().random(DType::kBF16, {most, s.hidden}, 1, kTurns, &x);
    if (made.ok()) made = experts.make(peers_, &complaints);
    if (made.code == Code::kOutOfMemory) {
      complaints.push_back(std::string(s.model) + " left out: " + made.message);
      SLUICE_TRY(report_({}, complaints));
      continue;
    }
    SLUICE_TRY(made);
    SLUICE_TRY(report_({}, complaints));
    std::vector<Draw> draws[2];
    SLUICE_TRY(make_draws(experts.memory(), s, Spread::kUniform, most, kDraws, &draws[0]));
    SLUICE_TRY(make_draws(experts.memory(), s, Spread::kZipf, most, kDraws, &draws[1]));
    for (const Spread spread : {Spread::kUniform, Spread::kZipf})
      if (!options_.draws.empty())
        SLUICE_TRY(write_draws(s, spread, draws[spread == Spread::kZipf], options_.draws));
    const std::optional<LayerShape> front = front_of(s);
    std::optional<Gate> gate;
    if (front) SLUICE_TRY(gate.emplace(device_, front->gate, options_.cold_bytes).make(most));
    for (const int64_t tokens : order) {
      if (over(s.model, tokens)) continue;
      Status done;
      for (const Spread spread : {Spread::kUniform, Spread::kZipf})
        if (done.ok()) done = layers(experts, x, draws[spread == Spread::kZipf], spread, tokens);
      if (done.ok() && gate) done = block(experts, *gate, *front, tokens);
      if (done.code == Code::kOutOfMemory)
        done = report_(
            {}, {std::string(s.model) + " M=" + std::to_string(tokens) + " left out: " + done.message});
      SLUICE_TRY(done);
    }
  }
  power_.reset();
  return {};
}

}  // namespace sluice::bench
