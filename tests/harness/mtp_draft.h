// A draft layer in memory with everything that a step needs, fed with the data of
// tools/parity/record_mtp.py.
#pragma once
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/device.h"
#include "harness/recorded_logits.h"
#include "harness/test_data.h"
#include "models/mtp.h"
#include "weights/checkpoint.h"

namespace sluice::test {

inline const std::string kMtp = test_data("mtp/checkpoint");

// One row per position; every sequence of a test is the recorded one.
struct RecordedMtp {
  std::vector<int32_t> ids;
  std::vector<uint16_t> main;  // bf16 [tokens, hidden]
  RecordedRows hidden, logits;
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }

  static RecordedMtp read(const std::string& path) {
    const auto file = Checkpoint::open(path);
    EXPECT_TRUE(file.ok()) << file.status().message;
    if (!file.ok()) return {};
    const Checkpoint& from = *file.value();
    return {.ids = values<int32_t>(from, "ids"),
            .main = values<uint16_t>(from, "main"),
            .hidden = recorded_rows(from, "hidden"),
            .logits = recorded_rows(from, "logits")};
  }
};
inline RecordedMtp recorded_mtp() { return RecordedMtp::read(test_data("mtp/expected.safetensors")); }

// Consecutive tokens of one sequence.
struct MtpChunk {
  int64_t sequence = 0, first = 0, count = 0;
};

class MtpDraft {
 public:
  static constexpr StepBounds kBounds{
      .tokens = 24, .sequences = 24, .positions = 64, .page_size = 4, .pages = 40};

  // The layer must outlive this object.
  MtpDraft(Device& device, const LoadedMtp& loaded, const Policy& policy = {})
      : device_(device), loaded_(loaded) {
    auto made = Mtp::plan(device, loaded.config(), kBounds, policy, loaded.experts());
    EXPECT_TRUE(made.ok()) << made.status().message;
    mtp_ = std::move(made).value();
    workspace_.resize(mtp_->workspace_bytes() + 64);
    // Cache positions that no step has written hold NaN.
    cache_.assign(static_cast<size_t>(mtp_->cache_bytes()), std::byte{0xFF});
    auto held = mtp_->bind(loaded.weights(), mtp_->cache(cache_.data()));
    EXPECT_TRUE(held.ok()) << held.status().message;
    held_ = std::move(held).value();
    rope_.resize(static_cast<size_t>(kBounds.positions * loaded.config().attention.rope));
    EXPECT_TRUE(
        rope_table(loaded.config().rope, kBounds.positions, loaded.config().attention.rope, rope_.data())
            .ok());
  }
  const Mtp& mtp() const { return *mtp_; }

  // The results of a step for each of its tokens in order: the stream, and the logits, which are requested for all tokens.
  struct Answer {
    std::vector<float> hidden, logits;
  };
  // Runs one step of these chunks.
  Answer step(const RecordedMtp& r, const std::vector<MtpChunk>& chunks) {
    fill(r, chunks);
    const Status status = enqueue();
    EXPECT_TRUE(status.ok()) << status.message;
    EXPECT_TRUE(device_.wait(device_.stream()).ok());
    return answer();
  }
  // The same in two parts, so that it can be recorded: fill() writes the inputs, enqueue() enqueues the step.
  void fill(const RecordedMtp& r, const std::vector<MtpChunk>& chunks) {
    const int64_t h = loaded_.config().hidden;
    ids_.clear(), positions_.clear(), slots_.clear(), rows_.clear(), main_.clear();
    begins_.assign(static_cast<size_t>(kBounds.sequences + 1), 0);
    lengths_.assign(static_cast<size_t>(kBounds.sequences), 0);
    pages_.assign(static_cast<size_t>(kBounds.sequences * kBounds.pages_per_seq()), -1);
    size_t s = 0;
    for (const MtpChunk& c : chunks) {
      for (int64_t i = c.first; i < c.first + c.count; ++i) {
        ids_.push_back(r.ids[static_cast<size_t>(i)]);
        positions_.push_back(static_cast<int32_t>(i));
        slots_.push_back(page(c.sequence, i / kBounds.page_size) * static_cast<int32_t>(kBounds.page_size) +
                         static_cast<int32_t>(i % kBounds.page_size));
        rows_.push_back(static_cast<int32_t>(rows_.size()));
        for (int64_t k = 0; k < h; ++k)
          main_.push_back(to_float(BF16{r.main[static_cast<size_t>(i * h + k)]}));
      }
      for (int64_t p = 0; p * kBounds.page_size < c.first + c.count; ++p)
        pages_[s * static_cast<size_t>(kBounds.pages_per_seq()) + static_cast<size_t>(p)] =
            page(c.sequence, p);
      lengths_[s++] = static_cast<int32_t>(c.first + c.count);
      begins_[s] = static_cast<int32_t>(ids_.size());
    }
    for (; s < lengths_.size(); ++s) begins_[s + 1] = begins_[s];
    main_bytes_ = as_activations(main_);
    hidden_.assign(static_cast<size_t>(bytes_of(loaded_.config().x, kBounds.tokens * h)), std::byte{0xFF});
    logits_.assign(static_cast<size_t>(tokens() * loaded_.config().vocab), -1.f);
  }
  Status enqueue() {
    return mtp_->forward(in(), held_, out(), {workspace_.data(), workspace_.size()}, device_.stream());
  }
  Answer answer() const {
    const int64_t h = loaded_.config().hidden;
    Answer a{.hidden = {}, .logits = logits_};
    for (int64_t i = 0; i < tokens() * h; ++i)
      a.hidden.push_back(static_cast<float>(
          load(make_tensor(const_cast<std::byte*>(hidden_.data()), loaded_.config().x, {tokens() * h}), i)));
    return a;
  }
  // The inputs, which a test may change between fill() and enqueue().
  MtpIn in() {
    const int64_t n = tokens();
    const auto i32 = [](std::vector<int32_t>& v, std::initializer_list<int64_t> shape) {
      return make_tensor(v.data(), DType::kI32, shape);
    };
    MtpIn in;
    in.token_ids = i32(ids_, {n});
    in.hidden = make_tensor(main_bytes_.data(), loaded_.config().x, {n, loaded_.config().hidden});
    in.tables = {.positions = i32(positions_, {n}),
                 .slot_of = i32(slots_, {n}),
                 .q_begin = i32(begins_, {kBounds.sequences + 1}),
                 .kv_len = i32(lengths_, {kBounds.sequences}),
                 .page_table = i32(pages_, {kBounds.sequences, kBounds.pages_per_seq()}),
                 .rope = make_tensor(rope_.data(), DType::kF32,
                                     {kBounds.positions, loaded_.config().attention.rope / 2, 2})};
    in.logit_rows = i32(rows_, {n});
    return in;
  }
  MtpOut out() {
    return {
        .hidden = make_tensor(hidden_.data(), loaded_.config().x, {kBounds.tokens, loaded_.config().hidden}),
        .logits = make_tensor(logits_.data(), DType::kF32, {tokens(), loaded_.config().vocab})};
  }
  const MtpHeld& held() const { return held_; }
  Workspace workspace() { return {workspace_.data(), workspace_.size()}; }

 private:
  int64_t tokens() const { return static_cast<int64_t>(ids_.size()); }
  // Pages of the sequences alternate, from the last page downward.
  static int32_t page(int64_t sequence, int64_t i) {
    return static_cast<int32_t>(kBounds.pages - 1 - 3 * i - sequence);
  }
  std::vector<std::byte> as_activations(const std::vector<float>& values) const {
    std::vector<std::byte> out(
        static_cast<size_t>(bytes_of(loaded_.config().x, static_cast<int64_t>(values.size()))));
    for (size_t i = 0; i < values.size(); ++i) {
      const BF16 half = to_bf16(values[i]);
      if (loaded_.config().x == DType::kBF16) {
        std::memcpy(&out[2 * i], &half, 2);
      } else {
        std::memcpy(&out[4 * i], &values[i], 4);
      }
    }
    return out;
  }

  Device& device_;
  const LoadedMtp& loaded_;
  std::unique_ptr<Mtp> mtp_;
  MtpHeld held_;
  std::vector<std::byte> workspace_, cache_, hidden_, main_bytes_;
  std::vector<float> rope_, logits_, main_;
  std::vector<int32_t> ids_, positions_, slots_, rows_, begins_, lengths_, pages_;
};

}  // namespace sluice::test
