// The cards of CUDA kernels, built and planned: what they refuse, and what they cost.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/cpu/device.h"
#include "backends/cuda/device.h"
#include "dispatch/decide.h"
#include "dispatch/explain.h"

namespace sluice::test {
namespace {

DeviceInfo h200() { return known_device("h200").value(); }

template <class Op>
const Candidate<Op>& card(std::string_view name) {
  for (const Candidate<Op>* c : cuda::catalog().table<Op>())
    if (c->name == name) return *c;
  ADD_FAILURE() << name << " is not registered";
  return *cuda::catalog().table<Op>().front();
}

template <class Op>
std::string refusal(std::string_view name, const typename Op::Problem& problem,
                    const DeviceInfo& device = h200()) {
  EXPECT_TRUE(Op::validate(problem).accepted()) << Op::validate(problem).line();
  return card<Op>(name).supports(problem, device).line();
}

TEST(CudaCards, PlannedOnesRunNothing) {
  int built = 0, planned = 0;
  for_each_op([&]<class Op>() {
    for (const Candidate<Op>* c : cuda::catalog().table<Op>()) {
      EXPECT_EQ(c->backend, Backend::kCuda) << c->name;
      EXPECT_EQ(std::string(c->name).find("cuda." + std::string(Op::kName) + "."), 0u) << c->name;
      ++(c->planned ? planned : built);
      if (c->planned) {
        EXPECT_EQ(c->enqueue({}, {}, {}, {}).code, Code::kUnsupported) << c->name;
      }
    }
    for (const Candidate<Op>* c : cpu::catalog().table<Op>()) EXPECT_FALSE(c->planned) << c->name;
  });
  EXPECT_GT(built, 0);
  EXPECT_GT(planned, 0);
}

TEST(CudaDevice, RunsOnHopperAlone) {
  EXPECT_TRUE(cuda::accept_capability("NVIDIA H200", 9, 0).ok());
  for (const auto& [major, minor] : {std::pair{7, 5}, {8, 0}, {8, 9}, {10, 0}, {12, 0}}) {
    const Status status = cuda::accept_capability("NVIDIA Some", major, minor);
    EXPECT_EQ(status.code, Code::kUnsupported);
    for (const char* word : {"9.0", "NVIDIA Some", "sm_90a"})
      EXPECT_NE(status.message.find(word), std::string::npos) << status.message;
    EXPECT_NE(status.message.find(std::to_string(major) + "." + std::to_string(minor)), std::string::npos);
  }
}

// Blocks that wait for each other all run at once, so a chip with fewer SMs takes another kernel.
TEST(CudaCards, ManyTokensOfLanesWantAnSmForEachBlock) {
  constexpr std::string_view kLanes = "cuda.route_group.lanes_sm90";
  DeviceInfo small = h200();
  small.cores = 114;
  RouteGroup::Problem p;
  p.route.tokens = 64;
  EXPECT_EQ(refusal<RouteGroup>(kLanes, p, small), "");
  p.route.tokens = 4096;
  EXPECT_EQ(refusal<RouteGroup>(kLanes, p), "");
  EXPECT_NE(refusal<RouteGroup>(kLanes, p, small).find("SMs=114"), std::string::npos)
      << refusal<RouteGroup>(kLanes, p, small);
  EXPECT_GE(decide<RouteGroup>(p, small, cuda::catalog().table<RouteGroup>(), {}).chosen, 0);
}

TEST(CudaDevice, SaysWhatIsMissing) {
  const auto opened = cuda::open_device({.index = 4711});  // no machine has that one
  EXPECT_EQ(opened.status().code, Code::kUnsupported);
  EXPECT_NE(opened.status().message.find("cuda: wanted"), std::string::npos) << opened.status().message;
  EXPECT_NE(opened.status().message.find("found"), std::string::npos) << opened.status().message;
}

TEST(CudaCards, CostsArePositiveAndMoreTokensCostMore) {
  for_each_op([&]<class Op>() {
    for (const Candidate<Op>* c : cuda::catalog().table<Op>()) {
      const auto cost = [&](int64_t tokens) { return c->cost_us(Op::at_tokens({}, tokens), h200()); };
      for (int64_t tokens : {0, 1, 2, 7, 64, 1000, 16384})
        EXPECT_TRUE(std::isfinite(cost(tokens)) && cost(tokens) > 0)
            << c->name << " " << tokens << ": " << cost(tokens);
      EXPECT_GT(cost(16384), cost(64)) << c->name;
      EXPECT_GE(cost(64), cost(1)) << c->name;
    }
  });
}

TEST(CudaCards, RouterGemmRefusesWithTheValue) {
  const std::string_view splitk = "cuda.router_gemm.splitk_sm90";
  EXPECT_EQ(refusal<RouterGemm>(splitk, {.tokens = 512, .experts = 33}), "");
  EXPECT_EQ(refusal<RouterGemm>(splitk, {.tokens = 513}),
            "needs tokens <= 512 (every tile loads its rows anew); tokens=513");
  EXPECT_NE(refusal<RouterGemm>(splitk, {.hidden = 2884}).find("hidden=2884"), std::string::npos);
  EXPECT_NE(refusal<RouterGemm>(splitk, {.hidden = 120}).find("hidden=120"), std::string::npos);
  EXPECT_EQ(refusal<RouterGemm>(splitk, {.w = DType::kF32}), "");
  EXPECT_NE(refusal<RouterGemm>("cuda.router_gemm.gemv_sm90", {.tokens = 5}).find("tokens=5"),
            std::string::npos);
  EXPECT_EQ(refusal<RouterGemm>("cuda.router_gemm.fma_sm90", {.tokens = 16384, .experts = 33, .hidden = 7}),
            "");
  EXPECT_NE(refusal<RouterGemm>(splitk, {}, known_device("a100").value()).find("sm=80"), std::string::npos);
  EXPECT_NE(refusal<RouterGemm>("cuda.router_gemm.tile_sm90", {.hidden = 2884}).find("hidden=2884"),
            std::string::npos);
}

// One kernel does both for few tokens of what has one; else a pair, the one whose halves cost least.
TEST(CudaCards, RouterRouteIsOneKernelOrTheBestPair) {
  const std::string_view few = "cuda.router_route.fewtokens_sm90";
  RouterRoute::Problem p{.route = {.tokens = 1, .experts = 128, .top_k = 4, .logits = DType::kBF16},
                         .gate_bias = true};
  const auto chosen = [&] {
    const Decision d = decide<RouterRoute>(p, h200(), cuda::catalog().table<RouterRoute>());
    EXPECT_GE(d.chosen, 0) << d.status().message;
    return d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))];
  };
  EXPECT_EQ(chosen().candidate, few);
  p.route.tokens = 65;
  EXPECT_NE(refusal<RouterRoute>(few, p).find("tokens=65"), std::string::npos)
      << refusal<RouterRoute>(few, p);
  p.route.tokens = 1, p.hidden = 4096;
  EXPECT_NE(refusal<RouterRoute>(few, p).find("hidden=4096"), std::string::npos)
      << refusal<RouterRoute>(few, p);
  p.hidden = 2880, p.w = DType::kF32;
  EXPECT_NE(refusal<RouterRoute>(few, p).find("w=f32"), std::string::npos) << refusal<RouterRoute>(few, p);
  p.w = DType::kBF16, p.route.experts = 100;
  EXPECT_NE(refusal<RouterRoute>(few, p).find("experts=100"), std::string::npos)
      << refusal<RouterRoute>(few, p);
  for (const int64_t tokens : {0, 100, 1000, 16384}) {
    p.route.tokens = tokens, p.route.experts = 128;
    const auto least = [&]<class Op>(const typename Op::Problem& half) {
      const Decision d = decide<Op>(half, h200(), cuda::catalog().table<Op>());
      return d.verdicts[static_cast<size_t>(d.chosen)].cost_us;
    };
    EXPECT_DOUBLE_EQ(chosen().cost_us, least.operator()<RouterGemm>(RouterRoute::gate(p)) +
                                           least.operator()<RouteTopk>(p.route))
        << tokens;
  }
}

// Experts in turn: what their parts cost, with the kind of kernel for both products that costs least.
TEST(CudaCards, ExpertMlpInTurnIsTheBestKindOfKernel) {
  for (const DType w : {DType::kE2M1, DType::kBF16}) {
    for (const int64_t tokens : {0, 1, 4, 64, 1000, 8192}) {
      const ExpertMlp::Problem p{
          .tokens = tokens, .experts = 128, .w = w, .layout = WeightLayout::kFragments};
      const auto least = []<class Op>(const typename Op::Problem& part) {
        const Decision d = decide<Op>(part, h200(), cuda::catalog().table<Op>());
        EXPECT_GE(d.chosen, 0) << d.status().message;
        return d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))].cost_us;
      };
      double products = INFINITY, in_turn = INFINITY;
      for (const Candidate<ExpertGemm>* c : cuda::catalog().table<ExpertGemm>())
        if (c->supports(ExpertMlp::up(p), h200()).accepted())
          products = std::min(products,
                              c->cost_us(ExpertMlp::up(p), h200()) + c->cost_us(ExpertMlp::down(p), h200()));
      for (const Candidate<ExpertMlp>* c : cuda::catalog().table<ExpertMlp>())
        if (c->in_turn && c->supports(p, h200()).accepted())
          in_turn = std::min(in_turn, c->cost_us(p, h200()));
      EXPECT_DOUBLE_EQ(in_turn, least.operator()<GroupRows>(ExpertMlp::group(p)) + products +
                                    least.operator()<Combine>(ExpertMlp::combine(p)))
          << tokens << " tokens, " << text(w);
    }
  }
}

// One launch as long as its sums fit beside the weights, then two, then parts in turn.
TEST(CudaCards, ExpertMlpOfVeryFewTokensIsOneLaunch) {
  const std::string_view slices = "cuda.expert_mlp.mxfp4_slices_sm90",
                         two = "cuda.expert_mlp.mxfp4_fewtokens_sm90";
  ExpertMlp::Problem p{.experts = 128,
                       .layout = WeightLayout::kFragments,
                       .act = Activation::kSwiGluClamped,
                       .limit = 7,
                       .up_bias = true,
                       .down_bias = true};
  const auto chosen = [&] {
    const Decision d = decide<ExpertMlp>(p, h200(), cuda::catalog().table<ExpertMlp>());
    EXPECT_GE(d.chosen, 0) << d.status().message;
    return d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))].candidate;
  };
  for (const int64_t tokens : {1, 2, 3}) {
    p.tokens = tokens;
    EXPECT_EQ(refusal<ExpertMlp>(slices, p), "") << tokens;
    EXPECT_EQ(chosen(), slices) << tokens;
  }
  p.tokens = 4;  // 3 slices, 8 rows, 16 slots, 8 segments, one word to keep banks apart
  EXPECT_NE(refusal<ExpertMlp>(slices, p).find("sums=3456"), std::string::npos)
      << refusal<ExpertMlp>(slices, p);
  EXPECT_EQ(chosen(), two);
  p.tokens = 5;
  EXPECT_NE(refusal<ExpertMlp>(slices, p).find("tokens * slots=20"), std::string::npos)
      << refusal<ExpertMlp>(slices, p);
  p.tokens = 1, p.intermediate = 64 * 64 + 32;
  EXPECT_NE(refusal<ExpertMlp>(slices, p).find("intermediate=4128"), std::string::npos)
      << refusal<ExpertMlp>(slices, p);
  p.intermediate = 384, p.hidden = 7168, p.slots = 6;
  EXPECT_EQ(chosen(), slices);
  p.tokens = 2;
  EXPECT_NE(refusal<ExpertMlp>(slices, p).find("rows of slots=896"), std::string::npos)
      << refusal<ExpertMlp>(slices, p);
}

TEST(CudaCards, ExpertKernelsOfTensorCoresWantFragmentsOfTheirType) {
  const std::string_view fma = "cuda.expert_gemm.fma_sm90";
  for (const Candidate<ExpertGemm>* c : cuda::catalog().table<ExpertGemm>()) {
    if (c->name == fma) continue;
    const bool bf16 = c->name.find("bf16") != std::string_view::npos;
    ExpertGemm::Problem p{.w = bf16 ? DType::kBF16 : DType::kE2M1, .layout = WeightLayout::kFragments};
    EXPECT_EQ(refusal<ExpertGemm>(c->name, p), "");
    p.w = bf16 ? DType::kE2M1 : DType::kBF16;
    EXPECT_NE(refusal<ExpertGemm>(c->name, p).find(bf16 ? "w=e2m1" : "w=bf16"), std::string::npos) << c->name;
    p.w = DType::kBF16, p.width = 36, p.x = DType::kF32;
    for (const char* found : {"width=36", "x=f32"})
      EXPECT_NE(refusal<ExpertGemm>(c->name, p).find(found), std::string::npos) << c->name;
    for (const WeightLayout layout : {WeightLayout::kPanels16, WeightLayout::kRowMajor}) {
      p.layout = layout;
      EXPECT_NE(refusal<ExpertGemm>(c->name, p).find("layout=" + std::string(word(layout))),
                std::string::npos)
          << c->name;
      EXPECT_EQ(refusal<ExpertGemm>(fma, p), "");
    }
  }
}

// Few rows an expert are the stream's, many the tiles', and the kernel for everything is chosen where it alone can.
TEST(CudaCards, ExpertKernelsOfBf16AreChosenByRows) {
  const auto chosen = [](const ExpertGemm::Problem& p) {
    const Decision d = decide<ExpertGemm>(p, h200(), cuda::catalog().table<ExpertGemm>());
    EXPECT_GE(d.chosen, 0) << d.status().message;
    return std::string(d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))].candidate);
  };
  ExpertGemm::Problem p{.experts = 256,
                        .features = 2048,
                        .width = 7168,
                        .w = DType::kBF16,
                        .layout = WeightLayout::kFragments,
                        .act = Activation::kSwiGlu};
  for (const int64_t tokens : {1, 8, 64, 512}) {
    p.rows = 8 * tokens;
    EXPECT_EQ(chosen(p), "cuda.expert_gemm.bf16_stream_sm90") << tokens;
  }
  for (const int64_t tokens : {1024, 4096, 16384}) {
    p.rows = 8 * tokens;
    EXPECT_EQ(chosen(p), "cuda.expert_gemm.bf16_tile_sm90") << tokens;
  }
  p.x = DType::kF32;
  EXPECT_EQ(chosen(p), "cuda.expert_gemm.fma_sm90");
}

TEST(CudaCards, ExpertsAreServedByTheTilesThatFitTheirRows) {
  const auto launches = [](int64_t tokens) {
    const ExpertGemm::Problem p{.rows = 4 * tokens, .experts = 128, .layout = WeightLayout::kFragments};
    return card<ExpertGemm>("cuda.expert_gemm.mxfp4_tile_sm90").launches(p, h200());
  };
  EXPECT_EQ(launches(64), "tiles of 384 x 8 to 16");
  EXPECT_EQ(
      launches(512),
      "tiles of 384 x 16 to 32 for experts of 1 to 32 rows, then 192 x 64 to 112 for experts of 33 rows "
      "or more");
  EXPECT_EQ(launches(1024),
            "tiles of 384 x 32 to 48 for experts of 16 to 48 rows, then 192 x 64 to 112 for experts of 49 "
            "rows or more, then 384 x 8 to 24 for experts of 1 to 15 rows");
  // Where rows an expert are near a tile's most, those beyond are served by wider tiles, not cut.
  EXPECT_EQ(launches(1536),
            "tiles of 384 x 40 to 56 for experts of 25 to 56 rows, then 192 x 64 to 112 for experts of 57 "
            "rows or more, then 384 x 8 to 24 for experts of 1 to 24 rows");
  EXPECT_EQ(launches(1792),
            "tiles of 384 x 64 to 80 for experts of 57 to 80 rows, then 192 x 112 to 160 for experts of 81 "
            "rows or more, then 384 x 40 to 56 for experts of 25 to 56 rows, then 384 x 8 to 24 for experts "
            "of 1 to 24 rows");
  EXPECT_EQ(launches(2304),
            "tiles of 384 x 64 to 80 for experts of 41 to 80 rows, then 192 x 112 to 160 for experts of 113 "
            "rows or more, then 192 x 64 to 112 for experts of 81 to 112 rows, then 384 x 24 to 40 for "
            "experts of 1 to 40 rows");
  EXPECT_EQ(
      launches(4096),
      "pairs of blocks, 384 x 112 to 160 for experts of 81 rows or more, then 384 x 64 to 80 for experts of "
      "1 to 80 rows");
}

// Tiles of fewer columns follow sooner where experts have many rows: gpt-oss-20b's first product and its second.
TEST(CudaCards, ExpertsOfFewRowsAmongManyAreServedApart) {
  const auto launches = [](int64_t tokens, Activation act) {
    ExpertGemm::Problem p{.rows = 4 * tokens, .experts = 32, .layout = WeightLayout::kFragments, .act = act};
    if (is_gated(act)) p.limit = 7;
    return card<ExpertGemm>("cuda.expert_gemm.mxfp4_tile_sm90").launches(p, h200());
  };
  for (const Activation act : {Activation::kSwiGluClamped, Activation::kIdentity}) {
    EXPECT_EQ(launches(256, act), "tiles of 384 x 32 to 48");
    EXPECT_EQ(launches(512, act), "tiles of 384 x 64 to 80");
    EXPECT_EQ(
        launches(1024, act),
        "tiles of 192 x 112 to 160 for experts of 81 rows or more, then 384 x 64 to 80 for experts of 1 "
        "to 80 rows");
  }
}

// Rows of tokens: a gather before or CTA pairs bring them into order, except where weights have few rows.
TEST(CudaCards, RowsOfTokensAreGatheredOrComeToPairs) {
  const Candidate<ExpertGemm>& tiles = card<ExpertGemm>("cuda.expert_gemm.mxfp4_tile_sm90");
  const auto up = [](int64_t experts, int64_t features, int64_t width, int64_t rows_each) {
    return ExpertGemm::Problem{.rows = experts * rows_each,
                               .experts = experts,
                               .features = features,
                               .width = width,
                               .tokens = experts * rows_each / 6,
                               .slots = 6,
                               .layout = WeightLayout::kFragments,
                               .act = Activation::kSwiGluClamped,
                               .limit = 10};
  };
  const std::pair<int64_t, double> measured[] = {{64, 835}, {128, 1340}, {256, 2533}};  // us, both of V4 Pro
  for (const auto& [rows_each, us] : measured) {
    EXPECT_GT(tiles.workspace_bytes(up(256, 2048, 4096, rows_each), h200()), 0) << rows_each;
    const ExpertGemm::Problem few = up(384, 384, 7168, rows_each);
    EXPECT_EQ(tiles.workspace_bytes(few, h200()), 0) << rows_each;
    const ExpertGemm::Problem down{.rows = few.rows,
                                   .experts = few.experts,
                                   .features = few.width,
                                   .width = few.features,
                                   .layout = WeightLayout::kFragments};
    EXPECT_NEAR(tiles.cost_us(few, h200()) + tiles.cost_us(down, h200()), us, 0.15 * us) << rows_each;
  }
  EXPECT_EQ(
      tiles.launches(up(384, 384, 7168, 64), h200()),
      "tiles of 192 x 64 to 112 for experts of 41 to 112 rows, then 192 x 112 to 160 for experts of "
      "113 rows or more, then 384 x 32 to 48 for experts of 1 to 40 rows; rows of x fetched one by one");
  EXPECT_EQ(
      tiles.launches(up(384, 384, 7168, 128), h200()),
      "pairs of blocks, 384 x 112 to 160 for experts of 95 rows or more, then 384 x 64 to 112 for experts of "
      "49 to 94 rows, then 384 x 32 to 48 for experts of 1 to 48 rows; rows of x fetched one by one");
  for (const auto& few : {up(32, 2880, 2880, 128), up(256, 2048, 4096, 64)})  // tiles, rows
    EXPECT_TRUE(tiles.launches(few, h200()).ends_with("; rows of x brought into order in front"));
  const std::string around_192 = tiles.launches(up(256, 2048, 4096, 192), h200());
  EXPECT_NE(around_192.find("then 384 x 160 to 192 for experts of 113 to 192"), std::string::npos);
}

// gpt-oss-120b's two products as a layer asks for them: tiles from one and a half rows an expert on, the second product, whose
// stream begins earlier after the first, from three; popular experts are no reason for another kernel then.
TEST(CudaCards, TilesFollowTheStreamByRows) {
  const auto chosen = [](int64_t tokens, Activation act, bool batch_invariant) {
    ExpertGemm::Problem p{.rows = 4 * tokens, .experts = 128, .layout = WeightLayout::kFragments, .act = act};
    if (is_gated(act)) p.limit = 7;
    p.settled = !is_gated(act);
    const Decision d = decide<ExpertGemm>(p, h200(), cuda::catalog().table<ExpertGemm>(),
                                          {.batch_invariant = batch_invariant});
    EXPECT_GE(d.chosen, 0) << d.status().message;
    return std::string(d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))].candidate);
  };
  const auto up = Activation::kSwiGluClamped;
  for (const bool batch_invariant : {false, true}) {
    for (const int64_t tokens : {16, 32})
      EXPECT_EQ(chosen(tokens, up, batch_invariant), "cuda.expert_gemm.mxfp4_stream_sm90") << tokens;
    for (const int64_t tokens : {64, 104, 128, 256})
      EXPECT_EQ(chosen(tokens, up, batch_invariant), "cuda.expert_gemm.mxfp4_tile_sm90") << tokens;
    EXPECT_EQ(chosen(64, Activation::kIdentity, batch_invariant), "cuda.expert_gemm.mxfp4_stream_sm90");
    for (const int64_t tokens : {104, 128})
      EXPECT_EQ(chosen(tokens, Activation::kIdentity, batch_invariant), "cuda.expert_gemm.mxfp4_tile_sm90")
          << tokens;
  }
}

// gpt-oss-120b: both expert GEMMs of 4 * tokens rows against what they took on an H200.
TEST(CudaCards, ExpertCostsAreNearTheMeasurements) {
  const auto both = [](std::string_view name, int64_t tokens) {
    ExpertGemm::Problem up{.rows = 4 * tokens, .experts = 128, .layout = WeightLayout::kFragments};
    up.act = Activation::kSwiGluClamped;
    up.limit = 7;
    ExpertGemm::Problem down = up;
    down.act = Activation::kIdentity;
    const auto& c = card<ExpertGemm>(name);
    return c.cost_us(up, h200()) + c.cost_us(down, h200());
  };
  constexpr double kNear = 0.15;
  const struct {
    std::string_view name;
    int64_t tokens;
    double us;
  } measured[] = {
      {"cuda.expert_gemm.mxfp4_stream_sm90", 1, 23.1},  {"cuda.expert_gemm.mxfp4_stream_sm90", 16, 167.4},
      {"cuda.expert_gemm.mxfp4_stream_sm90", 64, 349},  {"cuda.expert_gemm.mxfp4_stream_sm90", 128, 399},
      {"cuda.expert_gemm.mxfp4_tile_sm90", 256, 446},   {"cuda.expert_gemm.mxfp4_tile_sm90", 512, 467},
      {"cuda.expert_gemm.mxfp4_tile_sm90", 1024, 557},  {"cuda.expert_gemm.mxfp4_tile_sm90", 2048, 767},
      {"cuda.expert_gemm.mxfp4_tile_sm90", 4096, 1217},
  };
  for (const auto& m : measured)
    EXPECT_NEAR(both(m.name, m.tokens), m.us, kNear * m.us) << m.name << " " << m.tokens;
}

// Down of DeepSeek V4 Pro under tensor-parallel 8, whose sums are of six k blocks: its time, and which kernel serves it.
TEST(CudaCards, ShortSumsAreTheStreamsUpToManyRows) {
  const auto down = [](int64_t tokens) {
    return ExpertGemm::Problem{.rows = 6 * tokens,
                               .experts = 384,
                               .features = 7168,
                               .width = 384,
                               .y = DType::kF32,
                               .layout = WeightLayout::kFragments};
  };
  constexpr double kNear = 0.15;
  const struct {
    std::string_view name;
    int64_t tokens;
    double us;
  } measured[] = {
      {"cuda.expert_gemm.mxfp4_stream_sm90", 8, 22.6},    {"cuda.expert_gemm.mxfp4_stream_sm90", 16, 37.0},
      {"cuda.expert_gemm.mxfp4_stream_sm90", 64, 95.3},   {"cuda.expert_gemm.mxfp4_stream_sm90", 128, 129.9},
      {"cuda.expert_gemm.mxfp4_stream_sm90", 256, 157.2}, {"cuda.expert_gemm.mxfp4_stream_sm90", 512, 170.3},
      {"cuda.expert_gemm.mxfp4_tile_sm90", 8, 28.7},      {"cuda.expert_gemm.mxfp4_tile_sm90", 64, 124.8},
      {"cuda.expert_gemm.mxfp4_tile_sm90", 256, 190.4},   {"cuda.expert_gemm.mxfp4_tile_sm90", 512, 207.5},
  };
  for (const auto& m : measured)
    EXPECT_NEAR(card<ExpertGemm>(m.name).cost_us(down(m.tokens), h200()), m.us, kNear * m.us)
        << m.name << " " << m.tokens;
  for (const int64_t tokens : {8, 64, 512, 2048}) {
    const Decision d = decide<ExpertGemm>(down(tokens), h200(), cuda::catalog().table<ExpertGemm>());
    ASSERT_GE(d.chosen, 0) << d.status().message;
    EXPECT_EQ(d.verdicts[static_cast<size_t>(d.chosen)].candidate,
              tokens <= 512 ? "cuda.expert_gemm.mxfp4_stream_sm90" : "cuda.expert_gemm.mxfp4_tile_sm90")
        << tokens;
  }
}

// Down of Qwen3-235B under tensor-parallel 8, whose sums are of three k blocks, in bf16: its time, and which kernel serves it.
TEST(CudaCards, ShortSumsInBf16AreTheStreamsUpToManyRows) {
  const auto down = [](int64_t tokens) {
    return ExpertGemm::Problem{.rows = 8 * tokens,
                               .experts = 128,
                               .features = 4096,
                               .width = 192,
                               .w = DType::kBF16,
                               .y = DType::kF32,
                               .layout = WeightLayout::kFragments};
  };
  constexpr double kNear = 0.1;
  const struct {
    int64_t tokens;
    double us;
  } measured[] = {{4, 12.9}, {8, 21.0}, {16, 33.1}, {32, 45.4}, {64, 51.8}, {128, 55.0}, {256, 63.0}};
  const std::string_view stream = "cuda.expert_gemm.bf16_stream_sm90";
  for (const auto& m : measured)
    EXPECT_NEAR(card<ExpertGemm>(stream).cost_us(down(m.tokens), h200()), m.us, kNear * m.us) << m.tokens;
  for (const int64_t tokens : {8, 64, 128, 1024}) {
    const Decision d = decide<ExpertGemm>(down(tokens), h200(), cuda::catalog().table<ExpertGemm>());
    ASSERT_GE(d.chosen, 0) << d.status().message;
    EXPECT_EQ(d.verdicts[static_cast<size_t>(d.chosen)].candidate,
              tokens <= 128 ? stream : "cuda.expert_gemm.bf16_tile_sm90")
        << tokens;
  }
}

// The first GEMM in bf16 with rows of tokens, against what it took on an H200, and whether it brings rows into order: only
// where neither one tile nor several of 176 columns fit an expert's rows and the weights are many.
TEST(CudaCards, ExpertRowsOfTokensAreFetchedOneByOneWhereThatIsFaster) {
  struct Layer {
    int64_t experts, top, width, features;
    Activation act;
  };
  constexpr Layer kDeepSeek{32, 1, 7168, 2048, Activation::kSwiGlu},
      kNemotron{128, 6, 2688, 1856, Activation::kRelu2}, kQwen30{128, 8, 2048, 768, Activation::kSwiGlu},
      kQwen235{128, 8, 4096, 192, Activation::kSwiGlu};
  constexpr double kNear = 0.2;
  const struct {
    Layer layer;
    int64_t tokens;
    double us;
    bool gathered;
  } measured[] = {
      {kDeepSeek, 4096, 489, false}, {kDeepSeek, 8192, 742, true},  {kDeepSeek, 16384, 1390, true},
      {kNemotron, 4096, 491, false}, {kNemotron, 8192, 834, false}, {kNemotron, 16384, 1479, false},
      {kQwen30, 4096, 363, false},   {kQwen30, 8192, 639, false},   {kQwen30, 16384, 1206, false},
      {kQwen235, 4096, 209, false},  {kQwen235, 8192, 395, false},  {kQwen235, 16384, 700, false},
  };
  const auto& tiles = card<ExpertGemm>("cuda.expert_gemm.bf16_tile_sm90");
  for (const auto& [layer, tokens, us, gathered] : measured) {
    const ExpertGemm::Problem p{.rows = layer.top * tokens,
                                .experts = layer.experts,
                                .features = layer.features,
                                .width = layer.width,
                                .tokens = tokens,
                                .slots = layer.top,
                                .w = DType::kBF16,
                                .layout = WeightLayout::kFragments,
                                .act = layer.act};
    EXPECT_NEAR(tiles.cost_us(p, h200()), us, kNear * us) << layer.width << " " << tokens;
    EXPECT_EQ(tiles.workspace_bytes(p, h200()) > 0, gathered) << layer.width << " " << tokens;
    EXPECT_EQ(tiles.launches(p, h200()),
              !gathered        ? "pairs of blocks, 512 x 176; rows of x fetched one by one"
              : tokens == 8192 ? "pairs of blocks, 256 x 320; rows of x brought into order by them"
                               : "pairs of blocks, 256 x 256; rows of x brought into order by them");
  }
}

}  // namespace
}  // namespace sluice::test
