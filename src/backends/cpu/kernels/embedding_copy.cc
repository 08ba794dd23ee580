// Embedding by copying rows in a plain loop: rows are scattered over the table, and the loop is memory-bound.
//
// Wins    always: it is the only kernel of Embedding on a CPU. It moves only the bytes of the contract.
// Limits  none beyond the contract.
// Source  original; the contract is ops/embedding.h.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "backends/cpu/card.h"
#include "ops/embedding.h"

namespace sluice::cpu {
namespace {

template <class Table, class Y>
void copy_row(const Table* from, Y* to, int64_t n) {
  if constexpr (std::is_same_v<Table, Y>) {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(Y));
  } else if constexpr (std::is_same_v<Y, float>) {
    for (int64_t i = 0; i < n; ++i) to[i] = to_float(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = to_bf16(from[i]);
  }
}

Refusal supports(const Embedding::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const Embedding::Problem& p, const DeviceInfo& d) {
  return roofline_us<Embedding>(p, d, 0.6, d.f32_flops_per_us);
}

Status enqueue(const Embedding::Problem& p, const Embedding::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    q.pool->run(p.tokens, 4, [&](int64_t begin, int64_t end, int) {
      with_float(p.table, [&]<class Table>(const Table*) {
        with_float(p.y, [&]<class Y>(const Y*) {
          for (int64_t t = begin; t < end; ++t) {
            const int64_t id = a.ids.as<int32_t>()[t];
            Y* to = a.y.row<Y>(t);
            if (id >= 0 && id < p.vocab) {
              copy_row(a.table.row<const Table>(id), to, p.hidden);
            } else {
              std::fill_n(to, p.hidden, Y{});
            }
          }
        });
      });
    });
  });
}

}  // namespace

extern const Candidate<Embedding> embedding_copy = {
    .name = "cpu.embedding.copy",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<Embedding>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
