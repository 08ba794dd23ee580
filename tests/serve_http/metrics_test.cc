#include "apps/serve/metrics.h"

#include <gtest/gtest.h>

namespace sluice::apps {

TEST(Metrics, AHistogramCountsWhatIsNotAboveItsBounds) {
  Histogram h({1, 10});
  for (const double value : {0.5, 1.0, 2.0, 10.0, 11.0}) h.observe(value);
  EXPECT_EQ(h.counts(), (std::vector<int64_t>{2, 2, 1}));
  EXPECT_EQ(h.sum(), 24.5);
}

TEST(Metrics, ThePageSaysThem) {
  ServeMetrics m;
  m.generation_tokens = 5;
  m.finished["stop"] = 2;
  m.first_token.observe(0.05);
  EngineLoad load{.running = 3, .waiting = 4, .pages = 8, .free_pages = 2};
  load.kernels.add("cpu.sample.serial", 2);
  load.kernels.add("cpu.sample.serial", 5);
  const std::string page = metrics_text(m, load, 6, "a\"b");
  for (const char* line : {"vllm:num_requests_running{model_name=\"a\\\"b\"} 3\n",
                           "sluice:num_requests_waiting{model_name=\"a\\\"b\"} 4\n",
                           "vllm:kv_cache_usage_perc{model_name=\"a\\\"b\"} 0.75\n",
                           "vllm:request_success_total{model_name=\"a\\\"b\",finished_reason=\"stop\"} 2\n",
                           "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.04\"} 0\n",
                           "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"0.06\"} 1\n",
                           "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 1\n",
                           "# TYPE vllm:time_to_first_token_seconds histogram\n",
                           "sluice:kernel_runs_total{model_name=\"a\\\"b\",kernel=\"cpu.sample.serial\"} 7\n",
                           "sluice:connections{model_name=\"a\\\"b\"} 6\n"})
    EXPECT_NE(page.find(line), std::string::npos) << line << "is not in\n" << page;
}

}  // namespace sluice::apps
