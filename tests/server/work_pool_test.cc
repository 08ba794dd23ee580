#include "server/work_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>

namespace sluice {
namespace {

void work_until_stopped(const std::stop_token& stop) {
  while (!stop.stop_requested()) std::this_thread::yield();
}

TEST(WorkPool, WorkStartsInOrder) {
  std::vector<int> order;
  std::promise<void> all;
  WorkPool pool(1);
  for (int i = 0; i < 3; ++i)
    pool.submit({}, [&, i](const std::stop_token&) {
      order.push_back(i);
      if (i == 2) all.set_value();
    });
  all.get_future().wait();
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(WorkPool, CancelledWorkStops) {
  WorkPool pool(1);
  std::promise<void> ended;
  std::stop_source stop;
  pool.submit(stop, [&](const std::stop_token& token) {
    work_until_stopped(token);
    ended.set_value();
  });
  stop.request_stop();
  ended.get_future().wait();
}

TEST(WorkPool, DestructionStopsRunningWorkAndDropsWaitingWork) {
  std::atomic<int> begun = 0, ended = 0;
  {
    WorkPool pool(2);
    for (int i = 0; i < 5; ++i)
      pool.submit({}, [&](const std::stop_token& token) {
        ++begun;
        work_until_stopped(token);
        ++ended;
      });
    while (begun < 2) std::this_thread::yield();
  }
  EXPECT_EQ(begun, 2);
  EXPECT_EQ(ended, 2);
}

}  // namespace
}  // namespace sluice
