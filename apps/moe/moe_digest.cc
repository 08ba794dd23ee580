#include "apps/moe/moe_digest.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>

#include "backends/backends.h"
#include "nn/moe/load.h"

namespace sluice::apps {
namespace {

enum class Kind : uint8_t { kCodes, kScales, kRouter, kBias, kUnit };

// SplitMix64 (Steele, Lea, Flood 2014), applied to a counter.
uint64_t mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// Four bf16 numbers with random signs and mantissas and the exponent `exponent`.
uint64_t four_bf16(uint64_t bits, uint64_t exponent) {
  return (bits & 0x807F807F807F807Fu) | exponent * 0x0080008000800080u;
}

uint64_t word_of(Kind kind, uint64_t bits) {
  switch (kind) {
    case Kind::kCodes:
      return bits;
    case Kind::kScales:
      return 0x7676767676767676u + (bits & 0x0303030303030303u);  // eight e8m0 scales from 2^-9 to 2^-6
    case Kind::kRouter:
      return four_bf16(bits, 121);  // from 2^-6 to 2^-5
    case Kind::kBias:
      return four_bf16(bits, 124);
    case Kind::kUnit:
      return four_bf16(bits, 126);
  }
  return 0;
}

// Generates `bytes` bytes of tensor k, beginning at byte `first`, in words of 8 bytes.
std::vector<std::byte> numbers(Kind kind, uint64_t k, int64_t first, int64_t bytes) {
  std::vector<std::byte> out(static_cast<size_t>(bytes));
  for (size_t i = 0; i < out.size(); i += 8) {
    const uint64_t word = word_of(kind, mix((k << 40) + (static_cast<uint64_t>(first) + i) / 8));
    std::memcpy(out.data() + i, &word, 8);
  }
  return out;
}

// The tensors of the layer with the checkpoint's names, and with only this rank's experts.
class Weights {
 public:
  Weights(const MoeConfig& c, const Slice& slice) : part_(part_of_experts(c.experts, slice)) {
    const MoeNames& n = moe_names(MoeNaming::kGptOss);
    const int64_t h = c.hidden / kMxBlock, i = c.intermediate / kMxBlock, half = kMxBlock / 2;
    constexpr auto kB = StoredType::kBF16, kU = StoredType::kU8;
    add(n.router, kB, Kind::kRouter, {0, c.experts}, {c.hidden});
    add(n.router_bias, kB, Kind::kBias, {0, c.experts}, {});
    add(n.up, kU, Kind::kCodes, part_, {2 * c.intermediate, h, half});
    add(n.up_scale, kU, Kind::kScales, part_, {2 * c.intermediate, h});
    add(n.up_bias, kB, Kind::kBias, part_, {2 * c.intermediate});
    add(n.down, kU, Kind::kCodes, part_, {c.hidden, i, half});
    add(n.down_scale, kU, Kind::kScales, part_, {c.hidden, i});
    add(n.down_bias, kB, Kind::kBias, part_, {c.hidden});
  }
  Result<std::unique_ptr<Checkpoint>> checkpoint() {
    return Checkpoint::of_memory("made-up weights", tensors_);
  }
  uint64_t count() const { return bytes_.size(); }

 private:
  void add(std::string_view pattern, StoredType type, Kind kind, Part of_first, std::vector<int64_t> rest) {
    int64_t each = bits_of(type) / 8;
    for (int64_t size : rest) each *= size;
    rest.insert(rest.begin(), of_first.count);
    bytes_.push_back(numbers(kind, bytes_.size(), of_first.begin * each, of_first.count * each));
    tensors_.push_back({.name = tensor_name(pattern, 0),
                        .type = type,
                        .shape = std::move(rest),
                        .data = bytes_.back().data()});
  }
  Part part_;
  // tensors_ points to these bytes, which stay in place when the outer vector grows
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<CheckpointTensor> tensors_;
};

uint64_t fnv1a(const std::vector<std::byte>& bytes) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (std::byte b : bytes) hash = (hash ^ static_cast<uint64_t>(b)) * 0x100000001B3u;
  return hash;
}

Result<uint64_t> digest(Device& device, const Moe& moe, const MoeWeights& weights,
                        const std::vector<std::byte>& x) {
  const MoeConfig& c = moe.config();
  const int64_t bytes = static_cast<int64_t>(x.size()), tokens = bytes / (2 * c.hidden);
  std::vector<OwnedTensor> owned;
  for (int64_t size : {bytes, bytes, static_cast<int64_t>(moe.workspace_bytes())}) {
    auto made = OwnedTensor::make(device, slot("", Role::kOut, DType::kU8, {size}), "moe --digest");
    if (!made.ok()) return made.status();
    owned.push_back(std::move(made).value());
  }
  const auto rows = [&](const OwnedTensor& t) {
    return make_tensor(t.view().data, DType::kBF16, {tokens, c.hidden}, device.info().backend);
  };
  MoeIo io;
  io.x = rows(owned[0]), io.y = rows(owned[1]);
  const Stream stream = device.stream();
  SLUICE_TRY(device.copy(io.x.data, x.data(), x.size(), stream));
  SLUICE_TRY(moe.forward(io, weights, {owned[2].view().as<std::byte>(), moe.workspace_bytes()}, stream));
  std::vector<std::byte> y(x.size());
  SLUICE_TRY(device.copy(y.data(), io.y.data, y.size(), stream));
  SLUICE_TRY(device.wait(stream));
  return fnv1a(y);
}

}  // namespace

Status write_moe_digests(const MoeDigestOptions& options, std::ostream& out) {
  if (options.model != "gpt-oss-20b" && options.model != "gpt-oss-120b")
    return invalid("--digest: wanted gpt-oss-20b or gpt-oss-120b, found '" + options.model + "'");
  int64_t tokens_max = 1;
  for (int64_t tokens : options.tokens) {
    if (tokens < 1 || tokens > 16384)
      return invalid("tokens: wanted 1 to 16384, found " + std::to_string(tokens));
    tokens_max = std::max(tokens_max, tokens);
  }
  auto config = known_moe(options.model);
  if (!config.ok()) return config.status();
  config.value().layout = layout_for(options.backend);
  const auto local = sliced(config.value(), options.slice);
  if (!local.ok()) return local.status();
  auto opened = open_device({.backend = options.backend, .threads = options.threads, .gpu = options.index});
  if (!opened.ok()) return opened.status();
  Device& device = *opened.value();
  const auto moe = Moe::plan(device, local.value(), tokens_max);
  if (!moe.ok()) return moe.status();
  auto weights = std::make_unique<Weights>(config.value(), options.slice);
  const uint64_t tensors = weights->count();
  const auto checkpoint = weights->checkpoint();
  if (!checkpoint.ok()) return checkpoint.status();
  const auto loaded = load_moe(device, *checkpoint.value(), config.value(),
                               {.naming = MoeNaming::kGptOss, .slice = options.slice});
  if (!loaded.ok()) return loaded.status();
  weights.reset();
  out << "device " << text(device.info()) << "\n";
  for (int64_t tokens : options.tokens) {
    const auto got = digest(device, *moe.value(), loaded.value()->weights(),
                            numbers(Kind::kUnit, tensors, 0, tokens * config.value().hidden * 2));
    if (!got.ok()) return got.status();
    char hex[17];
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(got.value()));
    out << "digest " << options.model << " ep " << options.slice.ep_rank << "/" << options.slice.ep_size
        << " tokens " << tokens << ": " << hex << "\n";
  }
  return {};
}

}  // namespace sluice::apps
