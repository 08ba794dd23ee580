// Decides whether a rule can still end if its calls need new values (Among::kNew): some path to its end must have a different unused value
// for each call.
#pragma once
#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "grammar/program.h"
#include "grammar/work.h"

namespace sluice {

// Tries the paths through the rule. On each of them, bipartite matching with augmenting paths assigns values to calls.
class DistinctSearch {
 public:
  // `used`: hashes of the values that earlier calls produced.
  DistinctSearch(const Program& program, Work* work, std::unordered_set<uint64_t> used)
      : program_(program), work_(work), used_(std::move(used)) {}
  // Whether the rule can end from `state` after `count` counted calls. Also true if the search takes too
  // long.
  bool can_end(int32_t state, int64_t count);

 private:
  // The calls from one state to another, with their possible values. `limited` is false if one of the calls accepts any value, or too many
  // values to list.
  struct Step {
    int32_t to;
    bool counted, limited = true;
    std::vector<uint64_t> values = {};
  };
  const std::vector<Step>& steps_from(int32_t state);
  bool assign(size_t position, std::unordered_set<uint64_t>* seen);
  void give(uint64_t value, size_t position);
  void take_back(size_t changes);

  static constexpr int32_t kLooksMax = 2048;  // maximum visits of states, all paths together
  const Program& program_;
  Work* work_;
  const std::unordered_set<uint64_t> used_;
  int32_t looks_ = kLooksMax;
  std::unordered_map<int32_t, std::vector<Step>> steps_;  // by state: its steps, without used values
  std::vector<const std::vector<uint64_t>*> positions_;   // values of each limited call on the path
  std::unordered_map<uint64_t, size_t> owner_;            // by value: its position, or kNobody
  static constexpr size_t kNobody = SIZE_MAX;
  struct Change {
    uint64_t value;
    size_t before;
  };
  std::vector<Change> changes_;  // of owner_, so that a failed path is undone without a copy of the map
};

}  // namespace sluice
