#include "cuda/experts/experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "backends/cuda/queue.h"
#include "cuda/kernels.h"
#include "cuda/ours.h"

namespace sluice::bench {
namespace {

// The number of rotating weight sets: three, or fewer if three would not fit into kRoom.
int64_t sets_of(const ExpertShape& s) {
  constexpr int64_t kRoom = int64_t{12} << 30;
  return std::clamp<int64_t>(kRoom / ((s.experts() + s.shared) * s.weight_bytes()), 1, 3);
}

Status upload(Memory& memory, const void* from, size_t bytes, const Tensor& to) {
  SLUICE_TRY(memory.device().copy(to.data, from, bytes, memory.stream()));
  return memory.device().wait(memory.stream());
}

// Chooses one token's experts.
class Chooser {
 public:
  Chooser(const ExpertShape& shape, Spread spread, uint64_t seed)
      : top_k_(static_cast<size_t>(shape.top_k)),
        first_(static_cast<int32_t>(shape.partial() ? shape.route.expert_begin : 0)),
        count_(static_cast<int32_t>(shape.experts())),
        random_(seed),
        ranks_(static_cast<size_t>(shape.route.experts)) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
    std::shuffle(ranks_.begin(), ranks_.end(), random_);
    std::vector<double> chances(ranks_.size(), 1);
    if (spread == Spread::kZipf)
      for (size_t i = 0; i < chances.size(); ++i) chances[i] = 1 / static_cast<double>(i + 1);
    experts_ = std::discrete_distribution<size_t>(chances.begin(), chances.end());
  }
  void choose(std::vector<int32_t>* ids, std::vector<float>* weights) {
    const size_t first = ids->size();
    while (ids->size() < first + top_k_) {
      const int32_t e = ranks_[experts_(random_)];
      if (std::find(ids->begin() + static_cast<std::ptrdiff_t>(first), ids->end(), e) == ids->end())
        ids->push_back(e);
    }
    float sum = 0;
    std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
    for (size_t k = 0; k < top_k_; ++k) sum += weights->emplace_back(uniform(random_));
    for (size_t k = first; k < weights->size(); ++k) {
      (*weights)[k] /= sum;
      const int32_t here = (*ids)[k] - first_;
      (*ids)[k] = here >= 0 && here < count_ ? here : -1;
    }
  }

 private:
  size_t top_k_;
  int32_t first_, count_;  // the experts of this rank
  std::mt19937_64 random_;
  std::vector<int32_t> ranks_;
  std::discrete_distribution<size_t> experts_;
};

double number_at(const HostTensor& t, size_t i) { return load(t.tensor, static_cast<int64_t>(i)); }

}  // namespace

Draw::Reach Draw::reach(int64_t pairs) const {
  const auto end = on_host.begin() + static_cast<std::ptrdiff_t>(pairs);
  std::set<int32_t> reached(on_host.begin(), end);
  reached.erase(-1);
  return {static_cast<int64_t>(reached.size()), pairs - std::count(on_host.begin(), end, -1)};
}

Status make_draws(Memory& memory, const ExpertShape& shape, Spread spread, int64_t tokens, int64_t count,
                  std::vector<Draw>* out) {
  for (int64_t i = 0; i < count; ++i) {
    Draw draw;
    std::vector<float> weights;
    Chooser chooser(shape, spread, static_cast<uint64_t>(i) + 1);
    for (int64_t t = 0; t < tokens; ++t) chooser.choose(&draw.on_host, &weights);
    SLUICE_TRY(memory.tensor(DType::kI32, {tokens, shape.top_k}, &draw.ids));
    SLUICE_TRY(memory.tensor(DType::kF32, {tokens, shape.top_k}, &draw.weights));
    SLUICE_TRY(upload(memory, draw.on_host.data(), draw.on_host.size() * sizeof(int32_t), draw.ids));
    SLUICE_TRY(upload(memory, weights.data(), weights.size() * sizeof(float), draw.weights));
    out->push_back(std::move(draw));
  }
  return {};
}

sluice_peer_experts Experts::raw() const {
  return {.up = up_rows_.as<const uint8_t>(),
          .up_scale = up_scales_.as<const uint8_t>(),
          .down = down_rows_.as<const uint8_t>(),
          .down_scale = down_scales_.as<const uint8_t>(),
          .up_bias = up_bias_.data,
          .down_bias = down_bias_.data};
}

Tensor Experts::shared(const Tensor& packed) const {
  Tensor one = packed;
  one.data = static_cast<std::byte*>(one.data) + bytes_of(one.dtype, shape_.experts() * one.stride[0]);
  return first_rows(one, 1);
}

Status Experts::fill(int64_t set) {
  const auto seed = static_cast<uint64_t>(4 * set);
  const Stream stream = memory_.stream();
  const WeightFormat f = shape_.format();
  if (!f.scaled()) {
    // Scaled as in checkpoints, so that sums stay near 1.
    SLUICE_TRY(fill_normal(up_rows_, 1 / std::sqrt(static_cast<double>(shape_.hidden)), seed + 1, stream));
    return fill_normal(down_rows_, 1 / std::sqrt(static_cast<double>(shape_.intermediate)), seed + 3, stream);
  }
  if (f != WeightFormat{DType::kE2M1}) {
    for (const bool up : {true, false}) {
      const Tensor &rows = up ? up_rows_ : down_rows_, &scales = up ? up_scales_ : down_scales_;
      const int64_t width = up ? shape_.hidden : shape_.intermediate;
      const uint64_t of = seed + (up ? 1 : 3);
      // The weights' standard deviation is 1 / sqrt(width); the codes' is 64 (e4m3) or 2.9 (uniform e2m1).
      const double size = 1 / std::sqrt(static_cast<double>(width)) / (f.w == DType::kE4M3 ? 64 : 2.9);
      if (f.w == DType::kE4M3) {
        Tensor codes = rows;
        codes.dtype = DType::kE4M3;
        SLUICE_TRY(fill_normal(codes, 64, of, stream));
      } else {
        SLUICE_TRY(fill_bytes(rows.data, elements_of(rows), of, stream));
      }
      SLUICE_TRY(fill_row_scales(f, scales.data, rows.shape[0] * rows.shape[1], width, size, of + 1, stream));
    }
    return {};
  }
  SLUICE_TRY(fill_bytes(up_rows_.data, elements_of(up_rows_), seed + 1, stream));
  SLUICE_TRY(fill_scales(up_scales_.data, elements_of(up_scales_), seed + 2, stream));
  SLUICE_TRY(fill_bytes(down_rows_.data, elements_of(down_rows_), seed + 3, stream));
  return fill_scales(down_scales_.data, elements_of(down_scales_), seed + 4, stream);
}

Status Experts::pack(PackedExperts* out) {
  for (const bool up : {true, false}) {
    const PackExperts::Problem problem{.experts = matrices(),
                                       .features = up ? shape_.intermediate : shape_.hidden,
                                       .width = up ? shape_.hidden : shape_.intermediate,
                                       .gated = up && is_gated(shape_.act),
                                       .gate_order = shape_.order,
                                       .w = shape_.w,
                                       .scales = shape_.scales};
    PackExperts::Args args;
    args.rows = up ? up_rows_ : down_rows_;
    if (!shape_.format().scaled()) {  // the same data, as bytes
      const int64_t bytes = PackExperts::row_bytes(problem);
      args.rows = make_tensor(args.rows.data, DType::kU8,
                              {matrices(), PackExperts::weight_rows(problem), bytes}, Backend::kCuda);
    }
    args.row_scales = up ? up_scales_ : down_scales_;
    const FragmentShape shape = PackExperts::shape(problem);
    SLUICE_TRY(memory_.tensor(DType::kU8, {matrices(), shape.code_bytes(shape_.format())}, &args.packed));
    if (shape_.format().scaled())
      SLUICE_TRY(
          memory_.tensor(DType::kU8, {matrices(), shape.scale_bytes(shape_.format())}, &args.packed_scales));
    const auto ready = make_ready<PackExperts>(memory_, problem);
    if (!ready.ok()) return ready.status();
    SLUICE_TRY(ready.value()->plan.run(args, ready.value()->workspace, memory_.stream()));
    (up ? out->up : out->down) = args.packed;
    (up ? out->up_scale : out->down_scale) = args.packed_scales;
  }
  return memory_.device().wait(memory_.stream());
}

Status Experts::make(const Peers& peers, std::vector<std::string>* complaints) {
  const int64_t e = matrices(), h = shape_.hidden, i = shape_.intermediate, rows = shape_.up_rows();
  if (const WeightFormat f = shape_.format(); f.scaled()) {
    SLUICE_TRY(memory_.tensor(DType::kU8, {e, rows, bytes_of(f.w, h)}, &up_rows_));
    SLUICE_TRY(memory_.tensor(DType::kU8, {e, rows, f.row_scale_bytes(h)}, &up_scales_));
    SLUICE_TRY(memory_.tensor(DType::kU8, {e, h, bytes_of(f.w, i)}, &down_rows_));
    SLUICE_TRY(memory_.tensor(DType::kU8, {e, h, f.row_scale_bytes(i)}, &down_scales_));
  } else {
    SLUICE_TRY(memory_.tensor(DType::kBF16, {e, rows, h}, &up_rows_));
    SLUICE_TRY(memory_.tensor(DType::kBF16, {e, h, i}, &down_rows_));
  }
  if (shape_.biases) {
    SLUICE_TRY(memory_.random(DType::kBF16, {e, rows}, 0.05, &up_bias_));
    SLUICE_TRY(memory_.random(DType::kBF16, {e, h}, 0.05, &down_bias_));
  }
  const int64_t sets = sets_of(shape_);
  sets_.resize(static_cast<size_t>(sets));
  const sluice_peer_layer problem = shape_.peer_problem(1);
  for (const sluice_layer_peer* peer : peers.layers()) {
    if (!shape_.mxfp4()) break;  // the baselines' interface takes MXFP4 weights only
    if (const char* why = peer->supports(&problem)) {
      complaints->push_back(std::string(shape_.model) + ": " + peer->name + " skipped: " + why);
    } else {
      peers_.push_back({peer, std::vector<const void*>(static_cast<size_t>(sets))});
    }
  }
  for (int64_t set = sets; set-- > 0;) {
    SLUICE_TRY(fill(set));
    SLUICE_TRY(pack(&sets_[static_cast<size_t>(set)]));
    const sluice_peer_experts experts = raw();
    for (size_t p = peers_.size(); p-- > 0;) {
      const sluice_layer_peer* peer = peers_[p].peer;
      void* packed = nullptr;
      SLUICE_TRY(memory_.bytes(peer->packed_bytes(&problem), &packed));
      const int error = peer->pack(&problem, &experts, packed, cuda::queue_of(memory_.stream()).stream);
      SLUICE_TRY(memory_.device().wait(memory_.stream()));
      peers_[p].sets[static_cast<size_t>(set)] = packed;
      if (error == 0) continue;
      complaints->push_back(std::string(shape_.model) + ": " + peer->name +
                            " skipped, packing failed with error " + std::to_string(error));
      peers_.erase(peers_.begin() + static_cast<std::ptrdiff_t>(p));
    }
  }
  return {};
}

Result<std::string> Experts::check(const Answer& answer, double share) {
  constexpr int64_t kSamples = 3;
  const int64_t tokens = answer.x.shape[0], slots = shape_.top_k + answer.shared;
  const int32_t rows[kSamples] = {0, static_cast<int32_t>(tokens / 2), static_cast<int32_t>(tokens - 1)};
  Memory memory(memory_.device());
  Tensor sampled;
  void *h = nullptr, *wanted = nullptr;
  SLUICE_TRY(memory.tensor(DType::kI32, {kSamples}, &sampled));
  SLUICE_TRY(upload(memory, rows, sizeof rows, sampled));
  const auto samples = static_cast<size_t>(kSamples), hidden = static_cast<size_t>(shape_.hidden);
  SLUICE_TRY(memory.bytes(samples * static_cast<size_t>(slots * shape_.intermediate) * sizeof(double), &h));
  SLUICE_TRY(memory.bytes(samples * hidden * sizeof(double), &wanted));
  ReferenceArgs args;
  args.x = answer.x.data;
  args.ids = answer.ids.as<const int32_t>();
  args.sampled = sampled.as<const int32_t>();
  args.weights = answer.weights.as<const float>();
  args.slots = answer.ids.shape[1];
  args.shared = answer.shared;
  args.experts = raw();
  args.format = shape_.format();
  args.h = static_cast<double*>(h);
  args.y = static_cast<double*>(wanted);
  SLUICE_TRY(reference_layer(shape_, args, kSamples, memory.stream()));
  std::vector<double> want(samples * hidden);
  SLUICE_TRY(memory.device().copy(want.data(), wanted, want.size() * sizeof(double), memory.stream()));
  SLUICE_TRY(memory.device().wait(memory.stream()));
  for (size_t s = 0; s < samples; ++s) {
    HostTensor got;
    SLUICE_TRY(to_host(memory.device(), row_of(answer.y, rows[s]), &got));
    double off = 0, all = 0;
    for (size_t c = 0; c < hidden; ++c) {
      const double w = want[s * hidden + c], d = number_at(got, c) - w;
      off += d * d, all += w * w;
    }
    if (std::sqrt(off) <= share * std::sqrt(all)) continue;  // written so that NaN counts as wrong
    return "token " + std::to_string(rows[s]) + ": relative error " + std::to_string(std::sqrt(off / all)) +
           ", wanted at most " + std::to_string(share);
  }
  return std::string();
}

}  // namespace sluice::bench
