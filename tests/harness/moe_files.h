// An MoE layer with random weights, written as a checkpoint in any tensor naming.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "nn/moe/load.h"
#include "weights/files.h"

namespace sluice::test {

// One row-major matrix: bf16, or MXFP4 codes and scales.
struct RandomMatrix {
  int64_t rows = 0, width = 0;
  bool fp4 = false;
  std::vector<uint8_t> w, scales;
  int64_t row_bytes() const { return fp4 ? width / 2 : 2 * width; }
};

// The whole layer in feature order, with separate gates and ups.
struct RandomMoe {
  MoeConfig config;
  std::vector<RandomMatrix> gate, up, down;  // one per expert; gate is empty if the activation has no gate
  RandomMatrix shared_gate, shared_up, shared_down;  // bf16
  std::vector<uint16_t> router, router_bias;         // bf16
  std::vector<float> correction_bias;
  std::vector<uint16_t> up_bias, down_bias;  // [experts, rows] in config.gate_order
  std::vector<int64_t> hash_table;

  RandomMoe(const MoeConfig& c, uint64_t seed) : config(c) {
    Random random(seed);
    const bool fp4 = c.expert_w == DType::kE2M1, gated = is_gated(c.act);
    for (int64_t e = 0; e < c.experts; ++e) {
      if (gated) gate.push_back(matrix(c.intermediate, c.hidden, fp4, random));
      up.push_back(matrix(c.intermediate, c.hidden, fp4, random));
      down.push_back(matrix(c.hidden, c.intermediate, fp4, random));
    }
    if (c.shared_intermediate) {
      if (gated) shared_gate = matrix(c.shared_intermediate, c.hidden, false, random);
      shared_up = matrix(c.shared_intermediate, c.hidden, false, random);
      shared_down = matrix(c.hidden, c.shared_intermediate, false, random);
    }
    router = values(c.experts * c.hidden, 1 / std::sqrt(static_cast<double>(c.hidden)), random);
    if (c.router_bias) router_bias = values(c.experts, .5, random);
    for (int64_t e = 0; c.correction_bias && e < c.experts; ++e)
      correction_bias.push_back(static_cast<float>(random.normal() * .1));
    const int64_t up_rows = (gated ? 2 : 1) * c.intermediate;
    if (c.up_bias) up_bias = values(c.experts * up_rows, .5, random);
    if (c.down_bias) down_bias = values(c.experts * c.hidden, .5, random);
    for (int64_t i = 0; i < c.hash_vocab * c.top_k; ++i)
      hash_table.push_back((i / c.top_k * 5 + i % c.top_k) % c.experts);
  }

  // The tensors of one layer in this naming.
  std::vector<StoredTensor> tensors(MoeNaming naming, int64_t layer) const {
    const MoeNames& n = moe_names(naming);
    const MoeConfig& c = config;
    std::vector<StoredTensor> out;
    const auto add = [&](std::string_view pattern, StoredType type, std::vector<int64_t> shape,
                         const void* data, size_t bytes, int64_t expert = 0) {
      StoredTensor t{{tensor_name(pattern, layer, expert), type, std::move(shape)}, {}};
      t.bytes.resize(bytes);
      if (bytes) std::memcpy(t.bytes.data(), data, bytes);
      out.push_back(std::move(t));
    };
    const auto add_all = [&](std::string_view pattern, StoredType type, std::vector<int64_t> shape,
                             const auto& v) {
      if (!v.empty()) add(pattern, type, std::move(shape), v.data(), v.size() * sizeof(v[0]));
    };
    // Begins with a single byte, so that no later tensor is aligned.
    add("odd", StoredType::kU8, {1}, "x", 1);
    add_all(n.router, StoredType::kBF16, {c.experts, c.hidden}, router);
    add_all(n.router_bias, StoredType::kBF16, {c.experts}, router_bias);
    add_all(n.correction_bias, StoredType::kF32, {c.experts}, correction_bias);
    add_all(n.hash_table, StoredType::kI64, {c.hash_vocab, c.top_k}, hash_table);
    const int64_t up_rows = (gate.empty() ? 1 : 2) * c.intermediate;
    add_all(n.up_bias, StoredType::kBF16, {c.experts, up_rows}, up_bias);
    add_all(n.down_bias, StoredType::kBF16, {c.experts, c.hidden}, down_bias);
    if (n.storage == ExpertStorage::kOneByOne) {
      for (int64_t e = 0; e < c.experts; ++e) {
        const auto at = static_cast<size_t>(e);
        const auto one = [&](std::string_view w, const RandomMatrix& m) {
          if (!m.fp4) return add(w, StoredType::kBF16, {m.rows, m.width}, m.w.data(), m.w.size(), e);
          const StoredType type = e % 3 == 0   ? StoredType::kI8
                                  : e % 3 == 1 ? StoredType::kU8
                                               : StoredType::kF4;
          add(w, type, {m.rows, type == StoredType::kF4 ? m.width : m.width / 2}, m.w.data(), m.w.size(), e);
          const std::string stem(w.substr(0, w.size() - std::string_view(".weight").size()));
          add(stem + std::string(n.scales), e % 2 ? StoredType::kU8 : StoredType::kF8E8M0,
              {m.rows, m.width / 32}, m.scales.data(), m.scales.size(), e);
        };
        if (!gate.empty()) one(n.gate, gate[at]);
        one(n.up, up[at]);
        one(n.down, down[at]);
      }
    } else {
      add_fused(n, add);
    }
    if (c.shared_intermediate) {
      if (!gate.empty())
        add_all(n.shared_gate, StoredType::kBF16, {shared_gate.rows, shared_gate.width}, shared_gate.w);
      add_all(n.shared_up, StoredType::kBF16, {shared_up.rows, shared_up.width}, shared_up.w);
      add_all(n.shared_down, StoredType::kBF16, {shared_down.rows, shared_down.width}, shared_down.w);
    }
    return out;
  }

  // Selected rows or columns of a bf16 matrix.
  static RandomMatrix rows_of(const RandomMatrix& m, int64_t first, int64_t count) {
    const auto at = m.w.begin() + static_cast<std::ptrdiff_t>(first * m.row_bytes());
    return {.rows = count,
            .width = m.width,
            .fp4 = false,
            .w = {at, at + static_cast<std::ptrdiff_t>(count * m.row_bytes())},
            .scales = {}};
  }
  static RandomMatrix columns_of(const RandomMatrix& m, int64_t first, int64_t count) {
    RandomMatrix out{.rows = m.rows, .width = count, .fp4 = false, .w = {}, .scales = {}};
    for (int64_t r = 0; r < m.rows; ++r) {
      const auto at = m.w.begin() + static_cast<std::ptrdiff_t>(r * m.row_bytes() + 2 * first);
      out.w.insert(out.w.end(), at, at + static_cast<std::ptrdiff_t>(2 * count));
    }
    return out;
  }

  // Gate and up of one expert (only `first` if `second` is null) as one row-major matrix, in `order`.
  static RandomMatrix joined(const RandomMatrix& first, const RandomMatrix* second, GateOrder order) {
    if (!second) return first;
    RandomMatrix out{.rows = 2 * first.rows, .width = first.width, .fp4 = first.fp4, .w = {}, .scales = {}};
    out.w.resize(2 * first.w.size());
    out.scales.resize(2 * first.scales.size());
    for (int64_t i = 0; i < first.rows; ++i) {
      for (bool is_up : {false, true}) {
        const RandomMatrix& m = is_up ? *second : first;
        const int64_t row = gated_row(order, first.rows, i, is_up), scales = m.fp4 ? m.width / 32 : 0;
        std::memcpy(out.w.data() + row * m.row_bytes(), m.w.data() + i * m.row_bytes(),
                    static_cast<size_t>(m.row_bytes()));
        if (scales)
          std::memcpy(out.scales.data() + row * scales, m.scales.data() + i * scales,
                      static_cast<size_t>(scales));
      }
    }
    return out;
  }

 private:
  static std::vector<uint16_t> values(int64_t count, double scale, Random& random) {
    std::vector<uint16_t> out;
    for (int64_t i = 0; i < count; ++i)
      out.push_back(to_bf16(static_cast<float>(random.normal() * scale)).bits);
    return out;
  }
  static RandomMatrix matrix(int64_t rows, int64_t width, bool fp4, Random& random) {
    RandomMatrix m{.rows = rows, .width = width, .fp4 = fp4, .w = {}, .scales = {}};
    const double gain = 1 / std::sqrt(static_cast<double>(width));
    if (!fp4) {
      const auto bits = values(rows * width, gain, random);
      m.w.resize(bits.size() * 2);
      std::memcpy(m.w.data(), bits.data(), m.w.size());
      return m;
    }
    for (int64_t i = 0; i < rows * width / 2; ++i) m.w.push_back(static_cast<uint8_t>(random.bits()));
    const int64_t middle = 126 + static_cast<int64_t>(std::lround(std::log2(gain)));
    for (int64_t i = 0; i < rows * width / 32; ++i)
      m.scales.push_back(static_cast<uint8_t>(middle + random.integer(-1, 1)));
    return m;
  }

  template <class Add>
  void add_fused(const MoeNames& n, Add add) const {
    const MoeConfig& c = config;
    const auto stack = [&](std::string_view w, std::string_view scale, auto of_expert) {
      std::vector<uint8_t> codes, scales;
      RandomMatrix m;
      const bool rows = n.storage == ExpertStorage::kFusedRows;
      for (int64_t e = 0; e < c.experts; ++e) {
        m = of_expert(static_cast<size_t>(e));
        if (!m.fp4 && !rows) m.w = transposed(m);
        codes.insert(codes.end(), m.w.begin(), m.w.end());
        scales.insert(scales.end(), m.scales.begin(), m.scales.end());
      }
      if (rows) {
        const StoredType type = m.fp4 ? StoredType::kU8 : StoredType::kBF16;
        add(w, type, {c.experts, m.rows, m.fp4 ? m.width / 2 : m.width}, codes.data(), codes.size(), 0);
        if (m.fp4)
          add(scale, StoredType::kF8E8M0, {c.experts, m.rows, m.width / 32}, scales.data(), scales.size(), 0);
        return;
      }
      if (!m.fp4)
        return add(w, StoredType::kBF16, {c.experts, m.width, m.rows}, codes.data(), codes.size(), 0);
      add(w, StoredType::kU8, {c.experts, m.rows, m.width / 32, 16}, codes.data(), codes.size(), 0);
      add(scale, StoredType::kU8, {c.experts, m.rows, m.width / 32}, scales.data(), scales.size(), 0);
    };
    const bool gated = !gate.empty();
    const GateOrder order = n.storage == ExpertStorage::kFusedRows ? c.gate_order : n.gate_order;
    stack(n.up, n.up_scale,
          [&](size_t e) { return joined(gated ? gate[e] : up[e], gated ? &up[e] : nullptr, order); });
    stack(n.down, n.down_scale, [&](size_t e) { return down[e]; });
  }
  static std::vector<uint8_t> transposed(const RandomMatrix& m) {
    std::vector<uint8_t> out(m.w.size());
    for (int64_t r = 0; r < m.rows; ++r)
      for (int64_t k = 0; k < m.width; ++k)
        std::memcpy(&out[static_cast<size_t>(2 * (k * m.rows + r))],
                    &m.w[static_cast<size_t>(2 * (r * m.width + k))], 2);
    return out;
  }
};

// A checkpoint that is written and opened again.
struct Written {
  explicit Written(const std::vector<StoredTensor>& tensors) {
    write_tensors(at.file("model.safetensors"), tensors);
    auto opened = Checkpoint::open(at.path());
    EXPECT_TRUE(opened.ok()) << opened.status().message;
    checkpoint = std::move(opened).value();
  }
  TemporaryDirectory at;
  std::unique_ptr<Checkpoint> checkpoint;
};

// A layer for each naming, small enough for a reference.
inline MoeConfig small_config(MoeNaming naming) {
  const char* const kModels[] = {"gpt-oss-20b",      "gpt-oss-20b",   "gpt-oss-20b",     "deepseek-v4-flash",
                                 "deepseek-v3",      "qwen3-30b-a3b", "nemotron-3-nano", "minimax-m2",
                                 "llama-4-scout",    "minimax-m3",    "mistral-large-3", "glm-5.3-flash",
                                 "deepseek-v4-flash"};
  MoeConfig c = known_moe(kModels[static_cast<size_t>(naming)]).value();
  if (naming == MoeNaming::kGptOssBf16) c.expert_w = DType::kBF16;
  c.hidden = 96, c.intermediate = 160, c.experts = 8;
  if (c.top_k > 1) c.top_k = 3;
  if (c.groups > 1) c.groups = 4, c.topk_groups = 2;
  if (c.shared_intermediate) c.shared_intermediate = c.shared_as_slots ? 2 * c.intermediate : 96;
  return c;
}
constexpr MoeNaming kNamings[] = {MoeNaming::kGptOss,     MoeNaming::kGptOssOriginal, MoeNaming::kGptOssBf16,
                                  MoeNaming::kDeepSeekV4, MoeNaming::kDeepSeekV3,     MoeNaming::kQwen3Moe,
                                  MoeNaming::kNemotron3,  MoeNaming::kMiniMaxM2,      MoeNaming::kLlama4,
                                  MoeNaming::kMiniMaxM3,  MoeNaming::kMistralLarge3,  MoeNaming::kGlm5Next,
                                  MoeNaming::kPlain};

}  // namespace sluice::test
