#include "nn/moe/expert_upload.h"

#include <algorithm>
#include <atomic>
#include <string>

namespace sluice {
namespace {

// kInterleaved, because gather_row_blocks() alternates gates and ups.
PackExperts::Problem problem_of(const PackedMatrix& m) {
  return {.experts = 1,
          .features = m.features,
          .width = m.width,
          .gated = m.gated,
          .gate_order = GateOrder::kInterleaved,
          .w = m.w,
          .scales = m.scales};
}

int64_t row_bytes(const PackedMatrix& m) { return PackExperts::row_bytes(problem_of(m)); }
int64_t row_scale_bytes(const PackedMatrix& m) { return PackExperts::row_scale_bytes(problem_of(m)); }
int64_t rows_of(const PackedMatrix& m) { return PackExperts::weight_rows(problem_of(m)); }
// The staging area holds a whole matrix: the offset of its scales, which follow its rows, and its size in
// bytes.
constexpr int64_t kScalesAlignment = 256;
int64_t scales_at(const PackedMatrix& m) { return round_up(rows_of(m) * row_bytes(m), kScalesAlignment); }
int64_t matrix_bytes(const PackedMatrix& m) { return scales_at(m) + rows_of(m) * row_scale_bytes(m); }

int64_t block_bytes(const PackedMatrix& m) { return kFragmentRows * (row_bytes(m) + row_scale_bytes(m)); }
int64_t blocks_at_once(const PackedMatrix& m, int64_t piece_bytes) {
  return std::clamp<int64_t>(piece_bytes / block_bytes(m), 1, row_block_count(m));
}

SlotSpec bytes_slot(int64_t bytes) { return slot("", Role::kOut, DType::kU8, {bytes}); }

Tensor with_experts(Tensor t) {
  t.rank = 2, t.shape = {1, t.shape[0]}, t.stride = {t.shape[1], 1};
  return t;
}

}  // namespace

int64_t ExpertUpload::device_bytes(std::span<const PackedMatrix> matrices) {
  int64_t most = 0;
  for (const PackedMatrix& m : matrices) most = std::max(most, matrix_bytes(m));
  return most;
}

Result<std::unique_ptr<ExpertUpload>> ExpertUpload::make(Device& device,
                                                         std::span<const PackedMatrix> matrices,
                                                         const Options& options) {
  std::unique_ptr<ExpertUpload> out(new ExpertUpload(device, options));
  size_t scratch = 0;
  int64_t piece_bytes = 0;
  for (const PackedMatrix& m : matrices) {
    if (m.layout != WeightLayout::kFragments)
      return invalid(std::string("layout: wanted fragments, which ") + text(device.info().backend) +
                     " packs, found " + std::string(word(m.layout)));
    auto plan = make_plan<PackExperts>(device, problem_of(m));
    if (!plan.ok()) return plan.status();
    scratch = std::max(scratch, plan.value().workspace_bytes());
    out->packers_.push_back({m, std::move(plan).value()});
    piece_bytes = std::max(piece_bytes, blocks_at_once(m, options.piece_bytes) * block_bytes(m));
  }
  for (const auto& [tensor, size] : {std::pair{&out->staging_, device_bytes(matrices)},
                                     std::pair{&out->scratch_, static_cast<int64_t>(scratch)}}) {
    if (size == 0) continue;
    auto made = OwnedTensor::make(device, bytes_slot(size), "the buffer that experts are packed from");
    if (!made.ok()) return made.status();
    *tensor = std::move(made).value();
  }
  auto ring = UploadRing::make(
      device, {.threads = options.threads, .slot_bytes = piece_bytes, .ring_bytes = options.ring_bytes});
  if (!ring.ok()) return ring.status();
  out->ring_ = std::move(ring).value();
  return out;
}

const ExpertUpload::Packer* ExpertUpload::packer_of(const PackedMatrix& m) const {
  for (const Packer& p : packers_)
    if (problem_of(p.matrix) == problem_of(m)) return &p;
  return nullptr;
}

Status ExpertUpload::check(const Job& job) const {
  const PackedHeader& h = job.to->header;
  SLUICE_TRY(verify(h, h.matrix, h.experts));
  if (!packer_of(h.matrix) || h.matrix.layout != WeightLayout::kFragments)
    return invalid("upload: wanted one of the matrices for which this upload was made, found " +
                   fields_text(problem_of(h.matrix)));
  if (job.expert >= 0 && job.expert < h.experts) return {};
  return invalid("upload: wanted an expert from 0 to " + std::to_string(h.experts - 1) + ", found " +
                 std::to_string(job.expert));
}

std::vector<ExpertUpload::Piece> ExpertUpload::pieces_of(std::span<const Job> jobs) const {
  std::vector<Piece> out;
  for (size_t job = 0; job < jobs.size(); ++job) {
    const PackedMatrix& m = jobs[job].to->header.matrix;
    const int64_t count = row_block_count(m), step = blocks_at_once(m, options_.piece_bytes);
    for (int64_t first = 0; first < count; first += step)
      out.push_back({job, first, std::min(step, count - first)});
  }
  return out;
}

// The jobs of one call of pack(), split into pieces.
class ExpertUpload::Under {
 public:
  Under(ExpertUpload& upload, std::span<const Job> jobs, const Watch& watch)
      : upload_(upload),
        jobs_(jobs),
        watch_(watch),
        pieces_(upload.pieces_of(jobs)),
        hashes_(jobs.size()),
        left_(jobs.size()) {
    for (size_t i = 0; i < jobs.size(); ++i)
      hashes_[i].resize(static_cast<size_t>(row_block_count(matrix(i))));
    for (const Piece& p : pieces_) ++left_[p.job];
  }
  int64_t pieces() const { return static_cast<int64_t>(pieces_.size()); }

  Status read(int64_t number, std::byte* slot) {
    const Piece& p = piece(number);
    RowBlocks to = place_of(p, slot);
    to.hashes = hashes_[p.job].data() + p.first;
    return gather_row_blocks(matrix(p.job), *jobs_[p.job].from, to);
  }
  void after(int64_t number) {
    const size_t job = piece(number).job;
    if (--left_[job] == 0) watch_.read(job);
  }
  Status send(int64_t number, std::byte* slot) {
    const Piece& p = piece(number);
    SLUICE_TRY(upload_.send(matrix(p.job), place_of(p, slot)));
    if (number + 1 < pieces() && piece(number + 1).job == p.job) return {};
    SLUICE_TRY(upload_.pack_sent(jobs_[p.job], fingerprint_of(hashes_[p.job])));
    watch_.sent(p.job);
    return {};
  }

 private:
  const Piece& piece(int64_t number) const { return pieces_[static_cast<size_t>(number)]; }
  const PackedMatrix& matrix(size_t job) const { return jobs_[job].to->header.matrix; }
  // Where a piece lies in its slot of the ring: its rows, followed by their scales.
  RowBlocks place_of(const Piece& p, std::byte* slot) const {
    return {.first = p.first,
            .blocks = p.blocks,
            .w = slot,
            .scales = slot + p.blocks * kFragmentRows * row_bytes(matrix(p.job)),
            .hashes = nullptr};
  }

  ExpertUpload& upload_;
  std::span<const Job> jobs_;
  const Watch& watch_;
  std::vector<Piece> pieces_;
  std::vector<std::vector<uint64_t>> hashes_;  // one entry per job: hashes of its row blocks
  std::vector<std::atomic<size_t>> left_;      // one entry per job: pieces that are not read yet
};

Status ExpertUpload::pack(std::span<const Job> jobs, const Watch& watch) {
  for (const Job& job : jobs) SLUICE_TRY(check(job));
  Under under(*this, jobs, watch);
  return ring_->run(under.pieces(),
                    {.read = [&](int64_t piece, std::byte* slot) { return under.read(piece, slot); },
                     .after = [&](int64_t piece) { under.after(piece); },
                     .send = [&](int64_t piece, std::byte* slot) { return under.send(piece, slot); }});
}

// All matrices share one staging area. Stream order ensures that the previous matrix is packed before its
// bytes are overwritten.
Status ExpertUpload::send(const PackedMatrix& m, const RowBlocks& piece) {
  auto* to = staging_.view().as<std::byte>();
  const int64_t first = piece.first * kFragmentRows, rows = rows_in_blocks(m, piece.first, piece.blocks);
  const Stream stream = device_.stream();
  SLUICE_TRY(
      device_.copy(to + first * row_bytes(m), piece.w, static_cast<size_t>(rows * row_bytes(m)), stream));
  return device_.copy(to + scales_at(m) + first * row_scale_bytes(m), piece.scales,
                      static_cast<size_t>(rows * row_scale_bytes(m)), stream);
}

Status ExpertUpload::pack_sent(const Job& job, uint64_t fingerprint) {
  const PackedMatrix& m = job.to->header.matrix;
  const Packer& packer = *packer_of(m);
  const Tensor staging = staging_.view();
  const PackedWeights place = bytes_of_expert(*job.to, job.expert);
  auto* bytes = staging.as<std::byte>();
  PackExperts::Args args{.rows = make_tensor(bytes, DType::kU8, {1, rows_of(m), row_bytes(m)}, staging.where),
                         .row_scales = {},
                         .packed = with_experts(place.w),
                         .packed_scales = {}};
  if (row_scale_bytes(m) > 0) {
    args.row_scales =
        make_tensor(bytes + scales_at(m), DType::kU8, {1, rows_of(m), row_scale_bytes(m)}, staging.where);
    args.packed_scales = with_experts(place.scales);
  }
  SLUICE_TRY(packer.plan.run(args, {scratch_.view().as<std::byte>(), packer.plan.workspace_bytes()},
                             device_.stream()));
  return note_packed(job.to, job.expert, fingerprint);
}

}  // namespace sluice
