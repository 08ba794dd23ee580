// The ranks of an engine but the first (nn/decoder_slice.h).
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

// Each rank has an engine and a thread. The engines never schedule: they enqueue the steps that the first rank's engine has made up,
// from the same chunks, and sample the same tokens.
class OtherRanks {
 public:
  // engines[i] is that of rank i + 1. kOutOfMemory: no thread.
  static Result<std::unique_ptr<OtherRanks>> make(Group& group, std::vector<std::unique_ptr<Engine>> engines,
                                                  std::vector<Device*> devices);
  ~OtherRanks();
  OtherRanks(const OtherRanks&) = delete;
  OtherRanks& operator=(const OtherRanks&) = delete;

  // Calls `work` for each rank on its thread, and `own` on the caller's; returns when all have returned. If one fails, the group is
  // stopped and its status returned. Afterwards each thread watches its device until the work that was enqueued is done, because a
  // rank with a fault must not keep the others waiting.
  Status run(const std::function<Status(Engine&)>& work, const std::function<Status()>& own);
  // Calls `work` for one rank after the other on the caller's thread.
  Status for_each(const std::function<Status(Engine&)>& work);
  // Ends the work of all ranks after a failure of the first, waits for all devices and makes the group usable again. If that fails,
  // every later step fails too.
  void stop_and_recover(const Status& why);

 private:
  struct Rank {
    std::unique_ptr<Engine> engine;
    Device* device = nullptr;
    std::unique_ptr<Mark> mark;  // after the work enqueued last
    std::mutex mutex;
    std::condition_variable changed;
    const std::function<Status(Engine&)>* work = nullptr;  // to be done
    Status status;                                         // of the work done last
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
