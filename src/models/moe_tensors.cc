// Lists the tensors of one MoE layer under a naming.
#include "models/family.h"
#include "weights/stored_matrix.h"

namespace sluice {
namespace {

struct MoeLister {
  const MoeConfig& c;
  const MoeNames& names;
  int64_t layer;
  std::vector<TensorSpec> out = {};

  void add(std::string_view pattern, StoredType type, std::vector<int64_t> shape, std::string_view weight,
           int64_t expert = 0) {
    if (pattern.empty()) return;
    out.push_back({.name = tensor_name(pattern, layer, expert),
                   .type = type,
                   .shape = std::move(shape),
                   .weight = std::string(weight),
                   .layer = layer,
                   .of_mlp = true});
  }

  void router() {
    if (c.dense) return;
    add(names.router, c.router_w == DType::kF32 ? StoredType::kF32 : StoredType::kBF16, {c.experts, c.hidden},
        "router");
    if (c.router_bias) add(names.router_bias, StoredType::kBF16, {c.experts}, "router_bias");
    if (c.correction_bias) add(names.correction_bias, StoredType::kF32, {c.experts}, "correction_bias");
    if (c.method == RoutingMethod::kHash)
      add(names.hash_table, StoredType::kI64, {c.hash_vocab, c.top_k}, "hash_table");
  }

  // Tensors [experts, ...] of all experts, with gate and up together.
  void fused(const std::string& weight, std::string_view pattern, std::string_view scale, int64_t rows,
             int64_t width) {
    if (names.storage == ExpertStorage::kFusedColumns)
      return add(pattern, StoredType::kBF16, {c.experts, width, rows}, weight);
    const bool rows_alone = names.storage == ExpertStorage::kFusedRows;
    if (rows_alone && c.expert_w != DType::kE2M1)
      return add(pattern, StoredType::kBF16, {c.experts, rows, width}, weight);
    if (rows_alone) {
      add(pattern, StoredType::kU8, {c.experts, rows, width / 2}, weight);
    } else {
      add(pattern, StoredType::kU8, {c.experts, rows, width / kMxBlock, kMxBlock / 2}, weight);
    }
    add(scale, StoredType::kU8, {c.experts, rows, width / kMxBlock}, weight + "_scale");
  }

  // The tensors of a single matrix: codes, "_scale" and "_row_scale" as its format requires.
  void one(const std::string& weight, std::string_view pattern, WeightFormat format, int64_t rows,
           int64_t width, int64_t expert = 0) {
    if (pattern.empty()) return;
    using What = StoredPart::What;
    for (StoredPart& part :
         stored_parts(tensor_name(pattern, layer, expert), format, rows, width, names.scales)) {
      const char* suffix = part.what == What::kCodes    ? ""
                           : part.what == What::kScales ? "_scale"
                                                        : "_row_scale";
      out.push_back({.name = std::move(part.name),
                     .type = part.type,
                     .shape = std::move(part.shape),
                     .weight = weight + suffix,
                     .layer = layer,
                     .format = format,
                     .columns = width,
                     .of_mlp = true});
    }
  }

  void experts() {
    const int64_t hidden = c.latent > 0 ? c.latent : c.hidden;  // width of the experts' input
    const int64_t up_rows = (is_gated(c.act) ? 2 : 1) * c.intermediate;
    if (names.storage == ExpertStorage::kOneByOne) {
      const WeightFormat format{c.expert_w, c.expert_scales};
      for (int64_t e = 0; e < c.experts; ++e) {
        if (is_gated(c.act)) one("experts.up", names.gate, format, c.intermediate, hidden, e);
        one("experts.up", names.up, format, c.intermediate, hidden, e);
        one("experts.down", names.down, format, hidden, c.intermediate, e);
      }
    } else {
      fused("experts.up", names.up, names.up_scale, up_rows, hidden);
      fused("experts.down", names.down, names.down_scale, hidden, c.intermediate);
    }
    if (c.up_bias) add(names.up_bias, StoredType::kBF16, {c.experts, up_rows}, "experts.up_bias");
    if (c.down_bias) add(names.down_bias, StoredType::kBF16, {c.experts, hidden}, "experts.down_bias");
    if (c.latent > 0) {
      add(names.latent_in, StoredType::kBF16, {c.latent, c.hidden}, "latent.in");
      add(names.latent_out, StoredType::kBF16, {c.hidden, c.latent}, "latent.out");
    }
    if (c.shared_intermediate == 0) return;
    // DeepSeek V4's checkpoints have the shared expert in FP8, which is read as bf16.
    const bool v4 = names.naming == MoeNaming::kDeepSeekV4 && c.shared_w == DType::kBF16;
    const WeightFormat format =
        v4 ? WeightFormat{DType::kE4M3, WeightScales::kBlocks} : WeightFormat{c.shared_w, c.shared_scales};
    if (is_gated(c.act)) one("shared.up", names.shared_gate, format, c.shared_intermediate, c.hidden);
    one("shared.up", names.shared_up, format, c.shared_intermediate, c.hidden);
    one("shared.down", names.shared_down, format, c.hidden, c.shared_intermediate);
  }
};

}  // namespace

std::vector<TensorSpec> moe_tensors(const MoeConfig& config, MoeNaming naming, int64_t layer) {
  MoeLister lister{config, moe_names(naming), layer};
  lister.router();
  lister.experts();
  return std::move(lister.out);
}

}  // namespace sluice
