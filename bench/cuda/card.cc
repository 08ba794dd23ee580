#include <algorithm>

#include "backends/cuda/queue.h"
#include "cuda/commit.h"
#include "cuda/kernels.h"
#include "cuda/suites.h"

namespace sluice::bench {

// The GPU's ceilings in this run: bytes per microsecond of a read-only stream, and flops per microsecond of a large bf16 product, if
// cuBLASLt is loaded.
Status Bench::card() {
  Memory memory(device_);
  const Stream stream = memory.stream();
  constexpr int64_t kBytes = int64_t{4} << 30, kSide = 8192;
  Tensor words, sums;
  SLUICE_TRY(memory.random(DType::kF32, {kBytes / 4}, 1, &words));
  SLUICE_TRY(memory.tensor(DType::kI32, {kReadBlocks}, &sums));
  Contest read{.suite = suite_, .op = "read", .model = "4 GiB", .note = "", .tokens = 1};
  read.bytes = static_cast<double>(kBytes);
  read.contenders.push_back({Who::kPeer, "ceiling", commit(), false, [&](int64_t) {
                               return read_all(words.data, kBytes, sums.as<uint32_t>(), stream);
                             }});
  read.poison = [] { return Status{}; };
  read.verify = [](Who) { return Result<std::string>(std::string()); };
  SLUICE_TRY(hold_paced(read, {}));

  Tensor x, w, y;
  SLUICE_TRY(memory.random(DType::kBF16, {kSide, kSide}, 1, &x));
  SLUICE_TRY(memory.random(DType::kBF16, {kSide, kSide}, 1, &w));
  SLUICE_TRY(memory.tensor(DType::kBF16, {kSide, kSide}, &y));
  const sluice_peer_router call{.tokens = kSide,
                                .experts = kSide,
                                .hidden = kSide,
                                .x = x.data,
                                .w = w.data,
                                .bias = nullptr,
                                .y = y.data,
                                .y_is_f32 = 0,
                                .dependent = 0,
                                .w_is_f32 = 0,
                                .residual = nullptr};
  for (const sluice_peer* peer : peers_.all()) {
    if (std::string_view(peer->name) != "cublaslt") continue;
    if (const char* why = peer->router_supports(&call))
      return report_({}, {std::string("dense_8192 skipped: cublaslt: ") + why});
    void* scratch = nullptr;
    SLUICE_TRY(memory.bytes(std::max<size_t>(peer->router_scratch_bytes(&call), 1), &scratch));
    void* prepared = peer->router_prepare(&call, scratch);
    const double side = kSide;
    Contest dense{.suite = suite_, .op = "dense_8192", .model = "bf16", .note = "", .tokens = kSide};
    dense.bytes = 6 * side * side;
    dense.flops = 2 * side * side * side;
    dense.contenders.push_back(
        {Who::kPeer, "cublaslt", csv_word(peer->version), false, [=](int64_t) -> Status {
           const int error = peer->router_enqueue(&call, scratch, prepared, cuda::queue_of(stream).stream);
           return error == 0 ? Status{} : unsupported("cublaslt: error " + std::to_string(error));
         }});
    dense.poison = read.poison;
    dense.verify = read.verify;
    return hold_paced(dense, {});
  }
  return report_({}, {"dense_8192 skipped: no library in --peers is named cublaslt"});
}

}  // namespace sluice::bench
