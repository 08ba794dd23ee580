// The command with a model on several CPU devices.
#include <gtest/gtest.h>

#include "cli/command.h"
#include "harness/model_copy.h"

namespace sluice::test {

TEST(RanksCommand, AnswersTheQuestionOfTheReadme) {
  const Outcome o = sluice({"run", "--device", "cpu", "--tensor-parallel-size", "2", "-p",
                            "What is 417 + 268?", "--max-tokens", "500"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "685\n");
  EXPECT_NE(o.err.find(" GB on 2 devices in "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("2 x cpu ("), std::string::npos) << o.err;
  EXPECT_NE(o.err.find("mlp.norm shared"), std::string::npos) << o.err;
}

TEST(RanksCommand, WholeExpertsOnEachDeviceAndDrafts) {
  const Outcome o = sluice({"run", "--device", "cpu", "--tp", "2", "--enable-expert-parallel", "-p",
                            "What is 417 + 268?", "--max-tokens", "500", "--speculative-config",
                            R"({"method": "eagle3", "num_speculative_tokens": 3})"});
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "685\n");
  EXPECT_NE(o.err.find(" GB on 2 devices, 8 experts on the first in "), std::string::npos) << o.err;
  EXPECT_NE(o.err.find(" tokens per verification"), std::string::npos) << o.err;
}

TEST(RanksCommand, EvaluatesAndMeasures) {
  const Outcome eval =
      sluice({"eval", "-q", "--device", "cpu", "--tp", "2", "--limit", "1", "--max-tokens", "500", "--json"});
  EXPECT_EQ(eval.status, 0) << eval.err;
  EXPECT_GE(parse_json(eval.out, "eval").value()["accuracy"], 0.6);
  const Outcome bench =
      sluice({"bench", kShipped, "--device", "cpu", "--tp-size", "2", "--load-format", "dummy", "--input-len",
              "4", "--output-len", "2", "--max-concurrency", "1", "--json"});
  EXPECT_EQ(bench.status, 0) << bench.err;
  EXPECT_EQ(parse_json(bench.out, "bench").value()["device"].get<std::string>().find("2 x cpu ("), 0u)
      << bench.out;
}

TEST(RanksCommand, RefusesWhatOneDeviceMustDo) {
  const auto refuses = [](std::vector<std::string> flags, const std::string& said) {
    flags.insert(flags.begin(), {"run", "--device", "cpu", "-p", "Hi"});
    expect_refusal(flags, {said});
  };
  refuses({"--tp", "3"},
          "tensor parallelism: wanted a number of ranks that divides num_attention_heads = 8, found 3");
  refuses({"--tp", "2", "--ep-size", "3"},
          "--expert-parallel-size: wanted 1 or --tensor-parallel-size = 2, found 3");
  refuses({"--tp", "2", "--enable-expert-parallel", "--ep-size", "1"},
          "--expert-parallel-size: wanted --tensor-parallel-size = 2 with --enable-expert-parallel, found 1");
  refuses({"--tp", "0"}, "--tensor-parallel-size: wanted an integer from 1 to 8, found '0'");
  refuses({"--tp", "2", "--experts", "cuda"},
          "--tensor-parallel-size 2: wanted the experts on the model's devices, found --experts cuda");
}

}  // namespace sluice::test
