// Whole models on a GPU: compared with recorded logits, with the same engine on the CPU, and with the same
// engine under other batching.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>

#include "backends/cpu/device.h"
#include "gpu/gpu.h"
#include "gpu/shipped.h"
#include "harness/engine_runs.h"
#include "harness/random_gpt_oss.h"
#include "harness/recorded_logits.h"
#include "harness/sum_filter.h"
#include "harness/wrapped_device.h"
#include "models/load.h"

namespace sluice::test {
namespace {

std::unique_ptr<LoadedModel> load(Device& device, const std::string& directory, DType x = DType::kBF16) {
  auto loaded = LoadedModel::load(device, directory, {.x = x});
  EXPECT_TRUE(loaded.ok()) << loaded.status().message;
  return loaded.ok() ? std::move(loaded).value() : nullptr;
}

EngineOptions several() { return {.max_model_len = 1024, .max_num_seqs = 16, .max_num_batched_tokens = 256}; }

class EngineGpu : public OnGpu {
 protected:
  std::unique_ptr<Engine> engine(const LoadedModel& model, const EngineOptions& options) {
    return engine_of(gpu(), model.config().decoder, model.weights(), options);
  }
  // A model with heads of 64 elements and 8 query heads per kv head.
  void make_random() {
    write_random_gpt_oss(directory_.path());
    random_ = load(gpu(), directory_.path());
    ASSERT_NE(random_, nullptr);
  }
  TemporaryDirectory directory_;
  std::unique_ptr<LoadedModel> random_;
};

// tests/models/parity_test.cc explains the bounds.
TEST_F(EngineGpu, ShippedModelsLogitsAreWithinTheNoiseOfItsRoundings) {
  const auto file = Checkpoint::open(recorded_file());
  ASSERT_TRUE(file.ok()) << file.status().message;
  const auto model = load(gpu(), shipped_model());
  ASSERT_NE(model, nullptr);
  for (const int64_t chunk : {100, 512}) {
    const auto e =
        engine(*model, {.max_model_len = 2048, .max_num_seqs = 4, .max_num_batched_tokens = chunk});
    ASSERT_NE(e, nullptr);
    for (const char* prompt : kPrompts) {
      const Recorded r = recorded(*file.value(), prompt);
      const auto got = e->logits(r.ids, r.positions);
      ASSERT_TRUE(got.ok()) << got.status().message;
      for (size_t row = 0; row < r.positions.size(); ++row) {
        const Distance d = distance(r, got.value(), row, 1);
        EXPECT_LE(d.rms, 4) << prompt << ", position " << r.positions[row] << ", chunks of " << chunk;
        EXPECT_LE(d.most, 2) << prompt << ", position " << r.positions[row] << ", chunks of " << chunk;
      }
    }
  }
}

TEST_F(EngineGpu, ShippedModelsGreedyTextIsTheRecordedOne) {
  const auto file = Checkpoint::open(recorded_file());
  ASSERT_TRUE(file.ok()) << file.status().message;
  const auto model = load(gpu(), shipped_model());
  ASSERT_NE(model, nullptr);
  const auto e = engine(*model, {.max_model_len = 2048, .max_num_seqs = 8, .max_num_batched_tokens = 100});
  ASSERT_NE(e, nullptr);
  std::vector<Request> requests;
  for (const char* prompt : kPrompts) {
    const Recorded r = recorded(*file.value(), prompt);
    Request request{.prompt = r.ids};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int64_t>(r.greedy.size());
    requests.push_back(request);
  }
  const auto answers = run(*e, requests);
  size_t compared = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    const Recorded r = recorded(*file.value(), kPrompts[i]);
    // If the best logit leads by less than six standard deviations of the noise, another kernel may
    // legitimately choose another token.
    const float sure = 6 * *std::max_element(r.noise.begin(), r.noise.end());
    const auto certain = static_cast<size_t>(
        std::find_if(r.gap.begin(), r.gap.end(), [&](float gap) { return gap < sure; }) - r.gap.begin());
    const std::vector<int32_t>& ids = answers.at(static_cast<int64_t>(i)).ids;
    ASSERT_GE(ids.size(), certain) << kPrompts[i];
    EXPECT_TRUE(std::equal(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(certain), r.greedy.begin()))
        << kPrompts[i];
    compared += certain;
  }
  EXPECT_GE(compared, 100u);
}

// The difference between the logits of two models.
struct Differences {
  // Root mean square over all logits, root mean square of the worst row, and the largest difference.
  double all = 0, worst_row = 0, most = 0;
};
Differences differences(const std::vector<float>& a, const std::vector<float>& b, size_t rows) {
  Differences out;
  const size_t vocab = a.size() / rows;
  for (size_t row = 0; row < rows; ++row) {
    double squares = 0;
    for (size_t i = row * vocab; i < (row + 1) * vocab; ++i) {
      const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      squares += d * d, out.most = std::max(out.most, std::abs(d));
    }
    out.worst_row = std::max(out.worst_row, std::sqrt(squares / static_cast<double>(vocab)));
    out.all += squares / static_cast<double>(a.size());
  }
  out.all = std::sqrt(out.all);
  return out;
}

// The CPU's bf16 logits differ from its f32 logits by the effect of rounding. The GPU rounds as often, but at
// other places, so its largest error may be twice the CPU's, as in tests/models/parity_test.cc. The worst of
// 200 positions may also be twice as bad, because rounding may have changed a token's experts there.
// SLUICE_ENGINE_MODEL is a folder with a config.json for a model of random weights; without it, a small model
// is used.
TEST_F(EngineGpu, LogitsAreAsFarFromThoseInF32AsTheCpusAre) {
  const char* const given = std::getenv("SLUICE_ENGINE_MODEL");
  if (!given) write_random_gpt_oss(directory_.path());
  const std::string folder = given ? given : directory_.path();
  Random random(4);
  std::vector<int32_t> tokens;
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < 300; ++i) tokens.push_back(static_cast<int32_t>(random.integer(0, 999)));
  for (int64_t i = 0; i < 300; i += i < 150 ? 1 : 3) positions.push_back(i);
  const auto host = cpu::open_device().value();
  const auto logits = [&](Device& device, DType x) -> std::vector<float> {
    const auto model = LoadedModel::load(
        device, folder, {.x = x, .format = given ? LoadFormat::kDummy : LoadFormat::kSafetensors});
    EXPECT_TRUE(model.ok()) << model.status().message;
    if (!model.ok()) return {};
    const auto e = engine_of(device, model.value()->config().decoder, model.value()->weights(), several());
    auto got = e->logits(tokens, positions);
    EXPECT_TRUE(got.ok()) << got.status().message;
    return got.ok() ? std::move(got).value() : std::vector<float>{};
  };
  const auto exact = logits(*host, DType::kF32), rounded = logits(*host, DType::kBF16),
             got = logits(gpu(), DType::kBF16);
  ASSERT_FALSE(exact.empty());
  ASSERT_EQ(rounded.size(), exact.size());
  ASSERT_EQ(got.size(), exact.size());
  const size_t rows = positions.size();
  const Differences noise = differences(rounded, exact, rows), error = differences(got, exact, rows);
  EXPECT_GT(noise.all, 0);
  EXPECT_LE(error.all, 1.5 * noise.all);
  EXPECT_LE(error.worst_row, 2 * noise.worst_row);
  EXPECT_LE(error.most, 2 * noise.most);
  std::printf(
      "[   note   ] %zu positions, rms of the logits %.4f; errors of the CPU %.5f, a position %.4f, a logit "
      "%.4f; of the GPU %.5f, %.4f, %.4f\n",
      rows, differences(exact, std::vector<float>(exact.size()), rows).all, noise.all, noise.worst_row,
      noise.most, error.all, error.worst_row, error.most);
}

TEST_F(EngineGpu, RecordedOrLaunchedAheadOrNotGivesTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(make_random());
  for (EngineOptions o : {invariant(several()), several()}) {
    o.steps_ahead = 0, o.recorded_sequences = 0;
    const auto wanted = run(*engine(*random_, o), some_requests(1000));
    ASSERT_EQ(wanted.size(), some_requests().size());
    o.recorded_sequences = 16;
    EXPECT_EQ(run(*engine(*random_, o), some_requests(1000)), wanted) << "recorded";
    o.recorded_sequences = 0;
    const auto adjusted = run(*engine(*random_, o), adjusted_requests(1000));
    ASSERT_EQ(adjusted.size(), adjusted_requests().size());
    o.recorded_sequences = 16;
    EXPECT_EQ(run(*engine(*random_, o), adjusted_requests(1000)), adjusted) << "recorded, with penalties";
    const auto vocab = static_cast<int32_t>(random_->config().decoder.vocab);
    const auto filtered = [&] { return filtered_requests(1000, vocab); };
    const auto masked = run(*engine(*random_, o), filtered().requests);
    for (const auto& [id, answer] : masked)
      if (const int32_t modulus = filtered().moduli[static_cast<size_t>(id)])
        expect_kept(answer.ids, modulus);
    // Steps that run ahead have other rows in their batches; only batch-invariant kernels give the same bits.
    if (!o.policy.batch_invariant) continue;
    o.steps_ahead = 1;
    const auto e = engine(*random_, o);
    EXPECT_EQ(run(*e, some_requests(1000)), wanted) << "recorded and ahead";
    EXPECT_GE(e->recordings(), 3);
    EXPECT_EQ(run(*engine(*random_, o), adjusted_requests(1000)), adjusted) << "ahead, with penalties";
    EXPECT_EQ(run(*engine(*random_, o), filtered().requests), masked) << "ahead, with filters";
    o.recorded_sequences = 0;
    EXPECT_EQ(run(*engine(*random_, o), some_requests(1000)), wanted) << "ahead";
  }
}

// The answers equal those of an engine that does not count, and each token of a step counts for top_k experts
// in each layer.
TEST_F(EngineGpu, CountsTheTokensOfExpertsHoweverStepsAreExecuted) {
  ASSERT_NO_FATAL_FAILURE(make_random());
  const std::vector<Request> requests = some_requests(1000);
  int64_t computed = 0;
  for (const Request& r : requests) computed += std::ssize(r.prompt) + *r.sampling.max_tokens - 1;
  const auto answers = run(*engine(*random_, invariant(several())), requests);
  std::vector<int64_t> wanted;
  for (const auto& [ahead, recorded, piece] :
       {std::array<int64_t, 3>{0, 0, 256}, {1, 16, 256}, {1, 16, 24}}) {
    EngineOptions o = invariant(several());
    o.count_experts = true;
    o.steps_ahead = ahead, o.recorded_sequences = recorded, o.max_num_batched_tokens = piece;
    const auto e = engine(*random_, o);
    for (const Request& r : requests) ASSERT_TRUE(e->add(r).ok());
    std::map<int64_t, Answer> got;
    while (!e->idle()) {
      ASSERT_TRUE(e->ask_expert_counts().ok());
      const auto tokens = e->step();
      ASSERT_TRUE(tokens.ok()) << tokens.status().message;
      for (const GeneratedToken& t : tokens.value()) got[t.request].push(t);
    }
    EXPECT_EQ(got, answers);
    ASSERT_TRUE(e->ask_expert_counts().ok());
    const auto counts = e->expert_counts();
    const int64_t top_k = random_->config().decoder.moe().top_k;
    for (auto layer = counts->tokens.begin(); layer != counts->tokens.end(); layer += counts->experts)
      EXPECT_EQ(std::accumulate(layer, layer + counts->experts, int64_t{0}), computed * top_k);
    if (wanted.empty()) wanted = counts->tokens;
    EXPECT_EQ(counts->tokens, wanted) << "ahead " << ahead << ", chunks of " << piece;
  }
}

TEST_F(EngineGpu, TogetherOrAloneInChunksOrShortOfPagesGivesTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(make_random());
  const auto together = run(*engine(*random_, invariant(several())), some_requests(1000));
  const auto one = engine(*random_, invariant(several()));
  int64_t i = 0;
  for (const Request& r : some_requests(1000)) {
    EXPECT_EQ(run(*one, {r}).at(i), together.at(i)) << i;
    ++i;
  }
  // The pages of one sequence of 64 tokens, for layers with and without a window.
  EngineOptions o = invariant(several());
  o.max_model_len = 64;
  const EngineMemory full = engine(*random_, o)->memory();
  o.kv_cache_bytes = full.kv_cache_bytes / full.pages * 8;
  const auto small = engine(*random_, o);
  EXPECT_EQ(run(*small, some_requests(1000)), together);
  EXPECT_GT(small->scheduler().preemptions(), 0);
  EXPECT_EQ(small->scheduler().free_pages(), 8);
}

// Pages of the previous step, pages of earlier requests, and pages that two sequences share later.
TEST_F(EngineGpu, SharedPrefixesGiveTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(make_random());
  Random random(21);
  std::vector<Request> requests;
  for (const int64_t own : {0, 1, 40, 0, 17}) {
    Request r{.prompt = requests.empty() ? std::vector<int32_t>{} : requests[0].prompt};
    for (int64_t n = requests.empty() ? 96 : own; n > 0; --n)
      r.prompt.push_back(static_cast<int32_t>(random.integer(0, 999)));
    r.sampling.temperature = own == 17 ? 0.8 : 0;
    r.sampling.max_tokens = 40;
    requests.push_back(r);
  }
  EngineOptions o = invariant(several());
  o.prefix_cache = false;
  const auto wanted = run(*engine(*random_, o), requests);
  o.prefix_cache = true;
  const auto e = engine(*random_, o);
  EXPECT_EQ(run(*e, requests), wanted) << "together";
  EXPECT_EQ(e->scheduler().prefix_cache().hits, 3 * 96 + 80);
  for (int64_t i = 0; i < std::ssize(requests); ++i)
    EXPECT_EQ(run(*e, {requests[static_cast<size_t>(i)]}).at(5 + i), wanted.at(i)) << "again, request " << i;
  EXPECT_GE(e->scheduler().prefix_cache().hits, 2 * (3 * 96 + 80));
}

TEST_F(EngineGpu, UnwrittenMemoryIsNotRead) {
  ASSERT_NO_FATAL_FAILURE(make_random());
  const auto wanted = run(*engine(*random_, invariant(several())), some_requests(1000));
  PoisonedDevice poisoned(gpu());
  const auto e = engine_of(poisoned, random_->config().decoder, random_->weights(), invariant(several()));
  EXPECT_EQ(run(*e, some_requests(1000)), wanted);
}

// Random requests are added and cancelled, in a cache that cannot hold them all. Each request gets the same
// answer as alone, and no memory is leaked. SLUICE_ENGINE_STEPS sets the number of steps.
TEST_F(EngineGpu, RequestsThatComeAndGo) {
  ASSERT_NO_FATAL_FAILURE(make_random());
  const int steps = count_from("SLUICE_ENGINE_STEPS", 500);
  EngineOptions o = invariant(several());
  o.max_model_len = 256, o.max_num_seqs = 8, o.max_num_batched_tokens = 64;
  const EngineMemory full = engine(*random_, o)->memory();
  o.kv_cache_bytes = full.kv_cache_bytes / full.pages * 25;
  CountingDevice counted(gpu());
  const auto e = engine_of(counted, random_->config().decoder, random_->weights(), o),
             single = engine(*random_, o);
  Random random(8);
  std::map<int64_t, Request> requests;
  std::map<int64_t, Answer> answers;
  // Allocates the memory of the first penalty, logprobs list and recording before counting.
  for (int64_t n = 1; n <= o.max_num_seqs; ++n) {
    Request r{.prompt = {1, 2, 3}, .sampling = {}};
    r.sampling.max_tokens = 4 * n;
    if (n == 1) r.sampling.frequency_penalty = 0.5, r.sampling.logprobs = r.sampling.prompt_logprobs = 1;
    requests[e->add(r).value()] = r;
  }
  int64_t held = 0;
  for (int step = 0; step < steps || !e->idle(); ++step) {
    if (step == steps / 2) held = counted.held();
    if (step < steps && random.integer(0, 2) == 0) {
      Request r;
      for (int64_t n = random.integer(1, 100); n > 0; --n)
        r.prompt.push_back(static_cast<int32_t>(random.integer(0, 999)));
      r.sampling.temperature = random.integer(0, 1) ? 0.9 : 0;
      r.sampling.seed = static_cast<uint64_t>(step);
      r.sampling.max_tokens = random.integer(1, 40);
      r.sampling.stop_token_ids = {static_cast<int32_t>(random.integer(0, 999))};
      if (step % 7 == 0) r.sampling.logprobs = random.integer(0, kTopLogprobsMax);
      if (step % 9 == 0) r.sampling.prompt_logprobs = random.integer(0, kTopLogprobsMax);
      if (step % 60 == 0) r.sampling.frequency_penalty = 0.5, r.sampling.repetition_penalty = 1.1;
      requests[e->add(r).value()] = r;
    }
    if (!requests.empty() && random.integer(0, 19) == 0)
      e->cancel(random.integer(0, std::ssize(requests) - 1));
    const auto tokens = e->step();
    ASSERT_TRUE(tokens.ok()) << tokens.status().message;
    for (const GeneratedToken& t : tokens.value()) answers[t.request].push(t);
  }
  EXPECT_EQ(e->scheduler().free_pages(), 25);
  EXPECT_EQ(counted.held(), held) << "allocations that are still held";
  int alone = 0, compared = 0;
  for (const auto& [id, request] : requests) {
    if (answers[id].finish == FinishReason::kNone || ++compared > std::max(40, steps / 12)) continue;
    EXPECT_EQ(run(*single, {request}).at(alone++), answers[id]) << id;
  }
  EXPECT_GT(alone, 10);
  EXPECT_GT(e->scheduler().preemptions(), 0);
}

}  // namespace
}  // namespace sluice::test
