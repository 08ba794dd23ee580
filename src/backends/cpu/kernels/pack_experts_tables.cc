// Packs experts by tables: one lookup gives the bits of a word that a byte (two codes) sets; four bytes make a word.
//
// Wins    always: it is the only kernel of PackExperts on a CPU. It is nearly memory-bound, and a
//         row block stays in the cache until it is done.
// Limits  none beyond the contract.
// Source  original; the contract is ops/pack_experts.h, the loops are in ops/fragment_codec.h.
#include <algorithm>

#include "backends/cpu/card.h"
#include "ops/fragment_codec.h"
#include "ops/pack_experts.h"

namespace sluice::cpu {
namespace {

struct Rows {
  FragmentRowsOut codes{}, scales{};
  FragmentRows codes_in{}, scales_in{};
};
Rows rows_of(const PackExperts::Problem& p, const PackExperts::Args& a, int64_t expert, int64_t block) {
  Rows out;
  for (int64_t r = 0; r < kFragmentRows; ++r) {
    const int64_t row = PackExperts::source_row(p, {block, r});
    if (row < 0) continue;
    const int64_t flat = expert * PackExperts::weight_rows(p) + row;
    const auto at = static_cast<size_t>(r);
    out.codes_in[at] = out.codes[at] = a.rows.as<std::byte>() + flat * PackExperts::row_bytes(p);
    if (PackExperts::format(p).scaled())
      out.scales_in[at] = out.scales[at] =
          a.row_scales.as<std::byte>() + flat * PackExperts::row_scale_bytes(p);
  }
  return out;
}

void one_block(const PackExperts::Problem& p, const PackExperts::Args& a, int64_t expert, int64_t block) {
  const FragmentShape s = PackExperts::shape(p);
  const WeightFormat f = PackExperts::format(p);
  const Rows rows = rows_of(p, a, expert, block);
  std::byte* scales = f.scaled() ? a.packed_scales.as<std::byte>() + expert * s.scale_bytes(f) : nullptr;
  const FragmentBlock at =
      fragment_block(s, f, a.packed.as<std::byte>() + expert * s.code_bytes(f), scales, block);
  if (!f.scaled()) {
    p.unpack ? unpack_fragment_rows_bf16(at.codes, p.width, rows.codes)
             : pack_fragment_rows_bf16(rows.codes_in, p.width, at.codes);
    return;
  }
  if (p.unpack) return unpack_fragment_rows(f, at, p.width, rows.codes, rows.scales);
  pack_fragment_rows(f, p.gated, rows.codes_in, rows.scales_in, p.width, at);
  if (block + 1 == s.row_blocks)
    std::fill(at.top + fragment_top_bytes(f), scales + s.scale_bytes(f), std::byte{0});
}

Refusal supports(const PackExperts::Problem&, const DeviceInfo&) { return {}; }

double cost_us(const PackExperts::Problem& p, const DeviceInfo& d) {
  return roofline_us<PackExperts>(p, d, 0.3, d.f32_flops_per_us);
}

Status enqueue(const PackExperts::Problem& p, const PackExperts::Args& a, Workspace, Stream s) {
  return submit(s, [p, a](Queue& q) {
    const int64_t blocks = PackExperts::shape(p).row_blocks;
    q.pool->run(p.experts * blocks, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) one_block(p, a, i / blocks, i % blocks);
    });
  });
}

}  // namespace

extern const Candidate<PackExperts> pack_experts_tables = {
    .name = "cpu.pack_experts.tables",
    .backend = Backend::kCpu,
    .supports = supports,
    .cost_us = cost_us,
    .workspace_bytes = no_workspace<PackExperts>,
    .enqueue = enqueue,
    .batch_invariant = true,
};

}  // namespace sluice::cpu
