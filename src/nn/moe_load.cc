#include "nn/moe_load.h"

#include <cstring>

#include "nn/dense_load.h"
#include "nn/expert_upload.h"

namespace sluice {
namespace {

// i64 or i32 [vocab, top_k] as i32, each an expert.
Result<std::vector<int32_t>> hash_table(const CheckpointTensor& t, int64_t experts) {
  const int64_t count = t.shape[0] * t.shape[1];
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    int64_t id = 0;
    int32_t narrow = 0;
    if (t.type == StoredType::kI64) {
      std::memcpy(&id, t.data + 8 * i, 8);
    } else {
      std::memcpy(&narrow, t.data + 4 * i, 4);
      id = narrow;
    }
    if (id < 0 || id >= experts)
      return Status{Code::kCorrupt, place_of(t) + ": row " + std::to_string(i / t.shape[1]) + ", slot " +
                                        std::to_string(i % t.shape[1]) + ": wanted an expert from 0 to " +
                                        std::to_string(experts - 1) + ", found " + std::to_string(id)};
    out[static_cast<size_t>(i)] = static_cast<int32_t>(id);
  }
  return out;
}

// This rank's rows of one expert's bias, in the order of the whole one.
void cut_bias(const MoeSource& s, const CheckpointTensor& t, int64_t expert, std::byte* to) {
  const bool up = &t == s.up_bias;
  const int64_t rows = t.shape[1];
  const std::byte* from = t.data + expert * rows * 2;
  if (!up || s.width.count == s.whole.intermediate) {
    std::memcpy(to, from, static_cast<size_t>(rows * 2));
    return;
  }
  const bool gated = is_gated(s.whole.act);
  for (int64_t i = 0; i < s.width.count; ++i) {
    for (int is_up = 0; is_up <= (gated ? 1 : 0); ++is_up) {
      const int64_t in = gated ? gated_row(s.whole.gate_order, s.whole.intermediate, s.width.begin + i, is_up)
                               : s.width.begin + i;
      const int64_t out = gated ? gated_row(s.whole.gate_order, s.width.count, i, is_up) : i;
      std::memcpy(to + 2 * out, from + 2 * in, 2);
    }
  }
}

}  // namespace

// Fills a LoadedMoe from a source, all of it or one expert.
class MoeLoader {
 public:
  MoeLoader(LoadedMoe* out, const MoeSource& source) : out_(*out), source_(source) {}

  static Result<std::unique_ptr<LoadedMoe>> load(Device& device, const MoeSource& source,
                                                 const MoeLoadOptions& options) {
    std::unique_ptr<LoadedMoe> out(new LoadedMoe(device, source.whole, source.local, options));
    MoeLoader loader(out.get(), source);
    SLUICE_TRY(loader.allocate());
    SLUICE_TRY(loader.make_upload());
    SLUICE_TRY(loader.plain_tensors());
    SLUICE_TRY(loader.experts());
    SLUICE_TRY(device.wait(device.stream()));
    return out;
  }

  // All of it.
  Status replace() {
    const auto check = [&](const PackedExperts& to, const PackedMatrix& matrix,
                           const MatrixSource& from) -> Status {
      SLUICE_TRY(verify(to.header, matrix, to.header.experts));
      return check_scales(matrix, from);
    };
    for (const ExpertSource& from : source_.of_expert) {
      SLUICE_TRY(check(out_.up_, source_.up, from.up));
      SLUICE_TRY(check(out_.down_, source_.down, from.down));
    }
    if (source_.shared) {
      SLUICE_TRY(check(out_.shared_up_, source_.shared_up, source_.shared->up));
      SLUICE_TRY(check(out_.shared_down_, source_.shared_down, source_.shared->down));
    }
    if (source_.hash_table) {
      const auto table = hash_table(*source_.hash_table, source_.whole.experts);
      if (!table.ok()) return table.status();
    }
    SLUICE_TRY(make_upload());
    SLUICE_TRY(plain_tensors());
    SLUICE_TRY(pack_all([](int64_t) {}));
    return out_.device_.wait(out_.device_.stream());
  }

  // One expert, from 0 on this rank.
  Status replace_one(int64_t local) {
    const ExpertSource& from = source_.of_expert[static_cast<size_t>(local)];
    SLUICE_TRY(verify(out_.up_.header, source_.up, out_.up_.header.experts));
    SLUICE_TRY(verify(out_.down_.header, source_.down, out_.down_.header.experts));
    SLUICE_TRY(check_scales(source_.up, from.up));
    SLUICE_TRY(check_scales(source_.down, from.down));
    SLUICE_TRY(make_upload());
    const ExpertUpload::Job jobs[] = {{&out_.up_, local, &from.up}, {&out_.down_, local, &from.down}};
    SLUICE_TRY(pack(jobs, [](size_t) {}));
    SLUICE_TRY(bias_of({local, 1}));
    return out_.device_.wait(out_.device_.stream());
  }

 private:
  Status allocate() {
    int64_t total = 0;
    for (const auto& [spec, tensor] : weight_slots(source_.local, &out_.weights_)) {
      int64_t elements = spec.used ? 1 : 0;
      for (int i = 0; i < spec.rank; ++i) elements *= spec.shape[static_cast<size_t>(i)];
      total += bytes_of(spec.dtype, elements);
    }
    if (!out_.device_.shares_host_memory()) total += ExpertUpload::device_bytes(matrices());
    if (out_.device_.free_bytes() < total)
      return out_of_memory(source_.place() + ": its weights: " + wanted_and_free(out_.device_, total));
    for (const auto& [spec, tensor] : weight_slots(source_.local, &out_.weights_)) {
      if (!spec.used) continue;
      auto made = OwnedTensor::make(out_.device_, spec, source_.place() + ": " + std::string(spec.name));
      if (!made.ok()) return made.status();
      *tensor = made.value().view();
      out_.memory_.push_back(std::move(made).value());
    }
    return {};
  }

  std::vector<PackedMatrix> matrices() const {
    std::vector<PackedMatrix> out = {source_.up, source_.down};
    if (source_.shared) out.insert(out.end(), {source_.shared_up, source_.shared_down});
    if (source_.latent) out.insert(out.end(), {source_.latent_in, source_.latent_out});
    return out;
  }

  Status make_upload() {
    if (out_.device_.shares_host_memory()) return {};
    auto made = ExpertUpload::make(out_.device_, matrices(), {.threads = out_.options_.threads});
    if (!made.ok()) return {made.status().code, source_.place() + ": " + made.status().message};
    upload_ = std::move(made).value();
    return {};
  }

  Status put(const Tensor& to, const void* from, int64_t at, int64_t bytes) {
    Stream stream = out_.device_.stream();
    SLUICE_TRY(out_.device_.copy(to.as<std::byte>() + at, from, static_cast<size_t>(bytes), stream));
    return out_.device_.wait(stream);
  }

  Status plain_tensors() {
    MoeWeights& w = out_.weights_;
    for (const auto& [from, to] :
         {std::pair{source_.router, &w.router}, std::pair{source_.router_bias, &w.router_bias},
          std::pair{source_.correction_bias, &w.correction_bias}})
      if (from) SLUICE_TRY(copy_converted(out_.device_, *from, *to));
    if (source_.hash_table) {
      const auto table = hash_table(*source_.hash_table, source_.whole.experts);
      if (!table.ok()) return table.status();
      SLUICE_TRY(put(w.hash_table, table.value().data(), 0, static_cast<int64_t>(table.value().size() * 4)));
    }
    return bias_of({0, source_.experts.count});
  }

  // These local experts' biases.
  Status bias_of(Part local) {
    const auto one = [&](const CheckpointTensor* t, const Tensor& to) -> Status {
      if (!t || !to.present()) return {};
      const int64_t bytes = to.shape[1] * 2;  // of an expert
      std::vector<std::byte> host(static_cast<size_t>(local.count * bytes));
      for (int64_t e = 0; e < local.count; ++e)
        cut_bias(source_, *t, source_.experts.begin + local.begin + e, host.data() + e * bytes);
      return put(to, host.data(), local.begin * bytes, local.count * bytes);
    };
    SLUICE_TRY(one(source_.up_bias, out_.weights_.experts.up_bias));
    return one(source_.down_bias, out_.weights_.experts.down_bias);
  }

  Status experts() {
    const MoeWeights& w = out_.weights_;
    const auto views = [&](const PackedMatrix& m, int64_t count, const Tensor& codes, const Tensor& scales,
                           PackedExperts* to) -> Status {
      auto made = packed_experts(m, count, codes, scales);
      if (!made.ok()) return {made.status().code, source_.place() + ": " + made.status().message};
      return *to = std::move(made).value(), Status{};
    };
    const auto count = static_cast<int64_t>(source_.of_expert.size());
    SLUICE_TRY(views(source_.up, count, w.experts.up, w.experts.up_scale, &out_.up_));
    SLUICE_TRY(views(source_.down, count, w.experts.down, w.experts.down_scale, &out_.down_));
    total_ = count * (weight_bytes(source_.up) + weight_bytes(source_.down));
    if (source_.shared) {
      SLUICE_TRY(views(source_.shared_up, 1, w.shared.up, w.shared.up_scale, &out_.shared_up_));
      SLUICE_TRY(views(source_.shared_down, 1, w.shared.down, w.shared.down_scale, &out_.shared_down_));
      total_ += weight_bytes(source_.shared_up) + weight_bytes(source_.shared_down);
    }
    if (source_.latent) {
      SLUICE_TRY(views(source_.latent_in, 1, w.latent_in, {}, &out_.latent_in_));
      SLUICE_TRY(views(source_.latent_out, 1, w.latent_out, {}, &out_.latent_out_));
      total_ += weight_bytes(source_.latent_in) + weight_bytes(source_.latent_out);
    }
    return pack_all([this](int64_t bytes) {
      done_ += bytes;
      if (out_.options_.progress) out_.options_.progress(done_, total_);
    });
  }

  // done(bytes): of a matrix, on the caller's thread.
  Status pack_all(const std::function<void(int64_t)>& done) {
    const auto count = static_cast<int64_t>(source_.of_expert.size());
    std::vector<ExpertUpload::Job> jobs;
    for (int64_t e = 0; e < count; ++e)
      jobs.push_back({&out_.up_, e, &source_.of_expert[static_cast<size_t>(e)].up});
    for (int64_t e = 0; e < count; ++e)
      jobs.push_back({&out_.down_, e, &source_.of_expert[static_cast<size_t>(e)].down});
    if (source_.shared) {
      jobs.push_back({&out_.shared_up_, 0, &source_.shared->up});
      jobs.push_back({&out_.shared_down_, 0, &source_.shared->down});
    }
    if (source_.latent) {
      jobs.push_back({&out_.latent_in_, 0, &source_.latent->up});
      jobs.push_back({&out_.latent_out_, 0, &source_.latent->down});
    }
    return pack(jobs, [&](size_t i) { done(weight_bytes(jobs[i].to->header.matrix)); });
  }

  // In order, while the system reads ahead and drops the pages already read. done(i): of a job, on the caller's thread.
  Status pack(std::span<const ExpertUpload::Job> jobs, const std::function<void(size_t)>& done) {
    const Checkpoint& file = *source_.checkpoint;
    const auto matrix = [&](size_t i) -> const PackedMatrix& { return jobs[i].to->header.matrix; };
    const auto ahead = [&](size_t i) {
      if (i < jobs.size()) prefetch(file, matrix(i), *jobs[i].from);
    };
    const auto behind = [&](size_t i) { release(file, matrix(i), *jobs[i].from); };
    Status status;
    if (upload_) {
      constexpr size_t kAhead = 4;  // jobs that are being read, and one
      for (size_t i = 0; i < kAhead; ++i) ahead(i);
      status = upload_->pack(jobs, {.read = [&](size_t i) { behind(i), ahead(i + kAhead); }, .sent = done});
    }
    for (size_t i = 0; !upload_ && status.ok() && i < jobs.size(); ++i) {
      ahead(i + 1);
      status = pack_expert(jobs[i].to, jobs[i].expert, *jobs[i].from, out_.options_.threads, CheckFirst::kNo);
      if (status.ok()) behind(i), done(i);
    }
    return status.ok() ? status : Status{status.code, source_.place() + ": " + status.message};
  }

  LoadedMoe& out_;
  const MoeSource& source_;
  std::unique_ptr<ExpertUpload> upload_;  // where the device packs
  int64_t done_ = 0, total_ = 0;
};

namespace {

// Expert by expert through host memory.
Status verify_far(Device& device, const PackedExperts& p, int threads) {
  std::vector<std::byte> codes(static_cast<size_t>(p.header.code_bytes)),
      scales(static_cast<size_t>(p.header.scale_bytes));
  for (int64_t e = 0; e < p.header.experts; ++e) {
    PackedWeights bytes = bytes_of_expert(p, e);
    const auto fetch = [&](Tensor& t, std::vector<std::byte>& to) -> Status {
      if (!t.present()) return {};
      SLUICE_TRY(device.copy(to.data(), t.data, to.size(), device.stream()));
      t.data = to.data(), t.where = Backend::kCpu;
      return {};
    };
    SLUICE_TRY(fetch(bytes.w, codes));
    SLUICE_TRY(fetch(bytes.scales, scales));
    SLUICE_TRY(device.wait(device.stream()));
    SLUICE_TRY(verify_expert(p, e, bytes, threads));
  }
  return {};
}

}  // namespace

int64_t LoadedMoe::bytes() const {
  int64_t sum = 0;
  for (const OwnedTensor& t : memory_) sum += t.bytes();
  return sum;
}

uint64_t LoadedMoe::fingerprint() const {
  uint64_t out = 0;
  for (const PackedExperts* p : {&up_, &down_, &shared_up_, &shared_down_, &latent_in_, &latent_out_})
    if (p->header.experts > 0 || (p != &latent_in_ && p != &latent_out_))  // without a latent width as ever
      out = (out ^ p->header.fingerprint) * 0x9E3779B97F4A7C15 + 1;        // the order counts
  return out;
}

Status LoadedMoe::replace_expert(const Checkpoint& checkpoint, int64_t expert) {
  SLUICE_TRY(checkpoint.check_whole());
  const auto source =
      find_expert(checkpoint, whole_, {options_.naming, options_.layer, options_.slice}, expert);
  if (!source.ok()) return source.status();
  return MoeLoader(this, source.value()).replace_one(expert - source.value().experts.begin);
}

Status LoadedMoe::replace(const Checkpoint& checkpoint) {
  SLUICE_TRY(checkpoint.check_whole());
  const auto source = find_moe(checkpoint, whole_, options_.naming, options_.layer, options_.slice);
  if (!source.ok()) return source.status();
  return MoeLoader(this, source.value()).replace();
}

Status LoadedMoe::verify() const {
  for (const PackedExperts* p : {&up_, &down_, &shared_up_, &shared_down_, &latent_in_, &latent_out_}) {
    const Status status = device_.shares_host_memory() ? verify_bytes(*p, options_.threads)
                                                       : verify_far(device_, *p, options_.threads);
    if (!status.ok()) return {status.code, "layer " + std::to_string(layer()) + ": " + status.message};
  }
  return {};
}

Result<std::unique_ptr<LoadedMoe>> load_moe(Device& device, const Checkpoint& checkpoint,
                                            const MoeConfig& whole, const MoeLoadOptions& options) {
  SLUICE_TRY(checkpoint.check_whole());
  const auto source = find_moe(checkpoint, whole, options.naming, options.layer, options.slice);
  if (!source.ok()) return source.status();
  return MoeLoader::load(device, source.value(), options);
}

}  // namespace sluice
