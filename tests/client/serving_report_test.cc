// Reports on requests with known times.
#include "client/serving_report.h"

#include <gtest/gtest.h>

#include "client/arrivals.h"

namespace sluice {
namespace {

// Three answers: 4 tokens in chunks 100 ms apart, 1 token, and none.
std::vector<RequestOutcome> outcomes() {
  RequestOutcome four{.error = "", .start = 0, .queued = 0, .ttft = 0.5, .latency = 0.8};
  four.itl = {0.1, 0.1, 0.1};
  four.prompt_tokens = 10, four.output_tokens = 4, four.text = "four";
  RequestOutcome one{.error = "", .start = 0.25, .queued = 0.05, .ttft = 1.0, .latency = 1.0};
  one.prompt_tokens = 20, one.output_tokens = 1, one.text = "one";
  return {four, one, {.error = "HTTP 500"}};
}

ServingRun run_of(const Goodput& goodput = {}) {
  constexpr double kPercents[] = {99, 25.5};
  ServingRun run{.date = "20260102-030405", .model = "org/tiny", .prompts = 3, .goodput = goodput};
  run.outcomes = outcomes();
  run.measured = metrics_of(run.outcomes, 2.0, kPercents, goodput);
  return run;
}

TEST(Distribution, AsNumpy) {
  constexpr double kPercents[] = {0, 25, 90, 100};
  const Distribution d = distribution_of({0.004, 0.001, 0.003, 0.002}, kPercents);
  EXPECT_DOUBLE_EQ(d.mean, 2.5);
  EXPECT_DOUBLE_EQ(d.median, 2.5);
  EXPECT_NEAR(d.std, 1.118033988749895, 1e-12);
  const double wanted[] = {1, 1.75, 3.7, 4};
  for (size_t i = 0; i < std::size(wanted); ++i) {
    EXPECT_EQ(d.percentiles[i].first, kPercents[i]);
    EXPECT_NEAR(d.percentiles[i].second, wanted[i], 1e-12);
  }
  EXPECT_EQ(distribution_of({}, kPercents).median, 0);
  EXPECT_DOUBLE_EQ(distribution_of({0.007}, kPercents).percentiles[2].second, 7);
}

TEST(ServingMetrics, OfKnownTimes) {
  const ServingMetrics m = run_of().measured;
  EXPECT_EQ(m.completed, 2);
  EXPECT_EQ(m.failed, 1);
  EXPECT_EQ(m.input_tokens, 30);
  EXPECT_EQ(m.output_tokens, 5);
  EXPECT_DOUBLE_EQ(m.request_throughput, 1);
  EXPECT_DOUBLE_EQ(m.output_throughput, 2.5);
  EXPECT_DOUBLE_EQ(m.total_throughput, 17.5);
  EXPECT_DOUBLE_EQ(m.ttft.mean, 750);
  EXPECT_NEAR(m.tpot.mean, 100, 1e-9) << "answers of one token have no TPOT";
  EXPECT_NEAR(m.itl.mean, 100, 1e-9);
  EXPECT_DOUBLE_EQ(m.e2el.mean, 900);
  EXPECT_DOUBLE_EQ(m.queue_time.mean, 25);
  EXPECT_DOUBLE_EQ(m.e2el_with_queue.mean, 925);
  EXPECT_EQ(m.peak_output_tokens, 4) << "four chunks in the first second, one in the next";
  EXPECT_EQ(m.peak_concurrent, 2);
}

TEST(ServingMetrics, GoodputKeepsEveryBound) {
  const auto good = [](const std::vector<std::string>& bounds) {
    return run_of(parse_goodput(bounds).value()).measured.request_goodput * 2;
  };
  EXPECT_EQ(good({"ttft:500"}), 1);
  EXPECT_EQ(good({"ttft:499"}), 0);
  EXPECT_EQ(good({"ttft:1000", "tpot:101"}), 2);
  EXPECT_EQ(good({"ttft:1000", "tpot:99"}), 1) << "an answer of one token satisfies every bound of TPOT";
  EXPECT_EQ(good({"e2el:900"}), 1);
  EXPECT_EQ(good({}), 0);
  for (const char* wrong : {"ttft", "ttft:", "ttft:x", "itl:5", "ttft:-1", "ttft:5ms", ":5"})
    EXPECT_EQ(parse_goodput(std::vector<std::string>{wrong}).status().message,
              std::string("wanted ttft:MS, tpot:MS or e2el:MS, found '") + wrong + "'");
  EXPECT_EQ(parse_goodput(std::vector<std::string>{"ttft:5", "tpot:5", "ttft:6"}).status().message,
            "wanted each metric once, found 'ttft:6' after another ttft");
}

TEST(ServingBlock, Plain) {
  EXPECT_EQ(serving_block(run_of()),
            "============ Serving Benchmark Result ============\n"
            "Successful requests:                     2         \n"
            "Failed requests:                         1         \n"
            "Benchmark duration (s):                  2.00      \n"
            "Total input tokens:                      30        \n"
            "Total generated tokens:                  5         \n"
            "Request throughput (req/s):              1.00      \n"
            "Output token throughput (tok/s):         2.50      \n"
            "Peak output token throughput (tok/s):    4.00      \n"
            "Peak concurrent requests:                2.00      \n"
            "Total token throughput (tok/s):          17.50     \n"
            "---------------Time to First Token----------------\n"
            "Mean TTFT (ms):                          750.00    \n"
            "Median TTFT (ms):                        750.00    \n"
            "P99 TTFT (ms):                           995.00    \n"
            "P25.5 TTFT (ms):                         627.50    \n"
            "-----Time per Output Token (excl. 1st token)------\n"
            "Mean TPOT (ms):                          100.00    \n"
            "Median TPOT (ms):                        100.00    \n"
            "P99 TPOT (ms):                           100.00    \n"
            "P25.5 TPOT (ms):                         100.00    \n"
            "---------------Inter-token Latency----------------\n"
            "Mean ITL (ms):                           100.00    \n"
            "Median ITL (ms):                         100.00    \n"
            "P99 ITL (ms):                            100.00    \n"
            "P25.5 ITL (ms):                          100.00    \n"
            "==================================================\n");
}

TEST(ServingBlock, LoadGoodputAndQueues) {
  ServingRun run = run_of(parse_goodput(std::vector<std::string>{"ttft:500"}).value());
  run.request_rate = 1.5;
  run.max_concurrency = 8;
  run.metrics = {"e2el", "client_queue_time", "e2el_including_client_queue"};
  const std::string block = serving_block(run);
  for (const char* lines : {"Failed requests:                         1         \n"
                            "Maximum request concurrency:             8         \n"
                            "Request rate configured (RPS):           1.50      \n"
                            "Benchmark duration (s):                  2.00      \n",
                            "Request throughput (req/s):              1.00      \n"
                            "Request goodput (req/s):                 0.50      \n"
                            "Output token throughput (tok/s):         2.50      \n",
                            "Total token throughput (tok/s):          17.50     \n"
                            "----------------End-to-end Latency----------------\n"
                            "Mean E2EL (ms):                          900.00    \n",
                            "---------------Client-side Queueing---------------\n"
                            "Mean Client Queue Time (ms):             25.00     \n",
                            "--------Queue-inclusive End-to-end Latency--------\n"
                            "Mean E2EL incl. Client Queue (ms):       925.00    \n"})
    EXPECT_NE(block.find(lines), std::string::npos) << block;
  run.max_concurrency = 0;
  EXPECT_EQ(serving_block(run).find("Queue"), std::string::npos)
      << "no client queue, because nothing limits requests";
  EXPECT_TRUE(check_metric("itl").ok());
  EXPECT_NE(check_metric("ttfts").message.find("found 'ttfts'"), std::string::npos);
}

ServingRun speculative_run() {
  ServingRun run = run_of();
  run.drafts = {.drafts = 12, .draft_tokens = 36, .accepted = 24, .accepted_at = {12, 8, 4}};
  return run;
}

TEST(ServingBlock, SpeculativeDecoding) {
  const std::string block = serving_block(speculative_run());
  EXPECT_TRUE(
      block.ends_with("P25.5 ITL (ms):                          100.00    \n"
                      "---------------Speculative Decoding---------------\n"
                      "Acceptance rate (%):                     66.67     \n"
                      "Acceptance length:                       3.00      \n"
                      "Drafts:                                  12        \n"
                      "Draft tokens:                            36        \n"
                      "Accepted tokens:                         24        \n"
                      "Per-position acceptance (%):\n"
                      "  Position 0:                            100.00    \n"
                      "  Position 1:                            66.67     \n"
                      "  Position 2:                            33.33     \n"
                      "==================================================\n"))
      << block;
  ServingRun run = speculative_run();
  run.drafts->accepted_at.clear();
  EXPECT_EQ(serving_block(run).find("osition"), std::string::npos)
      << "rows by position only if the server counts by position";
}

TEST(ServingJson, SpeculativeDecoding) {
  const Json one = Json::parse(serving_json({speculative_run()}, Detail::kTotals));
  EXPECT_DOUBLE_EQ(one["spec_decode_acceptance_rate"], 100.0 * 24 / 36);
  EXPECT_DOUBLE_EQ(one["spec_decode_acceptance_length"], 3);
  EXPECT_EQ(one["spec_decode_num_drafts"], 12);
  EXPECT_EQ(one["spec_decode_draft_tokens"], 36);
  EXPECT_EQ(one["spec_decode_accepted_tokens"], 24);
  EXPECT_EQ(one["spec_decode_per_position_acceptance_rates"], (Json{12.0 / 12, 8.0 / 12, 4.0 / 12}));
  EXPECT_EQ(serving_json({run_of()}, Detail::kEachRequest).find("spec_decode"), std::string::npos);
  ServingRun run = run_of();
  run.metadata = {{"spec_decode_num_drafts", "9"}};
  EXPECT_FALSE(check_metadata(run).ok()) << "a reserved key even if the server makes no drafts";
}

TEST(ServingJson, KeysOfOneAndOfSeveral) {
  ServingRun run = run_of();
  run.max_concurrency = 2;
  const Json one = Json::parse(serving_json({run}, Detail::kTotals));
  EXPECT_EQ(one["completed"], 2);
  EXPECT_EQ(one["request_rate"], "inf");
  EXPECT_EQ(one["max_concurrency"], 2);
  EXPECT_TRUE(one["request_goodput"].is_null());
  EXPECT_DOUBLE_EQ(one["p25.5_ttft_ms"], 627.5);
  EXPECT_FALSE(one.contains("mean_e2el_ms"));
  EXPECT_FALSE(one.contains("errors"));
  const Json two = Json::parse(serving_json({run, run}, Detail::kEachRequest));
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1]["errors"], (Json{"", "", "HTTP 500"}));
  EXPECT_EQ(two[0]["output_lens"], (Json{4, 1, 0}));
  EXPECT_EQ(two[0]["itls"][0].size(), 3u);
}

TEST(ServingSvg, EachMeasuredLoad) {
  ServingRun run = run_of();
  EXPECT_FALSE(serving_svg({run}).ok()) << "unlimited concurrency has no place on the axis";
  std::vector<ServingRun> runs;
  for (const int64_t concurrency : {1, 4, 16}) {
    run.max_concurrency = concurrency;
    runs.push_back(run);
  }
  const std::string svg = serving_svg(runs).value();
  for (const char* words :
       {"Time to First Token", "Inter-token Latency", "Milliseconds over concurrent requests",
        ">concurrency<", ">ms<", ">16<", "org/tiny under load"})
    EXPECT_NE(svg.find(words), std::string::npos) << words;
  for (const char* words : {"floor", "tokens<", "replays"})
    EXPECT_EQ(svg.find(words), std::string::npos) << words;
  size_t discs = 0;
  for (size_t at = svg.find("<circle"); at != std::string::npos; at = svg.find("<circle", at + 1)) ++discs;
  EXPECT_EQ(discs, 9u) << "three loads of three metrics";
}

TEST(Arrivals, KeepTheRate) {
  for (const double burstiness : {0.2, 1.0, 5.0}) {
    const auto at = arrival_times(1000, {.request_rate = 50, .burstiness = burstiness, .seed = 3});
    EXPECT_NEAR(at.back(), 20, 1e-9);
    EXPECT_TRUE(std::is_sorted(at.begin(), at.end()));
    double squares = 0;  // the variance of gaps, relative to their squared mean: 1 / burstiness
    for (size_t i = 0; i < at.size(); ++i) {
      const double gap = 50 * (at[i] - (i ? at[i - 1] : 0)) - 1;
      squares += gap * gap / 1000;
    }
    EXPECT_NEAR(squares * burstiness, 1, 0.25) << burstiness;
  }
  EXPECT_EQ(arrival_times(3, {}), (std::vector<double>{0, 0, 0}));
  EXPECT_EQ(arrival_times(9, {.request_rate = 1, .seed = 4}),
            arrival_times(9, {.request_rate = 1, .seed = 4}));
  EXPECT_NE(arrival_times(9, {.request_rate = 1, .seed = 4}),
            arrival_times(9, {.request_rate = 1, .seed = 5}));
}

}  // namespace
}  // namespace sluice
