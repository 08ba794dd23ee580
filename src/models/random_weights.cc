#include "models/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "base/random.h"

namespace sluice {
namespace {

constexpr int64_t kAlignment = 64;  // alignment of tensors in memory

// Finds the argument in [low, high] for which the increasing function `rising` is `wanted`, by bisection.
template <class F>
double root_of_rising(double low, double high, double wanted, F rising) {
  for (int i = 0; i < 100; ++i) {
    const double middle = (low + high) / 2;
    (rising(middle) < wanted ? low : high) = middle;
  }
  return (low + high) / 2;
}

int64_t bytes_of_spec(const TensorSpec& spec) { return stored_bytes(spec.type, spec.shape).value_or(0); }

// Contents of the codes or scales of a quantized matrix.
RandomContents contents_of_matrix(const TensorSpec& spec) {
  const WeightFormat f = spec.format;
  if (spec.weight.ends_with("_row_scale"))
    return {f.scales == WeightScales::kNv ? Fill::kNvRowScales : Fill::kF8ScalesF32, spec.columns};
  if (!spec.weight.ends_with("_scale")) return {f.w == DType::kE4M3 ? Fill::kF8Codes : Fill::kMxfp4Codes, 1};
  if (f.scales == WeightScales::kNv) return {Fill::kNvScales, spec.columns};
  if (f.scales == WeightScales::kMx)
    return {f.w == DType::kE4M3 ? Fill::kMxfp8Scales : Fill::kMxfp4Scales, spec.columns};
  return {spec.type == StoredType::kF32 ? Fill::kF8ScalesF32 : Fill::kF8Scales, spec.columns};
}

}  // namespace

RandomContents random_contents(const TensorSpec& spec, int64_t layers) {
  if (spec.format.scaled()) return contents_of_matrix(spec);
  const std::string_view weight = spec.weight;
  const int64_t last = spec.shape.back();
  if (weight == "embedding") return {Fill::kEmbedding, 2 * std::max<int64_t>(layers, 1)};
  if (weight == "attention.sinks") return {Fill::kUnit, 1};
  if (weight == "hash_table") return {Fill::kExpertIds, 1};
  if (weight == "correction_bias") return {Fill::kTinyF32, 1};
  if (weight.ends_with("norm") || weight.starts_with("feature_norm")) return {Fill::kNorm, 1};
  if (weight.ends_with("bias")) return {Fill::kBias, 1};
  if (weight.ends_with("scale")) return {Fill::kMxfp4Scales, last * kMxBlock};
  if (spec.type == StoredType::kBF16) return {Fill::kWeight, last};
  if (spec.type == StoredType::kF32) return {Fill::kSmallF32, last};
  return {Fill::kMxfp4Codes, 1};
}

std::vector<float> zipf_bias(int64_t experts, int64_t top_k) {
  const auto n = static_cast<size_t>(experts);
  std::vector<double> share(n);
  double sum = 0;
  for (size_t r = 0; r < n; ++r) sum += share[r] = 1 / static_cast<double>(r + 1);
  // Models the choice of top_k distinct experts as `draws` samples with repetition: an expert is chosen with
  // probability 1 - (1 - share)^draws. `draws` is set so that these probabilities sum to top_k.
  const auto chance = [&](size_t r, double draws) { return 1 - std::pow(1 - share[r] / sum, draws); };
  const double draws = root_of_rising(1, 1e6, static_cast<double>(top_k), [&](double d) {
    double chances = 0;
    for (size_t r = 0; r < n; ++r) chances += chance(r, d);
    return chances;
  });
  std::vector<float> bias(n);
  for (size_t r = 0; r < n; ++r) {
    const double wanted = std::clamp(chance(r, draws), 1e-6, 1 - 1e-6);
    bias[r] = static_cast<float>(
        root_of_rising(-8, 8, wanted, [](double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }));
  }
  return bias;
}

RandomWeights::RandomWeights(const std::vector<TensorSpec>& specs, const RandomOptions& options, int threads)
    : options_(options),
      place_("random weights of seed " + std::to_string(options.seed)),
      random_(options.seed),
      workers_(threads) {
  uint64_t word = 0;
  for (const TensorSpec& spec : specs) {
    first_word_.emplace(spec.name, word);
    word += RandomFill::words(bytes_of_spec(spec));
    bytes_ += bytes_of_spec(spec);
    layers_ = std::max(layers_, spec.layer + 1);
  }
}

void RandomWeights::fill(const TensorSpec& spec, int64_t begin, std::span<std::byte> out) {
  const uint64_t first = first_word_.at(spec.name) + static_cast<uint64_t>(begin / 8);
  if (options_.routing == Routing::kZipf && spec.weight == "router_bias")
    return fill_zipf(spec, first_word_.at(spec.name), begin, out);
  random_.fill(random_contents(spec, layers_), first, out, workers_);
}

void RandomWeights::fill_zipf(const TensorSpec& spec, uint64_t first_word, int64_t begin,
                              std::span<std::byte> out) const {
  const std::vector<float> of_rank = zipf_bias(spec.shape.back(), options_.top_k);
  std::vector<BF16> bias(of_rank.size());
  for (size_t i = 0; i < bias.size(); ++i) bias[i] = to_bf16(of_rank[i]);
  Random random(options_.seed ^ first_word);
  for (size_t i = bias.size(); i > 1; --i)
    std::swap(bias[i - 1], bias[static_cast<size_t>(random.integer(0, static_cast<int64_t>(i) - 1))]);
  std::memcpy(out.data(), reinterpret_cast<const std::byte*>(bias.data()) + begin, out.size());
}

Result<const Checkpoint*> RandomWeights::make(std::span<const TensorSpec> specs) {
  int64_t wanted = 0;
  for (const TensorSpec& spec : specs) {
    if (!first_word_.contains(spec.name))
      return invalid(place_ + ": " + spec.name +
                     ": wanted a tensor of this checkpoint, found an unknown name");
    wanted += round_up(bytes_of_spec(spec), kAlignment);
  }
  made_.reset();
  if (wanted > capacity_) {
    memory_.reset(), capacity_ = 0;
    memory_.reset(new (std::nothrow) std::byte[static_cast<size_t>(wanted)]);
    if (!memory_)
      return out_of_memory(place_ + ": wanted " + std::to_string(wanted) +
                           " bytes of host memory, found less");
    capacity_ = wanted;
  }
  std::vector<CheckpointTensor> tensors;
  int64_t at = 0;
  for (const TensorSpec& spec : specs) {
    const std::span to(memory_.get() + at, static_cast<size_t>(bytes_of_spec(spec)));
    fill(spec, 0, to);
    tensors.push_back({.name = spec.name, .type = spec.type, .shape = spec.shape, .data = to.data()});
    at += round_up(bytes_of_spec(spec), kAlignment);
  }
  auto made = Checkpoint::of_memory(place_, std::move(tensors));
  if (!made.ok()) return made.status();
  made_ = std::move(made).value();
  return made_.get();
}

}  // namespace sluice
