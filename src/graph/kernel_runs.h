// Counts kernel runs under the names that explain prints.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace sluice {

class KernelRuns {
 public:
  struct Entry {
    std::string_view kernel;
    int64_t runs = 0;
  };
  // `kernel` must be a candidate's name, whose storage is static. Allocates only for a new name.
  void add(std::string_view kernel, int64_t runs) {
    for (Entry& e : all_)
      if (e.kernel == kernel) return void(e.runs += runs);
    all_.push_back({kernel, runs});
  }
  void add(const KernelRuns& others) {
    for (const Entry& e : others.all_) add(e.kernel, e.runs);
  }
  const std::vector<Entry>& all() const { return all_; }  // in the order of their first runs

 private:
  std::vector<Entry> all_;
};

}  // namespace sluice
