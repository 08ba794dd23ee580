// sluice draft on the recorded layer.
#include <gtest/gtest.h>

#include "base/json.h"
#include "cli/command.h"

namespace sluice::test {
namespace {

const std::string kCheckpoint = std::string(SLUICE_SOURCE_DIR) + "/tests/data/mtp/checkpoint";

Outcome draft(std::vector<std::string> words) {
  words.insert(words.begin(), "draft");
  return sluice(std::move(words));
}

void expect_message(std::vector<std::string> words, const std::string& message) {
  words.insert(words.begin(), "draft");
  EXPECT_EQ(complaint(words), "sluice: " + message + "\n");
}

}  // namespace

TEST(DraftCommand, LoadsChecksAndTimesTheLayer) {
  const Outcome o = draft({kCheckpoint, "--tokens", "1,3", "--context", "20", "--threads", "2", "--json"});
  ASSERT_EQ(o.status, 0) << o.err;
  const Json answer = parse_json(o.out, "answer").value();
  EXPECT_EQ(answer["layer"], 3);
  EXPECT_EQ(answer["router_dtype"], "f32");
  EXPECT_EQ(answer["experts"], answer["device"]);
  ASSERT_EQ(answer["run"].size(), 2u);
  EXPECT_EQ(answer["run"][1]["tokens"], 3);
  EXPECT_EQ(answer["run"][1]["same_bits"], true);
  EXPECT_GT(answer["run"][1]["median_ms"], 0);
  EXPECT_EQ(answer["run"][1]["kernels"]["attention.latent"], "cpu.latent_attention.absorbed");
  const Outcome text = draft({kCheckpoint, "--tokens", "2"});
  EXPECT_EQ(text.status, 0);
  EXPECT_NE(text.out.find("draft layer 3"), std::string::npos) << text.out;
}

TEST(DraftCommand, FollowsTheMainModelUnlessAsked) {
  const auto router = [](const std::vector<std::string>& words) {
    std::vector<std::string> all{kCheckpoint, "--tokens", "1", "--json"};
    all.insert(all.end(), words.begin(), words.end());
    const Outcome o = draft(all);
    EXPECT_EQ(o.status, 0) << o.err;
    return parse_json(o.out, "answer").value()["router_dtype"].get<std::string>();
  };
  EXPECT_EQ(router({"--router-dtype", "bfloat16"}), "bf16");
  EXPECT_EQ(router({"--router-dtype", "bfloat16", "--speculative-router-dtype", "float32"}), "f32");
  EXPECT_EQ(router({"--speculative-moe-backend", "cpu"}), "f32");
}

TEST(DraftCommand, RefusesWithWhatWasWantedAndFound) {
  expect_message({kCheckpoint, "--speculative-moe-backend", "trtllm"},
                 "speculative_moe_backend: wanted cpu or cuda, found 'trtllm'");
  expect_message({kCheckpoint, "--speculative-router-dtype", "float16"},
                 "speculative_router_dtype: wanted float32 or bfloat16, found 'float16'");
  expect_message({kCheckpoint, "--router-dtype", "float16"},
                 "unknown --router-dtype 'float16'; did you mean 'bfloat16'?");
  expect_message({kCheckpoint, "--layer", "1"},
                 "draft: wanted one of the model's num_nextn_predict_layers = 1 layers, from 0, found 1");
  expect_message({kCheckpoint, "--tokens", "0"},
                 "--tokens: wanted an integer from 1 to 1024, found '0' (see sluice --help)");
  expect_message({kCheckpoint, "--context", "-1"},
                 "--context: wanted an integer from 0 to 1048575, found '-1' (see sluice --help)");
  expect_message({kCheckpoint, "--speculative-moe-backed", "cpu"},
                 "unknown flag '--speculative-moe-backed'; did you mean '--speculative-moe-backend'?");
  expect_message({}, "model: wanted a directory with a draft layer, found none");
  const std::string shipped = std::string(SLUICE_SOURCE_DIR) + "/models/sluice-16e-tiny";
  expect_message(
      {shipped},
      shipped + "/config.json: architectures: wanted DeepseekV3ForCausalLM, found GptOssForCausalLM");
}

}  // namespace sluice::test
