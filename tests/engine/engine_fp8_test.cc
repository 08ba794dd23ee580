// Engines with e4m3 caches: half the bytes, and answers that depend only on the rounded keys and values.
#include <gtest/gtest.h>

#include "harness/devices.h"
#include "harness/engine_runs.h"

namespace sluice::test {
namespace {

class EngineFp8 : public ::testing::Test {
 protected:
  std::unique_ptr<Engine> engine(CacheType cache, const EngineOptions& o = invariant()) {
    return engine_of(*device_, model_.config.with_caches(cache), model_.weights, o);
  }
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
};

}  // namespace

TEST_F(EngineFp8, CachesTakeHalfTheBytes) {
  const auto same = engine(CacheType::kSame), narrow = engine(CacheType::kE4M3);
  EXPECT_EQ(2 * narrow->memory().kv_cache_bytes, same->memory().kv_cache_bytes);
  EXPECT_EQ(narrow->memory().pages, same->memory().pages);
  EngineOptions bounded = invariant();
  bounded.kv_cache_bytes = bytes_of_pages(model_.config, bounded.page_size, 60);
  EXPECT_EQ(engine(CacheType::kSame, bounded)->memory().pages, 60);
  EXPECT_EQ(engine(CacheType::kE4M3, bounded)->memory().pages, 120);
}

// Chunks, batches, prefix cache hits and recorded steps write and read the same rounded keys and values.
TEST_F(EngineFp8, AnswersDoNotDependOnTheBatch) {
  const auto wanted = run(*engine(CacheType::kE4M3), adjusted_requests());
  EXPECT_NE(wanted, run(*engine(CacheType::kSame), adjusted_requests()))
      << "rounding must change some answer";
  EngineOptions chunks = invariant();
  chunks.max_num_batched_tokens = 5, chunks.max_num_seqs = 2;
  EXPECT_EQ(run(*engine(CacheType::kE4M3, chunks), adjusted_requests()), wanted) << "chunks";
  EngineOptions ahead = invariant();
  ahead.steps_ahead = 1, ahead.recorded_sequences = 4;
  const auto e = engine(CacheType::kE4M3, ahead);
  EXPECT_EQ(run(*e, adjusted_requests()), wanted) << "a step ahead, and recorded";
  EXPECT_GT(e->recordings(), 0);
  EngineOptions tight = invariant();
  tight.kv_cache_bytes = bytes_of_pages(model_.config.with_caches(CacheType::kE4M3), tight.page_size, 60);
  EXPECT_EQ(run(*engine(CacheType::kE4M3, tight), adjusted_requests()), wanted) << "few pages";
}

}  // namespace sluice::test
