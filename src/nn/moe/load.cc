#include "nn/moe/load.h"

#include <algorithm>
#include <cstring>

#include "nn/dense_load.h"
#include "nn/host_view.h"
#include "nn/moe/expert_upload.h"
#include "nn/moe/problems.h"
#include "weights/numbers.h"

namespace sluice {
namespace {

// Converts an i64 or i32 table [vocab, top_k] to i32, and checks that every entry is an expert id.
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

enum class Bias : uint8_t { kUp, kDown };

// Copies this rank's part of one expert's bias as bf16, in the order of the whole bias.
void cut_bias(const MoeSource& s, const CheckpointTensor& t, Bias of, int64_t expert, std::byte* to) {
  const int64_t rows = t.shape[1];
  const std::byte* from = t.data + number_bytes(t.type, s.row_of_expert(t, expert) * rows);
  if (of == Bias::kDown || s.width.count == s.whole.intermediate)
    return convert_numbers(t.type, from, rows, DType::kBF16, to);
  const bool gated = is_gated(s.whole.act);
  for (int64_t i = 0; i < s.width.count; ++i) {
    for (int is_up = 0; is_up <= (gated ? 1 : 0); ++is_up) {
      const int64_t in = gated ? gated_row(s.whole.gate_order, s.whole.intermediate, s.width.begin + i, is_up)
                               : s.width.begin + i;
      const int64_t out = gated ? gated_row(s.whole.gate_order, s.width.count, i, is_up) : i;
      convert_numbers(t.type, from + number_bytes(t.type, in), 1, DType::kBF16, to + 2 * out);
    }
  }
}

}  // namespace

// Fills a LoadedMoe from a source, either the whole layer or one expert.
class MoeLoader {
 public:
  MoeLoader(LoadedMoe* out, const MoeSource& source) : out_(*out), source_(source), host_(out->device_) {}

  static Result<std::unique_ptr<LoadedMoe>> load(Device& device, const MoeSource& source,
                                                 const MoeLoadOptions& options) {
    auto out = LoadedMoe::allocate(device, source.whole, options);
    if (!out.ok()) return out;
    SLUICE_TRY(MoeLoader(out.value().get(), source).fill(options.progress));
    return out;
  }

  // Finds NaN and infinite values and expert ids out of range before anything is written.
  Status check() {
    const auto weights = [&](const PackedExperts& to, const PackedMatrix& matrix,
                             const MatrixSource& from) -> Status {
      SLUICE_TRY(verify(to.header, matrix, to.header.experts));
      const auto near = host_.matrix(matrix, from);
      return near.ok() ? check_weights(matrix, near.value(), out_.options_.threads) : near.status();
    };
    const auto numbers = [&](const CheckpointTensor* t, Numbers allowed) -> Status {
      if (!t) return {};
      const auto near = host_.tensor(*t);
      return near.ok() ? check_numbers(near.value(), allowed) : near.status();
    };
    SLUICE_TRY(numbers(source_.router, Numbers::kFinite));
    SLUICE_TRY(numbers(source_.router_bias, Numbers::kNoNan));
    SLUICE_TRY(numbers(source_.correction_bias, Numbers::kNoNan));
    for (const auto& [name, t] : source_.beside) SLUICE_TRY(numbers(&t, Numbers::kNoNan));
    for (const ExpertSource& from : source_.of_expert) {
      SLUICE_TRY(weights(out_.up_, source_.up, from.up));
      SLUICE_TRY(weights(out_.down_, source_.down, from.down));
    }
    if (source_.shared) {
      SLUICE_TRY(weights(out_.shared_up_, source_.shared_up, source_.shared->up));
      SLUICE_TRY(weights(out_.shared_down_, source_.shared_down, source_.shared->down));
    }
    if (source_.latent) {
      SLUICE_TRY(weights(out_.latent_in_, source_.latent_in, source_.latent->up));
      SLUICE_TRY(weights(out_.latent_out_, source_.latent_out, source_.latent->down));
    }
    return source_.hash_table ? ids().status() : Status{};
  }

  // Fills every tensor. watch() receives the bytes packed so far and the bytes of the whole layer.
  Status fill(const std::function<void(int64_t, int64_t)>& watch) {
    SLUICE_TRY(make_upload());
    SLUICE_TRY(plain_tensors());
    SLUICE_TRY(experts(watch));
    return out_.device_.wait(out_.device_.stream());
  }

  // Replaces one expert; `local` is its index on this rank.
  Status replace_one(int64_t local) {
    const ExpertSource& from = source_.of_expert[static_cast<size_t>(local)];
    HostView up_view(out_.device_), down_view(out_.device_);
    const auto up = up_view.matrix(source_.up, from.up);
    if (!up.ok()) return up.status();
    const auto down = down_view.matrix(source_.down, from.down);
    if (!down.ok()) return down.status();
    SLUICE_TRY(verify(out_.up_.header, source_.up, out_.up_.header.experts));
    SLUICE_TRY(verify(out_.down_.header, source_.down, out_.down_.header.experts));
    SLUICE_TRY(check_weights(source_.up, up.value(), out_.options_.threads));
    SLUICE_TRY(check_weights(source_.down, down.value(), out_.options_.threads));
    SLUICE_TRY(make_upload());
    const ExpertUpload::Job jobs[] = {{&out_.up_, local, &up.value()}, {&out_.down_, local, &down.value()}};
    SLUICE_TRY(pack_near(jobs, [](size_t) {}));
    SLUICE_TRY(bias_of({local, 1}));
    return out_.device_.wait(out_.device_.stream());
  }

 private:
  Status make_upload() {
    if (out_.device_.shares_host_memory()) return {};
    auto made = ExpertUpload::make(out_.device_, out_.matrices(), {.threads = out_.options_.threads});
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
      if (from)
        SLUICE_TRY(put_converted(*from, *to, from == source_.router ? Numbers::kFinite : Numbers::kNoNan));
    for (const CheckpointTensor* bias : {source_.up_bias, source_.down_bias}) {
      if (!bias) continue;
      const auto near = host_.tensor(*bias);
      if (!near.ok()) return near.status();
      SLUICE_TRY(check_numbers(near.value(), Numbers::kFinite));
    }
    if (source_.hash_table) {
      const auto table = ids();
      if (!table.ok()) return table.status();
      SLUICE_TRY(put(w.hash_table, table.value().data(), 0, static_cast<int64_t>(table.value().size() * 4)));
    }
    for (const auto& [name, from] : source_.beside)
      for (const auto& [spec, to] : weight_slots(out_.config_, &w))
        if (spec.name == name) SLUICE_TRY(put_converted(from, *to, Numbers::kNoNan));
    return bias_of({0, source_.experts.count});
  }

  Result<std::vector<int32_t>> ids() {
    const auto near = host_.tensor(*source_.hash_table);
    if (!near.ok()) return near.status();
    return hash_table(near.value(), source_.whole.experts);
  }

  Status put_converted(const CheckpointTensor& from, const Tensor& to, Numbers allowed) {
    const auto near = host_.tensor(from);
    if (!near.ok()) return near.status();
    SLUICE_TRY(check_numbers(near.value(), allowed));
    return copy_converted(out_.device_, near.value(), to);
  }

  // Writes the biases of these local experts.
  Status bias_of(Part local) {
    const auto one = [&](const CheckpointTensor* from, Bias which, const Tensor& to) -> Status {
      if (!from || !to.present()) return {};
      const auto t = host_.tensor(*from);
      if (!t.ok()) return t.status();
      const int64_t bytes = to.shape[1] * 2;  // per expert
      std::vector<std::byte> host(static_cast<size_t>(local.count * bytes));
      for (int64_t e = 0; e < local.count; ++e)
        cut_bias(source_, t.value(), which, source_.experts.begin + local.begin + e, host.data() + e * bytes);
      return put(to, host.data(), local.begin * bytes, local.count * bytes);
    };
    SLUICE_TRY(one(source_.up_bias, Bias::kUp, out_.weights_.experts.up_bias));
    return one(source_.down_bias, Bias::kDown, out_.weights_.experts.down_bias);
  }

  Status experts(const std::function<void(int64_t, int64_t)>& watch) {
    const auto count = static_cast<int64_t>(source_.of_expert.size());
    total_ = count * (weight_bytes(source_.up) + weight_bytes(source_.down));
    if (source_.shared) total_ += weight_bytes(source_.shared_up) + weight_bytes(source_.shared_down);
    if (source_.latent) total_ += weight_bytes(source_.latent_in) + weight_bytes(source_.latent_out);
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
    return pack(jobs, [&](size_t i) {
      done_ += weight_bytes(jobs[i].to->header.matrix);
      if (watch) watch(done_, total_);
    });
  }

  // Packs the jobs, and calls done(i) on the caller's thread after job i. A caller's tensors in device memory
  // are copied to the host in batches of matrices, which are large enough for copies and packing to run at
  // full speed.
  Status pack(std::span<const ExpertUpload::Job> jobs, const std::function<void(size_t)>& done) {
    if (std::none_of(jobs.begin(), jobs.end(), [](const auto& job) { return is_far(*job.from); }))
      return pack_near(jobs, done);
    for (size_t first = 0, end = 0; first < jobs.size(); first = end) {
      std::vector<HostView::Wanted> wanted;
      int64_t bytes = 0;
      for (; end < jobs.size(); ++end) {
        const PackedMatrix& matrix = jobs[end].to->header.matrix;
        bytes += far_bytes(matrix, *jobs[end].from);
        if (end > first && bytes > out_.options_.batch_bytes) break;
        wanted.push_back({&matrix, jobs[end].from});
      }
      const auto near = host_.matrices(wanted);
      if (!near.ok()) return near.status();
      std::vector<ExpertUpload::Job> batch;
      for (size_t i = first; i < end; ++i)
        batch.push_back({jobs[i].to, jobs[i].expert, &near.value()[i - first]});
      SLUICE_TRY(pack_near(batch, [&](size_t i) { done(first + i); }));
    }
    return {};
  }

  // Packs jobs that the host can read, in order. Prefetches pages of the next jobs and releases pages already
  // read.
  Status pack_near(std::span<const ExpertUpload::Job> jobs, const std::function<void(size_t)>& done) {
    const Checkpoint& file = *source_.checkpoint;
    const auto matrix = [&](size_t i) -> const PackedMatrix& { return jobs[i].to->header.matrix; };
    const auto ahead = [&](size_t i) {
      if (i < jobs.size()) prefetch(file, matrix(i), *jobs[i].from);
    };
    const auto behind = [&](size_t i) { release(file, matrix(i), *jobs[i].from); };
    Status status;
    if (upload_) {
      constexpr size_t kAhead = 4;  // prefetch distance: the jobs that are read at the same time, plus one
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
  HostView host_;
  std::unique_ptr<ExpertUpload> upload_;  // set if the device packs
  int64_t done_ = 0, total_ = 0;
};

namespace {

// Copies one expert at a time to host memory and verifies it.
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

Status check_readable(const Device& device, const Checkpoint& checkpoint) {
  const Backend here = device.info().backend;
  for (const CheckpointTensor& t : checkpoint.tensors())
    if (is_far(t) && t.where != here)
      return invalid(place_of(t) + ": wanted memory of " + text(here) + " or of the host, found " +
                     text(t.where));
  return checkpoint.check_whole();
}

Result<std::unique_ptr<LoadedMoe>> LoadedMoe::allocate(Device& device, const MoeConfig& whole,
                                                       const MoeLoadOptions& options) {
  auto local = sliced(whole, options.slice);
  if (!local.ok()) return local.status();
  std::unique_ptr<LoadedMoe> out(new LoadedMoe(device, whole, std::move(local).value(), options));
  Status status = out->allocate();
  if (status.ok()) return out;
  return Status{status.code, "layer " + std::to_string(options.layer) + ": " + status.message};
}

std::vector<PackedMatrix> LoadedMoe::matrices() const {
  const ExpertProblems p = expert_problems(config_);
  std::vector<PackedMatrix> out = {packed_matrix(p.up), packed_matrix(p.down)};
  if (shared_apart(config_))
    out.insert(out.end(), {packed_matrix(p.shared_up), packed_matrix(p.shared_down)});
  if (config_.latent > 0) out.insert(out.end(), {packed_matrix(p.latent_in), packed_matrix(p.latent_out)});
  return out;
}

namespace {
constexpr int64_t kWeightAlignment = 256;
}

int64_t moe_weight_bytes(const MoeConfig& local) {
  MoeWeights weights;
  int64_t sum = 0;
  for (const auto& [spec, tensor] : weight_slots(local, &weights))
    if (spec.used) sum += round_up(bytes_of_slot(spec), kWeightAlignment);
  return sum;
}

Status LoadedMoe::take_memory() {
  const std::span<std::byte> given = options_.memory;
  const bool own = given.empty();
  if (reinterpret_cast<uintptr_t>(given.data()) % kWeightAlignment != 0)
    return invalid("memory for its weights: wanted an address that is a multiple of " +
                   std::to_string(kWeightAlignment) + ", found an address " +
                   std::to_string(reinterpret_cast<uintptr_t>(given.data()) % kWeightAlignment) +
                   " bytes past a multiple");
  if (!own && static_cast<int64_t>(given.size()) < bytes())
    return invalid("memory for its weights: wanted " + std::to_string(bytes()) + " bytes, found " +
                   std::to_string(given.size()));
  int64_t wanted = own ? bytes() : 0;
  if (!device_.shares_host_memory()) wanted += ExpertUpload::device_bytes(matrices());
  if (device_.free_bytes() < wanted) return out_of_memory("its weights: " + wanted_and_free(device_, wanted));
  int64_t at = 0;
  for (const auto& [spec, tensor] : weight_slots(config_, &weights_)) {
    if (!spec.used) continue;
    if (own) {
      auto made = OwnedTensor::make(device_, spec, std::string(spec.name));
      if (!made.ok()) return made.status();
      *tensor = made.value().view();
      memory_.push_back(std::move(made).value());
    } else {
      *tensor = tensor_at(given.data() + at, device_.info().backend, spec);
      at += round_up(bytes_of_slot(spec), kWeightAlignment);
    }
  }
  return {};
}

Status LoadedMoe::allocate() {
  SLUICE_TRY(take_memory());
  SLUICE_TRY(clear_adapters());
  const auto views = [](const PackedMatrix& matrix, int64_t count, const Tensor& codes, const Tensor& scales,
                        PackedExperts* to) -> Status {
    auto made = packed_experts(matrix, count, codes, scales);
    if (!made.ok()) return made.status();
    return *to = std::move(made).value(), Status{};
  };
  const ExpertProblems p = expert_problems(config_);
  const int64_t count = local_experts(config_) + shared_slots(config_);
  const ExpertWeights &experts = weights_.experts, &shared = weights_.shared;
  SLUICE_TRY(views(packed_matrix(p.up), count, experts.up, experts.up_scale, &up_));
  SLUICE_TRY(views(packed_matrix(p.down), count, experts.down, experts.down_scale, &down_));
  if (shared_apart(config_)) {
    SLUICE_TRY(views(packed_matrix(p.shared_up), 1, shared.up, shared.up_scale, &shared_up_));
    SLUICE_TRY(views(packed_matrix(p.shared_down), 1, shared.down, shared.down_scale, &shared_down_));
  }
  if (config_.latent == 0) return {};
  SLUICE_TRY(views(packed_matrix(p.latent_in), 1, weights_.latent_in, {}, &latent_in_));
  return views(packed_matrix(p.latent_out), 1, weights_.latent_out, {}, &latent_out_);
}

uint64_t LoadedMoe::fingerprint() const {
  uint64_t out = 0;
  const auto add = [&](const PackedExperts& p) {
    out = (out ^ p.header.fingerprint) * 0x9E3779B97F4A7C15 + 1;  // makes the fingerprint depend on the order
  };
  add(up_), add(down_), add(shared_up_), add(shared_down_);
  if (whole_.latent > 0) add(latent_in_), add(latent_out_);
  return out;
}

Status LoadedMoe::replace_expert(const Checkpoint& checkpoint, int64_t expert) {
  return replace_expert(checkpoint, expert, options_.naming, options_.layer);
}

Status LoadedMoe::replace_expert(const Checkpoint& checkpoint, int64_t expert, MoeNaming naming,
                                 int64_t layer) {
  SLUICE_TRY(check_readable(device_, checkpoint));
  const auto source = find_expert(checkpoint, whole_, {naming, layer, options_.slice}, expert);
  if (!source.ok()) return source.status();
  return MoeLoader(this, source.value()).replace_one(expert - source.value().experts.begin);
}

Status LoadedMoe::replace(const Checkpoint& checkpoint) {
  return replace(checkpoint, options_.naming, options_.layer);
}

Status LoadedMoe::replace(const Checkpoint& checkpoint, MoeNaming naming, int64_t layer, CheckFirst check) {
  SLUICE_TRY(check_readable(device_, checkpoint));
  const auto source = find_moe(checkpoint, whole_, naming, layer, options_.slice);
  if (!source.ok()) return source.status();
  MoeLoader loader(this, source.value());
  if (check == CheckFirst::kYes) SLUICE_TRY(loader.check());
  SLUICE_TRY(loader.fill([](int64_t, int64_t) {}));
  options_.naming = naming, options_.layer = layer;
  return {};
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
  SLUICE_TRY(check_readable(device, checkpoint));
  const auto source = find_moe(checkpoint, whole, options.naming, options.layer, options.slice);
  if (!source.ok()) return source.status();
  return MoeLoader::load(device, source.value(), options);
}

}  // namespace sluice
