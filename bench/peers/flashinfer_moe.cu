// FlashInfer's cutlass_fused_moe for MXFP4 weights and bf16 activations on Hopper (W4A16), as its Python code and vLLM run it: three
// kernels that sort rows by expert, expansion of rows, descriptors, GEMM, activation, GEMM and weighted sum. Hidden and intermediate are
// padded to 128, as in vLLM's loader; the copy that pads x is timed as part of the layer. As in FlashInfer's tuner, timing chooses the
// tiles of each problem, first of GEMM 1 and then of GEMM 2. Unlike in the tuner, the whole layer is timed, with cold weights.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>
#include <vector>

#include "cutlass_fused_moe_kernels.cuh"
#include "flashinfer_moe_tiles.h"
#include "moe_gemm/moe_gemm_mixed_utils.h"
#include "peer.h"

// A named namespace, because nvcc's stubs cannot combine types of an anonymous one with types of FlashInfer's headers.
namespace sluice_flashinfer_moe {

namespace fk = tensorrt_llm::kernels::cutlass_kernels;
namespace tkc = tensorrt_llm::cutlass_extensions;
using Runner = fk::CutlassMoeFCRunner<__nv_bfloat16, fk::Fp4Type>;
using Config = tkc::CutlassGemmConfig;

int64_t up_to(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

Runner& runner() {
  static Runner only;
  return only;
}

// Padded sizes, and offsets in packed, meta and scratch.
struct Layout {
  int64_t hidden, inner, pairs;
  size_t up, up_scale, up_bias, down, down_scale, down_bias, alpha, beta, limit, packed;
  size_t offsets, to_token, to_row, expanded, meta;
  size_t x, rows, work, scratch;
};

Layout layout_of(const sluice_peer_layer* p) {
  Layout a{};
  a.hidden = up_to(p->hidden, 128);
  a.inner = up_to(p->intermediate, 128);
  a.pairs = p->tokens * p->top_k;
  const auto take = [](size_t* total, int64_t bytes) {
    const size_t at = *total;
    *total += static_cast<size_t>(up_to(bytes, 256));
    return at;
  };
  const int64_t weights = p->experts * a.hidden * a.inner;
  a.up = take(&a.packed, weights);  // two e2m1 matrices
  a.up_scale = take(&a.packed, weights / 16);
  a.up_bias = take(&a.packed, p->experts * 2 * a.inner * 2);
  a.down = take(&a.packed, weights / 2);
  a.down_scale = take(&a.packed, weights / 32);
  a.down_bias = take(&a.packed, p->experts * a.hidden * 2);
  a.alpha = take(&a.packed, p->experts * 4);
  a.beta = take(&a.packed, p->experts * 4);
  a.limit = take(&a.packed, p->experts * 4);
  a.offsets = take(&a.meta, (p->experts + 1) * 8);
  a.to_token = take(&a.meta, a.pairs * 4);
  a.to_row = take(&a.meta, a.pairs * 4);
  a.expanded = take(&a.meta, a.pairs * a.hidden * 2);
  a.x = take(&a.scratch, p->tokens * a.hidden * 2);
  a.rows = take(&a.scratch, a.pairs * 4);
  a.work = a.scratch;  // the last
  return a;
}

template <class T>
T* at(const void* base, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(const_cast<void*>(base)) + offset);
}

const char* supports(const sluice_peer_layer* p) {
  if (p->hidden % 32 != 0 || p->intermediate % 32 != 0)
    return "needs hidden and intermediate in multiples of 32";
  return nullptr;
}

int64_t columns(const sluice_peer_layer* p) { return layout_of(p).hidden; }
size_t packed_bytes(const sluice_peer_layer* p) { return layout_of(p).packed; }
size_t meta_bytes(const sluice_peer_layer* p) { return layout_of(p).meta; }

size_t scratch_bytes(const sluice_peer_layer* p) {
  const Layout a = layout_of(p);
  return a.work + runner().getWorkspaceSize(p->tokens, a.hidden, a.inner, static_cast<int>(p->experts),
                                            static_cast<int>(p->top_k), fk::ActivationType::SwigluBias, {},
                                            false, false, false, false, true);
}

// ---- packing: the PyTorch code of vLLM's loader, around FlashInfer's interleaving kernel ----

// The source of row `row` of an expert's padded matrix, or -1. FlashInfer needs all ups first, then all gates.
struct Rows {
  int64_t n, n_padded;  // rows of gates, or of ups, if gated
  bool gated, interleaved;
  __device__ int64_t of(int64_t row) const {
    const bool gate = gated && row >= n_padded;
    const int64_t i = gate ? row - n_padded : row;
    if (i >= n) return -1;
    if (!gated) return i;
    if (interleaved) return 2 * i + (gate ? 0 : 1);
    return gate ? i : n + i;
  }
};

__global__ void pad_codes(const uint8_t* in, int64_t k_in, Rows rows, uint8_t* out, int64_t n, int64_t k) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i >= n * (k / 2)) return;
  const int64_t from = rows.of(i / (k / 2)), byte = i % (k / 2);
  out[i] = from >= 0 && byte < k_in / 2 ? in[from * (k_in / 2) + byte] : 0;
}

// 64 rows of 4 scales (128 of k) in a block of 16 lines: line l has the scales of rows l, l + 16, l + 32 and l + 48.
__global__ void fold_scales(const uint8_t* in, int64_t k_in, Rows rows, uint8_t* out, int64_t n, int64_t k) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x, blocks = k / 128;
  if (i >= n * (k / 32)) return;
  const int64_t g = i % 4, slice = i / 4 % 4, line = i / 16 % 16, block = i / 256 % blocks,
                row = i / 256 / blocks * 64 + slice * 16 + line, scale = block * 4 + g;
  const int64_t from = rows.of(row);
  out[i] = from >= 0 && scale < k_in / 32 ? in[from * (k_in / 32) + scale] : 127;
}

__global__ void pad_bias(const __nv_bfloat16* in, Rows rows, __nv_bfloat16* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i >= n) return;
  const int64_t from = rows.of(i);
  out[i] = from >= 0 ? in[from] : __float2bfloat16(0);
}

unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + 255) / 256); }

struct Matrix {
  const uint8_t *codes, *scales;
  const __nv_bfloat16* bias;
  Rows rows;
  int64_t n_in, k_in, n, k;
  size_t to, scale_to, bias_to;
};

void pack_matrix(const Matrix& m, int64_t experts, void* packed, uint8_t* stage, cudaStream_t stream) {
  for (int64_t e = 0; e < experts; ++e) {
    pad_codes<<<blocks_for(m.n * m.k / 2), 256, 0, stream>>>(m.codes + e * m.n_in * m.k_in / 2, m.k_in,
                                                             m.rows, stage, m.n, m.k);
    fk::interleave_fp4_weights_for_sm90_mixed_gemm(stage, at<uint8_t>(packed, m.to + e * m.n * m.k / 2),
                                                   static_cast<int>(m.n), static_cast<int>(m.k), stream);
    fold_scales<<<blocks_for(m.n * m.k / 32), 256, 0, stream>>>(
        m.scales + e * m.n_in * m.k_in / 32, m.k_in, m.rows,
        at<uint8_t>(packed, m.scale_to + e * m.n * m.k / 32), m.n, m.k);
    if (m.bias != nullptr)
      pad_bias<<<blocks_for(m.n), 256, 0, stream>>>(m.bias + e * m.n_in, m.rows,
                                                    at<__nv_bfloat16>(packed, m.bias_to + e * m.n * 2), m.n);
  }
}

int pack(const sluice_peer_layer* p, const sluice_peer_experts* w, void* packed, void* stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const Layout a = layout_of(p);
  uint8_t* stage = nullptr;
  if (const cudaError_t error = cudaMalloc(&stage, a.hidden * a.inner)) return error;
  pack_matrix({w->up, w->up_scale, static_cast<const __nv_bfloat16*>(w->up_bias),
               Rows{p->intermediate, a.inner, true, p->interleaved != 0}, 2 * p->intermediate, p->hidden,
               2 * a.inner, a.hidden, a.up, a.up_scale, a.up_bias},
              p->experts, packed, stage, stream);
  pack_matrix({w->down, w->down_scale, static_cast<const __nv_bfloat16*>(w->down_bias),
               Rows{p->hidden, a.hidden, false, false}, p->hidden, p->intermediate, a.hidden, a.inner, a.down,
               a.down_scale, a.down_bias},
              p->experts, packed, stage, stream);
  const std::pair<size_t, double> parameters[] = {
      {a.alpha, p->alpha}, {a.beta, p->beta}, {a.limit, p->limit}};
  for (const auto& [to, value] : parameters) {
    const std::vector<float> of_experts(static_cast<size_t>(p->experts), static_cast<float>(value));
    cudaMemcpyAsync(at<float>(packed, to), of_experts.data(), of_experts.size() * 4, cudaMemcpyHostToDevice,
                    stream);
    cudaStreamSynchronize(stream);
  }
  cudaFree(stage);
  return cudaGetLastError();
}

// ---- the layer ----

fk::ActivationParams activation_of(const sluice_peer_layer* p, const Layout& a) {
  return {fk::ActivationType::SwigluBias, at<float>(p->packed, a.alpha), at<float>(p->packed, a.beta),
          at<float>(p->packed, a.limit)};
}

fk::QuantParams scales_of(const sluice_peer_layer* p, const Layout& a) {
  return fk::QuantParams::GroupWise(
      fk::TmaWarpSpecializedGroupedGemmInput::INT4GroupwiseParams::wfp4a16_group_size,
      at<void>(p->packed, a.up_scale), at<void>(p->packed, a.down_scale));
}

const void* bias_of(const sluice_peer_layer* p, size_t offset) {
  return p->biases ? at<void>(p->packed, offset) : nullptr;
}

// Pads x.
const void* padded_x(const sluice_peer_layer* p, const Layout& a, cudaStream_t stream) {
  if (a.hidden == p->hidden) return p->x;
  void* x = at<void>(p->scratch, a.x);
  cudaMemcpy2DAsync(x, a.hidden * 2, p->x, p->hidden * 2, p->hidden * 2, p->tokens, cudaMemcpyDeviceToDevice,
                    stream);
  return x;
}

void layer(const sluice_peer_layer* p, const Layout& a, cudaStream_t stream) {
  const void* x = padded_x(p, a, stream);
  tensorrt_llm::kernels::LoraParams no_lora{};
  fk::MoeMinLatencyParams no_latency{};
  runner().runMoe(x, nullptr, false, p->ids, p->weights, at<void>(p->packed, a.up), bias_of(p, a.up_bias),
                  activation_of(p, a), at<void>(p->packed, a.down), bias_of(p, a.down_bias), scales_of(p, a),
                  p->tokens, a.hidden, a.hidden, a.inner, static_cast<int>(p->experts),
                  static_cast<int>(p->top_k), at<char>(p->scratch, a.work), p->y, at<int>(p->scratch, a.rows),
                  {}, false, false, no_lora, false, false, false, no_latency, true, stream);
}

// Pointers into FlashInfer's workspace. The grouping of rows is in meta instead. In the workspace the expanded rows and the output of the
// activation share memory.
void lay_out(const sluice_peer_layer* p, const Layout& a) {
  Runner& r = runner();
  r.configureWsPtrs(at<char>(p->scratch, a.work), p->tokens, a.hidden, a.inner, static_cast<int>(p->experts),
                    static_cast<int>(p->top_k), fk::ActivationType::SwigluBias, {}, false, false, false,
                    false, false);
  r.expert_first_token_offset_ = at<int64_t>(p->meta, a.offsets);
  r.permuted_row_to_unpermuted_row_ = at<int>(p->meta, a.to_token);
  r.permuted_data_ = at<__nv_bfloat16>(p->meta, a.expanded);
}

void group(const sluice_peer_layer* p, const Layout& a, cudaStream_t stream) {
  lay_out(p, a);
  Runner& r = runner();
  const int experts = static_cast<int>(p->experts), top_k = static_cast<int>(p->top_k);
  fk::threeStepBuildExpertMapsSortFirstToken(
      p->ids, r.permuted_token_selected_experts_, r.permuted_row_to_unpermuted_row_,
      at<int>(p->meta, a.to_row), r.expert_first_token_offset_, r.blocked_expert_counts_,
      r.blocked_expert_counts_cumsum_, r.blocked_row_to_unpermuted_row_, p->tokens, experts, top_k, 0, true,
      stream);
  fk::expandInputRowsKernelLauncher(
      static_cast<const __nv_bfloat16*>(padded_x(p, a, stream)), r.permuted_data_, p->weights,
      r.permuted_token_final_scales_, r.permuted_row_to_unpermuted_row_, nullptr, p->tokens, a.hidden, top_k,
      experts, scales_of(p, a), false, r.expert_first_token_offset_, r.fc1_fp4_act_scale_, nullptr, false,
      nullptr, nullptr, nullptr, nullptr, true, stream);
}

// The kernels after the expansion of rows: descriptors, GEMM, activation, GEMM with its weighted sum.
void gemms(const sluice_peer_layer* p, const Layout& a, cudaStream_t stream) {
  lay_out(p, a);
  Runner& r = runner();
  const fk::QuantParams scales = scales_of(p, a);
  const fk::ActivationParams activation = activation_of(p, a);
  const auto *up = at<fk::Fp4Type>(p->packed, a.up), *down = at<fk::Fp4Type>(p->packed, a.down);
  const auto *up_bias = static_cast<const __nv_bfloat16*>(bias_of(p, a.up_bias)),
             *down_bias = static_cast<const __nv_bfloat16*>(bias_of(p, a.down_bias));
  const int experts = static_cast<int>(p->experts);
  fk::MoeMinLatencyParams no_latency{};
  const auto [first, second] = r.setupTmaWarpSpecializedInputs(
      p->tokens, a.pairs, activation, a.hidden, a.hidden, a.inner, experts, p->x, nullptr, p->y, up, down,
      scales, up_bias, down_bias, false, no_latency, false, 0, {}, true, stream);
  Runner::gemm1(r.moe_gemm_runner_, nullptr, r.permuted_data_, r.fc1_result_, r.glu_inter_result_,
                r.expert_first_token_offset_, nullptr, first, up, up_bias, nullptr, nullptr, nullptr, nullptr,
                r.act_fp8_token_scale_, r.fc1_fp4_act_scale_, r.fc2_fp4_act_scale_, scales, p->tokens,
                a.pairs, a.hidden, a.inner, experts, activation, r.alpha_scale_ptr_array_fc1_, true, stream,
                *r.gemm1_config_, false, nullptr, nullptr, true);
  Runner::gemm2(r.moe_gemm_runner_, nullptr, r.fc1_result_, r.fc2_result_, static_cast<__nv_bfloat16*>(p->y),
                r.expert_first_token_offset_, second, down, down_bias, nullptr, nullptr, r.fc2_fp4_act_scale_,
                scales, p->weights, r.permuted_token_final_scales_, at<int>(p->meta, a.to_row),
                r.permuted_row_to_unpermuted_row_, p->ids, nullptr, p->tokens, a.pairs, a.hidden, a.hidden,
                a.inner, experts, p->top_k, r.alpha_scale_ptr_array_fc2_, false, nullptr, stream, {}, false,
                *r.gemm2_config_, false, nullptr, nullptr, true);
}

// ---- tiles ----

struct Tile {
  Config config;
  int64_t m, n, k;
};

constexpr tkc::MainloopScheduleType kPingpong = tkc::MainloopScheduleType::PINGPONG,
                                    kCooperative = tkc::MainloopScheduleType::COOPERATIVE;

// The tiles that FlashInfer accepts for a GEMM with these weight rows and this k.
std::vector<Tile> tiles_for(int64_t rows, int64_t k) {
  std::vector<Tile> all = {
#define TILE(rows_, tokens_, k_, cluster_m, cluster_n, schedule)                                           \
  {Config(tkc::CutlassTileConfigSM90::CtaShape##rows_##x##tokens_##x##k_##B, k##schedule,                  \
          tkc::EpilogueScheduleType::AUTO, tkc::ClusterShape::ClusterShape_##cluster_m##x##cluster_n##x1), \
   rows_, tokens_, k_},
      SLUICE_FLASHINFER_TILES(TILE)
#undef TILE
  };
  // Weights are the left operand; this GEMM supports nothing else.
  for (Tile& t : all) t.config.swap_ab = true;
  std::erase_if(all, [=](const Tile& t) { return k % t.k != 0 || rows % t.m != 0 || rows < t.n; });
  return all;
}

struct Choice {
  Config up, down;
};

// L2 is filled with other data before each run.
float time_layer(const sluice_peer_layer* p, const Layout& a, void* other, cudaEvent_t start, cudaEvent_t end,
                 cudaStream_t stream) {
  cudaMemsetAsync(other, 0, size_t{128} << 20, stream);
  cudaEventRecord(start, stream);
  layer(p, a, stream);
  cudaEventRecord(end, stream);
  float ms = 0;
  if (cudaEventSynchronize(end) != cudaSuccess || cudaEventElapsedTime(&ms, start, end) != cudaSuccess)
    throw std::runtime_error("a launch failed");
  return ms;
}

Choice choose(const sluice_peer_layer* p, const Layout& a, cudaStream_t stream) {
  const std::vector<Tile> up = tiles_for(2 * a.inner, a.hidden), down = tiles_for(a.hidden, a.inner);
  Choice best{up.front().config, down.front().config};
  void* other = nullptr;
  cudaEvent_t start, end;
  if (cudaMalloc(&other, size_t{128} << 20) != cudaSuccess)
    throw std::runtime_error("not enough GPU memory for timing");
  cudaEventCreate(&start);
  cudaEventCreate(&end);
  bool works = true;
  for (const bool first : {true, false}) {
    float least = 1e30F;
    for (const Tile& tile : first ? up : down) {
      Choice tried = best;
      (first ? tried.up : tried.down) = tile.config;
      runner().setTactic(tried.up, tried.down);
      std::vector<float> ms;
      try {
        ms.push_back(time_layer(p, a, other, start, end, stream));  // loads the kernel
        if (ms[0] < 2 * least + 1)
          for (int i = 0; i < 3; ++i) ms.push_back(time_layer(p, a, other, start, end, stream));
      } catch (const std::exception& error) {
        (void)cudaGetLastError();
        std::fprintf(stderr, "flashinfer: tile %d x %d x %d skipped: %s\n", static_cast<int>(tile.m),
                     static_cast<int>(tile.n), static_cast<int>(tile.k), error.what());
        continue;
      }
      const float one = *std::min_element(ms.begin(), ms.end());
      if (one < least) least = one, best = tried;
    }
    works = works && least < 1e30F;
  }
  cudaEventDestroy(start);
  cudaEventDestroy(end);
  cudaFree(other);
  if (!works) throw std::runtime_error("no tile works");
  return best;
}

int enqueue(const sluice_peer_layer* p, int32_t part, void* stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const Layout a = layout_of(p);
  static std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, Choice> choices;
  try {
    const std::tuple problem(p->experts, a.hidden, a.inner, p->tokens);
    auto choice = choices.find(problem);
    if (choice == choices.end()) choice = choices.emplace(problem, choose(p, a, stream)).first;
    runner().setTactic(choice->second.up, choice->second.down);
    if (part == SLUICE_PEER_LAYER) layer(p, a, stream);
    if (part == SLUICE_PEER_GROUP) group(p, a, stream);
    if (part == SLUICE_PEER_GEMMS) gemms(p, a, stream);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "flashinfer: %s\n", error.what());
    return 1;
  }
  return cudaPeekAtLastError();
}

}  // namespace sluice_flashinfer_moe

extern "C" __attribute__((visibility("default"))) const sluice_layer_peer* const* sluice_layer_peers(
    int* count) {
  using namespace sluice_flashinfer_moe;
  static const sluice_layer_peer peer = {"flashinfer-cutlass", PEER_VERSION,  supports, columns, packed_bytes,
                                         meta_bytes,           scratch_bytes, pack,     enqueue};
  static const sluice_layer_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
