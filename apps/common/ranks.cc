// Tensor parallelism: opens the devices of all ranks and loads their slices of the model.
#include <algorithm>

#include "apps/common/main_device.h"
#include "apps/common/session.h"
#include "backends/backends.h"
#include "base/worker_thread.h"

namespace sluice::apps {
namespace {

Status of_rank(size_t rank, const Status& status) {
  return {status.code, "rank " + std::to_string(rank) + ": " + status.message};
}

Result<std::unique_ptr<Device>> open_first(const ModelFlags& f) {
  if (f.experts.empty()) {
    auto device = open_main_device(f.device, f.threads);
    if (f.tensor_parallel_size == 1 || !device.ok() || is_gpu(*device.value())) return device;
    const int threads = device.value()->info().cores / static_cast<int>(f.tensor_parallel_size);
    return open_device({.threads = std::max(1, threads)});
  }
  if (f.device == "cuda")
    return invalid("--experts cuda: needs --device cpu (for the rest of the model), found cuda");
  return open_device({.threads = f.threads});
}

}  // namespace

Status check_tensor_parallel(const ModelFlags& f) {
  const int64_t experts = f.expert_parallel_size.value_or(1);
  if (experts != 1 && experts != f.tensor_parallel_size)
    return invalid("--expert-parallel-size: wanted 1 or --tensor-parallel-size = " +
                   std::to_string(f.tensor_parallel_size) + ", found " + std::to_string(experts));
  if (f.expert_parallel && f.expert_parallel_size && experts != f.tensor_parallel_size)
    return invalid("--expert-parallel-size: wanted --tensor-parallel-size = " +
                   std::to_string(f.tensor_parallel_size) + " with --enable-expert-parallel, found 1");
  if (f.tensor_parallel_size == 1) return {};
  const std::string flag = "--tensor-parallel-size " + std::to_string(f.tensor_parallel_size) + ": ";
  if (!f.experts.empty())
    return unsupported(flag + "wanted the experts on the model's devices, found --experts " + f.experts);
  return {};
}

Status open_devices(const ModelFlags& f, Session* s) {
  auto first = open_first(f);
  if (!first.ok()) return first.status();
  s->device = std::move(first).value();
  if (f.tensor_parallel_size == 1) return {};
  std::vector<Device*> ranks = {s->device.get()};
  const DeviceInfo info = s->device->info();
  for (int rank = 1; rank < static_cast<int>(f.tensor_parallel_size); ++rank) {
    auto device = open_device({.backend = info.backend, .threads = info.cores, .gpu = rank});
    if (!device.ok()) return of_rank(static_cast<size_t>(rank), device.status());
    ranks.push_back(device.value().get());
    s->other_devices.push_back(std::move(device).value());
  }
  auto group = make_group(ranks);
  if (!group.ok()) return group.status();
  return s->group = std::move(group).value(), Status{};
}

Status load_slices(const LoadOptions& options, Session* s) {
  const size_t ranks = 1 + s->other_devices.size();
  std::vector<std::unique_ptr<LoadedModel>> models(ranks);
  std::vector<Status> status(ranks);
  const auto load = [&](size_t rank) {
    LoadOptions own = options;
    own.slice.rank = static_cast<int64_t>(rank);
    own.slice.ranks = static_cast<int64_t>(ranks);
    if (rank > 0) own.progress = {};
    auto model = LoadedModel::load(rank == 0 ? *s->device : *s->other_devices[rank - 1], s->directory, own);
    if (!model.ok())
      status[rank] = rank == 0 ? model.status() : of_rank(rank, model.status());
    else
      models[rank] = std::move(model).value();
  };
  std::vector<WorkerThread> threads;
  for (size_t rank = 1; rank < ranks; ++rank) threads.emplace_back([&load, rank] { load(rank); });
  load(0);
  for (WorkerThread& thread : threads) thread.join();
  for (const Status& one : status) SLUICE_TRY(one);
  s->model = std::move(models.front());
  for (size_t rank = 1; rank < ranks; ++rank) s->other_models.push_back(std::move(models[rank]));
  return {};
}

std::string devices_text(const Session& s) {
  const std::string one = text(s.device->info());
  return s.other_devices.empty() ? one : std::to_string(1 + s.other_devices.size()) + " x " + one;
}

int64_t weight_bytes(const Session& s) {
  int64_t sum = s.model->weight_bytes();
  for (const auto& model : s.other_models) sum += model->weight_bytes();
  return sum;
}

}  // namespace sluice::apps
