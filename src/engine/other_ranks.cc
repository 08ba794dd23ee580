#include "engine/other_ranks.h"

#include <chrono>
#include <new>
#include <system_error>

#include "engine/engine.h"

namespace sluice {
namespace {

// The interval at which a thread checks a busy device for faults.
constexpr std::chrono::milliseconds kWatch{20};

}  // namespace

Result<std::unique_ptr<OtherRanks>> OtherRanks::make(Group& group,
                                                     std::vector<std::unique_ptr<Engine>> engines,
                                                     std::vector<Device*> devices) {
  std::unique_ptr<OtherRanks> out(new OtherRanks(group));
  for (size_t i = 0; i < engines.size(); ++i) {
    auto mark = devices[i]->make_mark();
    if (!mark.ok()) return mark.status();
    Rank& rank = *out->ranks_.emplace_back(std::make_unique<Rank>());
    rank.engine = std::move(engines[i]);
    rank.device = devices[i];
    rank.mark = std::move(mark).value();
    const int number = static_cast<int>(i) + 1;
    try {
      rank.thread = WorkerThread([at = out.get(), number, &rank] { at->serve(number, &rank); });
    } catch (const std::system_error&) {
      return out_of_memory("engine: wanted a thread for rank " + std::to_string(number) +
                           ", which the system could not start");
    }
  }
  return out;
}

OtherRanks::~OtherRanks() {
  for (auto& rank : ranks_) {
    {
      const std::lock_guard lock(rank->mutex);
      rank->ends = true;
    }
    rank->changed.notify_all();
    if (rank->thread.joinable()) rank->thread.join();
  }
}

void OtherRanks::serve(int number, Rank* rank) {
  std::unique_lock lock(rank->mutex);
  const auto wanted = [&] { return rank->work || rank->ends; };
  bool watches = false;
  while (true) {
    if (watches && !rank->changed.wait_for(lock, kWatch, wanted)) {
      watches = !is_idle(number, rank);
      continue;
    }
    rank->changed.wait(lock, wanted);
    if (rank->ends) return;
    const std::function<Status(Engine&)>& work = *rank->work;
    lock.unlock();
    Status status = do_work(number, rank, work);
    lock.lock();
    watches = status.ok();
    rank->status = std::move(status);
    rank->work = nullptr;
    rank->changed.notify_all();
  }
}

Status OtherRanks::do_work(int number, Rank* rank, const std::function<Status(Engine&)>& work) {
  Status status;
  try {
    status = work(*rank->engine);
  } catch (const std::bad_alloc&) {
    status = {Code::kOutOfMemory, "engine: out of host memory"};
  }
  if (status.ok()) status = rank->device->place(*rank->mark, rank->device->stream());
  if (!status.ok()) group_.stop(number, status);
  return status;
}

bool OtherRanks::is_idle(int number, Rank* rank) {
  const Result<bool> passed = rank->device->passed(*rank->mark);
  if (passed.ok()) return passed.value();
  group_.stop(number, passed.status());
  return true;
}

Status OtherRanks::run(const std::function<Status(Engine&)>& work, const std::function<Status()>& own) {
  for (auto& rank : ranks_) {
    {
      const std::lock_guard lock(rank->mutex);
      rank->work = &work;
    }
    rank->changed.notify_all();
  }
  Status first;
  try {
    first = own();
  } catch (const std::bad_alloc&) {
    first = {Code::kOutOfMemory, "engine: out of host memory"};
  }
  if (!first.ok()) group_.stop(0, first);
  for (auto& rank : ranks_) {
    std::unique_lock lock(rank->mutex);
    rank->changed.wait(lock, [&] { return !rank->work; });
  }
  return group_.status();
}

Status OtherRanks::for_each(const std::function<Status(Engine&)>& work) {
  for (auto& rank : ranks_) SLUICE_TRY(work(*rank->engine));
  return {};
}

void OtherRanks::stop_and_recover(const Status& why) {
  group_.stop(0, why);
  for (auto& rank : ranks_) (void)rank->device->wait(rank->device->stream());
  (void)group_.recover();
}

}  // namespace sluice
