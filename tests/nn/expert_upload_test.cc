// Upload of experts into a device's memory, compared with experts packed by the host; rings are so small that
// they wrap around.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "harness/far_device.h"
#include "nn/moe/expert_upload.h"

namespace sluice::test {
namespace {

PackedMatrix matrix(int64_t features, int64_t width, bool gated, GateOrder order, DType w) {
  return {.features = features,
          .width = width,
          .gated = gated,
          .gate_order = order,
          .w = w,
          .layout = WeightLayout::kFragments};
}
// One, two and several row blocks, with and without a partial block.
const PackedMatrix kUp = matrix(150, 96, true, GateOrder::kInterleaved, DType::kE2M1);
const PackedMatrix kUpApart = matrix(97, 64, true, GateOrder::kUpFirst, DType::kE2M1);
const PackedMatrix kDown = matrix(330, 160, false, {}, DType::kE2M1);
const PackedMatrix kPlain = matrix(65, 72, true, GateOrder::kGateFirst, DType::kBF16);

// Random rows of several experts in a checkpoint's order, and their destination.
struct Experts {
  Experts(Device& device, const PackedMatrix& m, int64_t count) : m(m), device(device) {
    const PackedSizes sizes = packed_sizes(m);
    Random random(static_cast<uint64_t>(m.features));
    for (int64_t e = 0; e < count; ++e) {
      w.emplace_back(static_cast<size_t>(rows() * row_bytes()));
      const uint64_t finite = m.w == DType::kE2M1 ? 0xFF : 0xBF;  // an exponent's top bit stays clear
      for (uint8_t& b : w.back()) b = static_cast<uint8_t>(random.bits() & finite);
      scales.emplace_back(static_cast<size_t>(rows() * blocks()));
      for (uint8_t& b : scales.back()) b = static_cast<uint8_t>(random.integer(100, 140));
    }
    for (int64_t e = 0; e < count; ++e) sources.push_back(source(static_cast<size_t>(e)));
    const auto lend = [&](int64_t bytes) {
      return OwnedTensor::make(device, slot("", Role::kOut, DType::kU8, {count, bytes}), "test").value();
    };
    memory.push_back(lend(sizes.code_bytes));
    if (sizes.scale_bytes) memory.push_back(lend(sizes.scale_bytes));
    to = packed_experts(m, count, memory[0].view(), sizes.scale_bytes ? memory[1].view() : Tensor{}).value();
  }
  int64_t rows() const { return (m.gated ? 2 : 1) * m.features; }
  int64_t row_bytes() const { return bytes_of(m.w, m.width); }
  int64_t blocks() const { return m.w == DType::kE2M1 ? m.width / kMxBlock : 0; }
  MatrixSource source(size_t e) const {
    const auto span = [&](int64_t first, int64_t step) {
      RowSpan s{.rows = m.features,
                .w = reinterpret_cast<const std::byte*>(w[e].data()) + first * row_bytes(),
                .stride = step * row_bytes()};
      if (blocks())
        s.scales = reinterpret_cast<const std::byte*>(scales[e].data()) + first * blocks(),
        s.scale_stride = step * blocks();
      s.first_row = first, s.row_step = step, s.expert = static_cast<int64_t>(e);
      return s;
    };
    if (!m.gated) return {{span(0, 1)}, {}};
    const int64_t step = m.gate_order == GateOrder::kInterleaved ? 2 : 1;
    return {{span(gated_row(m.gate_order, m.features, 0, false), step)},
            {span(gated_row(m.gate_order, m.features, 0, true), step)}};
  }
  // The bytes in the device's memory, codes before scales.
  std::vector<std::byte> bytes_of_place(int64_t expert) {
    const PackedWeights place = bytes_of_expert(to, expert);
    std::vector<std::byte> out(static_cast<size_t>(to.header.code_bytes + to.header.scale_bytes));
    std::byte* scales_at = out.data() + to.header.code_bytes;
    const Stream s = device.stream();
    EXPECT_TRUE(device.copy(out.data(), place.w.data, static_cast<size_t>(to.header.code_bytes), s).ok());
    if (place.scales.present()) {
      EXPECT_TRUE(
          device.copy(scales_at, place.scales.data, static_cast<size_t>(to.header.scale_bytes), s).ok());
    }
    EXPECT_TRUE(device.wait(s).ok());
    return out;
  }
  // The bytes packed by the host, and their fingerprint.
  std::pair<std::vector<std::byte>, uint64_t> packed_by_host(size_t e) const {
    std::vector<std::byte> out(static_cast<size_t>(to.header.code_bytes + to.header.scale_bytes));
    PackedWeights place{make_tensor(out.data(), DType::kU8, {to.header.code_bytes}), {}};
    if (to.header.scale_bytes)
      place.scales = make_tensor(out.data() + to.header.code_bytes, DType::kU8, {to.header.scale_bytes});
    const auto print = pack_rows(m, sources[e], place, {});
    EXPECT_TRUE(print.ok()) << print.status().message;
    return {out, print.value()};
  }

  PackedMatrix m;
  Device& device;
  std::vector<std::vector<uint8_t>> w, scales;
  std::vector<MatrixSource> sources;
  std::vector<OwnedTensor> memory;
  PackedExperts to;
};

std::vector<ExpertUpload::Job> jobs_of(std::vector<Experts>& all) {
  std::vector<ExpertUpload::Job> out;
  for (Experts& e : all)
    for (size_t i = 0; i < e.sources.size(); ++i)
      out.push_back({&e.to, static_cast<int64_t>(i), &e.sources[i]});
  return out;
}

TEST(ExpertUpload, EqualsHostPackingForAnyPiecesAndRing) {
  FarDevice device;
  const PackedMatrix matrices[] = {kUp, kUpApart, kDown, kPlain};
  struct Shape {
    int threads;
    int64_t piece_bytes, ring_bytes;
    const char* why;
  };
  const Shape kShapes[] = {{1, 1, 1, "only the calling thread, two slots of one row block"},
                           {2, 1, 1, "two slots, so every piece waits for a free slot"},
                           {4, 1, 160000, "several slots, released in parts"},
                           {3, 9000, 1, "pieces of several row blocks"},
                           {5, 1 << 20, 32 << 20, "pieces as large as a matrix"}};
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.why);
    std::vector<Experts> all;
    for (const PackedMatrix& m : matrices) all.emplace_back(device, m, 5);
    auto upload = ExpertUpload::make(
        device, matrices, {.threads = s.threads, .piece_bytes = s.piece_bytes, .ring_bytes = s.ring_bytes});
    ASSERT_TRUE(upload.ok()) << upload.status().message;
    const auto jobs = jobs_of(all);
    std::vector<std::atomic<int>> read(jobs.size());
    std::vector<size_t> sent;
    const Status status = upload.value()->pack(
        jobs, {.read = [&](size_t job) { ++read[job]; }, .sent = [&](size_t job) { sent.push_back(job); }});
    ASSERT_TRUE(status.ok()) << status.message;
    ASSERT_EQ(sent.size(), jobs.size());
    for (size_t i = 0; i < jobs.size(); ++i) {
      EXPECT_EQ(sent[i], i);
      EXPECT_EQ(read[i], 1) << i;
    }
    for (Experts& e : all) {
      for (size_t i = 0; i < e.sources.size(); ++i) {
        const auto [bytes, print] = e.packed_by_host(i);
        EXPECT_TRUE(e.bytes_of_place(static_cast<int64_t>(i)) == bytes)
            << e.m.features << " x " << e.m.width << ", expert " << i;
        EXPECT_EQ(e.to.fingerprints[i], print) << e.m.features << " x " << e.m.width << ", expert " << i;
      }
    }
  }
}

TEST(ExpertUpload, NamesTheFirstNanScaleAndWritesNothingFromThereOn) {
  FarDevice device;
  for (int threads : {1, 4}) {
    std::vector<Experts> all;
    all.emplace_back(device, kDown, 4);
    Experts& e = all.front();
    e.scales[2][static_cast<size_t>(200 * e.blocks() + 3)] = 255;
    e.scales[3][0] = 255;
    std::vector<std::vector<std::byte>> before;
    for (int64_t i = 0; i < 4; ++i) before.push_back(e.bytes_of_place(i));
    auto upload =
        ExpertUpload::make(device, {&kDown, 1}, {.threads = threads, .piece_bytes = 1, .ring_bytes = 1});
    ASSERT_TRUE(upload.ok()) << upload.status().message;
    const auto jobs = jobs_of(all);
    size_t sent = 0;
    const Status status = upload.value()->pack(jobs, {.sent = [&](size_t) { ++sent; }});
    EXPECT_EQ(status.code, Code::kCorrupt);
    EXPECT_NE(status.message.find("expert 2, row 200, block 3: wanted a scale of 0 to 254, found 255 (NaN)"),
              std::string::npos)
        << status.message;
    EXPECT_EQ(sent, 2u);
    for (size_t i = 0; i < 4; ++i) {
      const auto now = e.bytes_of_place(static_cast<int64_t>(i));
      EXPECT_TRUE(now == (i < 2 ? e.packed_by_host(i).first : before[i])) << i;
    }
    // The upload can still pack valid experts.
    const Status again = upload.value()->pack(std::span(jobs).first(2), {});
    EXPECT_TRUE(again.ok()) << again.message;
  }
}

TEST(ExpertUpload, RefusesMatricesOfOtherSizes) {
  FarDevice device;
  std::vector<Experts> all;
  all.emplace_back(device, kDown, 1);
  auto upload = ExpertUpload::make(device, {&kUp, 1}, {.threads = 1});
  ASSERT_TRUE(upload.ok()) << upload.status().message;
  const Status other = upload.value()->pack(jobs_of(all), {});
  EXPECT_EQ(other.code, Code::kInvalidArgument);
  EXPECT_NE(other.message.find("wanted one of the matrices for which this upload was made, found"),
            std::string::npos)
      << other.message;
  all.clear();
  all.emplace_back(device, kUp, 1);
  auto jobs = jobs_of(all);
  jobs[0].expert = 1;
  const Status beyond = upload.value()->pack(jobs, {});
  EXPECT_EQ(beyond.code, Code::kInvalidArgument);
  EXPECT_NE(beyond.message.find("wanted an expert from 0 to 0, found 1"), std::string::npos)
      << beyond.message;
  PackedMatrix panels = kUp;
  panels.layout = WeightLayout::kPanels16;
  const auto made = ExpertUpload::make(device, {&panels, 1}, {.threads = 1});
  EXPECT_EQ(made.status().code, Code::kInvalidArgument);
  EXPECT_NE(made.status().message.find("layout: wanted fragments"), std::string::npos)
      << made.status().message;
}

}  // namespace
}  // namespace sluice::test
