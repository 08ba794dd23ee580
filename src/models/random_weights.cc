#include "models/random_weights.h"

#include <new>

namespace sluice {
namespace {

constexpr int64_t kAlignment = 64;  // of tensors in memory

int64_t bytes_of_spec(const TensorSpec& spec) { return stored_bytes(spec.type, spec.shape).value_or(0); }

}  // namespace

RandomContents random_contents(const TensorSpec& spec) {
  const int64_t last = spec.shape.back();
  switch (spec.part) {
    case DecoderPart::kEmbedding:
    case DecoderPart::kSinks:
      return {Fill::kUnit, 1};
    case DecoderPart::kFinalNorm:
    case DecoderPart::kAttentionNorm:
    case DecoderPart::kMoeNorm:
      return {Fill::kNorm, 1};
    case DecoderPart::kExpertsScale:
      return {Fill::kMxfp4Scales, last * kMxBlock};
    case DecoderPart::kSharedScale:
      return {Fill::kF8Scales, last * 128};
    case DecoderPart::kHashTable:
      return {Fill::kExpertIds, 1};
    case DecoderPart::kCorrectionBias:
      return {Fill::kSmallF32, 1};
    case DecoderPart::kExperts:
    case DecoderPart::kShared:
    case DecoderPart::kRouter:
    case DecoderPart::kLmHead:
    case DecoderPart::kQkv:
    case DecoderPart::kO:
      if (spec.type == StoredType::kBF16) return {Fill::kWeight, last};
      if (spec.type == StoredType::kF32) return {Fill::kSmallF32, last};
      return {spec.type == StoredType::kF8E4M3 ? Fill::kF8Codes : Fill::kMxfp4Codes, 1};
    default:
      return {Fill::kBias, 1};
  }
}

RandomWeights::RandomWeights(const std::vector<TensorSpec>& specs, uint64_t seed, int threads)
    : place_("random weights of seed " + std::to_string(seed)), random_(seed), workers_(threads) {
  uint64_t word = 0;
  for (const TensorSpec& spec : specs) {
    first_word_.emplace(spec.name, word);
    word += RandomFill::words(bytes_of_spec(spec));
    bytes_ += bytes_of_spec(spec);
  }
}

void RandomWeights::fill(const TensorSpec& spec, int64_t begin, std::span<std::byte> out) {
  const uint64_t first = first_word_.at(spec.name) + static_cast<uint64_t>(begin / 8);
  random_.fill(random_contents(spec), first, out, workers_);
}

Result<const Checkpoint*> RandomWeights::make(std::span<const TensorSpec> specs) {
  int64_t wanted = 0;
  for (const TensorSpec& spec : specs) {
    if (!first_word_.contains(spec.name))
      return invalid(place_ + ": " + spec.name + ": wanted a tensor of the list, found another");
    wanted += round_up(bytes_of_spec(spec), kAlignment);
  }
  made_.reset();
  if (wanted > capacity_) {
    memory_.reset(), capacity_ = 0;
    memory_.reset(new (std::nothrow) std::byte[static_cast<size_t>(wanted)]);
    if (!memory_)
      return out_of_memory(place_ + ": wanted " + std::to_string(wanted) +
                           " bytes of the host's memory, found less");
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
