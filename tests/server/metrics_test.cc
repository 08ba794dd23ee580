#include "server/metrics.h"

#include <numeric>

#include <gtest/gtest.h>

namespace sluice {

TEST(Metrics, AHistogramCountsValuesUpToItsBounds) {
  Histogram h({1, 10});
  for (const double value : {0.5, 1.0, 2.0, 10.0, 11.0}) h.observe(value);
  EXPECT_EQ(h.counts(), (std::vector<int64_t>{2, 2, 1}));
  EXPECT_EQ(h.sum(), 24.5);
}

TEST(Metrics, ThePageListsThem) {
  ServeMetrics m;
  m.generation_tokens = 5;
  m.finished["stop"] = 2;
  m.first_token.observe(0.05);
  EngineLoad load{.running = 3, .waiting = 4, .pages = 8, .free_pages = 2};
  load.kernels.add("cpu.sample.serial", 2);
  load.kernels.add("cpu.sample.serial", 5);
  load.masks = {.steps_sat_out = 9, .times = {.seconds = 0.75}};
  load.masks.times.counts[0] = 2, load.masks.times.counts[4] = 1, load.masks.times.counts.back() = 1;
  load.experts = std::make_shared<const ExpertCounts>(
      ExpertCounts{.layers = {0, 1}, .experts = 4, .tokens = {3, int64_t{1} << 40, 0, 5, 0, 0, 0, 0}});
  const std::string page = metrics_text(m, load, 6, "a\"b");
  for (const char* line :
       {"vllm:num_requests_running{model_name=\"a\\\"b\"} 3\n",
        "sluice:num_requests_waiting{model_name=\"a\\\"b\"} 4\n",
        "vllm:kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.75\n",
        "vllm:request_success_total{model_name=\"a\\\"b\",finished_reason=\"stop\"} 2\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.04\"} 0\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.06\"} 1\n",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 1\n",
        "# TYPE vllm:time_to_first_token_seconds histogram\n",
        "sluice:kernel_runs_total{model_name=\"a\\\"b\",kernel=\"cpu.sample.serial\"} 7\n",
        "sluice:expert_tokens_total{model_name=\"a\\\"b\",layer=\"0\",expert=\"0\"} 3\n",
        "sluice:expert_tokens_total{model_name=\"a\\\"b\",layer=\"0\",expert=\"1\"} 1099511627776\n",
        "sluice:expert_tokens_total{model_name=\"a\\\"b\",layer=\"1\",expert=\"3\"} 0\n",
        "sluice:expert_load_imbalance{model_name=\"a\\\"b\",layer=\"1\"} 0\n",
        "# TYPE sluice:expert_tokens_total counter\n",
        "# TYPE sluice:expert_load_imbalance gauge\n",
        "# TYPE sluice:structured_mask_seconds histogram\n",
        "sluice:structured_mask_seconds_bucket{model_name=\"a\\\"b\",le=\"1e-04\"} 2\n",
        "sluice:structured_mask_seconds_bucket{model_name=\"a\\\"b\",le=\"0.002\"} 3\n",
        "sluice:structured_mask_seconds_bucket{model_name=\"a\\\"b\",le=\"0.5\"} 3\n",
        "sluice:structured_mask_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 4\n",
        "sluice:structured_mask_seconds_sum{model_name=\"a\\\"b\"} 0.75\n",
        "sluice:structured_steps_sat_out_total{model_name=\"a\\\"b\"} 9\n",
        "sluice:connections{model_name=\"a\\\"b\"} 6\n"})
    EXPECT_NE(page.find(line), std::string::npos) << line << " is not in\n" << page;
}

TEST(Metrics, ImbalanceIsTheBusiestExpertOverTheMean) {
  EngineLoad load;
  const auto page_of = [&](std::vector<int32_t> layers, int64_t experts, std::vector<int64_t> tokens) {
    load.experts = std::make_shared<const ExpertCounts>(
        ExpertCounts{.layers = std::move(layers), .experts = experts, .tokens = std::move(tokens)});
    return metrics_text({}, load, 0, "m");
  };
  const std::string page = page_of({0, 1, 7}, 4, {1, 1, 1, 1, 0, 6, 1, 1, 0, 0, 9, 0});
  for (const char* line : {"sluice:expert_load_imbalance{model_name=\"m\",layer=\"0\"} 1\n",
                           "sluice:expert_load_imbalance{model_name=\"m\",layer=\"1\"} 3\n",
                           "sluice:expert_load_imbalance{model_name=\"m\",layer=\"7\"} 4\n"})
    EXPECT_NE(page.find(line), std::string::npos) << line << " is not in\n" << page;
}

// The largest page: gpt-oss-120b's metrics after a long time.
TEST(Metrics, APageOfManyExpertsIsNotTooLong) {
  EngineLoad load;
  const size_t without = metrics_text({}, load, 0, "openai/gpt-oss-120b").size();
  EXPECT_EQ(metrics_text({}, load, 0, "openai/gpt-oss-120b").find("expert_"), std::string::npos);
  std::vector<int32_t> layers(36);
  std::iota(layers.begin(), layers.end(), 0);
  load.experts = std::make_shared<const ExpertCounts>(ExpertCounts{
      .layers = layers, .experts = 128, .tokens = std::vector<int64_t>(36 * 128, int64_t{1} << 40)});
  const size_t with = metrics_text({}, load, 0, "openai/gpt-oss-120b").size();
  RecordProperty("bytes_of_experts", static_cast<int>(with - without));
  EXPECT_LT(with - without, 500000u);
}

}  // namespace sluice
