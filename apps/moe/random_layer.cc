#include "apps/moe/random_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace sluice::apps {
namespace {

// Allocates a tensor in device memory. `fill` writes its contents in host memory, from where they are copied.
template <class Fill>
Status make_filled(Device& device, const SlotSpec& spec, Tensor* to, std::vector<OwnedTensor>* memory,
                   Fill fill) {
  auto made = OwnedTensor::make(device, spec, "moe: " + std::string(spec.name));
  if (!made.ok()) return made.status();
  *to = made.value().view();
  const auto bytes = static_cast<size_t>(made.value().bytes());
  memory->push_back(std::move(made).value());
  if (device.shares_host_memory()) return fill(*to), Status{};
  std::vector<std::byte> host(bytes);
  Tensor here = *to;
  here.data = host.data(), here.where = Backend::kCpu;
  fill(here);
  SLUICE_TRY(device.copy(to->data, host.data(), bytes, device.stream()));
  return device.wait(device.stream());
}

void fill_normal(const Tensor& t, double scale, Random& random) {
  for (int64_t i = 0; i < elements_of(t); ++i) {
    const auto value = static_cast<float>(random.normal() * scale);
    if (t.dtype == DType::kBF16) t.as<BF16>()[i] = to_bf16(value);
    if (t.dtype == DType::kF32) t.as<float>()[i] = value;
  }
}

bool is_scale(const SlotSpec& spec) {
  return spec.name.ends_with("up_scale") || spec.name.ends_with("down_scale");
}

// The problem of the matrix product that reads this expert tensor.
const ExpertGemm::Problem& product_of(const ExpertProblems& p, const SlotSpec& spec) {
  const bool down = spec.name.find(".down") != std::string_view::npos;
  if (spec.name.starts_with("shared")) return down ? p.shared_down : p.shared_up;
  if (spec.name.starts_with("latent")) return spec.name == "latent.in" ? p.latent_in : p.latent_out;
  return down ? p.down : p.up;
}

// Clears bits so that the absolute values of packed e4m3 codes are below 2. So none of them is NaN.
void bound_e4m3(WeightLayout layout, const Tensor& t) {
  // Clears the highest exponent bits. In fragments, such a bit is bit 10 of a half word, or the exclusive or of bits 6 and 14.
  const uint32_t mask = layout == WeightLayout::kFragments ? ~0x44404440u : ~0x40404040u;
  auto* words = t.as<uint32_t>();
  for (int64_t i = 0; i < elements_of(t) / 4; ++i) words[i] &= mask;
}

// Writes one expert's packed scales in a format other than MXFP4, so that weights have an RMS of about `size`. The codes
// themselves have an RMS of about 1/2 (e4m3 below 2) or 2.9 (e2m1).
void fill_scales(const ExpertGemm::Problem& p, double size, uint8_t* to, int64_t bytes, Random& random) {
  const WeightFormat f = ExpertGemm::format(p);
  const bool fragments = p.layout == WeightLayout::kFragments;
  const auto of_row = static_cast<float>(f.w == DType::kE4M3 ? 2 * size : size / 2.9);
  const auto power = static_cast<int64_t>(std::lround(std::log2(of_row)));
  const auto put = [&](int64_t from, int64_t end, float value) {
    for (int64_t i = from; i + 4 <= end; i += 4) std::memcpy(to + i, &value, sizeof value);
  };
  const int64_t top = fragments ? ExpertGemm::fragments(p).top_begin(f) : bytes;
  switch (f.scales) {
    case WeightScales::kMx:
      for (int64_t i = 0; i < bytes; ++i)
        to[i] = static_cast<uint8_t>(!fragments ? 127 + power - random.integer(0, 1)
                                     : i < top  ? kFragmentUnscaled - random.integer(0, 1)
                                                : 127 + power);
      return;
    case WeightScales::kBlocks:
      put(0, bytes, of_row);
      for (int64_t block = 0; fragments && block < top; block += 32) put(block + 16, block + 32, 1);
      if (fragments) put(top, bytes, 1);
      return;
    case WeightScales::kRows:
      return put(0, bytes, of_row);
    case WeightScales::kNv:
      break;
  }
  const auto one = static_cast<uint8_t>(fragments ? fragment_nv_stored(0x38) : 0x38);
  if (fragments) {
    std::memset(to, one, static_cast<size_t>(top));
    return put(top, bytes, 128 * of_row);
  }
  const PanelShape s = ExpertGemm::panels(p);
  for (int64_t panel = 0; panel < s.panels; ++panel) {
    const int64_t begin = panel * s.panel_scale_bytes(f), factors = panel_row_scale_index(s, f, {panel, 0});
    std::memset(to + begin, one, static_cast<size_t>(factors - begin));
    put(factors, begin + s.panel_scale_bytes(f), of_row);
  }
}

// Fills a weight tensor so that its elements have an RMS of about 1 / sqrt(width), which gives the layer unit gain. Packing permutes bytes, and
// permuted random bytes are still random, so packed weights are generated in their packed form.
void fill_weight(const MoeConfig& c, const SlotSpec& spec, const Tensor& t, Random& random) {
  const ExpertProblems problems = expert_problems(c);
  const ExpertGemm::Problem& product = product_of(problems, spec);
  const double root = std::sqrt(static_cast<double>(product.width));
  const int gain = -static_cast<int>(std::lround(std::log2(root)));
  const int64_t n = elements_of(t);
  const WeightFormat format = ExpertGemm::format(product);
  if (is_scale(spec) && format.scaled() && format != WeightFormat{DType::kE2M1}) {
    const int64_t each = t.shape[1];
    for (int64_t e = 0; e < t.shape[0]; ++e)
      fill_scales(product, 1 / root, t.as<uint8_t>() + e * each, each, random);
  } else if (is_scale(spec)) {
    // Uniform e2m1 codes have an RMS of 2.9, about 2^1.5. Fragments store first the scales relative to their row's largest scale, then the
    // largest scale of each row.
    const bool fragments = c.layout == WeightLayout::kFragments;
    const int64_t each = t.shape[1], top = fragments ? ExpertGemm::fragments(product).top_begin(format) : 0;
    for (int64_t i = 0; i < n; ++i)
      t.as<uint8_t>()[i] = static_cast<uint8_t>(!fragments       ? 127 + gain - 2 + random.integer(0, 1)
                                                : i % each < top ? kFragmentUnscaled - random.integer(0, 1)
                                                                 : 127 + gain - 1);
  } else if (t.dtype == DType::kU8 && product.w == DType::kBF16) {
    for (int64_t i = 0; i < n / 2; ++i) {  // random signs and mantissas, with the same exponent
      const uint32_t bits = random.bits();
      t.as<uint16_t>()[i] = static_cast<uint16_t>((bits & 0x807Fu) | static_cast<uint32_t>(127 + gain) << 7);
    }
  } else if (t.dtype == DType::kU8) {
    for (int64_t i = 0; i + 16 <= n; i += 16) {
      const auto words = philox(random.bits(), static_cast<uint64_t>(i));
      std::memcpy(t.as<uint8_t>() + i, words.data(), 16);
    }
    if (format.w == DType::kE4M3) bound_e4m3(c.layout, t);
  } else if (t.dtype == DType::kI32) {
    for (int64_t i = 0; i < n; ++i)  // neighboring slots get different experts
      t.as<int32_t>()[i] = static_cast<int32_t>((random.bits() % 64 * c.top_k + i) % c.experts);
  } else if (spec.name == "experts.act_params") {
    for (int64_t i = 0; i < n; ++i) {
      const double of_config[] = {c.alpha, c.beta, c.limit};
      t.as<float>()[i] = static_cast<float>(of_config[i % 3] * (1 + 0.25 * random.uniform()));
    }
  } else {
    const bool wide = spec.name == "router" || spec.name.ends_with("lora_a");
    const auto width = static_cast<double>(t.shape[static_cast<size_t>(t.rank - 1)]);
    fill_normal(t, wide ? 1 / std::sqrt(width) : 0.1, random);
  }
}

void fill_io(const MoeConfig& c, const SlotSpec& spec, const Tensor& t, Random& random) {
  if (t.dtype != DType::kI32) return fill_normal(t, 1, random);
  for (int64_t i = 0; i < elements_of(t); ++i) {
    int32_t& value = t.as<int32_t>()[i];
    const auto expert = static_cast<int32_t>((random.bits() % 64 * c.top_k + i % c.top_k) % c.experts);
    if (spec.name == "token_ids") value = static_cast<int32_t>(random.integer(0, c.hash_vocab - 1));
    if (spec.name == "adapter") value = static_cast<int32_t>(random.integer(-1, c.lora_adapters - 1));
    if (spec.name == "ids_in") value = expert;
    if (spec.name == "packed_in") value = expert << 16 | to_bf16(static_cast<float>(random.uniform())).bits;
  }
}

// Rejects fragments with padding, because the padding must be zeros and random bytes would overwrite it.
Status check_padding(const MoeConfig& c, const SlotSpec& spec) {
  if (c.layout != WeightLayout::kFragments || spec.dtype != DType::kU8) return {};
  const ExpertProblems problems = expert_problems(c);
  const ExpertGemm::Problem& p = product_of(problems, spec);
  if (p.width % kFragmentWidth == 0 && ExpertGemm::weight_rows(p) % kFragmentRows == 0) return {};
  return unsupported("moe: " + std::string(spec.name) +
                     ": random weights in fragments: wanted rows and width in multiples of " +
                     std::to_string(kFragmentRows) + ", found " + std::to_string(ExpertGemm::weight_rows(p)) +
                     " and " + std::to_string(p.width));
}

}  // namespace

double bytes_of_slots(const std::vector<std::pair<SlotSpec, Tensor*>>& slots) {
  double sum = 0;
  for (const auto& [spec, tensor] : slots) {
    double elements = spec.used ? 1 : 0;
    for (int i = 0; i < spec.rank; ++i) elements *= static_cast<double>(spec.shape[static_cast<size_t>(i)]);
    sum += elements * bits_of(spec.dtype) / 8;
  }
  return sum;
}

Result<std::unique_ptr<RandomLayer>> RandomLayer::make(Device& device, const MoeConfig& config,
                                                       uint64_t seed) {
  auto layer = std::make_unique<RandomLayer>();
  Random random(seed);
  const auto slots = weight_slots(config, &layer->weights_);
  layer->bytes_ = bytes_of_slots(slots);
  for (const auto& [spec, tensor] : slots) {
    if (!spec.used) continue;
    SLUICE_TRY(check_padding(config, spec));
    SLUICE_TRY(make_filled(device, spec, tensor, &layer->memory_,
                           [&, &of = spec](const Tensor& t) { fill_weight(config, of, t, random); }));
  }
  return layer;
}

Result<RandomCall> random_call(Device& device, const Moe& moe, int64_t tokens, Random& random) {
  RandomCall call;
  for (const auto& [spec, tensor] : io_slots(moe.config(), tokens, &call.io)) {
    if (!spec.used) continue;
    SLUICE_TRY(make_filled(device, spec, tensor, &call.memory, [&, &of = spec](const Tensor& t) {
      fill_io(moe.config(), of, t, random);
      if (of.name == "tokens_valid") *t.as<int32_t>() = static_cast<int32_t>(tokens);
    }));
  }
  Tensor scratch;
  const SlotSpec spec =
      slot("workspace", Role::kIn, DType::kU8, {static_cast<int64_t>(moe.workspace_bytes())});
  SLUICE_TRY(make_filled(device, spec, &scratch, &call.memory, [](const Tensor&) {}));
  call.workspace = {scratch.as<std::byte>(), moe.workspace_bytes()};
  return call;
}

Result<std::vector<std::byte>> bytes_at(Device& device, const Tensor& t) {
  std::vector<std::byte> out(static_cast<size_t>(bytes_of(t.dtype, elements_of(t))));
  SLUICE_TRY(device.copy(out.data(), t.data, out.size(), device.stream()));
  SLUICE_TRY(device.wait(device.stream()));
  return out;
}

}  // namespace sluice::apps
