// The draft layer against PyTorch: hidden states and logits within the noise of the recorded runs, however a step is cut.
#include "models/mtp.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "harness/devices.h"
#include "harness/far_device.h"
#include "harness/mtp_draft.h"

namespace sluice::test {
namespace {

std::unique_ptr<LoadedMtp> loaded(Device& device, const MtpLoadOptions& options = {}) {
  auto made = LoadedMtp::load(device, kMtp, options);
  EXPECT_TRUE(made.ok()) << made.status().message;
  return std::move(made).value();
}

// Rows of one sequence, from position `first` on, as shares of what is allowed.
void expect_within(const RecordedRows& want, const std::vector<float>& got, int64_t first, double noise_scale,
                   double rms_allowed, double most_allowed, const char* what) {
  const size_t width = want.value.size() / want.noise.size(), rows = got.size() / width;
  ASSERT_GT(rows, 0u);
  double worst_rms = 0, worst_most = 0;
  for (size_t row = 0; row < rows; ++row) {
    const size_t at = static_cast<size_t>(first) + row;
    double squares = 0, most = 0;
    for (size_t i = 0; i < width; ++i) {
      const double off = std::abs(static_cast<double>(got[row * width + i]) -
                                  static_cast<double>(want.value[at * width + i]));
      ASSERT_TRUE(std::isfinite(off)) << what << " row " << at;
      squares += off * off, most = std::max(most, off);
    }
    worst_rms =
        std::max(worst_rms, std::sqrt(squares / static_cast<double>(width)) / (noise_scale * want.noise[at]));
    worst_most = std::max(worst_most, most / (noise_scale * want.noise_most[at]));
  }
  EXPECT_LE(worst_rms, rms_allowed) << what;
  EXPECT_LE(worst_most, most_allowed) << what;
  testing::Test::RecordProperty(std::string(what) + "_rms", std::to_string(worst_rms));
  testing::Test::RecordProperty(std::string(what) + "_most", std::to_string(worst_most));
}

void expect_within(const RecordedMtp& r, const MtpDraft::Answer& got, int64_t first, double noise_scale,
                   double rms_allowed, double most_allowed) {
  expect_within(r.hidden, got.hidden, first, noise_scale, rms_allowed, most_allowed, "hidden");
  expect_within(r.logits, got.logits, first, noise_scale, rms_allowed, most_allowed, "logits");
}

std::vector<float> rows_of(const std::vector<float>& all, int64_t width, int64_t first, int64_t count) {
  return {all.begin() + first * width, all.begin() + (first + count) * width};
}

}  // namespace

// The bounds are those of tests/models/parity_test.cc, and so is their reason: bf16 rounds every stored value once, and our error is
// one more draw of what the spread of the recorded runs measures.
TEST(Mtp, HiddenStatesAndLogitsInBf16AreWithinTheNoiseOfItsRoundings) {
  const RecordedMtp r = recorded_mtp();
  for (const auto& device : every_level(2)) {
    SCOPED_TRACE(text(device->info()));
    const auto layer = loaded(*device);
    expect_within(r, MtpDraft(*device, *layer).step(r, {{0, 0, r.tokens()}}), 0, 1, 4, 2);
  }
}

// The same roundings, 2^16 times finer, and those of sums (at most 128 terms here).
TEST(Mtp, HiddenStatesAndLogitsInF32AreWithinTheNoiseOfItsSums) {
  const RecordedMtp r = recorded_mtp();
  const auto device = cpu::open_device({.threads = 2}).value();
  const auto layer = loaded(*device, {.x = DType::kF32});
  expect_within(r, MtpDraft(*device, *layer).step(r, {{0, 0, r.tokens()}}), 0, 0x1p-16, 16, 16);
}

// In chunks through the cache, beside another sequence, from permuted pages: the same bits where the same kernels serve every count
// of tokens and none lets rows depend on each other, and within the bounds always.
TEST(Mtp, StepsThroughTheCacheGiveWhatTheWholeGives) {
  const RecordedMtp r = recorded_mtp();
  const std::vector<std::vector<MtpChunk>> steps = {
      {{0, 0, 7}}, {{1, 0, 1}, {0, 7, 1}}, {{0, 8, 2}, {1, 1, 15}}, {{1, 16, 1}}, {{0, 10, 14}, {1, 17, 7}}};
  int compared = 0;
  for (const auto& device : every_level(2)) {
    SCOPED_TRACE(text(device->info()));
    const auto layer = loaded(*device);
    const int64_t h = layer->config().hidden, vocab = layer->config().vocab;
    MtpDraft draft(*device, *layer, {.batch_invariant = true});
    bool same_kernels = true;
    for (int64_t n = 2; n <= r.tokens(); ++n)
      same_kernels &= draft.mtp().kernels(n, n) == draft.mtp().kernels(1, 1);
    compared += same_kernels;
    const auto whole = MtpDraft(*device, *layer, {.batch_invariant = true}).step(r, {{0, 0, r.tokens()}});
    for (const auto& step : steps) {
      const auto got = draft.step(r, step);
      int64_t row = 0;
      for (const MtpChunk& c : step) {
        const MtpDraft::Answer mine{rows_of(got.hidden, h, row, c.count),
                                    rows_of(got.logits, vocab, row, c.count)};
        row += c.count;
        expect_within(r, mine, c.first, 1, 4, 2);
        if (!same_kernels) continue;
        EXPECT_EQ(mine.hidden, rows_of(whole.hidden, h, c.first, c.count))
            << "sequence " << c.sequence << " from " << c.first;
        EXPECT_EQ(mine.logits, rows_of(whole.logits, vocab, c.first, c.count));
      }
    }
  }
  EXPECT_GT(compared, 0) << "every machine has a level whose kernels do not change";
}

TEST(Mtp, NoRowSeesALaterToken) {
  const RecordedMtp r = recorded_mtp();
  const auto device = cpu::open_device({.threads = 2}).value();
  const auto layer = loaded(*device);
  const int64_t h = layer->config().hidden;
  RecordedMtp other = r;
  other.ids[20] = (r.ids[20] + 1) % 128;
  other.main[static_cast<size_t>(21 * h)] ^= 0x0080;  // another exponent
  const Policy policy{.batch_invariant = true};
  const auto a = MtpDraft(*device, *layer, policy).step(r, {{0, 0, r.tokens()}});
  const auto b = MtpDraft(*device, *layer, policy).step(other, {{0, 0, r.tokens()}});
  EXPECT_EQ(rows_of(a.hidden, h, 0, 20), rows_of(b.hidden, h, 0, 20));
  for (int64_t row = 20; row < r.tokens(); ++row)
    EXPECT_NE(rows_of(a.hidden, h, row, 1), rows_of(b.hidden, h, row, 1)) << row;
}

TEST(Mtp, ExpertsOnADeviceOfTheirOwnAreWithinTheSameNoise) {
  const RecordedMtp r = recorded_mtp();
  const auto device = cpu::open_device({.threads = 2}).value();
  FarDevice far;
  const auto layer = loaded(*device, {.experts = &far});
  EXPECT_EQ(layer->experts(), &far);
  expect_within(r, MtpDraft(*device, *layer).step(r, {{0, 0, r.tokens()}}), 0, 1, 4, 2);
}

// A recorded step has the bits of an eager one, and the next step of a draft may read its hidden states from where it writes them.
TEST(Mtp, RecordsAndWorksInPlace) {
  const RecordedMtp r = recorded_mtp();
  const auto device = cpu::open_device({.threads = 2}).value();
  const auto layer = loaded(*device);
  MtpDraft draft(*device, *layer);
  const auto eager = draft.step(r, {{0, 0, r.tokens()}});
  draft.fill(r, {{0, 0, r.tokens()}});
  const auto recording = device->record(device->stream(), [&] { return draft.enqueue(); });
  ASSERT_TRUE(recording.ok()) << recording.status().message;
  ASSERT_TRUE(device->replay(*recording.value(), device->stream()).ok());
  ASSERT_TRUE(device->wait(device->stream()).ok());
  EXPECT_EQ(draft.answer().hidden, eager.hidden);
  EXPECT_EQ(draft.answer().logits, eager.logits);

  const auto chained = [&](bool in_place) {
    draft.fill(r, {{0, 0, r.tokens()}});
    EXPECT_TRUE(draft.enqueue().ok());
    MtpIn in = draft.in();
    std::vector<std::byte> copy(static_cast<size_t>(bytes_of(in.hidden.dtype, elements_of(in.hidden))));
    std::memcpy(copy.data(), draft.out().hidden.data, copy.size());
    in.hidden.data = in_place ? draft.out().hidden.data : copy.data();
    EXPECT_TRUE(draft.mtp().forward(in, draft.held(), draft.out(), draft.workspace(), device->stream()).ok());
    return draft.answer().logits;
  };
  const auto logits = chained(false);
  EXPECT_EQ(chained(true), logits);
  EXPECT_NE(logits, eager.logits);
}

TEST(Mtp, EveryStageIsAProblemThatAKernelHereTakes) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto layer = loaded(*device);
  std::set<std::string> stages;
  const auto steps = plan_mtp(device->info(), device->catalog(), layer->config(), MtpDraft::kBounds);
  ASSERT_TRUE(steps.ok()) << steps.status().message;
  for (const auto& [step, count] : {std::pair{&*steps.value().layer, 5}, {&*steps.value().head, 2}})
    for (const PieceProblem& s : step->problems(count)) {
      const auto plan = s.problem->plan(*device, {});
      EXPECT_TRUE(plan.ok()) << s.stage << ": " << plan.status().message;
      EXPECT_TRUE(stages.insert(s.stage).second) << s.stage << " comes twice";
    }
  for (const char* stage : {"eh_proj", "attention.latent", "attention.kv_write", "router", "logits"})
    EXPECT_TRUE(stages.count(stage)) << stage;
  for (const auto& [stage, kernel] : MtpDraft(*device, *layer).mtp().kernels(5, 2))
    EXPECT_EQ(kernel.substr(0, 4), "cpu.") << stage;
}

TEST(Mtp, WrongTensorsAreRefusedByName) {
  const RecordedMtp r = recorded_mtp();
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto layer = loaded(*device);
  MtpDraft draft(*device, *layer);
  draft.fill(r, {{0, 0, 3}});
  const auto error = [&](auto change) {
    MtpIn in = draft.in();
    MtpOut out = draft.out();
    Workspace workspace = draft.workspace();
    change(in, out, workspace);
    return draft.mtp().forward(in, draft.held(), out, workspace, device->stream()).message;
  };
  EXPECT_EQ(error([](auto& in, auto&, auto&) { in.hidden.shape[1] = 63; }),
            "mtp hnorm: rms_norm: x: shape: wanted bf16[3, 64], found bf16[3, 63] strides [64, 1]");
  EXPECT_EQ(error([](auto&, auto& out, auto&) { out.hidden.shape[0] = 3; }),
            "mtp: hidden: shape: wanted bf16[24, 64], found bf16[3, 64]");
  EXPECT_EQ(error([](auto&, auto&, auto& workspace) { workspace.bytes = 8; }),
            "mtp: workspace: wanted " + std::to_string(draft.mtp().workspace_bytes()) + " bytes, found 8");
  EXPECT_EQ(error([](auto&, auto&, auto&) {}), "");
  EXPECT_TRUE(draft.step(r, {}).logits.empty());  // no tokens are no error
}

}  // namespace sluice::test
