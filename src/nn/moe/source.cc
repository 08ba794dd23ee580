#include "nn/moe/source.h"

#include "nn/moe/problems.h"
#include "weights/numbers.h"
#include "weights/stored_matrix.h"

namespace sluice {
namespace {

// `code` is kUnsupported for a type that Sluice cannot load here, kCorrupt for a wrong shape.
Status wrong(const CheckpointTensor& t, const std::string& wanted, Code code) {
  return {code, place_of(t) + ": wanted " + wanted + ", found " + stored_text(t.type, t.shape)};
}

class Finder {
 public:
  // only: if set, finds only this expert's matrices and biases.
  Finder(MoeSource* out, const MoeNames& names, std::optional<int64_t> only)
      : out_(*out),
        names_(names),
        only_(only),
        place_(out->place()),
        width_(expert_width(out->whole)),
        gate_order_(names.storage == ExpertStorage::kFusedRows ? out->whole.gate_order : names.gate_order) {}

  Status all() {
    SLUICE_TRY(check_config());
    SLUICE_TRY(no_adapters());
    if (!only_ && has_router(out_.whole)) SLUICE_TRY(routing());
    SLUICE_TRY(biases());
    SLUICE_TRY(names_.storage == ExpertStorage::kOneByOne ? one_by_one() : fused());
    if (only_) return {};
    SLUICE_TRY(beside());
    SLUICE_TRY(latent());
    return shared();
  }

 private:
  // Adapters of experts come one at a time (LoadedMoe::replace_adapter).
  Status no_adapters() const {
    for (const char* name : {"experts.up_lora_a", "experts.up_lora_b", "experts.down_lora_a",
                             "experts.down_lora_b", "experts.lora_scale"}) {
      const CheckpointTensor* there = out_.checkpoint->find_if_there(name);
      if (!there) continue;
      return refuse(
          out_.whole.expert_lora_rank > 0
              ? "wanted adapters of experts one at a time, by replace_adapter, found " + place_of(*there)
              : "expert_lora_rank: wanted above 0, because there is " + place_of(*there) + ", found 0");
    }
    return {};
  }

  Status routing() {
    const MoeConfig& c = out_.whole;
    SLUICE_TRY(plain("router", names_.router, true,
                     {StoredType::kBF16, c.router_w == DType::kF32 ? StoredType::kF32 : StoredType::kBF16},
                     {c.experts, c.hidden}, &out_.router));
    SLUICE_TRY(plain("router_bias", names_.router_bias, c.router_bias,
                     {StoredType::kBF16, c.router_w == DType::kF32 ? StoredType::kF32 : StoredType::kBF16},
                     {c.experts}, &out_.router_bias));
    SLUICE_TRY(plain("correction_bias", names_.correction_bias, c.correction_bias,
                     {StoredType::kF32, StoredType::kBF16}, {c.experts}, &out_.correction_bias));
    return plain("hash_table", names_.hash_table, c.method == RoutingMethod::kHash,
                 {StoredType::kI64, StoredType::kI32}, {c.hash_vocab, c.top_k}, &out_.hash_table);
  }

  // Finds the tensors that only a caller supplies, because no published checkpoint contains them: router
  // adapters and the experts' activation parameters, under the names of weight_slots().
  Status beside() {
    MoeWeights unused;
    for (const auto& [spec, tensor] : weight_slots(out_.local, &unused)) {
      const bool of_experts = spec.name == "experts.act_params";
      if (!spec.used || !(of_experts || spec.name.starts_with("lora_"))) continue;
      const std::string name(spec.name);
      std::vector<int64_t> shape(spec.shape.begin(), spec.shape.begin() + spec.rank);
      const CheckpointTensor* there = out_.checkpoint->find_if_there(name);
      if (!there)
        return refuse((of_experts ? "per_expert: wanted tensor '" : "lora_rank: wanted tensor '") + name +
                      "' supplied by the caller, found none");
      const int64_t own = shape[0];
      if (of_experts && shared_slots(out_.local) == 0) shape[0] = count_in(name);
      const CheckpointTensor* found = nullptr;
      SLUICE_TRY(
          find(name, {spec.dtype == DType::kF32 ? StoredType::kF32 : StoredType::kBF16}, shape, &found));
      CheckpointTensor part = *found;
      if (shape[0] != own) {
        const int64_t row = part.bytes / shape[0];
        part.data += row * out_.experts.begin, part.bytes = row * own;
      }
      out_.beside.emplace_back(name, std::move(part));
    }
    return {};
  }

  Status biases() {
    const MoeConfig& c = out_.whole;
    SLUICE_TRY(plain("up_bias", names_.up_bias, c.up_bias, {StoredType::kBF16},
                     {count_in(names_.up_bias), up_rows()}, &out_.up_bias));
    return plain("down_bias", names_.down_bias, c.down_bias, {StoredType::kBF16},
                 {count_in(names_.down_bias), width_}, &out_.down_bias);
  }
  int64_t up_rows() const {
    return is_gated(out_.whole.act) ? 2 * out_.whole.intermediate : out_.whole.intermediate;
  }
  // The number of experts that a tensor [experts, ...] must hold: the number found if it is allowed (see
  // MoeSource::row_of_expert), otherwise all experts.
  int64_t count_in(std::string_view pattern) const {
    const CheckpointTensor* there = out_.checkpoint->find_if_there(tensor_name(pattern, out_.layer));
    const int64_t found = there && !there->shape.empty() ? there->shape[0] : out_.whole.experts;
    const bool legal = found == out_.experts.count || (only_ && found == 1);
    return legal ? found : out_.whole.experts;
  }

  Status refuse(const std::string& what) const {
    return invalid(out_.place() + " as " + std::string(word(names_.naming)) + ": " + what);
  }

  Status check_config() const {
    const MoeConfig& c = out_.whole;
    const bool rows = names_.storage == ExpertStorage::kFusedRows;
    const bool gated = is_gated(c.act), fused = names_.storage != ExpertStorage::kOneByOne && !rows;
    if (c.layout == WeightLayout::kRowMajor)
      return refuse("layout: wanted panels16 or fragments, found " + std::string(word(c.layout)));
    if (c.scope == ExpertScope::kMap)
      return refuse("scope: wanted all or a slice, found map: no checkpoint has an expert map");
    if (!rows && gated != (fused || !names_.gate.empty()))
      return refuse(std::string("act: wanted an activation ") + (gated ? "without" : "with") +
                    " a gate, found " + std::string(word(c.act)));
    if (gated && fused && c.gate_order != names_.gate_order)
      return refuse("gate_order: wanted " + std::string(word(names_.gate_order)) + ", found " +
                    std::string(word(c.gate_order)));
    SLUICE_TRY(check_format("expert", {c.expert_w, c.expert_scales}));
    if (rows && gated && c.expert_scales == WeightScales::kBlocks &&
        (c.gate_order == GateOrder::kInterleaved || c.intermediate % kScaleFeatures))
      return refuse("gate_order and intermediate: wanted gate_first or up_first and a multiple of " +
                    std::to_string(kScaleFeatures) + " with block scales, found " +
                    std::string(word(c.gate_order)) + " and " + std::to_string(c.intermediate));
    if (c.shared_intermediate > 0 && names_.shared_up.empty())
      return refuse("shared_intermediate: wanted 0, found " + std::to_string(c.shared_intermediate));
    if (c.shared_intermediate > 0) SLUICE_TRY(check_format("shared", {c.shared_w, c.shared_scales}));
    if (c.shared_intermediate > 0 && (c.up_bias || c.down_bias))
      return refuse("up_bias and down_bias: wanted no biases with a shared expert, found biases");
    if (c.latent > 0 && names_.latent_in.empty())
      return refuse("latent: wanted 0, found " + std::to_string(c.latent) + ": these checkpoints have none");
    return {};
  }

  // kOneByOne and kFusedRows may have any format; kFusedMxfp4 must be MXFP4 and kFusedColumns bf16. A shared
  // expert next to fused experts must be bf16.
  Status check_format(const std::string& of, WeightFormat f) const {
    const bool one_by_one = names_.storage == ExpertStorage::kOneByOne, shared = of == "shared";
    if (one_by_one || (names_.storage == ExpertStorage::kFusedRows && !shared))
      return f.exists()
                 ? Status{}
                 : refuse(
                       of + "_w and " + of +
                       "_scales: wanted bf16, e2m1 with mx or nv, or e4m3 with mx, blocks or rows, found " +
                       text(f));
    const bool mxfp4 = names_.storage == ExpertStorage::kFusedMxfp4 && !shared;
    const WeightFormat wanted = mxfp4 ? WeightFormat{DType::kE2M1} : WeightFormat{};
    return f == wanted ? Status{} : refuse(of + "_w: wanted " + text(wanted) + ", found " + text(f));
  }

  // Finds a tensor of one of these types. If the config does not use the tensor, it must not exist, because
  // the layer would otherwise compute something other than the model.
  Status plain(const char* what, std::string_view pattern, bool used, std::initializer_list<StoredType> types,
               const std::vector<int64_t>& shape, const CheckpointTensor** to) {
    if (pattern.empty()) {
      if (!used) return {};
      return refuse(std::string(what) + ": the config uses it, but these checkpoints have none");
    }
    const std::string name = tensor_name(pattern, out_.layer);
    if (!used) {
      const CheckpointTensor* there = out_.checkpoint->find_if_there(name);
      if (!there) return {};
      return refuse(std::string(what) + ": the checkpoint has " + place_of(*there) +
                    ", but the config does not use it; set " + what + " in the config");
    }
    return find(name, types, shape, to);
  }

  Status find(const std::string& name, const std::vector<StoredType>& types,
              const std::vector<int64_t>& shape, const CheckpointTensor** to) {
    const auto found = out_.checkpoint->find(name);
    if (!found.ok()) return {found.status().code, out_.place() + ": " + found.status().message};
    const CheckpointTensor& t = *found.value();
    bool known = false;
    for (StoredType type : types) known |= out_.checkpoint->holds(t, type);
    if (!known || t.shape != shape)
      return wrong(t, stored_text(*types.begin(), shape), known ? Code::kCorrupt : Code::kUnsupported);
    *to = &t;
    return {};
  }

  // The matrices of all experts for one product, in tensors [experts, ...].
  struct Stack {
    const CheckpointTensor *w = nullptr, *scales = nullptr, *row_scale = nullptr;
  };
  // Selects `count` rows of a matrix [rows, width] that begins at byte `at` of a tensor: every `step`-th row
  // from row `first`, from column `column` on.
  struct Cut {
    int64_t rows = 0, width = 0, at = 0, scale_at = 0, row_scale_at = 0, first = 0, step = 1, column = 0,
            count = 0, expert = -1;
  };
  // The span of a cut of one matrix in a stack.
  RowSpan span(const Stack& from, WeightFormat f, const Cut& c) const {
    const CheckpointTensor& t = *from.w;
    const auto bytes = [&](int64_t n) { return f.scaled() ? bytes_of(f.w, n) : number_bytes(t.type, n); };
    RowSpan s{.type = f.scaled() ? StoredType::kBF16 : t.type,
              .rows = c.count,
              .w = t.data + c.at + c.first * bytes(c.width) + bytes(c.column),
              .stride = c.step * bytes(c.width),
              .first_row = c.first,
              .row_step = c.step,
              .expert = c.expert,
              .tensor = &t};
    if (from.scales) set_scales(*from.scales, c.scale_at, f, part_of(c), &s);
    if (from.row_scale)
      set_row_scales(*from.row_scale, c.row_scale_at, from.row_scale->shape.size() == 1, part_of(c), &s);
    return s;
  }

  Status fused() {
    const MoeConfig& c = out_.whole;
    const WeightFormat format{c.expert_w, c.expert_scales};
    Stack up, down;
    if (names_.storage == ExpertStorage::kFusedRows) {
      SLUICE_TRY(stack_of_rows(names_.up, names_.up_scale, names_.up_row_scale, up_rows(), width_, &up));
      SLUICE_TRY(stack_of_rows(names_.down, names_.down_scale, names_.down_row_scale, width_, c.intermediate,
                               &down));
    } else {
      SLUICE_TRY(stack_of_blocks(names_.up, names_.up_scale, up_rows(), width_, &up));
      SLUICE_TRY(stack_of_blocks(names_.down, names_.down_scale, width_, c.intermediate, &down));
    }
    const bool gated = is_gated(c.act);
    for (int64_t e = out_.experts.begin; e < out_.experts.begin + out_.experts.count; ++e) {
      if (skip(e)) continue;
      const auto cut = [&](const Stack& from, Cut part) {
        const auto begin = [&](const CheckpointTensor* t) {
          return t ? out_.row_of_expert(*t, e) * (t->bytes / t->shape[0]) : 0;
        };
        part.expert = e, part.at = begin(from.w);
        part.scale_at = begin(from.scales), part.row_scale_at = begin(from.row_scale);
        return names_.storage == ExpertStorage::kFusedColumns ? columns(*from.w, part)
                                                              : span(from, format, part);
      };
      const auto part_of_up = [&](bool is_up) {
        const int64_t first =
            gated ? gated_row(gate_order_, c.intermediate, out_.width.begin, is_up) : out_.width.begin;
        return cut(up, {.rows = up_rows(),
                        .width = width_,
                        .first = first,
                        .step = gated && gate_order_ == GateOrder::kInterleaved ? 2 : 1,
                        .count = out_.width.count});
      };
      MatrixSource up_source{{part_of_up(false)}, {}};
      if (gated) up_source.ups = {part_of_up(true)};
      out_.of_expert.push_back(
          {std::move(up_source),
           {{cut(down,
                 {.rows = width_, .width = c.intermediate, .column = out_.width.begin, .count = width_})},
            {}}});
    }
    return {};
  }

  // The same for a transposed bf16, f16 or f32 matrix [width, rows].
  static RowSpan columns(const CheckpointTensor& t, const Cut& c) {
    return {.form = RowForm::kColumns,
            .type = t.type,
            .rows = c.count,
            .w = t.data + c.at + number_bytes(t.type, c.column * c.rows + c.first),
            .stride = number_bytes(t.type, c.step),
            .step = number_bytes(t.type, c.rows),
            .first_row = c.first,
            .row_step = c.step,
            .expert = c.expert,
            .tensor = &t};
  }

  // Finds a cut of one expert's matrix in the format.
  Status matrix(std::string_view pattern, WeightFormat format, const Cut& cut, RowSpan* to) {
    const auto found =
        find_matrix(*out_.checkpoint, tensor_name(pattern, out_.layer, cut.expert), format, part_of(cut));
    if (!found.ok()) return found.status();
    return *to = found.value(), Status{};
  }
  MatrixPart part_of(const Cut& c) const {
    return {.rows = c.rows,
            .width = c.width,
            .first = c.first,
            .count = c.count,
            .column = c.column,
            .step = c.step,
            .expert = c.expert,
            .scales = names_.scales,
            .place = place_};
  }

  // Finds a stack of kFusedRows: codes or numbers, and the tensors of column scales and f32 scales.
  Status stack_of_rows(std::string_view pattern, std::string_view scale_pattern,
                       std::string_view row_scale_pattern, int64_t rows, int64_t width, Stack* to) {
    const std::string name = tensor_name(pattern, out_.layer);
    const int64_t n = count_in(pattern);
    const WeightFormat f{out_.whole.expert_w, out_.whole.expert_scales};
    if (!f.scaled()) return find(name, {StoredType::kBF16}, {n, rows, width}, &to->w);
    const CheckpointTensor* there = out_.checkpoint->find_if_there(name);
    if (f.w == DType::kE4M3) {
      SLUICE_TRY(find(name, {StoredType::kF8E4M3}, {n, rows, width}, &to->w));
    } else if (there && there->type == StoredType::kF4) {
      SLUICE_TRY(find(name, {StoredType::kF4}, {n, rows, width}, &to->w));
    } else {
      SLUICE_TRY(find(name, {StoredType::kU8, StoredType::kI8}, {n, rows, width / 2}, &to->w));
    }
    if (f.columns() > 0) {
      std::vector<int64_t> shape = shape_of_scales(f, rows, width);
      shape.insert(shape.begin(), count_in(scale_pattern));
      SLUICE_TRY(find(tensor_name(scale_pattern, out_.layer), types_of_scales(f.scales), shape, &to->scales));
    }
    if (!f.has_row_scale()) return {};
    // The shape is [experts, rows], [experts, rows, 1] or [experts].
    const std::string row_scale = tensor_name(row_scale_pattern, out_.layer);
    std::vector<int64_t> shape{count_in(row_scale_pattern), rows};
    const CheckpointTensor* found = out_.checkpoint->find_if_there(row_scale);
    if (found && found->shape.size() == 1) shape.pop_back();
    if (found && found->shape.size() == 3) shape.push_back(1);
    return find(row_scale, {StoredType::kF32, StoredType::kBF16}, shape, &to->row_scale);
  }
  // Finds a stack of kFusedMxfp4 or kFusedColumns.
  Status stack_of_blocks(std::string_view pattern, std::string_view scale_pattern, int64_t rows,
                         int64_t width, Stack* to) {
    const int64_t n = count_in(pattern), blocks = width / kMxBlock;
    const std::string name = tensor_name(pattern, out_.layer);
    if (names_.storage == ExpertStorage::kFusedColumns)
      return find(name, {StoredType::kBF16}, {n, width, rows}, &to->w);
    SLUICE_TRY(find(name, {StoredType::kU8}, {n, rows, blocks, kMxBlock / 2}, &to->w));
    return find(tensor_name(scale_pattern, out_.layer), {StoredType::kU8},
                {count_in(scale_pattern), rows, blocks}, &to->scales);
  }

  Status one_by_one() {
    const MoeConfig& c = out_.whole;
    const WeightFormat format{c.expert_w, c.expert_scales};
    for (int64_t e = out_.experts.begin; e < out_.experts.begin + out_.experts.count; ++e) {
      if (skip(e)) continue;
      const Cut up{.rows = c.intermediate,
                   .width = width_,
                   .first = out_.width.begin,
                   .count = out_.width.count,
                   .expert = e};
      const Cut down{
          .rows = width_, .width = c.intermediate, .column = out_.width.begin, .count = width_, .expert = e};
      RowSpan gate_span, up_span, down_span;
      if (is_gated(c.act)) SLUICE_TRY(matrix(names_.gate, format, up, &gate_span));
      SLUICE_TRY(matrix(names_.up, format, up, &up_span));
      SLUICE_TRY(matrix(names_.down, format, down, &down_span));
      out_.of_expert.push_back(
          {is_gated(c.act) ? MatrixSource{{gate_span}, {up_span}} : MatrixSource{{up_span}, {}},
           {{down_span}, {}}});
    }
    return {};
  }

  // Finds a cut of a matrix of the shared expert. If the config wants bf16 and the checkpoint has FP8 with
  // block scales, the span reads FP8 as bf16.
  Status shared_matrix(std::string_view pattern, const Cut& cut, RowSpan* to) {
    WeightFormat format{out_.whole.shared_w, out_.whole.shared_scales};
    constexpr WeightFormat kBlocks{DType::kE4M3, WeightScales::kBlocks};
    const auto stored =
        stored_format(*out_.checkpoint, tensor_name(pattern, out_.layer), cut.rows, cut.width);
    if (!format.scaled() && stored == kBlocks) format = kBlocks;
    return matrix(pattern, format, cut, to);
  }

  // Finds both latent projections, or neither.
  Status latent() {
    const MoeConfig& c = out_.whole;
    const CheckpointTensor *in = nullptr, *out = nullptr;
    SLUICE_TRY(
        plain("latent", names_.latent_in, c.latent > 0, {StoredType::kBF16}, {c.latent, c.hidden}, &in));
    SLUICE_TRY(
        plain("latent", names_.latent_out, c.latent > 0, {StoredType::kBF16}, {c.hidden, c.latent}, &out));
    if (c.latent == 0) return {};
    const auto whole = [&](const CheckpointTensor& t) -> MatrixSource {
      return {{span({&t}, {}, {.rows = t.shape[0], .width = t.shape[1], .count = t.shape[0], .expert = 0})},
              {}};
    };
    out_.latent = ExpertSource{whole(*in), whole(*out)};
    return {};
  }

  Status shared() {
    const MoeConfig& c = out_.whole;
    if (c.shared_intermediate == 0 && !names_.shared_up.empty()) {
      const CheckpointTensor* there =
          out_.checkpoint->find_if_there(tensor_name(names_.shared_up, out_.layer));
      if (there)
        return refuse("shared_intermediate: wanted above 0, because the checkpoint has " + place_of(*there) +
                      ", found 0");
    }
    if (out_.local.shared_intermediate == 0) return {};
    const int64_t slots = shared_slots(c);
    for (int64_t j = 0; j < slots; ++j) {
      ExpertSource slot;
      SLUICE_TRY(shared_part({j * c.intermediate + out_.width.begin, out_.width.count}, &slot));
      out_.of_expert.push_back(std::move(slot));
    }
    if (slots > 0) return {};
    return shared_part(out_.shared_width, &out_.shared.emplace());
  }

  // Whether this expert was not requested. If so, appends an empty entry for it.
  bool skip(int64_t expert) {
    if (!only_ || *only_ == expert) return false;
    out_.of_expert.emplace_back();
    return true;
  }

  // Finds the shared expert, restricted to a part of its width.
  Status shared_part(Part part, ExpertSource* to) {
    const MoeConfig& c = out_.whole;
    const Cut up{.rows = c.shared_intermediate, .width = c.hidden, .first = part.begin, .count = part.count};
    const Cut down{.rows = c.hidden, .width = c.shared_intermediate, .column = part.begin, .count = c.hidden};
    RowSpan gate_span, up_span, down_span;
    if (is_gated(c.act)) SLUICE_TRY(shared_matrix(names_.shared_gate, up, &gate_span));
    SLUICE_TRY(shared_matrix(names_.shared_up, up, &up_span));
    SLUICE_TRY(shared_matrix(names_.shared_down, down, &down_span));
    *to = {is_gated(c.act) ? MatrixSource{{gate_span}, {up_span}} : MatrixSource{{up_span}, {}},
           {{down_span}, {}}};
    return {};
  }

  MoeSource& out_;
  const MoeNames& names_;
  std::optional<int64_t> only_;
  std::string place_;
  int64_t width_;  // width of the experts' input and output
  GateOrder gate_order_;
};

Result<MoeSource> find_some(const Checkpoint& checkpoint, const MoeConfig& whole, const MoePlace& place,
                            std::optional<int64_t> only) {
  const auto& [naming, layer, slice] = place;
  auto local = sliced(whole, slice);
  if (!local.ok()) return local.status();
  MoeSource out;
  out.checkpoint = &checkpoint;
  out.names = &moe_names(naming);
  out.layer = layer;
  out.whole = whole;
  out.local = std::move(local).value();

  if (whole.scope == ExpertScope::kRange)
    return invalid(out.place() + ": scope: wanted all (pass a slice to the loader instead), found range");
  out.width = part_of_width(whole.intermediate, slice, {whole.expert_w, whole.expert_scales});
  out.shared_width = part_of_width(whole.shared_intermediate, slice, {whole.shared_w, whole.shared_scales});
  out.experts = part_of_experts(whole.experts, slice);
  if (only && (*only < out.experts.begin || *only >= out.experts.begin + out.experts.count))
    return invalid(out.place() + ": wanted an expert from " + std::to_string(out.experts.begin) + " to " +
                   std::to_string(out.experts.begin + out.experts.count - 1) +
                   " (the experts of this rank), found " + std::to_string(*only));
  const ExpertProblems p = expert_problems(out.local);
  out.up = packed_matrix(p.up), out.down = packed_matrix(p.down);
  out.shared_up = packed_matrix(p.shared_up), out.shared_down = packed_matrix(p.shared_down);
  out.latent_in = packed_matrix(p.latent_in), out.latent_out = packed_matrix(p.latent_out);
  SLUICE_TRY(Finder(&out, *out.names, only).all());
  return out;
}

}  // namespace

Result<MoeSource> find_moe(const Checkpoint& checkpoint, const MoeConfig& whole, MoeNaming naming,
                           int64_t layer, const Slice& slice) {
  return find_some(checkpoint, whole, {naming, layer, slice}, {});
}

Result<MoeSource> find_expert(const Checkpoint& checkpoint, const MoeConfig& whole, const MoePlace& place,
                              int64_t expert) {
  return find_some(checkpoint, whole, place, expert);
}

}  // namespace sluice
