// FlashMLA's dense decode kernel for Hopper, called as flash_mla_with_kvcache calls it, between the two batched products with
// kv_b. Engines leave these to cuBLAS; here the fastest of cuBLASLt's algorithms computes them. FlashMLA's files are found by
// -I. Its own checks end the process, so supports() refuses the problems that they would reject.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "cublaslt_library.h"
#include "params.h"
#include "peer.h"
#include "sm90/decode/dense/splitkv_mla.h"
#include "smxx/decode/combine/combine.h"
#include "smxx/decode/get_decoding_sched_meta/get_decoding_sched_meta.h"

namespace {

constexpr int kRank = 512, kRope = 64, kRow = kRank + kRope, kPage = 64,
              kTile = 64;       // query rows per CTA
constexpr int kPartsMax = 160;  // the limit of its compiled combine kernel
constexpr int64_t kSequencesMax = 4096;
constexpr size_t kWorkspaceBytes = size_t{32} << 20;
constexpr size_t kColdBytes = size_t{128}
                              << 20;  // bytes of rotating weights while timing: twice the L2 of Hopper
constexpr int kAlgorithms = 16, kTimed = 16;  // offered by heuristics; launches in a timed graph

CublasLt& library() {
  static CublasLt it;
  return it;
}

// A batch of GEMMs, one per head.
struct Product {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, y = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
};

struct Prepared {
  Product absorb, project;
  DenseAttnDecodeParams attend;
  CombineParams combine;
};

// Query rows of a sequence times heads; they share the latents of that sequence.
int64_t rows_of(const sluice_peer_latent* p) { return p->tokens / p->sequences * p->heads; }

// The number of parts into which the work of all sequences is split; each part has one CTA per tile of a sequence's query rows.
int parts_of(const sluice_peer_latent* p) {
  int device = 0, multiprocessors = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device) != cudaSuccess)
    return 0;
  return std::max(static_cast<int>(multiprocessors / ((rows_of(p) + kTile - 1) / kTile)), 1);
}

struct Scratch {
  __nv_bfloat16 *queries, *latents;  // [tokens, heads, kRow], [tokens, heads, kRank]
  float *lse, *split_lse, *split_latents;
  DecodingSchedMeta* schedule;
  int* splits;
  void* workspace;
  size_t bytes;
};

// The layout of scratch. Pass null to compute the size only.
Scratch lay_out(const sluice_peer_latent* p, void* scratch) {
  Scratch s{};
  const auto take = [&](auto*& to, int64_t count) {
    constexpr size_t kAlign = 256;
    to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(static_cast<char*>(scratch) + s.bytes);
    s.bytes += (static_cast<size_t>(count) * sizeof(*to) + kAlign - 1) / kAlign * kAlign;
  };
  const int64_t rows = rows_of(p), parts = parts_of(p), splits = p->sequences + parts;
  take(s.queries, p->sequences * rows * kRow);
  take(s.latents, p->sequences * rows * kRank);
  take(s.lse, p->sequences * rows);
  take(s.split_lse, splits * rows);
  take(s.split_latents, splits * rows * kRank);
  take(s.schedule, parts);
  take(s.splits, p->sequences + 1);
  s.workspace = static_cast<char*>(scratch) + s.bytes;
  s.bytes += kWorkspaceBytes;
  return s;
}

const char* supports(const sluice_peer_latent* p) {
  if (!library().open) return "libcublasLt.so.13 is not on the loader's path";
  if (p->rank != kRank || p->rope != kRope) return "needs a latent rank of 512 and 64 rotary elements";
  if (p->nope % 8 != 0 || p->v_dim % 8 != 0)
    return "needs nope and v_dim in multiples of 8 (rows of 16 bytes)";
  if (p->page_size != kPage) return "needs pages of 64 tokens";
  if (p->sequences > kSequencesMax) return "needs at most 4096 sequences";
  const int64_t rows = p->tokens / p->sequences;
  if (rows < 1) return "needs a row in every sequence";
  for (int64_t s = 0; s < p->sequences; ++s) {
    if (p->host_q_begin[s] != s * rows || p->host_q_begin[s + 1] != (s + 1) * rows)
      return "needs the same number of rows in every sequence";
    if (p->host_kv_len[s] < rows) return "has a sequence that is shorter than its rows";
    if (p->host_kv_len[s] > p->pages_per_seq * kPage) return "has a sequence that is longer than its pages";
  }
  const int parts = parts_of(p);
  if (parts < 1 || parts > kPartsMax) return "needs at most 160 parts; this GPU has too many SMs";
  if ((p->sequences + parts) * rows_of(p) * kRank > INT32_MAX)
    return "has too many partial results for 32-bit offsets";
  return nullptr;
}

size_t scratch_bytes(const sluice_peer_latent* p) { return lay_out(p, nullptr).bytes; }

bool multiply(const Product& a, const cublasLtMatmulAlgo_t& algorithm, const __nv_bfloat16* w, const void* x,
              void* y, void* workspace, cudaStream_t stream) {
  const float one = 1, zero = 0;
  return library().matmul(library().handle, a.desc, &one, w, a.w, x, a.x, &zero, y, a.y, y, a.y, &algorithm,
                          workspace, kWorkspaceBytes, stream) == CUBLAS_STATUS_SUCCESS;
}

struct Matrix {
  int64_t rows, columns, next_column, next_head;  // column-major; the last two in elements
};

bool make_layout(const Matrix& m, int64_t heads, cublasLtMatrixLayout_t* out) {
  CublasLt& lt = library();
  const auto batch = static_cast<int32_t>(heads);
  return lt.layout_create(out, CUDA_R_16BF, static_cast<uint64_t>(m.rows), static_cast<uint64_t>(m.columns),
                          m.next_column) == CUBLAS_STATUS_SUCCESS &&
         lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) ==
             CUBLAS_STATUS_SUCCESS &&
         lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &m.next_head, sizeof m.next_head) ==
             CUBLAS_STATUS_SUCCESS;
}

bool describe(bool transposed, const Matrix& w, const Matrix& x, const Matrix& y, int64_t heads,
              Product* out) {
  CublasLt& lt = library();
  const cublasOperation_t operation = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
  return lt.desc_create(&out->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
         lt.desc_set(out->desc, CUBLASLT_MATMUL_DESC_TRANSA, &operation, sizeof operation) ==
             CUBLAS_STATUS_SUCCESS &&
         make_layout(w, heads, &out->w) && make_layout(x, heads, &out->x) && make_layout(y, heads, &out->y);
}

const __nv_bfloat16* keys_of(const void* kv_b) { return static_cast<const __nv_bfloat16*>(kv_b); }
const __nv_bfloat16* values_of(const sluice_peer_latent* p, const void* kv_b) {
  return keys_of(kv_b) + p->nope * p->rank;
}

// Several copies of kv_b, so that a copy is no longer in L2 when it is used again while algorithms are timed.
class Copies {
 public:
  explicit Copies(const sluice_peer_latent* p)
      : count_(p->heads * (p->nope + p->v_dim) * p->rank),
        copies_(static_cast<int64_t>(kColdBytes / (static_cast<size_t>(count_) * sizeof(*data_))) + 1) {
    const size_t bytes = static_cast<size_t>(count_) * sizeof(*data_);
    ok_ = cudaMalloc(&data_, bytes * static_cast<size_t>(copies_)) == cudaSuccess;
    for (int64_t i = 0; ok_ && i < copies_; ++i)
      ok_ = cudaMemcpy(data_ + i * count_, p->kv_b, bytes, cudaMemcpyDeviceToDevice) == cudaSuccess;
  }
  ~Copies() { cudaFree(data_); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  bool ok() const { return ok_; }
  const __nv_bfloat16* turn(int64_t i) const { return data_ + i % copies_ * count_; }

 private:
  __nv_bfloat16* data_ = nullptr;
  int64_t count_, copies_;
  bool ok_ = false;
};

// Selects the fastest algorithm; launch(algorithm, i) returns true if cuBLASLt accepted it.
template <class Launch>
bool choose(Product* a, cudaStream_t stream, Launch launch) {
  CublasLt& lt = library();
  cublasLtMatmulPreference_t preference;
  if (lt.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return false;
  lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                    sizeof kWorkspaceBytes);
  cublasLtMatmulHeuristicResult_t found[kAlgorithms];
  int count = 0;
  lt.heuristic(lt.handle, a->desc, a->w, a->x, a->y, a->y, preference, kAlgorithms, found, &count);
  lt.preference_destroy(preference);
  float best = -1;
  for (int i = 0; i < count; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const float us = recorded_us(stream, kTimed, [&](int run) { return launch(found[i].algo, run); });
    if (us < 0 || (best >= 0 && us >= best)) continue;
    best = us, a->algorithm = found[i].algo;
  }
  cudaGetLastError();  // a refused algorithm leaves an error
  return best >= 0;
}

bool prepare_products(const sluice_peer_latent* p, const Scratch& s, cudaStream_t stream, Prepared* out) {
  const int64_t head = p->nope + p->rope, of_kv_b = (p->nope + p->v_dim) * p->rank;
  const bool described =
      describe(false, {p->rank, p->nope, p->rank, of_kv_b}, {p->nope, p->tokens, p->heads * head, head},
               {p->rank, p->tokens, p->heads * kRow, kRow}, p->heads, &out->absorb) &&
      describe(true, {p->rank, p->v_dim, p->rank, of_kv_b}, {p->rank, p->tokens, p->heads * p->rank, p->rank},
               {p->v_dim, p->tokens, p->heads * p->v_dim, p->v_dim}, p->heads, &out->project);
  if (!described) return false;
  const Copies copies(p);
  return copies.ok() &&
         choose(&out->absorb, stream,
                [&](const cublasLtMatmulAlgo_t& algorithm, int i) {
                  return multiply(out->absorb, algorithm, keys_of(copies.turn(i)), p->q, s.queries,
                                  s.workspace, stream);
                }) &&
         choose(&out->project, stream, [&](const cublasLtMatmulAlgo_t& algorithm, int i) {
           return multiply(out->project, algorithm, values_of(p, copies.turn(i)), s.latents, p->y,
                           s.workspace, stream);
         });
}

// The parameters that are equal in all runs, and the schedule of all sequences, which an engine computes once per step for all layers.
void prepare_attention(const sluice_peer_latent* p, const Scratch& s, cudaStream_t stream, Prepared* out) {
  const int sequences = static_cast<int>(p->sequences), heads = static_cast<int>(p->heads),
            rows = static_cast<int>(p->tokens / p->sequences), all = rows * heads, parts = parts_of(p);
  DenseAttnDecodeParams& a = out->attend;
  a.b = sequences, a.s_q = rows, a.q_seq_per_hk = all;
  a.d = kRow, a.d_v = kRank;
  a.h_q = a.q_head_per_hk = heads, a.h_k = 1;
  a.num_blocks = static_cast<int>(p->pages), a.page_block_size = kPage;
  a.is_causal = rows > 1;
  a.scale_softmax = static_cast<float>(p->scale);
  a.scale_softmax_log2 = static_cast<float>(p->scale * M_LOG2E);
  a.q_ptr = s.queries, a.o_ptr = s.latents, a.softmax_lse_ptr = s.lse;
  a.q_batch_stride = int64_t{all} * kRow, a.q_row_stride = a.q_head_stride = kRow;
  a.k_batch_stride = kPage * kRow, a.k_row_stride = a.k_head_stride = kRow;
  a.o_batch_stride = a.o_head_stride = int64_t{all} * kRank, a.o_row_stride = kRank;
  a.block_table_batch_stride = p->pages_per_seq;
  a.seqlens_k_ptr = const_cast<int32_t*>(p->kv_len);
  a.tile_scheduler_metadata_ptr = s.schedule, a.num_sm_parts = parts;
  a.num_splits_ptr = s.splits, a.total_num_splits = sequences + parts;
  a.softmax_lseaccum_ptr = s.split_lse, a.oaccum_ptr = s.split_latents;

  CombineParams& c = out->combine;
  c.b = sequences, c.s_q = rows, c.h_q = heads, c.d_v = kRank;
  c.lse = s.lse, c.out = s.latents, c.lse_accum = s.split_lse, c.o_accum = s.split_latents;
  c.stride_lse_b = c.stride_lse_accum_split = all;
  c.stride_lse_s_q = c.stride_lse_accum_s_q = heads;
  c.stride_o_b = c.stride_o_accum_split = all * kRank;
  c.stride_o_s_q = c.stride_o_accum_s_q = heads * kRank;
  c.stride_o_h_q = c.stride_o_accum_h_q = kRank;
  c.tile_scheduler_metadata_ptr = s.schedule, c.num_splits_ptr = s.splits, c.num_sm_parts = parts;

  GetDecodeSchedMetaParams m{};
  m.b = sequences, m.s_q = rows;
  m.block_size_n = kPage, m.fixed_overhead_num_blocks = 5;  // FlashMLA's value
  m.topk = m.extra_topk = -1;                               // all keys
  m.seqlens_k_ptr = a.seqlens_k_ptr;
  m.tile_scheduler_metadata_ptr = s.schedule, m.num_splits_ptr = s.splits, m.num_sm_parts = parts;
  m.stream = stream;
  smxx::decode::run_get_decoding_sched_meta_kernel(m);
}

void* prepare(const sluice_peer_latent* p, void* scratch) {
  CublasLt& lt = library();
  if (!lt.open || (lt.handle == nullptr && lt.create(&lt.handle) != CUBLAS_STATUS_SUCCESS)) return nullptr;
  const Scratch s = lay_out(p, scratch);
  cudaStream_t stream;
  if (cudaDeviceSynchronize() != cudaSuccess || cudaMemset(scratch, 0, s.bytes) != cudaSuccess ||
      cudaDeviceSynchronize() != cudaSuccess ||
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess)
    return nullptr;
  auto* out = new Prepared{};
  const bool ok = prepare_products(p, s, stream, out);
  if (ok) prepare_attention(p, s, stream, out);
  const bool ran = cudaStreamSynchronize(stream) == cudaSuccess;
  cudaStreamDestroy(stream);
  if (ok && ran) return out;
  delete out;
  return nullptr;
}

// After the absorbed product, copies the rotary elements of q to where FlashMLA expects them.
__global__ void copy_positions(const uint4* __restrict__ q, uint4* __restrict__ queries, int64_t rows,
                               int nope) {
  constexpr int kEach = 16 / sizeof(__nv_bfloat16), kChunks = kRope / kEach;
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x, row = i / kChunks;
  const int at = static_cast<int>(i % kChunks);
  if (row < rows)
    queries[row * (kRow / kEach) + kRank / kEach + at] =
        q[row * ((nope + kRope) / kEach) + nope / kEach + at];
}

bool absorb(const sluice_peer_latent* p, const Prepared& a, const Scratch& s, cudaStream_t stream) {
  if (!multiply(a.absorb, a.absorb.algorithm, keys_of(p->kv_b), p->q, s.queries, s.workspace, stream))
    return false;
  constexpr int kThreads = 256, kPerBlock = kThreads / (kRope / 8);
  const int64_t rows = p->tokens * p->heads;
  copy_positions<<<static_cast<unsigned>((rows + kPerBlock - 1) / kPerBlock), kThreads, 0, stream>>>(
      static_cast<const uint4*>(p->q), reinterpret_cast<uint4*>(s.queries), rows, static_cast<int>(p->nope));
  return true;
}

void attend(const sluice_peer_latent* p, const Prepared& prepared, cudaStream_t stream) {
  DenseAttnDecodeParams a = prepared.attend;
  CombineParams c = prepared.combine;
  a.k_ptr = const_cast<void*>(p->cache);
  a.block_table = const_cast<int32_t*>(p->page_table);
  a.stream = c.stream = stream;
  sm90::run_flash_splitkv_mla_kernel<cutlass::bfloat16_t>(a);
  smxx::decode::run_flash_mla_combine_kernel<cutlass::bfloat16_t>(c);
}

int enqueue(const sluice_peer_latent* p, int32_t parts, void* scratch, void* prepared, void* raw_stream) {
  if (prepared == nullptr) return 1;
  const Prepared& a = *static_cast<const Prepared*>(prepared);
  const Scratch s = lay_out(p, scratch);
  const auto stream = static_cast<cudaStream_t>(raw_stream);
  if ((parts & SLUICE_PEER_LATENT_ABSORB) != 0 && !absorb(p, a, s, stream)) return 2;
  if ((parts & SLUICE_PEER_LATENT_ATTEND) != 0) attend(p, a, stream);
  if ((parts & SLUICE_PEER_LATENT_PROJECT) != 0 &&
      !multiply(a.project, a.project.algorithm, values_of(p, p->kv_b), s.latents, p->y, s.workspace, stream))
    return 3;
  return cudaGetLastError() == cudaSuccess ? 0 : 4;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const sluice_latent_peer* const* sluice_latent_peers(
    int* count) {
  static const std::string version = std::string(PEER_VERSION) + " with " + library().version;
  static const sluice_latent_peer peer = {"flashmla",    version.c_str(), supports,
                                          scratch_bytes, prepare,         enqueue};
  static const sluice_latent_peer* const peers[] = {&peer};
  *count = 1;
  return peers;
}
