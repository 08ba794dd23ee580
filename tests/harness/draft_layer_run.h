// Runs a draft layer on recorded features and compares it with the float64 runs of tools/parity.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "harness/recorded_logits.h"
#include "models/draft.h"

namespace sluice::test {

inline constexpr int64_t kDraftPositions = 9,
                         kDraftRows = 11;  // rows with the model's features; rows after drafts

struct RecordedDrafts {
  std::vector<float> features;
  std::vector<int32_t> ids, tokens;
  RecordedRows stream, hidden;
};
// Reads a file in the format that record_eagle3.py describes.
inline RecordedDrafts recorded_drafts(const std::string& path) {
  RecordedDrafts out;
  const auto file = Checkpoint::open(path);
  EXPECT_TRUE(file.ok()) << file.status().message;
  if (!file.ok()) return out;
  const Checkpoint& from = *file.value();
  for (const BF16 x : values<BF16>(from, "features")) out.features.push_back(to_float(x));
  out.ids = values<int32_t>(from, "ids"), out.tokens = values<int32_t>(from, "tokens");
  out.stream = recorded_rows(from, "stream"), out.hidden = recorded_rows(from, "hidden");
  return out;
}

// Converts floats to activation bytes, and back.
inline std::vector<std::byte> as_activations(DType x, const std::vector<float>& values) {
  std::vector<std::byte> out(static_cast<size_t>(bytes_of(x, std::ssize(values))));
  for (size_t i = 0; i < values.size(); ++i) {
    const BF16 half = to_bf16(values[i]);
    if (x == DType::kBF16) std::memcpy(&out[2 * i], &half, 2);
    if (x == DType::kF32) std::memcpy(&out[4 * i], &values[i], 4);
  }
  return out;
}
inline std::vector<float> as_floats(DType x, const std::byte* from, int64_t count) {
  std::vector<float> out;
  const Tensor t = make_tensor(const_cast<std::byte*>(from), x, {count});
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<float>(load(t, i)));
  return out;
}

// A draft layer with everything that its steps need, for one sequence whose pages are in shuffled order.
class Drafter {
 public:
  static constexpr StepBounds kBounds{
      .tokens = 16, .sequences = 12, .positions = 64, .page_size = 4, .pages = 24};

  Drafter(Device& device, const LoadedDraft& head) : device_(device), config_(head.config()) {
    auto made = DraftLayer::plan(device, config_, kBounds, {}, {.device = head.experts()});
    EXPECT_TRUE(made.ok()) << made.status().message;
    layer_ = std::move(made).value();
    workspace_.resize(layer_->workspace_bytes() + 64);
    const AttentionConfig& a = config_.attention;
    const int64_t elements = kBounds.pages * a.kv_heads * kBounds.page_size * a.head_dim;
    // Unwritten positions hold NaN.
    for (auto* cache : {&k_, &v_})
      cache->assign(static_cast<size_t>(bytes_of(a.cache_type(), elements)), std::byte{0xFF});
    const auto view = [&](std::vector<std::byte>& cache) {
      return make_tensor(cache.data(), a.cache_type(),
                         {kBounds.pages, a.kv_heads, kBounds.page_size, a.head_dim});
    };
    auto held = layer_->bind(head.weights(), a.latent ? KvCache{view(k_)} : KvCache{view(k_), view(v_)});
    EXPECT_TRUE(held.ok()) << held.status().message;
    held_ = std::move(held).value();
    rope_.resize(static_cast<size_t>(kBounds.positions * a.rotary));
    EXPECT_TRUE(rope_table(config_.rope, kBounds.positions, a.rotary, rope_.data()).ok());
    const auto rows = static_cast<size_t>(bytes_of(config_.x, kBounds.tokens * config_.hidden));
    stream_.assign(rows, std::byte{0xFF}), hidden_.assign(rows, std::byte{0xFF});
  }

  // Runs rows from position `first` on with the model's features, and keeps their streams.
  void extend(const RecordedDrafts& r, int64_t first, int64_t count) {
    const auto from = r.features.begin() + first * config_.features();
    source_ = as_activations(config_.x, {from, from + count * config_.features()});
    const auto ids = r.ids.begin() + first;
    run(first, {ids, ids + count}, config_.features(), [&](const DraftLayerIn& in) {
      return layer_->extend(in, held_, stream(), workspace(), device_.stream());
    });
  }
  // Runs the row at `position`, after the latest draft.
  void next(int64_t position) {
    source_ = {hidden_.begin(), hidden_.begin() + bytes_of(config_.x, config_.hidden)};
    run(position, {token_[0]}, config_.hidden, [&](const DraftLayerIn& in) {
      return layer_->next(in, held_, stream(), workspace(), device_.stream());
    });
  }
  // Samples drafts after these rows of the stream.
  void draft(std::vector<int32_t> rows) {
    const auto n = std::ssize(rows);
    token_.assign(static_cast<size_t>(n), -2);
    logprob_.assign(static_cast<size_t>(n), 0);
    const Status status =
        layer_->draft(make_tensor(rows.data(), DType::kI32, {n}), stream(), held_,
                      {.token = make_tensor(token_.data(), DType::kI32, {n}),
                       .logprob = make_tensor(logprob_.data(), DType::kF32, {n}),
                       .hidden = make_tensor(hidden_.data(), config_.x, {n, config_.hidden})},
                      workspace(), device_.stream());
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
  }
  std::vector<float> stream_rows(int64_t count) const {
    return as_floats(config_.x, stream_.data(), count * config_.hidden);
  }
  std::vector<float> hidden_rows(int64_t count) const {
    return as_floats(config_.x, hidden_.data(), count * config_.hidden);
  }
  const std::vector<int32_t>& tokens() const { return token_; }

 private:
  static int32_t page_of(int64_t position) {
    return static_cast<int32_t>(kBounds.pages - 1 - 2 * (position / kBounds.page_size));
  }
  Tensor stream() { return make_tensor(stream_.data(), config_.x, {kBounds.tokens, config_.hidden}); }
  Workspace workspace() { return {workspace_.data(), workspace_.size()}; }

  template <class Enqueue>
  void run(int64_t first, std::vector<int32_t> ids, int64_t width, Enqueue enqueue) {
    const auto n = std::ssize(ids);
    std::vector<int32_t> positions, slots;
    for (int64_t i = first; i < first + n; ++i) {
      positions.push_back(static_cast<int32_t>(i));
      slots.push_back(page_of(i) * static_cast<int32_t>(kBounds.page_size) +
                      static_cast<int32_t>(i % kBounds.page_size));
    }
    std::vector<int32_t> begins(kBounds.sequences + 1, static_cast<int32_t>(n)),
        lengths(kBounds.sequences, 0),
        pages(static_cast<size_t>(kBounds.sequences * kBounds.pages_per_seq()), -1);
    begins[0] = 0, lengths[0] = static_cast<int32_t>(first + n);
    for (int64_t i = 0; i < first + n; ++i) pages[static_cast<size_t>(i / kBounds.page_size)] = page_of(i);
    const auto i32 = [](std::vector<int32_t>& v, std::initializer_list<int64_t> shape) {
      return make_tensor(v.data(), DType::kI32, shape);
    };
    DraftLayerIn in;
    in.token_ids = i32(ids, {n});
    in.source = make_tensor(source_.data(), config_.x, {n, width});
    in.tables = {
        .positions = i32(positions, {n}),
        .slot_of = i32(slots, {n}),
        .q_begin = i32(begins, {kBounds.sequences + 1}),
        .kv_len = i32(lengths, {kBounds.sequences}),
        .page_table = i32(pages, {kBounds.sequences, kBounds.pages_per_seq()}),
        .rope = make_tensor(rope_.data(), DType::kF32, {kBounds.positions, config_.attention.rotary / 2, 2}),
        .rows_max = n == 1 ? 1 : 0};
    const Status status = enqueue(in);
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
  }

  Device& device_;
  const DraftLayerConfig& config_;
  std::unique_ptr<DraftLayer> layer_;
  DraftLayerHeld held_;
  std::vector<std::byte> workspace_, k_, v_, stream_, hidden_, source_;
  std::vector<float> rope_;
  std::vector<int32_t> token_;
  std::vector<float> logprob_;  // of the drafts
};

// The allowed error, as a multiple of the effect of bf16 rounding in the recorded runs: the bounds of
// tests/models/parity_test.cc.
struct Allowed {
  double noise_scale, rms, most;
};
inline constexpr Allowed kBf16Roundings{1, 4, 2}, kF32Roundings{0x1p-16, 16, 16};

// Compares rows from position `first` on.
inline void expect_within(const RecordedRows& want, const std::vector<float>& got, int64_t first,
                          const Allowed& allowed, const char* what) {
  const size_t width = want.value.size() / want.noise.size();
  for (size_t row = 0; row < got.size() / width; ++row) {
    const size_t at = static_cast<size_t>(first) + row;
    double squares = 0, most = 0;
    for (size_t i = 0; i < width; ++i) {
      const double off = std::abs(static_cast<double>(got[row * width + i]) -
                                  static_cast<double>(want.value[at * width + i]));
      ASSERT_TRUE(std::isfinite(off)) << what << " row " << at;
      squares += off * off, most = std::max(most, off);
    }
    const double rms = std::sqrt(squares / static_cast<double>(width));
    EXPECT_LE(rms, allowed.rms * allowed.noise_scale * want.noise[at]) << what << " row " << at;
    EXPECT_LE(most, allowed.most * allowed.noise_scale * want.noise_most[at]) << what << " row " << at;
  }
}

inline std::vector<int32_t> numbers(int64_t count) {
  std::vector<int32_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(static_cast<int32_t>(i));
  return out;
}

inline void expect_extended(Drafter& drafter, const RecordedDrafts& r, int64_t first, int64_t count,
                            const Allowed& allowed) {
  drafter.extend(r, first, count);
  if (!r.stream.value.empty()) expect_within(r.stream, drafter.stream_rows(count), first, allowed, "stream");
  drafter.draft(numbers(count));
  expect_within(r.hidden, drafter.hidden_rows(count), first, allowed, "hidden");
  const auto from = r.tokens.begin() + first;
  EXPECT_EQ(drafter.tokens(), (std::vector<int32_t>{from, from + count})) << first;
}

// The drafts after the last position that has features.
inline void expect_drafts(Drafter& drafter, const RecordedDrafts& r, int64_t rows, const Allowed& allowed) {
  drafter.draft({static_cast<int32_t>(rows - 1)});
  for (int64_t position = kDraftPositions; position < kDraftRows; ++position) {
    EXPECT_EQ(drafter.tokens()[0], r.ids[static_cast<size_t>(position)]);
    drafter.next(position);
    expect_within(r.stream, drafter.stream_rows(1), position, allowed, "draft's stream");
    drafter.draft({0});
    expect_within(r.hidden, drafter.hidden_rows(1), position, allowed, "draft's hidden");
    EXPECT_EQ(drafter.tokens()[0], r.tokens[static_cast<size_t>(position)]);
  }
}

}  // namespace sluice::test
