#include "server/memory.h"

#include <new>
#include <thread>

namespace sluice {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{1};
thread_local SteadyClock::duration patience{0};
thread_local SteadyClock::time_point refused_first, refused_last;

// The new-handler: operator new calls it and retries until the allocation succeeds. Throws after `patience`.
void wait_for_memory() {
  const auto now = SteadyClock::now();
  if (now - refused_last > 50 * kPause) refused_first = now;  // a new allocation, not a retry
  refused_last = now;
  if (now - refused_first >= patience) throw std::bad_alloc();
  std::this_thread::sleep_for(kPause);
}

}  // namespace

void be_patient_for_memory(std::chrono::milliseconds longest) {
  patience = longest;
  std::set_new_handler(wait_for_memory);
}

void need_memory_for_json(std::string_view text) {
  // Upper limit of the memory of one value in an array or object, including its share of the container while the container grows.
  constexpr size_t kBytesOfValue = 256;
  size_t values = 1;
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside && c == '\\') ++i;
    if (c == '"') inside = !inside;
    values += !inside && (c == ',' || c == '[' || c == '{') ? 1 : 0;
  }
  // A new-expression could be optimized away, so this calls operator new by name. The memory is never written, so no page is used.
  void* room = ::operator new(values* kBytesOfValue);
  ::operator delete(room);
}

}  // namespace sluice
