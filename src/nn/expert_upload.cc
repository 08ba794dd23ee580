#include "nn/expert_upload.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>

namespace sluice {
namespace {

// Rows stand in the device's memory as they come out of the ring.
PackExperts::Problem problem_of(const PackedMatrix& m) {
  return {.experts = 1,
          .features = m.features,
          .width = m.width,
          .gated = m.gated,
          .gate_order = GateOrder::kInterleaved,
          .w = m.w};
}

int64_t row_bytes(const PackedMatrix& m) { return PackExperts::row_bytes(problem_of(m)); }
int64_t row_scale_bytes(const PackedMatrix& m) { return PackExperts::row_scale_bytes(problem_of(m)); }
int64_t rows_of(const PackedMatrix& m) { return PackExperts::weight_rows(problem_of(m)); }
// Where the scales stand after the rows of a whole matrix, and what both take.
constexpr int64_t kAlignment = 256;
int64_t scales_at(const PackedMatrix& m) { return round_up(rows_of(m) * row_bytes(m), kAlignment); }
int64_t matrix_bytes(const PackedMatrix& m) { return scales_at(m) + rows_of(m) * row_scale_bytes(m); }

int64_t block_bytes(const PackedMatrix& m) { return kFragmentRows * (row_bytes(m) + row_scale_bytes(m)); }
int64_t blocks_at_once(const PackedMatrix& m, int64_t piece_bytes) {
  return std::clamp<int64_t>(piece_bytes / block_bytes(m), 1, row_block_count(m));
}

// The ring is released in parts, each when all of it is on the device.
constexpr size_t kParts = 4;

SlotSpec bytes_slot(int64_t bytes) { return slot("", Role::kOut, DType::kU8, {bytes}); }

Tensor with_experts(Tensor t) {
  t.rank = 2, t.shape = {1, t.shape[0]}, t.stride = {t.shape[1], 1};
  return t;
}

}  // namespace

// Pieces on their way into the ring: threads take them in order, and wait where the ring is full.
class ExpertUpload::Readers {
 public:
  Readers(const ExpertUpload& upload, std::span<const Job> jobs, std::span<const Piece> pieces,
          const Watch& watch)
      : upload_(upload),
        jobs_(jobs),
        pieces_(pieces),
        watch_(watch),
        read_(pieces.size()),
        hashes_(jobs.size()),
        left_(jobs.size()) {
    for (size_t i = 0; i < jobs.size(); ++i)
      hashes_[i].resize(static_cast<size_t>(row_block_count(jobs[i].to->header.matrix)));
    for (const Piece& p : pieces) ++left_[p.job];
  }

  // Reads the next piece that no thread has taken. False: there is none left.
  bool read_next() {
    size_t i = 0;
    {
      std::unique_lock lock(mutex_);
      free_.wait(lock, [&] { return stop_ || next_ == pieces_.size() || next_ < freed_ + upload_.slots_; });
      if (stop_ || next_ == pieces_.size()) return false;
      i = next_++;
    }
    const Piece& p = pieces_[i];
    const Job& job = jobs_[p.job];
    RowBlocks to = upload_.place_of(job.to->header.matrix, p, i);
    to.hashes = hashes_[p.job].data() + p.first;
    Status status = gather_row_blocks(job.to->header.matrix, *job.from, to);
    bool last = false, wanted = false;
    {
      const std::lock_guard lock(mutex_);
      read_[i] = {std::move(status), true};
      last = --left_[p.job] == 0;
      wanted = i == wanted_;
    }
    if (wanted) arrived_.notify_one();
    if (last) watch_.read(p.job);
    return true;
  }
  // Waits for a piece; how its reading went.
  Status wait_for(size_t piece) {
    while (upload_.workers_.helpers() == 0 && !read_[piece].done)
      if (!read_next()) break;
    std::unique_lock lock(mutex_);
    wanted_ = piece;
    arrived_.wait(lock, [&] { return read_[piece].done; });
    return read_[piece].status;
  }
  // The slots of the first `pieces` pieces may be filled again.
  void give_back(size_t pieces) {
    {
      const std::lock_guard lock(mutex_);
      freed_ = pieces;
    }
    free_.notify_all();
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    free_.notify_all();
  }
  uint64_t fingerprint(size_t job) const { return fingerprint_of(hashes_[job]); }

 private:
  struct Read {
    Status status;
    bool done = false;
  };
  const ExpertUpload& upload_;
  std::span<const Job> jobs_;
  std::span<const Piece> pieces_;
  const Watch& watch_;
  std::mutex mutex_;
  std::condition_variable free_, arrived_;
  size_t next_ = 0, freed_ = 0, wanted_ = 0;
  bool stop_ = false;
  std::vector<Read> read_;
  std::vector<std::vector<uint64_t>> hashes_;  // of each job's row blocks
  std::vector<size_t> left_;                   // pieces of each job that are not read yet
};

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
  for (const PackedMatrix& m : matrices) {
    if (m.layout != WeightLayout::kFragments)
      return invalid(std::string("layout: wanted fragments, which ") + text(device.info().backend) +
                     " packs, found " + std::string(word(m.layout)));
    auto plan = make_plan<PackExperts>(device, problem_of(m));
    if (!plan.ok()) return plan.status();
    scratch = std::max(scratch, plan.value().workspace_bytes());
    out->packers_.push_back({m, std::move(plan).value()});
    out->slot_bytes_ = std::max(
        out->slot_bytes_, round_up(blocks_at_once(m, options.piece_bytes) * block_bytes(m), kAlignment));
  }
  for (const auto& [tensor, size] : {std::pair{&out->staging_, device_bytes(matrices)},
                                     std::pair{&out->scratch_, static_cast<int64_t>(scratch)}}) {
    if (size == 0) continue;
    auto made = OwnedTensor::make(device, bytes_slot(size), "the buffer that experts are packed from");
    if (!made.ok()) return made.status();
    *tensor = std::move(made).value();
  }
  const int64_t ring_bytes = std::max(options.ring_bytes, 2 * out->slot_bytes_);
  const auto ring = device.allocate_host(static_cast<size_t>(ring_bytes));
  if (!ring.ok()) return ring.status();
  out->ring_ = static_cast<std::byte*>(ring.value());
  if (out->slot_bytes_ > 0) out->slots_ = static_cast<size_t>(ring_bytes / out->slot_bytes_);
  return out;
}

ExpertUpload::~ExpertUpload() {
  if (ring_) device_.release_host(ring_);
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
    return invalid("upload: wanted one of the matrices that this was made for, found " +
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

// In its slot of the ring: rows, and their scales after them.
RowBlocks ExpertUpload::place_of(const PackedMatrix& m, const Piece& piece, size_t number) const {
  std::byte* slot = ring_ + static_cast<int64_t>(number % slots_) * slot_bytes_;
  return {.first = piece.first,
          .blocks = piece.blocks,
          .w = slot,
          .scales = slot + piece.blocks * kFragmentRows * row_bytes(m),
          .hashes = nullptr};
}

Status ExpertUpload::pack(std::span<const Job> jobs, const Watch& watch) {
  for (const Job& job : jobs) SLUICE_TRY(check(job));
  const std::vector<Piece> pieces = pieces_of(jobs);
  Readers readers(*this, jobs, pieces, watch);
  Status status;
  workers_.run(
      workers_.helpers(),
      [&](int64_t) {
        while (readers.read_next()) {
        }
      },
      [&] {
        status = send_all(jobs, pieces, watch, &readers);
        readers.stop();
      });
  // Also after an error: copies may still read the ring.
  const Status waited = device_.wait(device_.stream());
  return status.ok() ? waited : status;
}

Status ExpertUpload::send_all(std::span<const Job> jobs, std::span<const Piece> pieces, const Watch& watch,
                              Readers* readers) {
  const size_t part = std::max<size_t>(slots_ / kParts, 1);
  for (size_t i = 0; i < pieces.size(); ++i) {
    SLUICE_TRY(readers->wait_for(i));
    const size_t j = pieces[i].job;
    const PackedMatrix& m = jobs[j].to->header.matrix;
    SLUICE_TRY(send(m, place_of(m, pieces[i], i)));
    if (i + 1 == pieces.size() || pieces[i + 1].job != j) {
      SLUICE_TRY(pack_sent(jobs[j], readers->fingerprint(j)));
      watch.sent(j);
    }
    if ((i + 1) % part != 0) continue;
    SLUICE_TRY(device_.wait(device_.stream()));
    readers->give_back(i + 1);
  }
  return {};
}

// The one place for a matrix is free again when its turn in the stream comes.
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
