// FlashInfer's paged prefill attention (its FlashAttention 3 template), as BatchAttentionWithAttentionSinkWrapper runs it with
// backend="fa3": bf16, causal, with sinks, with or without a window. prepare() makes its plan. FlashInfer's files are found by -I.
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
// The kernel's header comes first, because the other headers need its includes.
#include <flashinfer/attention/hopper/attention_updater.cuh>
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/variant_helper.cuh>
#include <flashinfer/attention/mask.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/cutlass_utils.cuh>
#include <flashinfer/layout.cuh>
#include <flashinfer/math.cuh>

#include <algorithm>
#include <vector>

#include "attention_sinks.h"
#include "peer.h"

namespace flashinfer {
#include "attention_sink.inc"
}  // namespace flashinfer

namespace {

using bf16 = cutlass::bfloat16_t;

struct Params : flashinfer::BatchPrefillPagedParams<bf16, bf16, bf16, int32_t> {
  struct AdditionalParams {
    float* sink;
    double sm_scale;
  } additional_params;
};

struct Prepared {
  std::vector<int32_t> plan;  // host memory from which the plan is copied to the device
  Params params;
};

constexpr int kDim = 64, kRows = 192;  // per head; per tile
constexpr int64_t kTilesMax =
    4096;  // per head; above this FlashInfer makes a plan for one head instead of all
constexpr size_t kSinksBytes = 4096;

int64_t tiles_max(const sluice_peer_attention* p) { return (p->tokens + kRows - 1) / kRows + p->sequences; }

// The plan: seven numbers per tile and head, and where each SM's work starts.
size_t plan_bytes(const sluice_peer_attention* p) {
  return static_cast<size_t>(tiles_max(p) * p->heads * 7 * 4) + (size_t{64} << 10);
}

const char* supports(const sluice_peer_attention* p) {
  if (p->cache_is_e4m3) return "needs caches of the queries' type";
  if (p->head_dim != kDim) return "needs heads of 64 elements";
  if (p->sinks == nullptr) return "needs sinks";
  if (p->heads > static_cast<int64_t>(kSinksBytes / sizeof(float))) return "needs at most 1024 heads";
  if (tiles_max(p) > kTilesMax) return "needs at most 4096 tiles of 192 rows";
  for (int64_t s = 0; s < p->sequences; ++s)
    if (p->host_q_begin[s + 1] - p->host_q_begin[s] < 2)
      return "needs prompts: a decode row would occupy a tile of 192 rows";
  return nullptr;
}

size_t scratch_bytes(const sluice_peer_attention* p) { return kSinksBytes + plan_bytes(p); }

// The parameters that are equal in all runs. FlashInfer's list of pages is the page table itself, whose rows are the sequences.
bool fill(const sluice_peer_attention* p, void* scratch, Prepared* out) {
  auto* device = static_cast<char*>(scratch) + kSinksBytes;
  std::vector<int32_t> q_begin(p->host_q_begin, p->host_q_begin + p->sequences + 1);
  std::vector<int32_t> kv_len(p->host_kv_len, p->host_kv_len + p->sequences), kv_begin;
  for (int64_t s = 0; s <= p->sequences; ++s) kv_begin.push_back(static_cast<int32_t>(s * p->pages_per_seq));
  out->plan.resize(plan_bytes(p) / sizeof(int32_t));
  flashinfer::PrefillPlanSM90Info info;
  if (flashinfer::PrefillSM90Plan<int32_t>(
          nullptr, 0, device, out->plan.data(), plan_bytes(p), info, q_begin.data(), kv_begin.data(),
          kv_len.data(), p->tokens, p->sequences, p->heads, p->kv_heads, kDim, kDim, p->page_size,
          /*causal=*/true,
          /*enable_cuda_graph=*/false, sizeof(bf16), nullptr) != cudaSuccess ||
      info.same_schedule_for_all_heads)
    return false;
  const auto part = [device](int64_t offset) { return reinterpret_cast<int32_t*>(device + offset); };
  Params& a = out->params;
  a = {};
  a.qo_tile_indices = part(info.qo_tile_indices_offset);
  a.qo_indptr = part(info.qo_indptr_offset);
  a.kv_indptr = part(info.kv_indptr_offset);
  a.qo_lens = part(info.qo_len_offset);
  a.kv_lens = part(info.kv_len_offset);
  a.head_indices = part(info.head_indices_offset);
  a.work_indptr = part(info.work_indptr_offset);
  a.batch_indices = part(info.batch_indices_offset);
  a.q_stride_n = a.o_stride_n = p->heads * kDim;
  a.q_stride_h = a.o_stride_h = kDim;
  a.k_stride_n = a.v_stride_n = kDim;
  a.k_stride_h = a.v_stride_h = p->page_size * kDim;
  a.k_page_stride = a.v_page_stride = p->kv_heads * p->page_size * kDim;
  a.nnz_qo = p->tokens;
  a.num_qo_heads = static_cast<int>(p->heads);
  a.num_kv_heads = static_cast<int>(p->kv_heads);
  a.group_size = static_cast<int>(p->heads / p->kv_heads);
  a.page_size = static_cast<int>(p->page_size);
  a.window_left = static_cast<int>(p->window) - 1;  // excludes the row's own position; -1: no window
  a.causal = true;
  a.additional_params = {.sink = static_cast<float*>(scratch), .sm_scale = p->scale};
  return true;
}

void* prepare(const sluice_peer_attention* p, void* scratch) {
  auto* out = new Prepared;
  try {
    if (cudaDeviceSynchronize() == cudaSuccess && copy_sinks(p, scratch) && fill(p, scratch, out) &&
        cudaDeviceSynchronize() == cudaSuccess)
      return out;
  } catch (const std::exception&) {
  }
  delete out;
  return nullptr;
}

template <bool kWindow>
cudaError_t run(Params& params, cudaStream_t stream) {
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      kDim, kDim, flashinfer::MaskMode::kCausal, kWindow,
      /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false, flashinfer::AttentionSink>(params, /*enable_pdl=*/false, stream);
}

int enqueue(const sluice_peer_attention* p, void*, void* prepared, void* raw_stream) {
  if (prepared == nullptr) return 1;
  Params params = static_cast<const Prepared*>(prepared)->params;
  const auto value = [](const void* data) { return static_cast<bf16*>(const_cast<void*>(data)); };
  params.q_ptr = value(p->q);
  params.k_ptr = value(p->k_cache);
  params.v_ptr = value(p->v_cache);
  params.o_ptr = value(p->y);
  params.kv_indices = const_cast<int32_t*>(p->page_table);
  const auto stream = static_cast<cudaStream_t>(raw_stream);
  try {
    return (p->window > 0 ? run<true>(params, stream) : run<false>(params, stream)) == cudaSuccess ? 0 : 2;
  } catch (const std::exception&) {
    return 3;
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_attention_peer* const* sluice_attention_peers(
    int* count) {
  static const sluice_attention_peer peer = {"flashinfer-fa3", PEER_VERSION, supports,
                                             scratch_bytes,    prepare,      enqueue};
  static const sluice_attention_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
