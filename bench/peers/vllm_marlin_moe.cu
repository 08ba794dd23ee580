// vLLM's Marlin MoE for MXFP4 weights and bf16 activations, as its fused_marlin_moe runs it: moe_align_block_size, Marlin, the
// activation, Marlin again with the router's weights, and the sum over a token's experts. hidden is padded to 256 and
// intermediate to 128, as in vLLM's loader; the copy that pads x is timed as part of the layer.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cub/cub.cuh>
#include <cuda/std/functional>

#include "torch_shim.h"
#define MARLIN_NAMESPACE_NAME marlin_moe_wna16
#include "activation_kernels.cu"
#include "moe/marlin_moe_wna16/kernel.h"
#include "moe/marlin_moe_wna16/marlin_template.h"
#include "moe/marlin_moe_wna16/ops.cu"
#include "moe/moe_align_sum_kernels.cu"
#include "quantization/marlin/gptq_marlin_repack.cu"

#include "peer.h"

namespace {

using bf16 = __nv_bfloat16;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

int64_t up_to(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

// Padded sizes, and offsets in packed, meta and scratch.
struct Layout {
  int64_t hidden, inner, block, rows, pairs;  // rows: upper bound of the padded rows
  size_t up, up_scale, up_bias, down, down_scale, down_bias, packed;
  size_t sorted, blocks, padded, meta;
  size_t x, z, h, g, partial, locks, scratch;
};

Layout layout_of(const sluice_peer_layer* p) {
  Layout a{};
  a.hidden = up_to(p->hidden, 256);
  a.inner = up_to(p->intermediate, 128);
  a.pairs = p->tokens * p->top_k;
  for (const int64_t block : {8, 16, 32, 48, 64}) {
    a.block = block;
    if (static_cast<double>(a.pairs) / p->experts / block < 0.9) break;
  }
  a.rows = up_to(a.pairs + p->experts * (a.block - 1), a.block);
  if (a.pairs < p->experts) a.rows = std::min(a.rows, a.pairs * a.block);
  const auto take = [](size_t* total, size_t bytes) {
    const size_t at = *total;
    *total += aligned(bytes);
    return at;
  };
  const size_t weights = static_cast<size_t>(p->experts * a.hidden * a.inner);
  a.up = take(&a.packed, weights);  // two e2m1 matrices
  a.up_scale = take(&a.packed, weights / 16);
  a.up_bias = take(&a.packed, p->experts * 2 * a.inner * 2);
  a.down = take(&a.packed, weights / 2);
  a.down_scale = take(&a.packed, weights / 32);
  a.down_bias = take(&a.packed, p->experts * a.hidden * 2);
  a.sorted = take(&a.meta, a.rows * 4);
  a.blocks = take(&a.meta, a.rows / a.block * 4);
  a.padded = take(&a.meta, 4);
  a.x = take(&a.scratch, p->tokens * a.hidden * 2);
  a.z = take(&a.scratch, a.pairs * 2 * a.inner * 2);
  a.h = take(&a.scratch, a.pairs * a.inner * 2);
  a.g = take(&a.scratch, a.pairs * a.hidden * 2);
  a.partial = take(&a.scratch, size_t{2} * 132 * 4 * 64 * 256 * 4);
  a.locks = take(&a.scratch, 132 * 4 * 4);
  a.scratch += aligned((p->experts + 1) * 4) + 4096;  // cumulative counts of moe_align_block_size
  return a;
}

template <class T>
T* at(const void* base, size_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(const_cast<void*>(base)) + offset);
}

const char* supports(const sluice_peer_layer* p) {
  if (p->experts > 992) return "needs at most 992 experts (moe_align_block_size)";
  if (p->hidden % 32 != 0 || p->intermediate % 32 != 0)
    return "needs hidden and intermediate in multiples of 32";
  if (p->interleaved && (p->alpha == 1 || p->beta != 1))
    return "supports interleaved rows only with gpt-oss's activation";
  if (p->interleaved == 0 && up_to(p->intermediate, 128) != p->intermediate)
    return "needs intermediate in multiples of 128 if gate rows come first";
  return nullptr;
}

int64_t columns(const sluice_peer_layer* p) { return layout_of(p).hidden; }
size_t packed_bytes(const sluice_peer_layer* p) { return layout_of(p).packed; }
size_t meta_bytes(const sluice_peer_layer* p) { return layout_of(p).meta; }
size_t scratch_bytes(const sluice_peer_layer* p) { return layout_of(p).scratch; }

// ---- packing: the PyTorch code of vLLM's loader, around its repack kernel ----

// Converts a row-major matrix to GPTQ's layout, u32[k / 8][n] with the lower k in the lower bits.
__global__ void to_gptq(const uint32_t* rows, int64_t n_in, int64_t k_in, uint32_t* out, int64_t n,
                        int64_t k) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i >= n * (k / 8)) return;
  const int64_t row = i % n, word = i / n;
  out[i] = row < n_in && word < k_in / 8 ? rows[row * (k_in / 8) + word] : 0;
}

// Writes scales u8[k / 32][n] in the order of Marlin's threads. Scales of padding are 1.
__global__ void permute_scales(const uint8_t* rows, int64_t n_in, int64_t k_in, uint8_t* out, int64_t n,
                               int64_t k) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i >= n * (k / 32)) return;
  const int64_t o = i % 64, quad = o % 4, mid = o - quad + (quad == 1 ? 2 : quad == 2 ? 1 : quad);
  const int64_t from = i - o + mid / 8 + 8 * (mid % 8), row = from % n, block = from / n;
  out[i] = row < n_in && block < k_in / 32 ? rows[row * (k_in / 32) + block] : 127;
}

__global__ void permute_bias(const bf16* rows, int64_t n_in, bf16* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i >= n) return;
  const int64_t o = i % 32, j = o % 8;
  const int64_t from = i - o + 2 * (o / 8) + j / 2 * 8 + j % 2;
  out[i] = from < n_in ? rows[from] : __float2bfloat16(0);
}

unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + 255) / 256); }

struct Matrix {
  const uint8_t *codes, *scales;
  const bf16* bias;
  int64_t n, k, n_padded, k_padded;
  size_t to, scale_to, bias_to;
};

void pack_matrix(const Matrix& m, int64_t experts, void* packed, uint32_t* stage, cudaStream_t stream) {
  constexpr int kShared = 64 * 1024;
  const auto kernel = marlin_moe_wna16::gptq_marlin_repack_kernel<marlin_moe_wna16::repack_threads, 4, false>;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const int64_t n = m.n_padded, k = m.k_padded;
  for (int64_t e = 0; e < experts; ++e) {
    to_gptq<<<blocks_for(n * (k / 8)), 256, 0, stream>>>(
        reinterpret_cast<const uint32_t*>(m.codes + e * m.n * m.k / 2), m.n, m.k, stage, n, k);
    kernel<<<132, marlin_moe_wna16::repack_threads, kShared, stream>>>(
        stage, at<uint32_t>(packed, m.to + e * n * k / 2), static_cast<int>(k), static_cast<int>(n));
    permute_scales<<<blocks_for(n * (k / 32)), 256, 0, stream>>>(
        m.scales + e * m.n * m.k / 32, m.n, m.k, at<uint8_t>(packed, m.scale_to + e * n * k / 32), n, k);
    if (m.bias != nullptr)
      permute_bias<<<blocks_for(n), 256, 0, stream>>>(m.bias + e * m.n, m.n,
                                                      at<bf16>(packed, m.bias_to + e * n * 2), n);
  }
}

int pack(const sluice_peer_layer* p, const sluice_peer_experts* w, void* packed, void* stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  const Layout a = layout_of(p);
  uint32_t* stage = nullptr;
  if (const cudaError_t error = cudaMalloc(&stage, a.hidden * a.inner)) return error;
  pack_matrix({w->up, w->up_scale, static_cast<const bf16*>(w->up_bias), 2 * p->intermediate, p->hidden,
               2 * a.inner, a.hidden, a.up, a.up_scale, a.up_bias},
              p->experts, packed, stage, stream);
  pack_matrix({w->down, w->down_scale, static_cast<const bf16*>(w->down_bias), p->hidden, p->intermediate,
               a.hidden, a.inner, a.down, a.down_scale, a.down_bias},
              p->experts, packed, stage, stream);
  cudaStreamSynchronize(stream);
  cudaFree(stage);
  return cudaGetLastError();
}

// ---- the layer ----

void group(const sluice_peer_layer* p, const Layout& a) {
  sluice_shim::scratch = at<char>(p->scratch, a.locks + aligned(132 * 4 * 4));
  const Tensor sorted(at<int>(p->meta, a.sorted), {a.rows}, ScalarType::Int),
      blocks(at<int>(p->meta, a.blocks), {a.rows / a.block}, ScalarType::Int),
      padded(at<int>(p->meta, a.padded), {1}, ScalarType::Int);
  moe_align_block_size(Tensor(p->ids, {p->tokens, p->top_k}, ScalarType::Int), p->experts, a.block, sorted,
                       blocks, padded, std::nullopt, std::nullopt);
}

struct Product {
  const void *x, *w, *bias, *scales;
  void* y;
  int64_t rows, top_k, n, k;
  bool weighted;
};

void multiply(const sluice_peer_layer* p, const Layout& a, const Product& m) {
  marlin_moe_wna16::marlin_mm(
      m.x, m.w, m.y, at<void>(p->scratch, a.partial), const_cast<void*>(m.bias), nullptr,
      const_cast<void*>(m.scales), nullptr, nullptr, at<void>(p->meta, a.sorted), at<void>(p->meta, a.blocks),
      at<void>(p->meta, a.padded), const_cast<float*>(p->weights), static_cast<int>(a.block),
      static_cast<int>(p->experts), static_cast<int>(m.top_k), m.weighted, static_cast<int>(m.rows),
      static_cast<int>(m.n), static_cast<int>(m.k), at<void>(p->scratch, a.locks), vllm::kBFloat16,
      vllm::kFE2M1f, vllm::kBFloat16, vllm::kFE8M0fnu, p->biases != 0, false, 32, 0, sluice_shim::stream, -1,
      -1, 132, -1, false, true, false);
}

void activate(const sluice_peer_layer* p, const Layout& a) {
  const auto rows = static_cast<unsigned>(a.pairs);
  const int inner = static_cast<int>(a.inner);
  const bf16* z = at<bf16>(p->scratch, a.z);
  bf16* h = at<bf16>(p->scratch, a.h);
  const auto alpha = static_cast<float>(p->alpha), beta = static_cast<float>(p->beta),
             limit = static_cast<float>(p->limit);
  if (p->interleaved) {
    vllm::swigluoai_and_mul_kernel<bf16, vllm::swigluoai_and_mul<bf16>>
        <<<rows, std::min(inner, 1024), 0, sluice_shim::stream>>>(h, z, inner, alpha, limit);
    return;
  }
  vllm::act_and_mul_kernel<bf16, __nv_bfloat162, vllm::silu_kernel<bf16>,
                           vllm::packed_silu_kernel<__nv_bfloat162>, true, true, true, false>
      <<<rows, std::min(inner / 8, 1024), 0, sluice_shim::stream>>>(h, z, inner, limit, alpha, beta);
}

void gemms(const sluice_peer_layer* p, const Layout& a, const void* x) {
  multiply(p, a,
           {x, at<void>(p->packed, a.up), at<void>(p->packed, a.up_bias), at<void>(p->packed, a.up_scale),
            at<void>(p->scratch, a.z), p->tokens, p->top_k, 2 * a.inner, a.hidden, false});
  activate(p, a);
  multiply(
      p, a,
      {at<void>(p->scratch, a.h), at<void>(p->packed, a.down), at<void>(p->packed, a.down_bias),
       at<void>(p->packed, a.down_scale), at<void>(p->scratch, a.g), a.pairs, 1, a.hidden, a.inner, true});
}

template <int kTopK>
void sum(const sluice_peer_layer* p, const Layout& a) {
  const int64_t vectors = p->tokens * a.hidden / 8;
  vllm::moe::moe_sum_vec_kernel<bf16, int32_t, kTopK, false>
      <<<static_cast<unsigned>(std::min<int64_t>((vectors + 255) / 256, 65535)), 256, 0,
         sluice_shim::stream>>>(static_cast<bf16*>(p->y), at<bf16>(p->scratch, a.g), p->tokens,
                                static_cast<int>(a.hidden), p->top_k * a.hidden, a.hidden, nullptr, nullptr,
                                0, 0);
}

int enqueue(const sluice_peer_layer* p, int32_t part, void* stream) {
  sluice_shim::stream = static_cast<cudaStream_t>(stream);
  const Layout a = layout_of(p);
  try {
    if (part != SLUICE_PEER_GEMMS) group(p, a);
    if (part == SLUICE_PEER_GROUP) return cudaPeekAtLastError();
    const void* x = p->x;
    if (a.hidden != p->hidden && part == SLUICE_PEER_LAYER) {
      x = at<void>(p->scratch, a.x);
      cudaMemcpy2DAsync(const_cast<void*>(x), a.hidden * 2, p->x, p->hidden * 2, p->hidden * 2, p->tokens,
                        cudaMemcpyDeviceToDevice, sluice_shim::stream);
    } else if (a.hidden != p->hidden) {
      x = at<void>(p->scratch, a.x);  // padded by the last whole layer
    }
    gemms(p, a, x);
    if (part == SLUICE_PEER_LAYER) switch (p->top_k) {
        case 4:
          sum<4>(p, a);
          break;
        case 6:
          sum<6>(p, a);
          break;
        case 8:
          sum<8>(p, a);
          break;
        default:
          return 2;
      }
  } catch (const std::exception&) {
    return 1;
  }
  return cudaPeekAtLastError();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_layer_peer* const* sluice_layer_peers(
    int* count) {
  static const sluice_layer_peer peer = {"vllm-marlin", PEER_VERSION,  supports, columns, packed_bytes,
                                         meta_bytes,    scratch_bytes, pack,     enqueue};
  static const sluice_layer_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
