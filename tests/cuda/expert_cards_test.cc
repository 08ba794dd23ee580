// Descriptors (cards) of the CUDA kernels of experts on tensor cores: which weights they accept, and which kernels are chosen.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "backends/cuda/device.h"
#include "backends/cuda/experts/cost/config.h"
#include "cuda/cards.h"
#include "dispatch/decide.h"
#include "dispatch/explain.h"

namespace sluice::test {
namespace {

constexpr WeightFormat kFormats[] = {{},
                                     {DType::kE2M1},
                                     {DType::kE2M1, WeightScales::kNv},
                                     {DType::kE4M3},
                                     {DType::kE4M3, WeightScales::kBlocks},
                                     {DType::kE4M3, WeightScales::kRows}};

// The format of the weights in a kernel's name.
WeightFormat format_of(std::string_view kernel) {
  const auto named = [&](std::string_view part) { return kernel.find(part) != std::string_view::npos; };
  if (named("bf16")) return {DType::kBF16};
  if (named("nvfp4")) return {DType::kE2M1, WeightScales::kNv};
  if (named("mxfp8")) return {DType::kE4M3};
  if (named("fp8_blocks")) return {DType::kE4M3, WeightScales::kBlocks};
  if (named("fp8_rows")) return {DType::kE4M3, WeightScales::kRows};
  EXPECT_TRUE(named("mxfp4")) << kernel;
  return {DType::kE2M1};
}

TEST(CudaCards, ExpertKernelsOfTensorCoresWantFragmentsOfTheirType) {
  const std::string_view fma = "cuda.expert_gemm.fma_sm90";
  for (const Candidate<ExpertGemm>* c : cuda::catalog().table<ExpertGemm>()) {
    if (c->name == fma) continue;
    const WeightFormat own = format_of(c->name);
    const bool bf16 = own.w == DType::kBF16;
    ExpertGemm::Problem p{.w = own.w, .scales = own.scales, .layout = WeightLayout::kFragments};
    if (c->name.find("_fp8_tile") != std::string_view::npos) {
      EXPECT_EQ(refusal<ExpertGemm>(c->name, p), "needs fp8_x=1 (rows of x are rounded to FP8); fp8_x=0")
          << c->name;
      p.fp8_x = true;
    }
    EXPECT_EQ(refusal<ExpertGemm>(c->name, p), "") << c->name;
    if (own == WeightFormat{DType::kE2M1, WeightScales::kNv}) {
      p.scales = WeightScales::kMx;
      EXPECT_NE(refusal<ExpertGemm>(c->name, p).find("w=e2m1 with scales=mx"), std::string::npos) << c->name;
    }
    p.scales = WeightScales::kMx;
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

std::string chosen(const ExpertGemm::Problem& p) {
  const Decision d = decide<ExpertGemm>(p, h200(), cuda::catalog().table<ExpertGemm>());
  EXPECT_GE(d.chosen, 0) << d.status().message;
  return std::string(d.verdicts[static_cast<size_t>(std::max(d.chosen, 0))].candidate);
}

// The stream kernel serves few rows per expert, the tile kernel many. The generic kernel serves only what no
// other kernel accepts.
TEST(CudaCards, ExpertKernelsOfBf16AreChosenByRows) {
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

// DeepSeek V3's up product on one of eight ranks. With 16 rows per expert (512 tokens) the stream kernel takes 95 us
// longer than the tile kernel (bench/measured/archive/h200/fp8.csv, expert_gemms of runs "layers" and "blocks").
TEST(CudaCards, ExpertKernelsOfFp8BlocksAreChosenByRows) {
  ExpertGemm::Problem p{.experts = 32,
                        .experts_routed = 256,
                        .features = 2048,
                        .width = 7168,
                        .slots = 8,
                        .w = DType::kE4M3,
                        .scales = WeightScales::kBlocks,
                        .layout = WeightLayout::kFragments,
                        .act = Activation::kSwiGlu};
  for (const int64_t tokens : {1, 8, 512, 1024}) {
    p.rows = 8 * tokens, p.tokens = tokens;
    EXPECT_EQ(chosen(p), tokens <= 8 ? "cuda.expert_gemm.fp8_blocks_stream_sm90"
                                     : "cuda.expert_gemm.fp8_blocks_tile_sm90")
        << tokens;
  }
}

// In every configuration each row count is served by exactly one launch, and only token rows are copied into
// order.
TEST(CudaCards, EachExpertIsServedByOneLaunch) {
  for (const WeightFormat& f : kFormats)
    for (const int64_t slots : {0, 4})
      for (const int64_t tokens : {1, 16, 64, 256, 700, 1024, 2048, 4096, 16384}) {
        ExpertGemm::Problem p{.rows = 4 * tokens,
                              .experts = 128,
                              .w = f.w,
                              .scales = f.scales,
                              .layout = WeightLayout::kFragments};
        if (slots > 0) p.tokens = tokens, p.slots = slots;
        int accepted = 0;
        for (const Config& config : cuda::tile_configs(p, h200())) {
          const std::string where = config.name + ", " + fields_text(p);
          if (!config.refusal.accepted()) continue;
          ++accepted;
          bool orders = false, gathers = false;
          std::vector<std::pair<int, int>> served;
          int turn = 0;
          for (const KernelLaunch& one : config.launches) {
            const cuda::TileLaunch launch = cuda::TileLaunch::of(one);
            if (launch.kernel == cuda::TileLaunch::kOrderRows) {
              EXPECT_TRUE(served.empty())
                  << where << ": rows are ordered only after a launch that needs ordered rows";
              orders = true;
              continue;
            }
            EXPECT_EQ(launch.index, turn++) << where;
            served.emplace_back(launch.rows_min, launch.rows_max);
            const cuda::TileKernel& k = cuda::tile_kernels(f)[static_cast<size_t>(launch.kernel)];
            gathers |= k.x == cuda::XSource::kGathered;
            EXPECT_FALSE(k.x == cuda::XSource::kInOrder && slots > 0 && !orders) << where;
          }
          std::sort(served.begin(), served.end());
          EXPECT_EQ(served.front().first, 1) << where;
          EXPECT_EQ(served.back().second, INT32_MAX) << where;
          for (size_t i = 1; i < served.size(); ++i)
            EXPECT_EQ(served[i].first, served[i - 1].second + 1) << where;
          EXPECT_EQ(config.workspace_bytes > 0, orders || gathers) << where;
          EXPECT_TRUE(!(orders || gathers) || slots > 0) << where;
          EXPECT_GT(config.cost_us, 0) << where;
        }
        EXPECT_GT(accepted, 3) << fields_text(p);
      }
}

// Problems of 32 experts, with rows in y's order and with rows of tokens.
std::vector<ExpertGemm::Problem> few_and_many_rows(const WeightFormat& f) {
  std::vector<ExpertGemm::Problem> out;
  for (const int64_t slots : {0, 4})
    for (const int64_t tokens : {16, 256, 1024, 4096})
      out.push_back({.rows = 4 * tokens,
                     .experts = 32,
                     .tokens = slots > 0 ? tokens : 0,
                     .slots = slots,
                     .w = f.w,
                     .scales = f.scales,
                     .layout = WeightLayout::kFragments});
  return out;
}
// The configurations of a problem, each with a name of its own.
std::vector<Config> named_configs(const ExpertGemm::Problem& p) {
  std::set<std::string> names;
  std::vector<Config> out = cuda::tile_configs(p, h200());
  for (const Config& config : out)
    EXPECT_TRUE(names.insert(config.name).second) << config.name << " occurs twice, " << fields_text(p);
  return out;
}

// Every compiled kernel belongs to a configuration, and no two configurations have the same name.
TEST(CudaCards, EveryTileKernelIsReachedAndEveryConfigurationHasItsName) {
  for (const WeightFormat& f : kFormats) {
    std::set<int> reached;
    for (const ExpertGemm::Problem& p : few_and_many_rows(f))
      for (const Config& config : named_configs(p))
        for (const KernelLaunch& one : config.launches) reached.insert(cuda::TileLaunch::of(one).kernel);
    reached.erase(cuda::TileLaunch::kOrderRows);
    EXPECT_EQ(reached.size(), cuda::tile_kernels(f).size()) << text(f);
  }
}

// With an x in FP8: as above, and the first launch rounds the rows, in y's order exactly if the tiles need that.
TEST(CudaCards, EveryConfigurationWithFp8RowsRoundsThemFirst) {
  for (const WeightFormat& f : kFormats) {
    if (!cuda::has_fp8_tiles(f)) continue;
    std::set<int> reached;
    for (ExpertGemm::Problem p : few_and_many_rows(f)) {
      p.x_unaligned = p.fp8_x = true;
      const ExpertGemm::Problem fp8 = cuda::with_fp8_x(p);
      for (const Config& config : named_configs(fp8)) {
        EXPECT_TRUE(config.refusal.accepted()) << config.name;  // rounded rows are aligned
        const int first = cuda::TileLaunch::of(config.launches.front()).kernel;
        const bool orders = first == cuda::TileLaunch::kQuantizeOrdered;
        EXPECT_TRUE(orders || first == cuda::TileLaunch::kQuantizeRows) << config.name;
        for (size_t i = 1; i < config.launches.size(); ++i) {
          const int kernel = cuda::TileLaunch::of(config.launches[i]).kernel;
          ASSERT_GE(kernel, 0) << config.name;
          reached.insert(kernel);
          const cuda::TileKernel& k = cuda::tile_kernels(fp8)[static_cast<size_t>(kernel)];
          EXPECT_TRUE(p.slots == 0 || (k.x == cuda::XSource::kInOrder) == orders) << config.name;
        }
        EXPECT_EQ(config.workspace_bytes, cuda::fp8_bytes(p, orders));
      }
    }
    EXPECT_EQ(reached.size(), cuda::tile_kernels(f, DType::kE4M3).size()) << text(f);
  }
}

// TMA cannot load unaligned rows.
TEST(CudaCards, UnalignedRowsAreLoadedByThreadsOrOrderedFirst) {
  for (const DType w : {DType::kE2M1, DType::kBF16}) {
    ExpertGemm::Problem p{.rows = 8192,
                          .experts = 32,
                          .tokens = 2048,
                          .slots = 4,
                          .w = w,
                          .layout = WeightLayout::kFragments,
                          .x_unaligned = true};
    for (const Config& config : cuda::tile_configs(p, h200())) {
      const bool any = config.name.ends_with(".threads") || config.name.ends_with(".ordered");
      EXPECT_EQ(config.refusal.accepted(), any) << config.name;
      EXPECT_TRUE(any || config.refusal.line().find("x_unaligned=1") != std::string::npos) << config.name;
    }
    p.tokens = p.slots = 0;
    for (const Config& config : cuda::tile_configs(p, h200()))
      EXPECT_EQ(config.refusal.accepted(), config.name.ends_with(".threads")) << config.name;
  }
}

}  // namespace
}  // namespace sluice::test
