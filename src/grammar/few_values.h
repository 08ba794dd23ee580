// Lists the values that a rule matches, if there are few.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "grammar/program.h"
#include "grammar/work.h"

namespace sluice {

class FewValues {
 public:
  FewValues(const Program& program, Work* work, int64_t most = 64)
      : program_(program), work_(work), max_(most), steps_(64 * most) {}
  // Every value as single-line JSON text, once with and once without blanks. nullopt: there are too many values, or the search takes too
  // long.
  std::optional<std::vector<std::string>> texts_of(Callee callee);
  // The number of values; nullopt as for texts_of().
  std::optional<int64_t> count_of(Callee callee);

 private:
  using Texts = std::vector<std::string>;
  // A path through a rule so far.
  struct Way {
    int32_t state;
    int64_t count = 0;
    std::string text = {};
    Dependencies::Members present = {}, wanted = {};
    std::unordered_set<uint64_t> noted = {};
  };
  std::optional<Texts> spelled(Callee callee, int depth);
  std::optional<Texts> of_leaf(const Leaf& leaf);
  std::optional<Texts> of_rule(int32_t rule, int depth);

  static constexpr int64_t kDepthMax = 8;
  const Program& program_;
  Work* work_;
  const int64_t max_;
  int64_t steps_;
  bool spaced_ = false;
};

}  // namespace sluice
