// Layers with a sliding window keep only the window's pages: the same bits as with a cache that keeps
// everything.
#include <gtest/gtest.h>

#include "harness/devices.h"
#include "harness/engine_runs.h"

namespace sluice::test {
namespace {

constexpr int64_t kPositions = 256;  // fifty times the smaller window

// In f32, so that rounding cannot hide a changed order of sums.
DecoderConfig with_windows(const std::vector<int64_t>& windows) {
  DecoderConfig c = small_decoder().with_activations(DType::kF32);
  c.layers[0].attention.window = c.layers[2].attention.window = windows[0];
  if (windows.size() > 1) c.layers[1].attention.window = windows[1];
  return c;
}

// Long prompts, some with a common prefix, and long answers.
std::vector<Request> long_requests() {
  std::vector<Request> out;
  Random random(31);
  for (const int64_t n : {150, 37, 200, 151, 90}) {
    Request r;
    if (n == 151 || n == 90) r.prompt.assign(out[0].prompt.begin(), out[0].prompt.begin() + 80);
    while (std::ssize(r.prompt) < n) r.prompt.push_back(static_cast<int32_t>(random.integer(0, 100)));
    r.sampling.temperature = n % 2 ? 0.8 : 0;
    r.sampling.seed = static_cast<uint64_t>(n);
    r.sampling.max_tokens = 40;
    if (n == 37) r.sampling.logprobs = 5;
    out.push_back(r);
  }
  return out;
}

// Pages of 3 tokens, because no number of such pages is a whole number of vectors.
EngineOptions of_chunks(int64_t tokens) {
  EngineOptions o = invariant();
  o.page_size = 3;
  o.max_model_len = kPositions, o.max_num_seqs = 4, o.max_num_batched_tokens = tokens;
  return o;
}

int64_t min_pages(const DecoderConfig& c, const EngineOptions& o) {
  return pages_needed(cache_layout(c.attention(), o.page_size).windows, o.page_size,
                      {.tokens = o.max_model_len, .step_tokens = o.max_num_batched_tokens});
}

class EngineWindow : public ::testing::TestWithParam<std::vector<int64_t>> {
 protected:
  std::unique_ptr<Engine> engine(const EngineOptions& o) { return engine_of(*device_, model_, o); }
  // With room for everything that is ever computed.
  std::unique_ptr<Engine> roomy_engine() {
    EngineOptions o = of_chunks(64);
    o.max_num_seqs = 64;
    return engine(o);
  }
  // With the fewest pages that one sequence needs, plus `more`.
  std::unique_ptr<Engine> tight_engine(EngineOptions o, int64_t more = 0) {
    o.kv_cache_bytes = bytes_of_pages(model_.config, o.page_size, min_pages(model_.config, o) + more);
    return engine(o);
  }
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{with_windows(GetParam())};
};

TEST_P(EngineWindow, ATightCacheGivesTheSameBits) {
  const auto roomy = roomy_engine();
  const auto wanted = run(*roomy, long_requests());
  ASSERT_EQ(wanted.size(), long_requests().size());
  ASSERT_EQ(roomy->scheduler().prefix_cache().evictions + roomy->scheduler().preemptions(), 0)
      << "no page was reused";
  int64_t preemptions = 0;
  for (const int64_t chunk : {4, 7, 64})
    for (const bool prefix_cache : {false, true}) {
      EngineOptions o = of_chunks(chunk);
      o.prefix_cache = prefix_cache;
      const auto e = tight_engine(o);
      EXPECT_EQ(run(*e, long_requests()), wanted) << "chunks of " << chunk;
      preemptions += e->scheduler().preemptions();
      EXPECT_EQ(e->scheduler().free_pages(), e->memory().pages);
    }
  EXPECT_GT(preemptions, 0);
  EngineOptions ahead = of_chunks(24);
  ahead.steps_ahead = 1, ahead.recorded_sequences = 4;
  const auto e = tight_engine(ahead, 9);
  EXPECT_EQ(run(*e, long_requests()), wanted) << "a step ahead, and recorded";
  EXPECT_GT(e->recordings(), 0);
}

// Each request again, and then with its answer in the next prompt, while other requests evict pages.
TEST_P(EngineWindow, ConversationsContinueFromTheRemainingPages) {
  EngineOptions without = of_chunks(64);
  without.prefix_cache = false;
  const auto plain = engine(without), e = tight_engine(of_chunks(20), 40);
  int64_t turns = 0;
  for (Request r : long_requests()) {
    r.prompt.resize(37), r.sampling.max_tokens = 30;
    for (int turn = 0; turn < 3; ++turn, ++turns) {
      const Answer answer = run(*e, {r}).at(turns);
      EXPECT_EQ(answer, run(*plain, {r}).at(turns)) << "turn " << turn;
      // Every second turn drops the reasoning.
      if (turn == 0) r.prompt.insert(r.prompt.end(), answer.ids.begin(), answer.ids.end());
      r.prompt.push_back(static_cast<int32_t>(turn)), r.prompt.push_back(3);
    }
  }
  const PrefixCacheCounts counts = e->scheduler().prefix_cache();
  EXPECT_GT(counts.hits, counts.queries / 3);
  EXPECT_GT(counts.evictions, 0);
}

TEST_P(EngineWindow, LogitsNeedNoMorePages) {
  const Request r = long_requests()[2];
  const std::vector<int64_t> positions = {0, 3, 90, 91, 199};
  const auto wanted = roomy_engine()->logits(r.prompt, positions);
  ASSERT_TRUE(wanted.ok()) << wanted.status().message;
  for (const int64_t chunk : {4, 64}) {
    const auto e = tight_engine(of_chunks(chunk));
    for (int i = 0; i < 2; ++i) {
      const auto got = e->logits(r.prompt, positions);
      ASSERT_TRUE(got.ok()) << got.status().message;
      EXPECT_EQ(got.value(), wanted.value()) << "chunks of " << chunk;
    }
    EXPECT_EQ(e->scheduler().free_pages(), e->memory().pages);
  }
}

INSTANTIATE_TEST_SUITE_P(Windows, EngineWindow,
                         ::testing::Values(std::vector<int64_t>{5, 0}, std::vector<int64_t>{21, 0},
                                           std::vector<int64_t>{3, 18}, std::vector<int64_t>{6, 6}));

// Two groups share tensors, and the window covers the whole context: the same answers as one group.
TEST(EngineGroups, AWindowThatIsNeverFullChangesNothing) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const DecoderModel model(with_windows({0, 0}));
  const auto wanted = run(*engine_of(*device, model, of_chunks(64)), long_requests());
  const DecoderConfig wide = with_windows({kPositions, 0});
  for (const int64_t chunk : {5, 64}) {
    EngineOptions o = of_chunks(chunk);
    o.kv_cache_bytes = bytes_of_pages(wide, o.page_size, min_pages(wide, o));
    EXPECT_EQ(run(*engine_of(*device, wide, model.weights, o), long_requests()), wanted);
  }
}

TEST(EngineGroups, TheCacheHoldsMoreOfLongSequences) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const DecoderModel model(with_windows({5, 0}));
  EngineOptions o = of_chunks(64);
  o.page_size = 4;
  const EngineMemory m = engine_of(*device, model, o)->memory();
  // Two layers have a window of 5; one of them shares its tensors with the layer of full attention.
  EXPECT_EQ(m.kv_cache_bytes, m.pages * 2 * 2 * o.page_size * 2 * 16 * 4);
  EXPECT_EQ(m.pages, 4 * 64 + (4 + (4 * 6 + 64) / 4))
      << "pages for all positions, and for each window with the step's tokens";
  EXPECT_EQ(m.tokens, 4 * kPositions);
  EngineOptions tight = o;
  tight.kv_cache_bytes = bytes_of_pages(model.config, o.page_size, 2 * (64 + 2));
  EXPECT_EQ(engine_of(*device, model, tight)->memory().tokens, 2 * kPositions)
      << "a decoding sequence has two window pages";
  const DecoderModel whole(with_windows({0, 0}));
  const EngineMemory all = engine_of(*device, whole, o)->memory();
  EXPECT_EQ(all.kv_cache_bytes, all.pages * 3 * 2 * o.page_size * 2 * 16 * 4);
  EXPECT_EQ(all.tokens, 4 * kPositions);
}

}  // namespace
}  // namespace sluice::test
