#include "cuda/experts/bed.h"

#include "backends/cuda/queue.h"

namespace sluice::bench {

Status Bed::make() {
  const GroupRows::Problem group = ExpertMlp::group(problem_);
  groups_.resize(draws_.size());
  for (size_t i = 0; i < groups_.size(); ++i) {
    GroupRows::Args& a = groups_[i];
    Status status;
    GroupRows::slots(group, [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
      if (spec.used && spec.role == Role::kOut && status.ok()) status = memory_.tensor(spec, &(a.*member));
    });
    SLUICE_TRY(status);
    a.ids = first_rows(draws_[i].ids, tokens());
  }
  const int64_t rows = ExpertMlp::rows(problem_);
  SLUICE_TRY(memory_.tensor(problem_.g, {rows, problem_.hidden}, &g_));
  return memory_.tensor(problem_.y, {tokens(), problem_.hidden}, &y_);
}

// Excludes the shared expert, which follows the routed experts in the packed weights.
ExpertMlp::Args Bed::args(int64_t i) const {
  const PackedExperts& w = experts_.set(i);
  const auto routed = [&](const Tensor& t) { return t.present() ? first_rows(t, problem_.experts) : t; };
  return {.x = x(i),
          .up = routed(w.up),
          .up_scale = routed(w.up_scale),
          .up_bias = experts_.up_bias(),
          .down = routed(w.down),
          .down_scale = routed(w.down_scale),
          .down_bias = experts_.down_bias(),
          .ids = first_rows(draw(i).ids, tokens()),
          .weights = first_rows(draw(i).weights, tokens()),
          .shared = {},
          .residual = {},
          .y = y_};
}

std::vector<ForcedWay> Bed::ways(double ratio) {
  return ways_near<ExpertMlp>(memory_.device(), problem_, ratio, true);
}
std::vector<ForcedWay> Bed::ways_of_gemms(double ratio) {
  return ways_near<GroupedMlp>(memory_.device(), GroupedMlp::of(problem_), ratio, true);
}

Result<Step> Bed::layer(const Policy& policy) {
  return make_step<ExpertMlp>(
      memory_, problem_, [this](int64_t i) { return args(i); }, policy);
}

Result<Step> Bed::gemms(const Policy& policy) {
  return make_step<GroupedMlp>(
      memory_, GroupedMlp::of(problem_),
      [this](int64_t i) { return GroupedMlp::of(problem_, args(i), groups(i), g_); }, policy);
}

Result<Step> Bed::group() {
  return make_step<GroupRows>(memory_, ExpertMlp::group(problem_), [this](int64_t i) { return groups(i); });
}

Result<Step> Bed::combine() {
  return make_step<Combine>(memory_, ExpertMlp::combine(problem_), [this](int64_t i) {
    return ExpertMlp::combine(problem_, args(i), groups(i), g_);
  });
}

Status Bed::poison_outputs() {
  for (const Tensor& t : {g_, y_}) SLUICE_TRY(poison(t, memory_.stream()));
  Status status;
  GroupRows::slots(ExpertMlp::group(problem_), [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
    if (groups_.empty() || !spec.used || spec.role != Role::kOut || !status.ok()) return;
    status = poison(groups_[0].*member, memory_.stream());
  });
  return status;
}

Contest Bed::contest(const std::string& suite, const char* op, const std::string& note) const {
  int64_t reached = 0, rows = 0;
  for (const Draw& d : draws_) {
    const Draw::Reach reach = d.reach(ExpertMlp::rows(problem_));
    reached += reach.experts, rows += reach.rows;
  }
  const auto draws = static_cast<double>(draws_.size());
  return {.suite = suite,
          .op = op,
          .model = shape().model,
          .note = note,
          .tokens = tokens(),
          .bytes = shape().bytes(tokens(), static_cast<double>(reached) / draws),
          .flops = shape().flops(static_cast<double>(rows) / draws)};
}

Result<std::string> Bed::check(const Tensor& y, Who who) const {
  return experts_.check({.x = x(0), .ids = draw(0).ids, .weights = draw(0).weights, .y = y},
                        who == Who::kPeer ? kPeerShare : our_share(shape()));
}

Status PeerRun::enqueue(const Bed& bed, int64_t i, int32_t part) const {
  sluice_peer_layer a = call;
  a.x = bed.x(i).data;
  a.ids = bed.draw(i).ids.as<const int32_t>();
  a.weights = bed.draw(i).weights.as<const float>();
  a.packed = by.sets[static_cast<size_t>(i) % by.sets.size()];
  a.meta = metas[static_cast<size_t>(i) % metas.size()];
  const int error = by.peer->enqueue(&a, part, cuda::queue_of(stream).stream);
  return error == 0 ? Status{} : unsupported(std::string(by.peer->name) + ": error " + std::to_string(error));
}

Status make_peer_runs(Bed& bed, std::vector<PeerRun>* out) {
  Memory& memory = bed.memory();
  cudaStream_t stream = cuda::queue_of(memory.stream()).stream;
  for (const PackedByPeer& by : bed.experts().peers()) {
    PeerRun run{.by = by, .call = bed.shape().peer_problem(bed.tokens()), .stream = memory.stream()};
    const int64_t columns = by.peer->columns(&run.call);
    SLUICE_TRY(memory.tensor(DType::kBF16, {bed.tokens(), columns}, &run.y));
    const size_t bytes = by.peer->scratch_bytes(&run.call);
    SLUICE_TRY(memory.bytes(bytes, &run.call.scratch));
    SLUICE_TRY(
        cuda::check(cudaMemsetAsync(run.call.scratch, 0, bytes, stream), "clearing a baseline's scratch"));
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

Contender contender_of(const Bed& bed, const PeerRun& run, int32_t part, const PeerRun** ran) {
  return {Who::kPeer, csv_word(run.by.peer->name), csv_word(run.by.peer->version), false,
          [&bed, &run, part, ran](int64_t i) {
            *ran = &run;
            return run.enqueue(bed, i, part);
          }};
}

}  // namespace sluice::bench
