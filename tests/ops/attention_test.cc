#include "cases/attention.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Attention, Conformance, Attention);

namespace {

std::vector<std::byte> run_bytes(Device& device, const Attention::Problem& problem,
                                 const Attention::Args& args) {
  const auto plan = make_plan<Attention>(device, problem);
  EXPECT_TRUE(plan.ok()) << plan.status().message;
  void* scratch = device.allocate(plan.value().workspace_bytes()).value();
  const Workspace workspace{static_cast<std::byte*>(scratch), plan.value().workspace_bytes()};
  EXPECT_TRUE(plan.value().run(args, workspace, device.stream()).ok());
  device.release(scratch);
  const auto* y = args.y.as<const std::byte>();
  return {y, y + bytes_of(problem.q, elements_of(args.y))};
}

}  // namespace

// A row has the same bits alone, in a step of several sequences, and when a long page table makes each work
// item process the whole context.
TEST(AttentionTest, ARowDoesNotDependOnOtherRows) {
  const Attention::Problem together{.tokens = 12,
                                    .sequences = 3,
                                    .heads = 6,
                                    .kv_heads = 2,
                                    .head_dim = 40,
                                    .pages = 90,
                                    .page_size = 32,
                                    .pages_per_seq = 72,
                                    .window = 600,
                                    .scale = 0.3,
                                    .q = DType::kF32,
                                    .sinks = true};
  Attention::Problem alone = together, walking = together;
  alone.tokens = alone.sequences = 1;
  walking.tokens = walking.sequences = 1;
  walking.pages_per_seq = 1 << 21;
  HostArgs<Attention> all(together, Spread::kContiguous), one(alone, Spread::kContiguous);
  Random random(11);
  Suite<Attention>::fill(together, Fill::kNormal, all, random);
  const Attention::Args& a = all.args();
  const int32_t begins[] = {0, 4, 11, 12}, lengths[] = {700, 1200, 2300};
  std::copy(std::begin(begins), std::end(begins), a.q_begin.as<int32_t>());
  std::copy(std::begin(lengths), std::end(lengths), a.kv_len.as<int32_t>());
  fill_floats(a.k_cache, Fill::kNormal, random);
  fill_floats(a.v_cache, Fill::kNormal, random);
  std::vector<int32_t> long_table(static_cast<size_t>(walking.pages_per_seq), -1);
  for (const auto& device : every_level(2)) {
    const auto want = run_bytes(*device, together, a);
    const size_t row_bytes = want.size() / 12;
    for (int64_t row : {0, 3, 4, 8, 11}) {
      const int64_t s = row < 4 ? 0 : row < 11 ? 1 : 2;
      const int32_t alone_begin[] = {0, 1},
                    alone_length[] = {lengths[s] - begins[s + 1] + static_cast<int32_t>(row) + 1};
      Attention::Args b = one.args();
      b.q = make_tensor(a.q.row<float>(row), together.q, {1, together.heads, together.head_dim});
      b.k_cache = a.k_cache, b.v_cache = a.v_cache, b.sinks = a.sinks;
      b.q_begin = make_tensor(const_cast<int32_t*>(alone_begin), DType::kI32, {2});
      b.kv_len = make_tensor(const_cast<int32_t*>(alone_length), DType::kI32, {1});
      b.page_table = make_tensor(a.page_table.row<int32_t>(s), DType::kI32, {1, together.pages_per_seq});
      const std::vector<std::byte> mine(
          want.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(row) * row_bytes),
          want.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(row + 1) * row_bytes));
      EXPECT_TRUE(run_bytes(*device, alone, b) == mine) << "row " << row << " on " << text(device->info());
      std::copy_n(a.page_table.row<int32_t>(s), together.pages_per_seq, long_table.begin());
      b.page_table = make_tensor(long_table.data(), DType::kI32, {1, walking.pages_per_seq});
      EXPECT_TRUE(run_bytes(*device, walking, b) == mine)
          << "long page table, row " << row << " on " << text(device->info());
    }
  }
}

}  // namespace sluice::test
