// The multi-token-prediction layer of the small DeepSeek V3 models, compared with the float64 runs of
// tools/parity/record_deepseek_v3.py: hidden states and drafts after the model's hidden states, and drafts
// after drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "harness/devices.h"
#include "harness/draft_layer_run.h"
#include "harness/family_parity.h"
#include "harness/far_device.h"
#include "harness/test_data.h"
#include "weights/files.h"

namespace sluice::test {
namespace {

constexpr const char* kDraftModels[] = {"deepseek_v3/v3", "deepseek_v3/gpu", "deepseek_v3/fp8"};

// Runs one step of these tokens and returns the hidden states after the model's last norm.
std::vector<float> hidden_states(Device& device, const LoadedModel& model, std::vector<int32_t> ids) {
  DecoderConfig config = model.config().decoder;
  config.taps = {static_cast<int32_t>(config.layers.size()) + 1};
  const auto n = std::ssize(ids);
  const StepBounds bounds{.tokens = n, .sequences = 1, .positions = n, .page_size = 4, .pages = (n + 3) / 4};
  auto made = Decoder::plan(device, config, bounds);
  EXPECT_TRUE(made.ok()) << made.status().message;
  const Decoder& decoder = *made.value();
  std::vector<std::byte> cache(static_cast<size_t>(decoder.cache_bytes()));
  const auto held = decoder.bind(model.weights(), decoder.caches(cache.data()));
  EXPECT_TRUE(held.ok()) << held.status().message;
  std::vector<std::byte> workspace(decoder.workspace_bytes() + 64);
  std::vector<std::byte> taps(static_cast<size_t>(bytes_of(config.x, n * config.hidden)));
  std::vector<int32_t> positions = numbers(n), begins = {0, static_cast<int32_t>(n)},
                       lengths = {static_cast<int32_t>(n)}, pages = numbers(bounds.pages);
  const int64_t rotary = config.layers.front().attention.rotary;
  std::vector<float> rope(static_cast<size_t>(n * rotary));
  EXPECT_TRUE(rope_table(config.rope, n, rotary, rope.data()).ok());
  const auto i32 = [](std::vector<int32_t>& v, std::initializer_list<int64_t> shape) {
    return make_tensor(v.data(), DType::kI32, shape);
  };
  StepIn in;
  in.token_ids = i32(ids, {n});
  in.tables = {{.positions = i32(positions, {n}),
                .slot_of = i32(positions, {n}),
                .q_begin = i32(begins, {2}),
                .kv_len = i32(lengths, {1}),
                .page_table = i32(pages, {1, bounds.pages_per_seq()}),
                .rope = make_tensor(rope.data(), DType::kF32, {n, rotary / 2, 2})}};
  in.logit_rows = make_tensor(nullptr, DType::kI32, {0});
  in.taps = make_tensor(taps.data(), config.x, {n, config.hidden});
  const Status status =
      decoder.forward(in, held.value(), {}, {workspace.data(), workspace.size()}, device.stream());
  EXPECT_TRUE(status.ok()) << status.message;
  EXPECT_TRUE(device.wait(device.stream()).ok());
  return as_floats(config.x, taps.data(), n * config.hidden);
}

// The model ran all tokens but the last; the draft layer also reads each row's next token. tokens: -1 where
// rounding may change the draft.
RecordedDrafts recorded_mtp(const std::string& model, const std::vector<float>& features) {
  const auto file = Checkpoint::open(test_data(model + ".safetensors"));
  EXPECT_TRUE(file.ok()) << file.status().message;
  RecordedDrafts out{.features = features, .ids = {}, .tokens = {}, .stream = {}, .hidden = {}};
  if (!file.ok()) return out;
  const auto ids = values<int32_t>(*file.value(), "all.ids");
  out.ids = {ids.begin() + 1, ids.end()};
  out.hidden = recorded_rows(*file.value(), "mtp.hidden");
  auto logits = values<float>(*file.value(), "mtp.logits");
  const auto noise = values<float>(*file.value(), "mtp.noise_most");
  const auto vocab = std::ssize(logits) / std::ssize(out.ids);
  for (size_t i = 0; i < noise.size(); ++i) {
    const auto row = logits.begin() + static_cast<ptrdiff_t>(i) * vocab;
    const auto largest = std::max_element(row, row + vocab);
    const float most = std::exchange(*largest, row[largest == row ? 1 : 0]);
    const bool clear = most - *std::max_element(row, row + vocab) > 4 * noise[i];
    out.tokens.push_back(clear ? static_cast<int32_t>(largest - row) : -1);
  }
  return out;
}

struct LoadedWithDraft {
  std::unique_ptr<LoadedModel> model;
  std::unique_ptr<LoadedDraft> draft;
  LoadedWithDraft(Device& device, const std::string& name, DType x, Device* experts = nullptr) {
    auto made = LoadedModel::load(device, test_data(name), {.x = x});
    EXPECT_TRUE(made.ok()) << made.status().message;
    model = std::move(made).value();
    auto layer = LoadedDraft::load_mtp(device, test_data(name), *model, {.x = x, .experts = experts});
    EXPECT_TRUE(layer.ok()) << layer.status().message;
    draft = std::move(layer).value();
  }
};

void expect_rows(Drafter& drafter, const RecordedDrafts& r, int64_t first, int64_t count,
                 const Allowed& allowed) {
  drafter.extend(r, first, count);
  drafter.draft(numbers(count));
  expect_within(r.hidden, drafter.hidden_rows(count), first, allowed, "hidden");
  for (int64_t i = 0; i < count; ++i) {
    const int32_t wanted = r.tokens[static_cast<size_t>(first + i)];
    if (wanted >= 0) {
      EXPECT_EQ(drafter.tokens()[static_cast<size_t>(i)], wanted) << "row " << first + i;
    }
  }
}

void expect_chain(Drafter& drafter, const std::string& model, int64_t rows, int64_t position) {
  const auto file = Checkpoint::open(test_data(model + ".safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().message;
  drafter.draft({static_cast<int32_t>(rows - 1)});
  for (const int32_t wanted : values<int32_t>(*file.value(), "mtp.drafts")) {
    EXPECT_EQ(drafter.tokens()[0], wanted) << position;
    drafter.next(position++);
    drafter.draft({0});
  }
}

// In chunks through the cache; the last rows run twice, as after a rejected draft.
void expect_drafts_of(Device& device, const std::string& name, DType x, const Allowed& allowed,
                      Device* experts = nullptr) {
  SCOPED_TRACE(name + " " + text(x) + " " + text(device.info()));
  const LoadedWithDraft m(device, name, x, experts);
  const auto file = Checkpoint::open(test_data(name + ".safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().message;
  auto ids = values<int32_t>(*file.value(), "all.ids");
  ids.pop_back();
  const RecordedDrafts r = recorded_mtp(name, hidden_states(device, *m.model, ids));
  Drafter drafter(device, *m.draft);
  const auto rows = std::ssize(ids);
  ASSERT_EQ(rows, 39);
  for (const auto& [first, count] : {std::pair{0, 12}, {12, 1}, {13, 12}, {25, 10}, {31, 8}})
    expect_rows(drafter, r, first, count, allowed);
  expect_chain(drafter, name, 8, rows);
}

}  // namespace

TEST(Mtp, HiddenStatesAndDraftsInBf16AreWithinTheNoiseOfRoundings) {
  for (const char* name : kDraftModels)
    for (const auto& device : every_level(2)) expect_drafts_of(*device, name, DType::kBF16, kBf16Roundings);
}

TEST(Mtp, HiddenStatesAndDraftsInF32AreWithinTheNoiseOfSums) {
  const auto device = cpu::open_device({.threads = 2}).value();
  for (const char* name : kDraftModels) expect_drafts_of(*device, name, DType::kF32, kF32Roundings);
}

TEST(Mtp, ExpertsOnADeviceOfTheirOwnAreWithinTheSameNoise) {
  const auto device = cpu::open_device({.threads = 2}).value();
  FarDevice far;
  for (const char* name : kDraftModels) expect_drafts_of(*device, name, DType::kBF16, kBf16Roundings, &far);
}

TEST(Mtp, SharesTheModelsEmbeddingAndOutputLayer) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const LoadedWithDraft m(*device, "deepseek_v3/v3", DType::kBF16);
  for (const char* name : {"embedding", "lm_head"})
    EXPECT_EQ(m.draft->weights()(-1, name).data, m.model->weights()(-1, name).data) << name;
  EXPECT_EQ(m.draft->speculative_tokens(), std::nullopt);
  EXPECT_EQ(m.draft->config().mlp.logits, DType::kF32);
}

// config.json says that there is a draft layer; the layer after the model's last one may be an ordinary one that was cut off.
TEST(Mtp, AnOrdinaryLayerAfterTheLastIsReportedAsUnused) {
  const auto file = Checkpoint::open(test_data("deepseek_v3/v3"));
  ASSERT_TRUE(file.ok()) << file.status().message;
  const std::string prefix = "model.layers.3.";
  const auto unused_without = [&](const std::vector<std::string>& left_out) {
    const TemporaryDirectory directory;
    std::vector<StoredTensor> tensors;
    for (const CheckpointTensor& t : file.value()->tensors())
      if (std::ranges::find(left_out, t.name) == left_out.end())
        tensors.push_back({{t.name, t.type, t.shape}, {t.data, t.data + t.bytes}});
    write_tensors(directory.file("model.safetensors"), tensors);
    std::filesystem::copy_file(test_data("deepseek_v3/v3/config.json"), directory.file("config.json"));
    const auto device = cpu::open_device({.threads = 1}).value();
    const auto model = LoadedModel::load(*device, directory.path());
    EXPECT_TRUE(model.ok()) << model.status().message;
    const auto written = Checkpoint::open(directory.path());
    EXPECT_EQ(has_mtp_layer(*written.value(), model.value()->config()), left_out.size() != 3);
    return model.value()->notes().unused;
  };
  EXPECT_TRUE(unused_without({}).empty());
  EXPECT_TRUE(unused_without({prefix + "enorm.weight"}).empty()) << "a damaged draft layer";
  const std::vector<std::string> unused =
      unused_without({prefix + "enorm.weight", prefix + "hnorm.weight", prefix + "eh_proj.weight"});
  const auto of_layer = std::ranges::count_if(
      file.value()->tensors(), [&](const CheckpointTensor& t) { return t.name.starts_with(prefix); });
  EXPECT_EQ(std::ssize(unused), of_layer - 3);
}

}  // namespace sluice::test
