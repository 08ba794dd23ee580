// Planned steps of whole models on an H200: which kernel computes which stages, and how often.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "backends/cuda/device.h"
#include "dispatch/explain.h"
#include "models/draft.h"
#include "nn/decoder_slice.h"

namespace sluice::test {
namespace {

// Lines such as "  24 x route+group                 cuda.route_group.fewtokens_sm90", in the order in which
// kernels first run.
void list(const Step& step, int64_t tokens, std::ostream& out) {
  std::vector<std::pair<std::string, int>> lines;
  for (const StageKernel& s : step.kernels(tokens)) {
    std::string stage = s.stage;
    stage.resize(std::max<size_t>(stage.size() + 1, 52), ' ');
    const std::string line = stage + s.kernel;
    auto same = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == line; });
    if (same == lines.end()) same = lines.insert(lines.end(), {line, 0});
    ++same->second;
  }
  for (const auto& [line, times] : lines) {
    std::string count = std::to_string(times);
    count.insert(0, count.size() < 4 ? 4 - count.size() : 0, ' ');
    out << count << " x " << line << "\n";
  }
}

std::string steps_of(const DecoderConfig& model) {
  const DeviceInfo h200 = known_device("h200").value();
  std::ostringstream out;
  for (const int64_t tokens : {1, 8, 64, 1024}) {
    const StepBounds bounds{.tokens = 1024, .sequences = std::min<int64_t>(tokens, 256), .pages = 4096};
    const auto steps = plan_decoder(h200, cuda::catalog(), model.with_layouts_of(h200), bounds);
    EXPECT_TRUE(steps.ok()) << steps.status().message;
    if (!steps.ok()) return {};
    out << tokens << " tokens\n";
    list(steps.value().layers.of(tokens, 1), tokens, out);
    list(tokens > 256 ? *steps.value().greedy : *steps.value().all_greedy, bounds.sequences, out);
  }
  return out.str();
}

void expect_golden(const std::string& name, const std::string& found) {
  const std::string path = std::string(SLUICE_SOURCE_DIR) + "/tests/golden/steps/" + name + ".txt";
  if (std::getenv("SLUICE_UPDATE_GOLDENS")) {
    std::ofstream(path) << found;
    return;
  }
  std::ifstream file(path);
  std::ostringstream wanted;
  wanted << file.rdbuf();
  EXPECT_EQ(found, wanted.str()) << path << " (./dev goldens rewrites it)";
}

DecoderConfig published_decoder(const std::string& name) {
  const auto read = read_model_config(std::string(SLUICE_SOURCE_DIR) + "/tests/data/" + name);
  EXPECT_TRUE(read.ok()) << read.status().message;
  return read.value().decoder;
}
// A published head for gpt-oss-20b (nebius), with its own vocabulary and the widest MLP of all such heads.
DraftLayerConfig head_of_gpt_oss() {
  DraftLayerConfig c;
  c.draft_vocab = 64000, c.maps_tokens = true;
  c.taps = {2, 12, 22};
  c.attention.input = 2 * c.hidden;
  c.mlp = {.hidden = c.hidden,
           .intermediate = 17280,
           .experts = 1,
           .top_k = 1,
           .dense = true,
           .expert_w = DType::kBF16};
  c.mlp.residual = true;
  return c;
}

std::string draft_steps_of(const DecoderConfig& model, const DraftLayerConfig& head) {
  const DeviceInfo h200 = known_device("h200").value();
  DecoderConfig with_head = model.with_layouts_of(h200);
  const DraftLayerConfig planned = head.with_layouts_of(h200);
  with_head.taps = planned.taps, with_head.draft_attention = planned.attention;
  std::ostringstream out;
  for (const int64_t sequences : {1, 8, 64}) {
    const StepBounds bounds{
        .tokens = 1024, .sequences = sequences, .pages = 4096, .rows = 4 * sequences, .verify_rows = 4};
    const auto steps = plan_decoder(h200, cuda::catalog(), with_head, bounds);
    const auto drafts = plan_draft_layer(h200, cuda::catalog(), planned, bounds);
    EXPECT_TRUE(steps.ok()) << steps.status().message;
    EXPECT_TRUE(drafts.ok()) << drafts.status().message;
    if (!steps.ok() || !drafts.ok()) return {};
    out << sequences << " sequences with 3 drafts: verify, extend, next, head\n";
    list(steps.value().layers.of(4 * sequences, 4), 4 * sequences, out);
    list(drafts.value().extend.of(4 * sequences, 4), 4 * sequences, out);
    list(*drafts.value().next, sequences, out);
    list(*drafts.value().head, sequences, out);
  }
  return out.str();
}

DecoderConfig gpt_oss_20b() { return published_decoder("gpt-oss-20b"); }
// gpt-oss-20b with four times the experts and one and a half times the layers.
DecoderConfig gpt_oss_120b() {
  DecoderConfig model = gpt_oss_20b();
  while (model.layers.size() < 36) model.layers.push_back(model.layers[model.layers.size() - 2]);
  for (LayerConfig& layer : model.layers) layer.mlp.experts = 128;
  return model;
}

}  // namespace

TEST(StepGolden, GptOss20b) { expect_golden("gpt_oss_20b", steps_of(gpt_oss_20b())); }

TEST(StepGolden, GptOss20bWithADraftHead) {
  expect_golden("gpt_oss_20b_eagle3", draft_steps_of(gpt_oss_20b(), head_of_gpt_oss()));
}

TEST(StepGolden, GptOss120b) { expect_golden("gpt_oss_120b", steps_of(gpt_oss_120b())); }
// The second of two ranks; the first has biases of output projections too.
TEST(StepGolden, GptOss120bOnTwoRanks) {
  expect_golden("gpt_oss_120b_tp2", steps_of(sliced(gpt_oss_120b(), {.rank = 1, .ranks = 2}).value()));
}
TEST(StepGolden, Qwen3Moe235bA22bOnFourRanks) {
  const DecoderConfig model = published_decoder("qwen3-235b-a22b");
  expect_golden("qwen3_235b_a22b_tp4", steps_of(sliced(model, {.rank = 0, .ranks = 4}).value()));
}

TEST(StepGolden, Qwen3Moe30bA3b) {
  expect_golden("qwen3_30b_a3b", steps_of(published_decoder("qwen3-30b-a3b")));
}
TEST(StepGolden, Qwen3Moe235bA22b) {
  expect_golden("qwen3_235b_a22b", steps_of(published_decoder("qwen3-235b-a22b")));
}
TEST(StepGolden, DeepSeekV3) { expect_golden("deepseek_v3", steps_of(published_decoder("deepseek-v3"))); }
TEST(StepGolden, Moonlight) {
  expect_golden("moonlight_16b_a3b", steps_of(published_decoder("moonlight-16b-a3b")));
}
// Moonlight with a multi-token-prediction layer, which the published model lacks.
TEST(StepGolden, MoonlightWithADraftLayer) {
  ModelConfig model =
      read_model_config(std::string(SLUICE_SOURCE_DIR) + "/tests/data/moonlight-16b-a3b").value();
  model.mtp_layers = 1;
  expect_golden("moonlight_16b_a3b_mtp", draft_steps_of(model.decoder, mtp_config(model).value()));
}

}  // namespace sluice::test
