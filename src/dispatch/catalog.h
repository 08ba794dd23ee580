// The tables of candidates, one table per operation.
#pragma once
#include <span>
#include <tuple>
#include <vector>

#include "dispatch/candidate.h"
#include "ops/all.h"

namespace sluice {

// Calls visit.template operator()<Op>() for each operation, in the order of ops/all.h.
template <class Visit>
void for_each_op(Visit visit) {
  [&]<class... Ops>(OpList<Ops...>) { (visit.template operator()<Ops>(), ...); }(AllOps{});
}

namespace detail {
template <class List>
struct Tables;
template <class... Ops>
struct Tables<OpList<Ops...>> {
  using Type = std::tuple<std::vector<const Candidate<Ops>*>...>;
};
}  // namespace detail

class Catalog {
 public:
  template <class Op>
  std::span<const Candidate<Op>* const> table() const {
    return std::get<std::vector<const Candidate<Op>*>>(tables_);
  }
  template <class Op>
  void add(const Candidate<Op>& candidate) {
    std::get<std::vector<const Candidate<Op>*>>(tables_).push_back(&candidate);
  }
  // Appends all entries of `other`.
  void append(const Catalog& other) {
    for_each_op([&]<class Op>() {
      for (const Candidate<Op>* c : other.table<Op>()) add(*c);
    });
  }

 private:
  detail::Tables<AllOps>::Type tables_;
};

}  // namespace sluice
