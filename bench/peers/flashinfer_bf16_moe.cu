// FlashInfer's cutlass_fused_moe with bf16 weights on Hopper, as its Python code runs it: sorting by expert (one kernel, or three for
// many rows), expansion of rows, descriptors, GEMM, activation, GEMM and weighted sum, with dependent launches. Exports plain C functions
// for bf16_layer.py. As in FlashInfer's tuner, timing chooses the tiles of each problem, first of GEMM 1 and then of GEMM 2. Unlike in
// the tuner, the whole layer is timed with cold weights, and only tiles that suit the rows per expert are tried.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cutlass_fused_moe_kernels.cuh"
#include "flashinfer_bf16_tiles.h"

// The caller's layer, in device memory. Expert ids count all experts; experts with ids from 0 to experts - 1 are on this rank. up is
// [experts, 2 * inner, hidden] with all ups before the gates, or [experts, inner, hidden] with relu(up)^2.
struct Layer {
  int64_t tokens, experts, routed, top_k, hidden, inner, gated;
  const __nv_bfloat16 *x, *up, *down;
  const int32_t* ids;
  const float* weights;
  __nv_bfloat16* y;
  char *meta, *scratch;
};

enum Part : int64_t { kLayer, kGroup, kGemms };

// A named namespace, because nvcc's stubs cannot combine types of an anonymous one with types of FlashInfer's headers.
namespace sluice_flashinfer_bf16 {

namespace fk = tensorrt_llm::kernels::cutlass_kernels;
namespace tkc = tensorrt_llm::cutlass_extensions;
using Runner = fk::CutlassMoeFCRunner<__nv_bfloat16, __nv_bfloat16>;
using Config = tkc::CutlassGemmConfig;

Runner& runner() {
  static Runner only;
  return only;
}

// Offsets in meta and scratch.
struct Layout {
  size_t offsets, to_token, to_row, scales, expanded, meta;
  size_t rows, work;
};

Layout layout_of(const Layer& p) {
  Layout a{};
  const int64_t pairs = p.tokens * p.top_k;
  const auto take = [](size_t* total, int64_t bytes) {
    const size_t at = *total;
    *total += static_cast<size_t>((bytes + 255) / 256 * 256);
    return at;
  };
  a.offsets = take(&a.meta, (p.experts + 1) * 8);
  a.to_token = take(&a.meta, pairs * 4);
  a.to_row = take(&a.meta, pairs * 4);
  a.scales = take(&a.meta, pairs * 4);
  a.expanded = take(&a.meta, pairs * p.hidden * 2);
  a.rows = take(&a.work, pairs * 4);
  return a;
}

template <class T>
T* at(char* base, size_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

fk::ActivationParams activation_of(const Layer& p) {
  return fk::ActivationParams(p.gated ? fk::ActivationType::Swiglu : fk::ActivationType::Relu2);
}

fk::MOEParallelismConfig parallel_of(const Layer& p) {
  return {1, 0, static_cast<int>(p.routed / p.experts), 0};
}

size_t scratch_bytes(const Layer& p) {
  return layout_of(p).work + runner().getWorkspaceSize(p.tokens, p.hidden, p.inner,
                                                       static_cast<int>(p.routed), static_cast<int>(p.top_k),
                                                       activation_of(p), parallel_of(p), false, false, false,
                                                       false, false);
}

void layer(const Layer& p, cudaStream_t stream) {
  const Layout a = layout_of(p);
  tensorrt_llm::kernels::LoraParams no_lora{};
  fk::MoeMinLatencyParams no_latency{};
  runner().runMoe(p.x, nullptr, false, p.ids, p.weights, p.up, nullptr, activation_of(p), p.down, nullptr, {},
                  p.tokens, p.hidden, p.hidden, p.inner, static_cast<int>(p.routed),
                  static_cast<int>(p.top_k), at<char>(p.scratch, a.work), p.y, at<int>(p.scratch, a.rows),
                  parallel_of(p), false, false, no_lora, false, false, false, no_latency, true, stream);
}

// Pointers into FlashInfer's workspace. The grouping of rows is in meta instead. In the workspace the expanded rows and the output of the
// activation share memory.
void lay_out(const Layer& p, const Layout& a) {
  Runner& r = runner();
  r.configureWsPtrs(at<char>(p.scratch, a.work), p.tokens, p.hidden, p.inner, static_cast<int>(p.experts),
                    static_cast<int>(p.top_k), activation_of(p), parallel_of(p), false, false, false, false,
                    false);
  r.expert_first_token_offset_ = at<int64_t>(p.meta, a.offsets);
  r.permuted_row_to_unpermuted_row_ = at<int>(p.meta, a.to_token);
  if (r.permuted_token_final_scales_ != nullptr) r.permuted_token_final_scales_ = at<float>(p.meta, a.scales);
  r.permuted_data_ = at<__nv_bfloat16>(p.meta, a.expanded);
}

void group(const Layer& p, cudaStream_t stream) {
  const Layout a = layout_of(p);
  lay_out(p, a);
  Runner& r = runner();
  const int experts = static_cast<int>(p.experts), top_k = static_cast<int>(p.top_k);
  int* to_row = at<int>(p.meta, a.to_row);
  if (!fk::fusedBuildExpertMapsSortFirstToken(p.ids, r.permuted_row_to_unpermuted_row_, to_row,
                                              r.expert_first_token_offset_, p.tokens, experts, top_k, 0,
                                              experts, true, stream))
    fk::threeStepBuildExpertMapsSortFirstToken(
        p.ids, r.permuted_token_selected_experts_, r.permuted_row_to_unpermuted_row_, to_row,
        r.expert_first_token_offset_, r.blocked_expert_counts_, r.blocked_expert_counts_cumsum_,
        r.blocked_row_to_unpermuted_row_, p.tokens, experts, top_k, 0, true, stream);
  fk::expandInputRowsKernelLauncher(
      p.x, r.permuted_data_, p.weights, r.permuted_token_final_scales_, r.permuted_row_to_unpermuted_row_,
      nullptr, p.tokens, p.hidden, top_k, experts, fk::QuantParams{}, false, r.expert_first_token_offset_,
      r.fc1_fp4_act_scale_, nullptr, false, nullptr, nullptr, nullptr, nullptr, true, stream);
}

// The kernels after the expansion of rows: descriptors, GEMM, activation, GEMM with its weighted sum.
void gemms(const Layer& p, cudaStream_t stream) {
  const Layout a = layout_of(p);
  lay_out(p, a);
  Runner& r = runner();
  const fk::QuantParams no_scales{};
  const fk::ActivationParams activation = activation_of(p);
  const fk::MOEParallelismConfig parallel = parallel_of(p);
  const int experts = static_cast<int>(p.experts);
  const int64_t pairs = p.tokens * p.top_k,
                *valid = parallel.ep_size > 1 ? r.expert_first_token_offset_ + experts : nullptr;
  fk::MoeMinLatencyParams no_latency{};
  const auto [first, second] = r.setupTmaWarpSpecializedInputs(
      p.tokens, pairs, activation, p.hidden, p.hidden, p.inner, experts, p.x, nullptr, p.y, p.up, p.down,
      no_scales, nullptr, nullptr, false, no_latency, false, 0, parallel, true, stream);
  Runner::gemm1(r.moe_gemm_runner_, nullptr, r.permuted_data_, r.fc1_result_, r.glu_inter_result_,
                r.expert_first_token_offset_, nullptr, first, p.up, nullptr, valid, nullptr, nullptr, nullptr,
                r.act_fp8_token_scale_, r.fc1_fp4_act_scale_, r.fc2_fp4_act_scale_, no_scales, p.tokens,
                pairs, p.hidden, p.inner, experts, activation, r.alpha_scale_ptr_array_fc1_, true, stream,
                *r.gemm1_config_, false, nullptr, nullptr, true);
  Runner::gemm2(r.moe_gemm_runner_, nullptr, r.fc1_result_, r.fc2_result_, p.y, r.expert_first_token_offset_,
                second, p.down, nullptr, nullptr, nullptr, r.fc2_fp4_act_scale_, no_scales, p.weights,
                r.permuted_token_final_scales_, at<int>(p.meta, a.to_row), r.permuted_row_to_unpermuted_row_,
                p.ids, valid, p.tokens, pairs, p.hidden, p.hidden, p.inner, experts, p.top_k,
                r.alpha_scale_ptr_array_fc2_, false, nullptr, stream, parallel, false, *r.gemm2_config_,
                false, nullptr, nullptr, true);
}

// ---- tiles ----

struct Tile {
  Config config;
  int64_t tokens;  // per expert
  std::string name;
};

Tile hopper(bool swap, bool finalize, int64_t m, int64_t n, tkc::CutlassTileConfigSM90 tile,
            tkc::ClusterShape cluster, const char* cluster_name) {
  Tile t{Config(tile, tkc::MainloopScheduleType::AUTO, tkc::EpilogueScheduleType::AUTO, cluster),
         swap ? n : m,
         std::to_string(m) + "x" + std::to_string(n) + "/" + cluster_name + (swap ? " swapped" : "") +
             (finalize ? " with the sum" : "")};
  t.config.swap_ab = swap;
  if (finalize) t.config.epilogue_fusion_type = Config::EpilogueFusionType::FINALIZE;
  return t;
}

Tile ampere(int64_t rows, tkc::CutlassTileConfig tile, int stages) {
  return {Config(tile, tkc::SplitKStyle::NO_SPLIT_K, 1, stages), rows,
          "ampere " + std::to_string(rows) + "x128 in " + std::to_string(stages)};
}

constexpr auto kAmpere32 = tkc::CutlassTileConfig::CtaShape32x128x64_WarpShape32x32x64,
               kAmpere64 = tkc::CutlassTileConfig::CtaShape64x128x64_WarpShape32x64x64;
constexpr bool kNONE = false, kFINALIZE = true;

// The tiles that suit `rows` rows per expert. A much wider tile multiplies padding; a much narrower tile reads the weights repeatedly.
std::vector<Tile> tiles_for(double rows, bool may_add_up) {
  std::vector<Tile> all = {
#define TILE(swap, fusion, m, n, cluster_m, cluster_n)                                \
  hopper(swap, k##fusion, m, n, tkc::CutlassTileConfigSM90::CtaShape##m##x##n##x128B, \
         tkc::ClusterShape::ClusterShape_##cluster_m##x##cluster_n##x1, #cluster_m "x" #cluster_n),
      SLUICE_FLASHINFER_TILES(TILE)
#undef TILE
#define TILE(rows_, stages) ampere(rows_, kAmpere##rows_, stages),
          SLUICE_FLASHINFER_AMPERE_TILES(TILE)
#undef TILE
  };
  std::erase_if(all, [=](const Tile& t) {
    const bool adds_up = t.config.epilogue_fusion_type == Config::EpilogueFusionType::FINALIZE;
    return (adds_up && !may_add_up) || static_cast<double>(t.tokens) > std::max(32., 4 * rows) ||
           static_cast<double>(t.tokens) < std::min(128., rows / 4);
  });
  return all;
}

struct Choice {
  Tile up, down;
  std::string text = {};  // both tiles, and the milliseconds of all tiles that were tried
};

void expect(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Resources for timing, released afterwards.
class Timer {
 public:
  Timer() {
    expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    expect(cudaMalloc(&other_, kOther));
    expect(cudaEventCreate(&start_));
    expect(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(start_);
    cudaEventDestroy(end_);
    cudaFree(other_);
    cudaStreamDestroy(stream_);
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // The minimum of several captured runs in milliseconds, each after L2 was filled with other data. Stops early if the first run is far
  // slower than `least`.
  float layer_ms(const Layer& p, float least) {
    layer(p, stream_);  // loads the kernels
    expect(cudaStreamSynchronize(stream_));
    cudaGraph_t graph;
    cudaGraphExec_t recorded;
    expect(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    layer(p, stream_);
    expect(cudaStreamEndCapture(stream_, &graph));
    expect(cudaGraphInstantiate(&recorded, graph, 0));
    float best = 1e30F;
    for (int i = 0; i < (best < 1 ? 6 : 3) && (i == 0 || best < 1.1F * least); ++i) {
      expect(cudaMemsetAsync(other_, i, kOther, stream_));
      expect(cudaEventRecord(start_, stream_));
      expect(cudaGraphLaunch(recorded, stream_));
      expect(cudaEventRecord(end_, stream_));
      expect(cudaEventSynchronize(end_));
      float ms = 0;
      expect(cudaEventElapsedTime(&ms, start_, end_));
      best = std::min(best, ms);
    }
    cudaGraphExecDestroy(recorded);
    cudaGraphDestroy(graph);
    return best;
  }

 private:
  static constexpr size_t kOther = size_t{128} << 20;
  cudaStream_t stream_ = nullptr;
  void* other_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

Choice choose(const Layer& p) {
  const double rows = static_cast<double>(p.tokens * p.top_k) / static_cast<double>(p.routed);
  const std::vector<Tile> up = tiles_for(rows, false), down = tiles_for(rows, true);
  Choice best{up.front(), down.front()};
  Timer timer;
  std::string tried_text;
  for (const bool first : {true, false}) {
    float least = 1e30F;
    for (const Tile& tile : first ? up : down) {
      Choice tried = best;
      (first ? tried.up : tried.down) = tile;
      runner().setTactic(tried.up.config, tried.down.config);
      try {
        const float ms = timer.layer_ms(p, least);
        tried_text += tile.name + " " + std::to_string(ms) + "; ";
        if (ms < least) least = ms, best = tried;
      } catch (const std::exception& error) {
        (void)cudaGetLastError();
        tried_text += tile.name + " skipped: " + error.what() + "; ";
      }
    }
    if (least == 1e30F) throw std::runtime_error("no tile works: " + tried_text);
    tried_text += first ? "| " : "";
  }
  best.text = best.up.name + " | " + best.down.name + " | " + tried_text;
  return best;
}

std::map<std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t>, Choice> choices;

std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t> key_of(const Layer& p) {
  return {p.routed, p.experts, p.hidden, p.inner, p.tokens};
}

std::string text;  // about the last choice, or the last error

}  // namespace sluice_flashinfer_bf16

#define EXPORTED extern "C" __attribute__((visibility("default")))

using namespace sluice_flashinfer_bf16;

EXPORTED const char* flashinfer_version() { return PEER_VERSION; }

// Describes the last flashinfer_choose: the two tiles and the milliseconds of all tiles tried. After an error: the error.
EXPORTED const char* flashinfer_text() { return text.c_str(); }

EXPORTED int64_t flashinfer_meta_bytes(const Layer* p) { return static_cast<int64_t>(layout_of(*p).meta); }
EXPORTED int64_t flashinfer_scratch_bytes(const Layer* p) { return static_cast<int64_t>(scratch_bytes(*p)); }

// Chooses the tiles for problems of these sizes, once, and waits for the GPU. Returns 0, or 1 with the reason in flashinfer_text.
EXPORTED int flashinfer_choose(const Layer* p) {
  try {
    auto choice = choices.find(key_of(*p));
    if (choice == choices.end()) choice = choices.emplace(key_of(*p), choose(*p)).first;
    text = choice->second.text;
  } catch (const std::exception& error) {
    text = error.what();
    return 1;
  }
  return 0;
}

// kLayer: from ids and weights to y; kGroup: from ids to meta; kGemms: from meta to y. Requires flashinfer_choose first.
EXPORTED int flashinfer_enqueue(const Layer* p, int64_t part, void* stream_) {
  const auto stream = static_cast<cudaStream_t>(stream_);
  try {
    const Choice& choice = choices.at(key_of(*p));
    runner().setTactic(choice.up.config, choice.down.config);
    if (part == kLayer) layer(*p, stream);
    if (part == kGroup) group(*p, stream);
    if (part == kGemms) gemms(*p, stream);
    expect(cudaPeekAtLastError());
  } catch (const std::exception& error) {
    text = error.what();
    return 1;
  }
  return 0;
}
