#include "cuda/expert_bed.h"

#include "backends/cuda/queue.h"

namespace sluice::bench {

Status Bed::make() {
  const ExpertShape& s = shape();
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

GroupRows::Problem Bed::group_problem() const {
  return {.tokens = tokens_, .slots = shape().top_k, .experts = shape().experts()};
}

Combine::Problem Bed::combine_problem() const {
  const ExpertShape& s = shape();
  return {.tokens = tokens_,
          .slots = s.top_k,
          .rows = tokens_ * s.top_k,
          .hidden = s.hidden,
          .experts = s.experts(),
          .g = g_.dtype,
          .settled = true};
}

ExpertGemm::Args Bed::up(int64_t i, const Tensor& x, const GroupRows::Args& groups) const {
  const PackedExperts& w = experts_.set(i);
  ExpertGemm::Args a;
  a.x = x, a.w = first_rows(w.up, shape().experts()), a.bias = experts_.up_bias();
  if (shape().mxfp4()) a.w_scale = first_rows(w.up_scale, shape().experts());
  a.row_begin = groups.row_begin, a.row_count = groups.row_count, a.order = groups.order, a.y = h_;
  return a;
}

ExpertGemm::Args Bed::down(int64_t i, const GroupRows::Args& groups) const {
  const PackedExperts& w = experts_.set(i);
  ExpertGemm::Args a;
  a.x = h_, a.w = first_rows(w.down, shape().experts()), a.bias = experts_.down_bias();
  if (shape().mxfp4()) a.w_scale = first_rows(w.down_scale, shape().experts());
  a.row_begin = groups.row_begin, a.row_count = groups.row_count, a.y = g_;
  return a;
}

Combine::Args Bed::combine(const Tensor& weights, const Tensor& position) const {
  Combine::Args a;
  a.g = g_, a.position = position, a.weights = weights, a.y = y_;
  return a;
}

ExpertMlp::Args Bed::mlp(int64_t i, const Tensor& x, const Tensor& ids, const Tensor& weights) const {
  const ExpertGemm::Args first = up(i, x, {}), second = down(i, {});
  ExpertMlp::Args a;
  a.x = x, a.ids = ids, a.weights = weights, a.y = y_;
  a.up = first.w, a.up_scale = first.w_scale, a.up_bias = first.bias;
  a.down = second.w, a.down_scale = second.w_scale, a.down_bias = second.bias;
  return a;
}

Status Bed::poison_outputs() {
  for (const Tensor& t : {h_, g_, y_}) SLUICE_TRY(poison(t, memory_.stream()));
  Status status;
  GroupRows::slots(group_problem(), [&](const SlotSpec& spec, Tensor GroupRows::Args::*member) {
    if (groups_.empty() || !spec.used || spec.role != Role::kOut || !status.ok()) return;
    status = poison(groups_[0].*member, memory_.stream());
  });
  return status;
}

double Bed::bytes(double experts_reached) const {
  const ExpertShape& s = shape();
  return experts_reached * static_cast<double>(s.weight_bytes()) +
         4.0 * static_cast<double>(tokens_ * s.hidden);
}

double Bed::flops(double rows) const { return 2.0 * rows * static_cast<double>(shape().weights()); }

Contest Bed::contest(const std::string& suite, const char* op, const std::string& note) const {
  int64_t reached = 0, rows = 0;
  for (const Draw& d : draws_) {
    const Draw::Reach reach = d.reach(tokens_ * shape().top_k);
    reached += reach.experts, rows += reach.rows;
  }
  const auto draws = static_cast<double>(draws_.size());
  return {.suite = suite,
          .op = op,
          .model = shape().model,
          .note = note,
          .tokens = tokens_,
          .bytes = bytes(static_cast<double>(reached) / draws),
          .flops = flops(static_cast<double>(rows) / draws)};
}

Result<std::string> Bed::check(const Tensor& y, Who who) const {
  return experts_.check({.x = x(0), .ids = draw(0).ids, .weights = draw(0).weights, .y = y},
                        who == Who::kPeer ? kPeerShare : kOurShare);
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

Contender contender_of(const Bed& bed, const PeerRun& run, int32_t part, const PeerRun** ran) {
  return {Who::kPeer, csv_word(run.by.peer->name), csv_word(run.by.peer->version), false,
          [&bed, &run, part, ran](int64_t i) {
            *ran = &run;
            return run.enqueue(bed, i, part);
          }};
}

}  // namespace sluice::bench
