// What happens where the system refuses memory: a bound as `ulimit -v` or a container's. One request fails, and nobody else.
#pragma once
#include <chrono>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

namespace sluice {

// Whether `f` found the memory that it wanted. At the edges of threads; what `f` had begun it must have left in order.
template <class F>
bool has_memory_for(F&& f) {
  try {
    std::forward<F>(f)();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// For what must not be lost, and wants little memory: waits until there is some.
template <class F>
void surely(F&& f) noexcept {
  while (!has_memory_for(f)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// From now on this thread waits up to `most` for memory that is refused, before it counts as refused: a request that wants too much
// fails at once on a thread without patience, and gives back what it took.
void be_patient_for_memory(std::chrono::milliseconds most);

// Throws std::bad_alloc where there is no memory for the values of a JSON text. Values that are being destroyed want memory, too, and
// must get it: so a text is read only where there is room to spare.
void need_memory_for_json(std::string_view text);

}  // namespace sluice
