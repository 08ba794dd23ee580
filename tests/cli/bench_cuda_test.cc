// Errors of sluice_bench_cuda: wrong arguments, missing hardware and missing files.
#include <gtest/gtest.h>

#include <utility>

#include "harness/process.h"

namespace sluice::test {
namespace {

#ifdef SLUICE_BENCH_CUDA
TEST(CliBenchCuda, WrongWordsAreNamed) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"--suit", "router"},
       "wanted one of --suite, --regret, --models, --tokens, --peers, --out, --quick, --replays, --seconds, "
       "--pace, "
       "--routing, --expert-ids, --peer-ops, found '--suit'"},
      {{"--suite", "router,gate"},
       "--suite: wanted router, fused, routing, chain, lora, linear, attention, latent, sample, mxfp4, "
       "formats, bf16, "
       "fp8, expert_lora, group, gaps or "
       "expert_configs, found "
       "'gate'"},
      {{"--suite", ""}, "--suite: wanted a suite, found none"},
      {{"--tokens", "1,zero"}, "--tokens: wanted a count from 1 to 16384, found 'zero'"},
      {{"--tokens", "16385"}, "--tokens: wanted a count from 1 to 16384, found '16385'"},
      {{"--tokens", ""}, "--tokens: wanted counts from 1 to 16384, found none"},
      {{"--out"}, "--out: wanted a value, found none"},
      {{"--routing", "uniform,normal"}, "--routing: wanted uniform or zipf, found 'normal'"},
      {{"--peer-ops", "moe_layer,draft_step"},
       "--peer-ops: wanted moe_layer or expert_gemms, found 'draft_step'"},
      {{"--peer-ops", ""}, "--peer-ops: wanted moe_layer or expert_gemms, found none"},
  };
  for (auto [words, message] : cases) {
    words.insert(words.begin(), SLUICE_BENCH_CUDA);
    const Outcome o = run_process(words);
    EXPECT_EQ(o.status, 2) << message;
    EXPECT_EQ(o.out, "");
    EXPECT_EQ(o.err, "sluice_bench_cuda: " + message + "\n");
  }
}

// Without a GPU the error names the GPU; with a GPU it names the folder.
TEST(CliBenchCuda, WhatIsMissingIsOneLine) {
  const Outcome o = run_process({SLUICE_BENCH_CUDA, "--peers", "/nowhere/at/all"});
  EXPECT_EQ(o.status, 1) << o.out;
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(o.err.find('\n'), o.err.size() - 1) << o.err;
  const bool gpu = o.err.find("sluice_bench_cuda: cuda: wanted ") != 0;
  if (gpu) {
    EXPECT_EQ(o.err.find("sluice_bench_cuda: peers: wanted peer_*.so in /nowhere/at/all"), 0u) << o.err;
  }
}
#endif

}  // namespace
}  // namespace sluice::test
