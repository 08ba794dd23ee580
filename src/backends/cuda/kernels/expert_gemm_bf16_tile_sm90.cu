// Expert GEMM for many rows an expert, bf16 weights. Both operands of wgmma stand in shared memory. Up to 90 rows an expert: tiles
// of 256 weight rows x 128 rows of x (expert_gemm_tile.cuh). Beyond: pairs of blocks that share what both multiply
// (expert_gemm_bf16_pair.cuh). Rows of x that are gathered from tokens are then fetched from there, each by a copy of its own,
// or the pairs copy them to the workspace while they multiply, where their weights are many.
//
// Wins    more than about 26 rows an expert: each weight that is read serves all of its expert's rows.
// Loses   fewer rows: SMs idle while the last tiles run. See bf16_stream_sm90.
// Limits  see supports(). Sums are never split, so a row's bits do not depend on the batch.
// Source  original; the contract is ops/expert_gemm.h, the measurements are docs/notes/cuda-bf16-experts.md.
#include <string>
#include "backends/cuda/card.h"
#include "backends/cuda/expert_cards.h"
#include "backends/cuda/expert_cost.h"
#include "backends/cuda/expert_gather.h"

namespace sluice::cuda {
namespace {

constexpr double kRowsAlone = 90;  // rows an expert

// By what a block has of a pair's tile, weight rows x rows of x, and what the pair shares.
enum class Tiles {
  kAlone,            // 256 x 128, no pair
  kX256By176,        // pair: 512 x 176
  kX128By256,        // 256 x 256
  kWeights256By176,  // 256 x 352
  kWeights128By256,  // 128 x 512
};
struct TileClass {
  Tiles tiles;
  int row_blocks;  // of a block alone or a pair
};

// As measured, rows in order: one tile a pair as long as all rows of an expert fit, with some room for experts that have more
// than the mean. Beyond, 128 x 256 sharing x, which fetches the least, unless its row blocks, four a pair, leave many places
// empty and sharing weights cuts the rows as well; where sums are short, whatever has the fewest ends of tiles.
constexpr TileClass kX256By176{Tiles::kX256By176, 8};
constexpr double kRowsOfOneTile = 170;  // of kX256By176
constexpr double kRowsCutWell = 430;    // and more, which it cuts as well as any
TileClass class_in_order(const ExpertGemm::Problem& p) {
  const double rows = expert_load(p).rows_each;
  if (rows <= kRowsAlone) return {Tiles::kAlone, 4};
  if (rows <= kRowsOfOneTile) return kX256By176;
  constexpr int64_t kShort = 12;  // k blocks
  const FragmentShape shape = ExpertGemm::fragments(p);
  if (rows > kRowsCutWell && shape.k_blocks <= kShort && shape.row_blocks % kX256By176.row_blocks == 0)
    return kX256By176;
  if (rows > 230 && rows <= 345) return {Tiles::kWeights256By176, 4};
  constexpr double kColumns = 256, kEmpty = 1.02;
  const double cut = std::ceil((rows + std::sqrt(rows)) / kColumns);
  const auto row_blocks = static_cast<double>(shape.row_blocks);
  if (std::fmod(cut, 2) == 0 && std::ceil(row_blocks / 4) * 4 > kEmpty * row_blocks)
    return {Tiles::kWeights128By256, 2};
  return {Tiles::kX128By256, 4};
}
bool in_pairs(const ExpertGemm::Problem& p) { return expert_load(p).rows_each > kRowsAlone; }

// What pairs can bring into order: where lists of experts leave room for it, and a warp looks at all of k at once.
constexpr int kGatheredExperts = 256, kGatheredWidth = 16384;
bool can_gather(const ExpertGemm::Problem& p) {
  return p.experts <= kGatheredExperts && p.width <= kGatheredWidth;
}

// Of the products alone, x in order.
double products_us(const ExpertGemm::Problem& p, const DeviceInfo& d, const TileClass& tiles_of) {
  const ExpertLoad load = expert_load(p);
  const auto weight_rows = static_cast<double>(ExpertGemm::weight_rows(p)),
             width = static_cast<double>(p.width);
  if (tiles_of.tiles == Tiles::kAlone) {
    constexpr double kColumnsLeast = 64, kColumnsMost = 128, kTails = 1.05;  // SMs that idle at the end
    const ColumnTiles tiles = column_tiles(load.rows_each, kColumnsLeast, kColumnsMost);
    const double flops = 2 * load.active * tiles.tiles * tiles.columns * weight_rows * width;
    return kTails * std::max(ExpertGemm::bytes(p) / (kExpertMemoryShare * d.mem_bytes_per_us),
                             flops / (kExpertTensorShare * d.bf16_flops_per_us));
  }
  // Rows are padded to 16, row blocks to a pair's; a tile's end takes as long as two k blocks.
  constexpr double kPadding = 8, kEnd = 2, kTensorShare = 1.02, kMemoryShare = 0.93;
  const FragmentShape shape = ExpertGemm::fragments(p);
  const auto each = static_cast<double>(tiles_of.row_blocks), k_blocks = static_cast<double>(shape.k_blocks);
  const double row_blocks = std::ceil(static_cast<double>(shape.row_blocks) / each) * each;
  const double flops = 2 * load.active * (load.rows_each + kPadding) * row_blocks * kFragmentRows *
                       (k_blocks + kEnd) * kFragmentWidth;
  return std::max(ExpertGemm::bytes(p) / (kMemoryShare * d.mem_bytes_per_us),
                  flops / (kTensorShare * d.bf16_flops_per_us));
}

// How rows of tokens come to pairs, a choice of the problem alone. Of a box for each row the copy engine fetches enough only for
// tiles of 176 columns: the ones that fit up to kRowsOfOneTile rows, and that cut kRowsCutWell rows and more as well as any.
// Between, they take an eighth to a fifth longer than the tiles that fit; pairs that bring rows into order themselves take some
// half of what a gather in front would (where that is up to a tenth of the products), more where weights have few rows.
double gathered_us(const ExpertGemm::Problem& p) {
  constexpr double kBytesPerUs = 3.8e6;  // of rows in order
  return ExpertGemm::expected_rows(p) * static_cast<double>(p.width) * 2 / kBytesPerUs;
}
RowsOfX gets_rows(const ExpertGemm::Problem& p) {
  constexpr double kGatheredUpTo = 0.05;
  if (p.slots == 0 || !in_pairs(p)) return RowsOfX::kInOrder;
  if (expert_load(p).rows_each <= kRowsOfOneTile || !can_gather(p)) return RowsOfX::kOfTokens;
  DeviceInfo device;
  device.mem_bytes_per_us = 4.6e6, device.bf16_flops_per_us = 703e6;
  return gathered_us(p) < kGatheredUpTo * products_us(p, device, class_in_order(p)) ? RowsOfX::kGathered
                                                                                    : RowsOfX::kOfTokens;
}
TileClass class_of(const ExpertGemm::Problem& p) {
  return gets_rows(p) == RowsOfX::kOfTokens ? kX256By176 : class_in_order(p);
}
bool gathers(const ExpertGemm::Problem& p) { return gets_rows(p) == RowsOfX::kGathered; }
// Of rows that pairs bring into order: whether an expert is one tile of 320 rows.
bool gathers_one_tile(const ExpertGemm::Problem& p) {
  constexpr double kRowsOfOne = 300;
  return class_in_order(p).tiles == Tiles::kWeights256By176 && expert_load(p).rows_each <= kRowsOfOne;
}

// Of a pair's tile, weight rows x rows of x, where rows of x begin at multiples of 16 bytes; whether they do is not known before
// they come.
const char* tiles_in_words(const ExpertGemm::Problem& p) {
  if (gathers(p)) return gathers_one_tile(p) ? "pairs of blocks, 256 x 320" : "pairs of blocks, 256 x 256";
  switch (class_of(p).tiles) {
    case Tiles::kAlone:
      return "tiles of 256 x 64 to 128";
    case Tiles::kX256By176:
      return "pairs of blocks, 512 x 176";
    case Tiles::kX128By256:
      return "pairs of blocks, 256 x 256";
    case Tiles::kWeights256By176:
      return "pairs of blocks, 256 x 352";
    case Tiles::kWeights128By256:
      return "pairs of blocks, 128 x 512";
  }
  return "";
}
std::string in_words(const ExpertGemm::Problem& p, const DeviceInfo&) {
  std::string out = tiles_in_words(p);
  if (p.slots > 0)
    out += gathers(p) ? "; rows of x brought into order by them" : "; rows of x fetched one by one";
  return out;
}

Refusal supports(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  Refusal r;
  need_expert_blocks(r, p, d);
  need_type(r, "w", p.w, DType::kBF16, "wgmma operand");
  return r;
}

double cost_us(const ExpertGemm::Problem& p, const DeviceInfo& d) {
  constexpr double kOfTokensShare = 0.02, kBadlyCutShare = 0.1;  // what fetching rows adds to the products
  const RowsOfX gets = gets_rows(p);
  const double rows = expert_load(p).rows_each;
  const double share = gets != RowsOfX::kOfTokens                      ? 0
                       : rows > kRowsOfOneTile && rows <= kRowsCutWell ? kBadlyCutShare
                                                                       : kOfTokensShare;
  return kRampUs + (1 + share) * products_us(p, d, class_of(p)) + (gathers(p) ? gathered_us(p) : 0);
}

size_t workspace_bytes(const ExpertGemm::Problem& p, const DeviceInfo&) {
  return gathers(p) ? gathered_bytes(p) : 0;
}

struct Launcher {
  static Status enqueue(const ExpertGemm::Problem&, const ExpertGemm::Args&, Workspace, Stream);
};

}  // namespace

extern const Candidate<ExpertGemm> expert_gemm_bf16_tile_sm90 = {
    .name = "cuda.expert_gemm.bf16_tile_sm90",
    .backend = Backend::kCuda,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = workspace_bytes,
    .enqueue = enqueue_of<ExpertGemm, Launcher>(),
    .batch_invariant = true,
    .alignment_bytes = 16,
    .planned = !kHasKernels,
    .launches = in_words,
};

}  // namespace sluice::cuda

#if defined(__CUDACC__)
#include "backends/cuda/kernels/expert_gemm_bf16_pair.cuh"

namespace sluice::cuda {
namespace {

// Columns in steps of 8 where a tile's time goes by them: of experts that are one tile memory decides, of short sums the code.
template <RowsOfX kRows>
using Alone = ExpertTiles<Bf16Blocks, kRows, 2, 2, 128, 32, 64, 1>;
constexpr int kPiece = 4096;
template <RowsOfX kRows, int kFiner>
using X256By176 = ExpertPairs<PairShares::kRowsOfX, kRows, 2, 176, kFiner, 80, kPiece>;
using X128By256 = ExpertPairs<PairShares::kRowsOfX, RowsOfX::kInOrder, 1, 256, 16, 144, 2 * kPiece>;
template <RowsOfX kRows>
using Weights256By176 = ExpertPairs<PairShares::kWeights, kRows, 2, 176, 16, 80, kPiece>;
using Weights128By256 = ExpertPairs<PairShares::kWeights, RowsOfX::kInOrder, 1, 256, 16, 144, 2 * kPiece>;
// With room for rows that are gathered.
using X128By256Gathered = ExpertPairs<PairShares::kRowsOfX, RowsOfX::kGathered, 1, 256, 8, 144, kPiece>;
using Weights256By160Gathered =
    ExpertPairs<PairShares::kWeights, RowsOfX::kGathered, 2, 160, 8, 80, kPiece, 8, 4>;
static_assert(pair_shared<X128By256Gathered>(kGatheredExperts).stages == 4);
static_assert(pair_shared<Weights256By160Gathered>(kGatheredExperts).stages == 4);
static_assert(pair_gather_fits<X128By256Gathered>(kGatheredExperts, kGatheredWidth));
static_assert(pair_gather_fits<Weights256By160Gathered>(kGatheredExperts, kGatheredWidth));

Status enqueue_of_tokens(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Stream stream) {
  constexpr RowsOfX kOfTokens = RowsOfX::kOfTokens;
  const std::string_view name = expert_gemm_bf16_tile_sm90.name;
  if (!has_wide_rows(a.x)) return launch_pairs<Weights256By176<RowsOfX::kAnywhere>>(name, p, a, stream);
  return expert_load(p).rows_each > kRowsOfOneTile
             ? launch_pairs<X256By176<kOfTokens, 8>>(name, p, a, stream)
             : launch_pairs<X256By176<kOfTokens, 16>>(name, p, a, stream);
}

Status Launcher::enqueue(const ExpertGemm::Problem& p, const ExpertGemm::Args& a, Workspace w,
                         Stream stream) {
  if (p.rows == 0) return {};
  constexpr RowsOfX kInOrder = RowsOfX::kInOrder, kAnywhere = RowsOfX::kAnywhere;
  const std::string_view name = expert_gemm_bf16_tile_sm90.name;
  const bool wide = has_wide_rows(a.x);
  if (!in_pairs(p))
    return p.slots == 0 && wide ? launch_tiles<Alone<kInOrder>>(name, p, a, stream)
                                : launch_tiles<Alone<kAnywhere>>(name, p, a, stream);
  ExpertGemm::Args ordered = a;
  if (gathers(p) && wide) {
    return gathers_one_tile(p) ? launch_pairs<Weights256By160Gathered>(name, p, a, stream, w.data)
                               : launch_pairs<X128By256Gathered>(name, p, a, stream, w.data);
  }
  if (gathers(p)) {  // in front, from rows that begin anywhere
    SLUICE_TRY(gather_rows(name, p, a, w.data, stream));
    ordered.x = make_tensor(w.data, DType::kBF16, {p.rows, p.width}, Backend::kCuda);
  } else if (p.slots > 0 || !wide) {
    return enqueue_of_tokens(p, a, stream);
  }
  switch (class_in_order(p).tiles) {
    case Tiles::kX256By176:
      return launch_pairs<X256By176<kInOrder, 16>>(name, p, ordered, stream);
    case Tiles::kWeights256By176:
      return launch_pairs<Weights256By176<kInOrder>>(name, p, ordered, stream);
    case Tiles::kWeights128By256:
      return launch_pairs<Weights128By256>(name, p, ordered, stream);
    default:
      return launch_pairs<X128By256>(name, p, ordered, stream);
  }
}

}  // namespace

}  // namespace sluice::cuda
#endif
