#include "weights/packed.h"

#include <string>

#include "ops/op.h"

namespace sluice {
namespace {

Status differs(const std::string& what, const std::string& wanted, const std::string& found) {
  return {Code::kCorrupt, "packed weights: " + what + ": wanted " + wanted + ", found " + found};
}

std::string matrix_text(const PackedMatrix& m) {
  return text(m.format()) + " " + std::to_string(m.features) + " x " + std::to_string(m.width) +
         (m.gated ? " gated" : "");
}

Status check_expert(const PackedHeader& h, int64_t expert) {
  if (expert >= 0 && expert < h.experts) return {};
  return invalid("packed weights: wanted an expert from 0 to " + std::to_string(h.experts - 1) + ", found " +
                 std::to_string(expert));
}

}  // namespace

PackedWeights bytes_of_expert(const PackedExperts& p, int64_t expert) {
  const PackedHeader& h = p.header;
  PackedWeights out{
      make_tensor(p.w.as<std::byte>() + expert * h.code_bytes, DType::kU8, {h.code_bytes}, p.w.where), {}};
  if (h.scale_bytes)
    out.scales = make_tensor(p.scales.as<std::byte>() + expert * h.scale_bytes, DType::kU8, {h.scale_bytes},
                             p.scales.where);
  return out;
}

Result<PackedExperts> packed_experts(const PackedMatrix& m, int64_t experts, const Tensor& w,
                                     const Tensor& scales) {
  const PackedSizes sizes = packed_sizes(m);
  const bool scaled = m.format().scaled();
  PackedExperts out{.header = {.matrix = m,
                               .experts = experts,
                               .code_bytes = sizes.code_bytes,
                               .scale_bytes = sizes.scale_bytes},
                    .w = w,
                    .scales = scales,
                    .fingerprints = std::vector<uint64_t>(static_cast<size_t>(experts))};
  SLUICE_TRY(check_slot(slot("w", Role::kOut, DType::kU8, {experts, out.header.code_bytes}), w, w.where,
                        scaled ? 1 : 2));
  SLUICE_TRY(check_slot(slot("scales", Role::kOut, DType::kU8, {experts, out.header.scale_bytes}, scaled),
                        scales, w.where, 1));
  return out;
}

Status verify(const PackedHeader& h, const PackedMatrix& m, int64_t experts) {
  if (h.magic != kPackedMagic) return differs("magic", std::to_string(kPackedMagic), std::to_string(h.magic));
  if (h.version != kPackedVersion)
    return differs("version", std::to_string(kPackedVersion), std::to_string(h.version));
  if (h.matrix.layout != m.layout)
    return differs("layout", std::string(word(m.layout)), std::string(word(h.matrix.layout)));
  if (matrix_text(h.matrix) != matrix_text(m))
    return differs("matrix", matrix_text(m), matrix_text(h.matrix));
  if (h.experts != experts) return differs("experts", std::to_string(experts), std::to_string(h.experts));
  const PackedSizes sizes = packed_sizes(m);
  if (h.code_bytes != sizes.code_bytes)
    return differs("bytes", std::to_string(sizes.code_bytes), std::to_string(h.code_bytes));
  if (h.scale_bytes != sizes.scale_bytes)
    return differs("bytes of scales", std::to_string(sizes.scale_bytes), std::to_string(h.scale_bytes));
  return {};
}

Status verify_expert(const PackedExperts& p, int64_t expert, const PackedWeights& bytes, int threads) {
  SLUICE_TRY(check_expert(p.header, expert));
  const auto found = fingerprint(p.header.matrix, bytes, threads);
  if (!found.ok()) return found.status();
  const uint64_t wanted = p.fingerprints[static_cast<size_t>(expert)];
  if (found.value() == wanted) return {};
  return differs("expert " + std::to_string(expert) + ": fingerprint", std::to_string(wanted),
                 std::to_string(found.value()));
}

Status verify_bytes(const PackedExperts& p, int threads) {
  for (int64_t e = 0; e < p.header.experts; ++e)
    SLUICE_TRY(verify_expert(p, e, bytes_of_expert(p, e), threads));
  return {};
}

Status pack_expert(PackedExperts* p, int64_t expert, const MatrixSource& from, int threads,
                   CheckFirst check) {
  PackedHeader& h = p->header;
  SLUICE_TRY(verify(h, h.matrix, h.experts));
  SLUICE_TRY(check_expert(h, expert));
  if (check == CheckFirst::kYes) SLUICE_TRY(check_weights(h.matrix, from, threads));
  const auto hash = pack_rows(h.matrix, from, bytes_of_expert(*p, expert), {.threads = threads});
  if (!hash.ok()) return hash.status();
  return note_packed(p, expert, hash.value());
}

Status note_packed(PackedExperts* p, int64_t expert, uint64_t fingerprint) {
  SLUICE_TRY(check_expert(p->header, expert));
  p->fingerprints[static_cast<size_t>(expert)] = fingerprint;
  p->header.fingerprint = fingerprint_of(p->fingerprints);
  return {};
}

Status unpack_expert(const PackedExperts& p, int64_t expert, const RowMajorWeights& to) {
  SLUICE_TRY(check_expert(p.header, expert));
  return unpack_matrix(p.header.matrix, bytes_of_expert(p, expert), to);
}

}  // namespace sluice
