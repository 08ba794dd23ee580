// Tensor parallelism: the ranks above 0 of an engine (nn/decoder_slice.h).
#pragma once
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/worker_thread.h"
#include "dispatch/device.h"
#include "dispatch/group.h"

namespace sluice {

class Engine;

// Each rank has an engine and a thread. These engines do not schedule: they enqueue the steps that rank 0's
// engine schedules, from the same chunks, and sample the same tokens.
class OtherRanks {
 public:
  // engines[i] belongs to rank i + 1. kOutOfMemory: the system cannot create a thread.
  static Result<std::unique_ptr<OtherRanks>> make(Group& group, std::vector<std::unique_ptr<Engine>> engines,
                                                  std::vector<Device*> devices);
  ~OtherRanks();
  OtherRanks(const OtherRanks&) = delete;
  OtherRanks& operator=(const OtherRanks&) = delete;

  // Calls `work` for each rank on that rank's thread, and `own` on the caller's thread; returns when all
  // calls have returned. If a call fails, stops the group and returns the group's status. Afterwards each
  // thread watches its device until the enqueued work is done, so that a faulty rank does not keep the other
  // ranks waiting forever.
  Status run(const std::function<Status(Engine&)>& work, const std::function<Status()>& own);
  // Calls `work` for one rank after another, on the caller's thread.
  Status for_each(const std::function<Status(Engine&)>& work);
  // Stops the work of all ranks after a failure, waits for the devices of the ranks above 0 and makes the
  // group usable again. If that fails, every later step fails too.
  void stop_and_recover(const Status& why);

 private:
  struct Rank {
    std::unique_ptr<Engine> engine;
    Device* device = nullptr;
    std::unique_ptr<Mark> mark;  // placed after the last enqueued work
    std::mutex mutex;
    std::condition_variable changed;
    const std::function<Status(Engine&)>* work = nullptr;  // the pending call, or null
    Status status;                                         // result of the last call
    bool ends = false;
    WorkerThread thread;
  };
  explicit OtherRanks(Group& group) : group_(group) {}
  void serve(int number, Rank* rank);
  Status do_work(int number, Rank* rank, const std::function<Status(Engine&)>& work);
  bool is_idle(int number, Rank* rank);

  Group& group_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace sluice
