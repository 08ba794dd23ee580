#include "server/server_log.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(ServerLog, TextIsOneLineWhateverItIsAbout) {
  EXPECT_EQ(log_line(LogFormat::kText, "now", "id-1", "said", {{"end", "stop"}}), "now id-1 said\n");
  EXPECT_EQ(log_line(LogFormat::kText, "now", "", "said", {}), "now said\n");
  EXPECT_EQ(log_line(LogFormat::kText, "now", "id-1", "a\nb\x1b[31m", {}), "now id-1 a\\nb\\x1b[31m\n");
}

TEST(ServerLog, JsonHasSeparateFields) {
  EXPECT_EQ(log_line(LogFormat::kJson, "now", "id-1", "said",
                     {{"end", "stop"}, {"tokens", int64_t{3}}, {"seconds", 0.5}}),
            R"({"time":"now","request_id":"id-1","message":"said","end":"stop","tokens":3,"seconds":0.5})"
            "\n");
  EXPECT_EQ(log_line(LogFormat::kJson, "now", "", "said", {}), "{\"time\":\"now\",\"message\":\"said\"}\n");
}

TEST(ServerLog, JsonStaysJsonWithForeignBytes) {
  EXPECT_EQ(log_line(LogFormat::kJson, "now", "\"", "a\nb\xff", {}),
            "{\"time\":\"now\",\"request_id\":\"\\\"\",\"message\":\"a\\nb\xef\xbf\xbd\"}\n");
}

TEST(ServerLog, NoneIsNothing) { EXPECT_EQ(log_line(LogFormat::kNone, "now", "id", "said", {}), ""); }

}  // namespace
}  // namespace sluice
