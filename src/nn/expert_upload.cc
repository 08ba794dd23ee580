#include "nn/expert_upload.h"

#include <algorithm>
#include <string>

namespace sluice {
namespace {

PackExperts::Problem problem_of(const PackedMatrix& m) {
  return {.experts = 1,
          .features = m.features,
          .width = m.width,
          .gated = m.gated,
          .gate_order = m.gate_order,
          .w = m.w};
}

int64_t row_bytes_of(const PackedMatrix& m) {
  const PackExperts::Problem p = problem_of(m);
  return PackExperts::weight_rows(p) * PackExperts::row_bytes(p);
}
int64_t scale_bytes_of(const PackedMatrix& m) {
  const PackExperts::Problem p = problem_of(m);
  return PackExperts::weight_rows(p) * PackExperts::row_scale_bytes(p);
}
// Where the scales stand in a buffer, and what a matrix takes of it.
constexpr int64_t kAlignment = 256;
int64_t scales_at(const PackedMatrix& m) { return round_up(row_bytes_of(m), kAlignment); }
int64_t buffer_bytes(const PackedMatrix& m) { return scales_at(m) + scale_bytes_of(m); }

SlotSpec bytes_slot(int64_t bytes) { return slot("", Role::kOut, DType::kU8, {bytes}); }

Tensor with_experts(Tensor t) {
  t.rank = 2, t.shape = {1, t.shape[0]}, t.stride = {t.shape[1], 1};
  return t;
}

}  // namespace

int64_t ExpertUpload::device_bytes(std::span<const PackedMatrix> matrices) {
  int64_t most = 0;
  for (const PackedMatrix& m : matrices) most = std::max(most, buffer_bytes(m));
  return most;
}

Result<std::unique_ptr<ExpertUpload>> ExpertUpload::make(Device& device,
                                                         std::span<const PackedMatrix> matrices,
                                                         int threads) {
  std::unique_ptr<ExpertUpload> out(new ExpertUpload(device, threads));
  size_t scratch = 0;
  for (const PackedMatrix& m : matrices) {
    if (m.layout != WeightLayout::kFragments)
      return invalid(std::string("layout: wanted fragments, which ") + text(device.info().backend) +
                     " packs, found " + std::string(word(m.layout)));
    auto plan = make_plan<PackExperts>(device, problem_of(m));
    if (!plan.ok()) return plan.status();
    scratch = std::max(scratch, plan.value().workspace_bytes());
    out->packers_.push_back({m, std::move(plan).value()});
  }
  const int64_t bytes = device_bytes(matrices);
  for (const auto& [tensor, size] :
       {std::pair{&out->staging_, bytes}, std::pair{&out->scratch_, static_cast<int64_t>(scratch)}}) {
    if (size == 0) continue;
    auto made = OwnedTensor::make(device, bytes_slot(size), "the buffer that experts are packed from");
    if (!made.ok()) return made.status();
    *tensor = std::move(made).value();
  }
  for (void*& memory : out->host_) {
    const auto made = device.allocate_host(static_cast<size_t>(bytes));
    if (!made.ok()) return made.status();
    memory = made.value();
  }
  return out;
}

ExpertUpload::~ExpertUpload() {
  if (host_[1]) (void)finish();  // a copy may still read them
  for (void* memory : host_)
    if (memory) device_.release_host(memory);
}

const ExpertUpload::Packer* ExpertUpload::packer_of(const PackedMatrix& m) const {
  for (const Packer& p : packers_)
    if (problem_of(p.matrix) == problem_of(m)) return &p;
  return nullptr;
}

Status ExpertUpload::pack(PackedExperts* to, int64_t expert, const MatrixSource& from) {
  const PackedMatrix& m = to->header.matrix;
  SLUICE_TRY(verify(to->header, m, to->header.experts));
  const Packer* packer = packer_of(m);
  if (!packer || m.layout != WeightLayout::kFragments)
    return invalid("upload: wanted one of the matrices that this was made for, found " +
                   fields_text(problem_of(m)));
  if (expert < 0 || expert >= to->header.experts)
    return invalid("upload: wanted an expert from 0 to " + std::to_string(to->header.experts - 1) +
                   ", found " + std::to_string(expert));
  const bool fp4 = m.w == DType::kE2M1;
  const PackExperts::Problem problem = problem_of(m);
  const int64_t rows = PackExperts::weight_rows(problem), blocks = m.width / kMxBlock;
  auto* host = static_cast<std::byte*>(host_[turn_]);
  const auto hash =
      gather_rows(m, from,
                  {make_tensor(host, m.w, {rows, m.width}),
                   fp4 ? make_tensor(host + scales_at(m), DType::kU8, {rows, blocks}) : Tensor{}},
                  {.workers = &workers_});
  if (!hash.ok()) return hash.status();
  // The matrix before this one has left the other buffer, which the next one will fill.
  const Stream stream = device_.stream();
  SLUICE_TRY(device_.wait(stream));
  turn_ = 1 - turn_;
  const Tensor staging = staging_.view();
  SLUICE_TRY(device_.copy(staging.data, host, static_cast<size_t>(buffer_bytes(m)), stream));
  const PackedWeights place = bytes_of_expert(*to, expert);
  auto* bytes = staging.as<std::byte>();
  PackExperts::Args args{
      .rows = make_tensor(bytes, DType::kU8, {1, rows, PackExperts::row_bytes(problem)}, staging.where),
      .row_scales = {},
      .packed = with_experts(place.w),
      .packed_scales = {}};
  if (fp4) {
    args.row_scales = make_tensor(bytes + scales_at(m), DType::kU8, {1, rows, blocks}, staging.where);
    args.packed_scales = with_experts(place.scales);
  }
  SLUICE_TRY(
      packer->plan.run(args, {scratch_.view().as<std::byte>(), packer->plan.workspace_bytes()}, stream));
  return note_packed(to, expert, hash.value());
}

}  // namespace sluice
