// Handles failed allocations, for example under `ulimit -v` or a container's limit. One request fails, and the others continue.
#pragma once
#include <chrono>
#include <new>
#include <string_view>
#include <thread>
#include <utility>

namespace sluice {

// Runs `f`. Returns false if it threw std::bad_alloc. Used at the top of threads and callbacks; `f` must leave its state consistent when
// it throws.
template <class F>
bool has_memory_for(F&& f) {
  try {
    std::forward<F>(f)();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

// Repeats `f` until it does not throw std::bad_alloc. For work that must not be lost and needs little memory.
template <class F>
void surely(F&& f) noexcept {
  while (!has_memory_for(f)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

// From now on, this thread's failed allocations are retried for up to `longest`. On threads that do not call this function an allocation fails
// immediately, so that a request that needs too much memory fails early and frees its memory.
void be_patient_for_memory(std::chrono::milliseconds longest);

// Throws std::bad_alloc unless there is memory for the values of a JSON text, with room to spare: the JSON library allocates in the values'
// destructor, where a failed allocation would end the process.
void need_memory_for_json(std::string_view text);

}  // namespace sluice
