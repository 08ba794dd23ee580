// The stages of attention, and the runs of stages that fused kernels can compute.
#include "nn/attention.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graph/runs.h"

namespace sluice::test {
namespace {

Graph attention_graph(bool qk_norm) {
  Graph g;
  NamedValues values;
  for (const char* name : {"x", "stream", "positions", "rope", "slot_of", "page_table", "q_begin", "kv_len"})
    values.set(name, g.call(name));
  append_attention(
      &g, {.hidden = 64, .heads = 8, .kv_heads = 2, .head_dim = 32, .qk_norm = qk_norm, .rotary = 32}, {},
      values, 0);
  return g;
}

std::vector<std::string> stages_of(const Graph& graph) {
  std::vector<std::string> out;
  for (const Stage& stage : graph.stages()) out.push_back(stage.name);
  return out;
}

}  // namespace

TEST(Attention, QueriesAndKeysAreNormedBetweenProjectionAndRotation) {
  EXPECT_EQ(
      stages_of(attention_graph(true)),
      (std::vector<std::string>{"attention.qkv", "attention.q_norm", "attention.k_norm", "attention.rope",
                                "attention.kv_write", "attention.full", "attention.o"}));
  const Graph graph = attention_graph(true);
  const auto norm = [&](size_t stage) {
    return dynamic_cast<const StageOf<RmsNorm>&>(*graph.stages()[stage].op).problem();
  };
  EXPECT_EQ(std::pair(norm(1).heads, norm(2).heads), std::pair(int64_t{8}, int64_t{2}));
  EXPECT_EQ(norm(2).hidden, 32);
  EXPECT_EQ(graph.stages()[1].slots[0].column, 0);
  EXPECT_EQ(graph.stages()[2].slots[0].column, 8 * 32);
  EXPECT_EQ(attention_graph(false).stages().size(), graph.stages().size() - 2);
}

TEST(Attention, NormsOfHeadsBreakTheRunFromProjectionToCache) {
  EXPECT_TRUE(first_run<QkvRopeKvWrite>(attention_graph(false)).has_value());
  EXPECT_FALSE(first_run<QkvRopeKvWrite>(attention_graph(true)).has_value());
  for (const bool qk_norm : {false, true})
    EXPECT_TRUE(first_run<RopeKvWrite>(attention_graph(qk_norm)).has_value()) << qk_norm;
  for (const bool qk_norm : {false, true})
    EXPECT_EQ(first_run<QkNormRopeKvWrite>(attention_graph(qk_norm)).has_value(), qk_norm);
}

}  // namespace sluice::test
