// Prometheus' text format, and the metrics of a server's speculative decoding.
#include "client/draft_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "client/prometheus_text.h"

namespace sluice {
namespace {

std::vector<MetricSample> samples_of(std::string_view page) {
  std::vector<MetricSample> out;
  for_each_sample(page, [&](const MetricSample& s) { out.push_back(s); });
  return out;
}

TEST(PrometheusText, Samples) {
  const auto samples = samples_of(
      "# HELP a_total Some words.\n"
      "# TYPE a_total counter\n"
      "a_total 3\n"
      "\n"
      "b:c{engine=\"0\",model_name=\"x\"} 1.5e+06 1700000000000\r\n"
      "  d\t{ le = \"+Inf\" , } +Inf\n"
      "e{} -0.25 # {trace_id=\"7\"} 1 2.5\n"
      "f NaN");
  ASSERT_EQ(samples.size(), 5u);
  EXPECT_EQ(samples[0].name, "a_total");
  EXPECT_EQ(samples[0].value, 3);
  EXPECT_TRUE(samples[0].labels.empty());
  EXPECT_EQ(samples[1].name, "b:c");
  EXPECT_EQ(samples[1].value, 1.5e6);
  ASSERT_EQ(samples[1].labels.size(), 2u);
  EXPECT_EQ(*samples[1].label("engine"), "0");
  EXPECT_EQ(*samples[1].label("model_name"), "x");
  EXPECT_EQ(samples[1].label("model"), nullptr);
  EXPECT_EQ(*samples[2].label("le"), "+Inf");
  EXPECT_EQ(samples[2].value, INFINITY);
  EXPECT_EQ(samples[3].value, -0.25);
  EXPECT_TRUE(std::isnan(samples[4].value));
}

TEST(PrometheusText, EscapesInLabels) {
  const auto samples = samples_of(R"(a{b="say \"hi\" } 7",c="x\\",d="1\n2",e="\d,{"} 1)");
  ASSERT_EQ(samples.size(), 1u);
  EXPECT_EQ(*samples[0].label("b"), "say \"hi\" } 7");
  EXPECT_EQ(*samples[0].label("c"), "x\\");
  EXPECT_EQ(*samples[0].label("d"), "1\n2");
  EXPECT_EQ(*samples[0].label("e"), "\\d,{");
  EXPECT_EQ(samples[0].value, 1);
}

TEST(PrometheusText, OtherLinesAreSkipped) {
  for (const char* line : {"",
                           " ",
                           "#",
                           "a",
                           "a ",
                           "1a 2",
                           "{b=\"c\"} 1",
                           "a{b=\"c\"}",
                           "a{b=\"c\" 1",
                           "a{b=\"c} 1",
                           "a{b=\"c\\",
                           "a{b=c} 1",
                           "a{b} 1",
                           "a{,} 1",
                           "a{b=\"c\" d=\"e\"} 1",
                           "a one",
                           "a 1x",
                           "a 1 soon",
                           "a 1 2 3",
                           "a +-1",
                           "a ++1",
                           "a 0x10",
                           "HTTP/1.1 200 OK",
                           "<html>",
                           "{\"a\": 1}",
                           "a 1e999"})
    EXPECT_TRUE(samples_of(line).empty()) << line;
  EXPECT_EQ(samples_of("a{b=\"c} 1\na 2\n").size(), 1u) << "a malformed line does not hide the next line";
}

constexpr const char* kPage =
    "# TYPE vllm:spec_decode_num_drafts_total counter\n"
    "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"a \\\"b\\\"\"} 10.0\n"
    "vllm:spec_decode_num_drafts_total{engine=\"1\",model_name=\"a \\\"b\\\"\"} 6.0\n"
    "vllm:spec_decode_num_drafts_created{engine=\"0\"} 1.7e+09\n"
    "vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} 4.8e+01\n"
    "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} 24.0\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"2\"} 4.0\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 7.0\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"1\",position=\"0\"} 5.0\n"
    "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"1\"} 8.0\n";

TEST(DraftCounters, AreSummedOverEngines) {
  const DraftCounters c = draft_counters(kPage);
  EXPECT_EQ(c.drafts, 16);
  EXPECT_EQ(c.draft_tokens, 48);
  EXPECT_EQ(c.accepted, 24);
  EXPECT_EQ(c.accepted_at, (std::vector<int64_t>{12, 8, 4}));
  EXPECT_DOUBLE_EQ(c.acceptance_rate(), 0.5);
  EXPECT_DOUBLE_EQ(c.acceptance_length(), 2.5);
  EXPECT_EQ(c.acceptance_by_position(), (std::vector<double>{0.75, 0.5, 0.25}));
}

TEST(DraftCounters, OfForeignPages) {
  const DraftCounters none = draft_counters("python_info 1\n");
  EXPECT_EQ(none.drafts, 0);
  EXPECT_EQ(none.acceptance_rate(), 0);
  EXPECT_EQ(none.acceptance_length(), 1);
  const std::string drafts = "vllm:spec_decode_num_drafts_total ";
  for (const char* value : {"NaN", "-1", "+Inf", "1e300"})
    EXPECT_EQ(draft_counters(drafts + value).drafts, 0) << value;
  for (const char* position : {"", "-1", "x", "1x", "1024", "99999999999999999999"})
    EXPECT_TRUE(draft_counters("vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"" +
                               std::string(position) + "\"} 1")
                    .accepted_at.empty())
        << position;
  EXPECT_TRUE(draft_counters("vllm:spec_decode_num_accepted_tokens_per_pos_total 1").accepted_at.empty());
}

TEST(DraftCounters, OfARun) {
  const DraftCounters before{.drafts = 10, .draft_tokens = 40, .accepted = 12, .accepted_at = {10, 2}};
  const DraftCounters after{.drafts = 14, .draft_tokens = 52, .accepted = 18, .accepted_at = {13, 4, 1}};
  const auto run = drafts_between(before, after);
  ASSERT_TRUE(run);
  EXPECT_EQ(run->drafts, 4);
  EXPECT_EQ(run->draft_tokens, 12);
  EXPECT_EQ(run->accepted, 6);
  EXPECT_EQ(run->accepted_at, (std::vector<int64_t>{3, 2, 1}));
  EXPECT_FALSE(drafts_between(after, after)) << "no drafts";
  EXPECT_FALSE(drafts_between(after, before)) << "the server was restarted";
  DraftCounters restarted = after;
  restarted.accepted_at[1] = 1;
  EXPECT_FALSE(drafts_between(before, restarted));
  EXPECT_TRUE(drafts_between({}, after)) << "the first drafts of a server";
}

}  // namespace
}  // namespace sluice
