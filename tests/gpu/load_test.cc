// Loads a large layer from a memory-mapped file into GPU memory, checks it, and measures the rate of the load
// and of its parts.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <vector>

#include "gpu/gpu.h"
#include "harness/moe_layer_file.h"
#include "nn/moe/canary.h"
#include "nn/moe/expert_upload.h"
#include "nn/moe/layer.h"
#include "weights/files.h"

namespace sluice::test {
namespace {

class LoadGpu : public OnGpu {};

template <class F>
double seconds(F f) {
  const auto begin = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}
double gb_per_s(int64_t bytes, double s) { return 1e-9 * static_cast<double>(bytes) / s; }

// One matrix of each expert, read in blocks of rows.
struct Rows {
  static constexpr int64_t kBlocks = 10, kSlots = 32;  // row blocks read at once; slots of the ring
  PackedMatrix m;
  const MoeSource& source;
  PackExperts::Problem problem{.experts = 1,
                               .features = m.features,
                               .width = m.width,
                               .gated = m.gated,
                               .gate_order = GateOrder::kInterleaved,
                               .w = m.w};
  int64_t pieces() const { return (row_block_count(m) + kBlocks - 1) / kBlocks; }
  int64_t experts() const { return static_cast<int64_t>(source.of_expert.size()); }
  int64_t bytes() const { return experts() * weight_bytes(m); }
  int64_t piece_bytes() const {
    return kBlocks * kFragmentRows *
           (PackExperts::row_bytes(problem) + PackExperts::row_scale_bytes(problem));
  }
};

// Threads copy and hash every row into the ring.
double read_all(const Rows& r, std::byte* ring) {
  Workers workers(0);
  std::vector<uint64_t> hashes(static_cast<size_t>(Rows::kSlots * Rows::kBlocks));
  std::atomic<int> failed{0};
  const double s = seconds([&] {
    workers.run(r.experts() * r.pieces(), [&](int64_t i) {
      const int64_t first = i % r.pieces() * Rows::kBlocks, slot = i % Rows::kSlots;
      const RowBlocks to{.first = first,
                         .blocks = std::min(Rows::kBlocks, row_block_count(r.m) - first),
                         .w = ring + slot * r.piece_bytes(),
                         .scales = ring + slot * r.piece_bytes() +
                                   Rows::kBlocks * kFragmentRows * PackExperts::row_bytes(r.problem),
                         .hashes = hashes.data() + slot * Rows::kBlocks};
      failed += !gather_row_blocks(r.m, r.source.of_expert[static_cast<size_t>(i / r.pieces())].up, to).ok();
    });
  });
  EXPECT_EQ(failed, 0);
  return s;
}

// Copies the same number of slots from the ring to the GPU; rows and scales separately.
double send_all(Device& gpu, const Rows& r, const std::byte* ring, std::byte* to) {
  const auto w = static_cast<size_t>(Rows::kBlocks * kFragmentRows * PackExperts::row_bytes(r.problem));
  const auto all = static_cast<size_t>(r.piece_bytes());
  int failed = 0;
  const double s = seconds([&] {
    for (int64_t i = 0; i < r.bytes() / r.piece_bytes(); ++i) {
      const std::byte* from = ring + i % Rows::kSlots * r.piece_bytes();
      failed += !gpu.copy(to, from, w, gpu.stream()).ok();
      failed += !gpu.copy(to + w, from + w, all - w, gpu.stream()).ok();
    }
    failed += !gpu.wait(gpu.stream()).ok();
  });
  EXPECT_EQ(failed, 0);
  return s;
}

// Packs the same matrix on the GPU, once per expert.
double pack_all(Device& gpu, const Rows& r) {
  const PackedSizes sizes = packed_sizes(r.m);
  const int64_t rows = PackExperts::weight_rows(r.problem), row_bytes = PackExperts::row_bytes(r.problem),
                scale_bytes = PackExperts::row_scale_bytes(r.problem);
  const Loan plain(gpu, static_cast<size_t>(rows * row_bytes)),
      plain_scales(gpu, static_cast<size_t>(rows * scale_bytes)),
      packed(gpu, static_cast<size_t>(sizes.code_bytes)),
      packed_scales(gpu, static_cast<size_t>(sizes.scale_bytes));
  plain.clear(), plain_scales.clear();
  const auto plan = make_plan<PackExperts>(gpu, r.problem);
  EXPECT_TRUE(plan.ok()) << plan.status().message;
  const PackExperts::Args args{
      .rows = make_tensor(plain.data(), DType::kU8, {1, rows, row_bytes}, Backend::kCuda),
      .row_scales = make_tensor(plain_scales.data(), DType::kU8, {1, rows, scale_bytes}, Backend::kCuda),
      .packed = make_tensor(packed.data(), DType::kU8, {1, sizes.code_bytes}, Backend::kCuda),
      .packed_scales = make_tensor(packed_scales.data(), DType::kU8, {1, sizes.scale_bytes}, Backend::kCuda)};
  int failed = 0;
  const double s = seconds([&] {
    for (int64_t i = 0; i < r.experts(); ++i) failed += !plan.value().run(args, {}, gpu.stream()).ok();
    failed += !gpu.wait(gpu.stream()).ok();
  });
  EXPECT_EQ(failed, 0);
  return s;
}

// SLUICE_LOAD_EXPERTS=320 makes the layer 4.2 GB.
TEST_F(LoadGpu, AFullSizeLayerIsRightAndReportsItsRates) {
  MoeConfig config = known_moe("gpt-oss-20b").value();
  config.experts = count_from("SLUICE_LOAD_EXPERTS", 64);
  config.layout = layout_for(Backend::kCuda);
  TemporaryDirectory at;
  write_gpt_oss_layer(at.file("model.safetensors"), config);
  const auto checkpoint = Checkpoint::open(at.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message;
  for (const char* which : {"first", "second"}) {
    std::unique_ptr<LoadedMoe> loaded;
    const double s = seconds([&] {
      auto made = load_moe(gpu(), *checkpoint.value(), config, {});
      ASSERT_TRUE(made.ok()) << made.status().message;
      loaded = std::move(made).value();
    });
    ASSERT_NE(loaded, nullptr);
    std::printf("[   note   ] %s load: %.0f MB in %.1f ms, %.1f GB/s\n", which,
                1e-6 * static_cast<double>(loaded->bytes()), 1e3 * s, gb_per_s(loaded->bytes(), s));
    const Status status = canary(gpu(), *loaded, *checkpoint.value());
    ASSERT_TRUE(status.ok()) << status.message;
    if (which[0] == 'f') continue;
    const Status verified = loaded->verify();
    ASSERT_TRUE(verified.ok()) << verified.message;
  }
  const auto source = find_moe(*checkpoint.value(), config, MoeNaming::kGptOss, 0, {});
  ASSERT_TRUE(source.ok()) << source.status().message;
  const Rows rows{.m = source.value().up, .source = source.value()};
  const auto ring_bytes = static_cast<size_t>(Rows::kSlots * rows.piece_bytes());
  void* ring = nullptr;
  const double taken = seconds([&] { ring = gpu().allocate_host(ring_bytes).value(); });
  const Loan piece(gpu(), static_cast<size_t>(rows.piece_bytes()));
  auto* at_ring = static_cast<std::byte*>(ring);
  const double read = read_all(rows, at_ring), sent = send_all(gpu(), rows, at_ring, piece.data()),
               packed = pack_all(gpu(), rows);
  gpu().release_host(ring);
  std::printf(
      "[   note   ] parts: host copy and hash %.1f GB/s, transfer %.1f, packing %.0f; %.1f ms for the "
      "ring\n",
      gb_per_s(rows.bytes(), read), gb_per_s(rows.bytes(), sent), gb_per_s(rows.bytes(), packed),
      1e3 * taken);
}

}  // namespace
}  // namespace sluice::test
