// Latent attention on tensor cores, in three launches: queries times the key matrices; partial
// results for splits of the keys; the sums of the partial results times the value matrices. A
// CTA of the second launch handles one split of the keys, for 64 heads of one row (mma_sm90), or
// for all heads of several rows of one sequence, up to 64 heads in total (mma_rows_sm90); see
// latent_attention_mma_attend.cuh. latent_attention_mma_products.cuh has the other two launches.
//
// Wins    wherever it accepts the problem: 64 heads read a latent from memory once, as key and as value, and multiply it by wgmma.
//         One row of DeepSeek V3 at context 1024 takes 22 us; the previous f32 kernel took 173 us (docs/lab/cuda-latent-attention.md).
//         mma_rows_sm90 is the faster of the two with up to 32 heads if sequences have several rows, in prompts and in steps that verify
//         drafts: 8 sequences of 4 rows of Moonlight at context 1024 take 25 us against 33 us (latent_candidates.csv).
// Loses   to FlashMLA from 32 sequences of one row of DeepSeek V3 on: 90 us against 58 us at context 1024 (latent.csv). By arithmetic a
//         tile of 64 keys takes about 3500 clocks, 1700 of them for scores, because 64 x 32 products wait for operands. With fewer than
//         64 heads and one row per sequence, part of each product is wasted; there mma_rows_sm90 is 0.3 to 4.6 us slower than mma_sm90.
// Limits  bf16; a rank of 128, 256 or 512, rope up to 64, nope up to 256. The workspace has room for 96 MiB of rows, so many rows take
//         several calls. How a row's keys are split depends on the configuration and on the row's own position, not on the batch or the
//         page table. In mma_rows_sm90 the position of the CTA's last row counts for all its rows.
//         Rounded to bf16 once each: a K_h, weights (after they are summed), and partial latents.
//         At a rank of 512: attend uses 231056 bytes of shared memory and 191 registers, so 256 threads fit on an SM; project 26624 bytes
//         and 128 registers, 512 threads; absorb 37120 bytes (for a nope of 128) and 56 registers. Nothing spills.
// Source  original; the online softmax is Milakov and Gimelshein (2018). The contract is ops/latent_attention.h.
#include "backends/cuda/card.h"
#include "ops/latent_attention.h"

namespace sluice::cuda {
namespace {

using Problem = LatentAttention::Problem;

// Sizes that the descriptor shares with the kernels. The static_asserts below compare them.
constexpr int64_t kSplitsMax = 32, kTile = 64, kGroupHeads = 64, kRopeMax = 64, kNopeMax = 256,
                  kPartBytes = 16;
// One configuration for each of these minimum numbers of key tiles per split.
constexpr int kFewestTiles[] = {1, 2, 4, 16, 64};

struct Layout {
  int64_t splits;           // maximum splits of a row
  int64_t row_bytes, rows;  // bytes of workspace per row; rows per call
};
Layout layout_of(const Problem& p, int fewest_tiles) {
  constexpr int64_t kBytes = int64_t{96} << 20, kBf16 = 2, kGridRows = 65535;
  const int64_t room = p.pages_per_seq * p.page_size;
  const int64_t keys = fewest_tiles * kTile;
  Layout out{.splits = std::min((room + keys - 1) / keys, kSplitsMax), .row_bytes = 0, .rows = 0};
  out.row_bytes = p.heads * (kBf16 * (p.rank + kRopeMax) + out.splits * (kBf16 * p.rank + kPartBytes));
  out.rows = std::clamp<int64_t>(kBytes / out.row_bytes, 1, std::clamp<int64_t>(p.tokens, 1, kGridRows));
  return out;
}

Refusal supports(const Problem& p, const DeviceInfo& d) {
  constexpr int64_t kRoomMax = int64_t{1} << 30;
  Refusal r;
  need_sm90(r, d);
  need_type(r, "q", p.q, DType::kBF16, "products of bf16");
  need_type(r, "w", p.w, DType::kBF16, "products of bf16");
  r.need(p.rank == 128 || p.rank == 256 || p.rank == 512,
         "rank of 128, 256 or 512 (columns of two warpgroups)", "rank", p.rank);
  need_multiple(r, "rope", p.rope, 8, "16-byte copies");
  r.need(p.rope <= kRopeMax, "rope <= 64 (a panel of 128-byte rows)", "rope", p.rope);
  need_multiple(r, "nope", p.nope, 16, "k of a product");
  r.need(p.nope <= kNopeMax, "nope <= 256 (rows of a key matrix in shared memory)", "nope", p.nope);
  r.need(p.pages_per_seq * p.page_size <= kRoomMax, "pages_per_seq * page_size <= 2^30 (positions are i32)",
         "pages_per_seq * page_size", p.pages_per_seq * p.page_size);
  return r;
}

int64_t parts_of(int64_t size, int64_t of) { return (size + of - 1) / of; }

// Rows of one sequence whose heads a CTA of mma_rows_sm90 handles together.
int64_t rows_of_cta(const Problem& p) { return std::max<int64_t>(kGroupHeads / p.heads, 1); }

Refusal supports_rows(const Problem& p, const DeviceInfo& d) {
  Refusal r = supports(p, d);
  r.need(p.heads <= kGroupHeads / 2, "heads <= 32 (two rows in a tile of 64 queries)", "heads", p.heads);
  return r;
}

// Number of CTAs per split. Assumes sequences of rows_max rows, or if rows_max is unknown, one long sequence.
int64_t groups_of(const Problem& p, bool rows) {
  if (!rows) return p.tokens * parts_of(p.heads, kGroupHeads);
  const int64_t each = rows_of_cta(p);
  if (p.rows_max == 0) return parts_of(p.tokens, each);
  return parts_of(p.tokens, p.rows_max) * parts_of(p.rows_max, each);
}

// A model that is not fitted: rounds of splits, which take 2.5 us to start and about 1.8 us per tile, plus
// the time to write and read the partial results once. Every sequence is assumed to fill its page table.
double cost_us(const Problem& p, const DeviceInfo& d, const Layout& l, int fewest_tiles, bool rows) {
  constexpr double kTileUs = 1.8, kStartUs = 2.5, kFindUs = 0.5;
  const int64_t tiles = parts_of(p.pages_per_seq * p.page_size, kTile),
                each = std::max<int64_t>(parts_of(tiles, kSplitsMax), std::min<int64_t>(fewest_tiles, tiles)),
                ctas = groups_of(p, rows) * parts_of(tiles, each);
  const double rounds = static_cast<double>(parts_of(ctas, d.cores)),
               calls = static_cast<double>(parts_of(p.tokens, l.rows));
  const double moved = static_cast<double>(bytes_of(p.w, p.heads * (p.nope + p.v_dim) * p.rank)) +
                       2.0 * static_cast<double>(p.tokens * l.row_bytes);
  const double of_round = kStartUs + (rows ? kFindUs : 0) + static_cast<double>(each) * kTileUs;
  return calls * 3 * kRampUs + rounds * of_round + moved / d.mem_bytes_per_us;
}

template <bool kRows>
std::vector<Config> configs(const Problem& p, const DeviceInfo& d) {
  std::vector<Config> out;
  for (const int fewest : kFewestTiles) {
    const Layout l = layout_of(p, fewest);
    out.push_back({.name = std::to_string(fewest * kTile),
                   .cost_us = cost_us(p, d, l, fewest, kRows),
                   .workspace_bytes = static_cast<size_t>(l.rows * l.row_bytes),
                   .launches = {KernelLaunch{.value = {fewest, kRows}}}});
  }
  return out;
}

std::string launch_text(const Problem& p, const KernelLaunch& l) {
  return std::to_string(layout_of(p, l.value[0]).splits) + " splits at most, each of " +
         std::to_string(l.value[0] * kTile) + " keys or more";
}

struct Launcher {
  static Status enqueue(const Problem&, std::span<const KernelLaunch>, const LatentAttention::Args&,
                        Workspace, Stream);
};

}  // namespace

extern const Candidate<LatentAttention> latent_attention_mma_sm90 = {
    .name = "cuda.latent_attention.mma_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .configs = configs<false>,
    .enqueue_config = enqueue_config_of<LatentAttention, Launcher>(),
    .launch_text = launch_text,
    .batch_invariant = true,
    .config_decides_bits = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

extern const Candidate<LatentAttention> latent_attention_mma_rows_sm90 = {
    .name = "cuda.latent_attention.mma_rows_sm90",
    .backend = Backend::kCuda,
    .supports = supports_rows,
    .configs = configs<true>,
    .enqueue_config = enqueue_config_of<LatentAttention, Launcher>(),
    .launch_text = launch_text,
    .config_decides_bits = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/latent/latent_attention_mma_attend.cuh"
#include "backends/cuda/latent/latent_attention_mma_products.cuh"
#include "backends/cuda/launch.h"

namespace sluice::cuda {
namespace {

using namespace latent_mma;

static_assert(kSplitsMax == kRowSplits && kTile == kTileKeys && kGroupHeads == kHeads);
// So much shared memory that no second CTA fits on the SM (tile/dependent.cuh).
constexpr size_t kAloneBytes = size_t{116} << 10;

static_assert(kRopeMax == kRopeColumns && kNopeMax == kNopeRows && kPartBytes == sizeof(Part));

template <int kPanels>
Status launch_rows(const Problem& p, const Parameters& parameters, bool rows, Stream stream) {
  const auto kName = rows ? latent_attention_mma_rows_sm90.name : latent_attention_mma_sm90.name;
  const auto heads = static_cast<unsigned>(p.heads);
  const auto count = [](int64_t of, int64_t each) { return static_cast<unsigned>(parts_of(of, each)); };
  const unsigned groups = count(parameters.rows, kAbsorbRows);
  const bool alone = int64_t{heads} * kPanels * groups <= queue_of(stream).sms;
  const Launch first{
      .grid = {heads, kPanels, groups},
      .block = {kAbsorbThreads, 1, 1},
      .shared_bytes = alone ? std::max(absorb_bytes(p.nope), kAloneBytes) : absorb_bytes(p.nope)};
  SLUICE_TRY(launch(kName, absorb, first, stream, parameters, static_cast<int>(p.rank)));
  // There may be an incomplete group in every sequence, before the first sequence and after the last.
  const int64_t most = parameters.rows / parameters.rows_of_cta + p.sequences + 2;
  const int64_t of_rows = rows ? std::min(parameters.rows, most) : parameters.rows;
  const Launch second{.grid = {static_cast<unsigned>(parameters.splits), count(p.heads, kHeads),
                               static_cast<unsigned>(of_rows)},
                      .block = {kAttendThreads, 1, 1},
                      .shared_bytes = kAttendBytes<kPanels>};
  SLUICE_TRY(rows ? launch(kName, attend<kPanels, true>, second, stream, parameters)
                  : launch(kName, attend<kPanels, false>, second, stream, parameters));
  const Launch third{.grid = {heads, count(parameters.rows, kProjectRows), 1},
                     .block = {kProjectThreads, 1, 1}};
  return launch(kName, project<kPanels>, third, stream, parameters);
}

Status Launcher::enqueue(const Problem& p, std::span<const KernelLaunch> launches,
                         const LatentAttention::Args& a, Workspace w, Stream stream) {
  if (p.tokens == 0) return {};
  const int fewest_tiles = launches[0].value[0];
  const bool rows = launches[0].value[1] != 0;
  const Layout l = layout_of(p, fewest_tiles);
  auto* const queries = reinterpret_cast<Bf16*>(w.data);
  Bf16* const latents = queries + l.rows * p.heads * (p.rank + kRopeColumns);
  Parameters parameters{.q = static_cast<const Bf16*>(a.q.data),
                        .kv_b = static_cast<const Bf16*>(a.kv_b.data),
                        .cache = static_cast<const Bf16*>(a.cache.data),
                        .page_table = a.page_table.as<const int32_t>(),
                        .q_begin = a.q_begin.as<const int32_t>(),
                        .kv_len = a.kv_len.as<const int32_t>(),
                        .y = static_cast<Bf16*>(a.y.data),
                        .q_stride = a.q.stride[0],
                        .y_stride = a.y.stride[0],
                        .first = 0,
                        .rows = 0,
                        .sequences = p.sequences,
                        .pages = p.pages,
                        .pages_per_seq = p.pages_per_seq,
                        .rows_of_cta = rows ? static_cast<int>(rows_of_cta(p)) : 1,
                        .page_size = tile::Divisor(static_cast<int>(p.page_size)),
                        .heads = static_cast<int>(p.heads),
                        .nope = static_cast<int>(p.nope),
                        .rope = static_cast<int>(p.rope),
                        .v_dim = static_cast<int>(p.v_dim),
                        .splits = static_cast<int>(l.splits),
                        .fewest_tiles = fewest_tiles,
                        .scale = static_cast<float>(p.scale * static_cast<double>(attention::kLog2E)),
                        .queries = queries,
                        .latents = latents,
                        .parts = reinterpret_cast<Part*>(latents + l.rows * p.heads * l.splits * p.rank)};
  // Divides the rows into calls with about the same number of rows.
  const int64_t calls = (p.tokens + l.rows - 1) / l.rows, each = (p.tokens + calls - 1) / calls;
  for (; parameters.first < p.tokens; parameters.first += each) {
    parameters.rows = std::min(each, p.tokens - parameters.first);
    SLUICE_TRY(p.rank == 512   ? launch_rows<4>(p, parameters, rows, stream)
               : p.rank == 256 ? launch_rows<2>(p, parameters, rows, stream)
                               : launch_rows<1>(p, parameters, rows, stream));
  }
  return {};
}

}  // namespace

}  // namespace sluice::cuda
#endif
