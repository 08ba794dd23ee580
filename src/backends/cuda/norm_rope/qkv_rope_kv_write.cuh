// Shared by the kernels that project to queries, keys and values, rotate them and store
// them: the position and slot of a token, and where elements of its heads are stored.
#pragma once
#include "backends/cuda/linear/linear.h"
#include "backends/cuda/norm_rope/rope_pairs.cuh"
#include "backends/cuda/tile/dependent.cuh"
#include "backends/cuda/tile/divisor.cuh"
#include "backends/cuda/tile/e4m3.cuh"
#include "ops/fused/qkv_rope_kv_write.h"

namespace sluice::cuda {

// C: element type of the caches. Heads are rotated as a whole; the elements of a pair are half a head apart.
template <class C>
struct RotatedOut {
  using B16 = __nv_bfloat16;

  const B16* bias;  // may be null
  const int32_t *positions, *slot_of;
  const float* table;
  B16* qkv;
  C *k_cache, *v_cache;
  int64_t qkv_stride, table_rows, slots;
  tile::Divisor page_size;
  int tokens, heads, kv_heads, half;
  int settled;

  struct Token {
    int position, slot;  // -1: absent

    // Waits for the previous launch, unless positions and slots are settled.
    __device__ __forceinline__ Token(const RotatedOut& out, int token) : position(-1), slot(-1) {
      if (!out.settled) tile::wait_for_previous();
      if (token >= out.tokens) return;
      const int at = out.positions[token], to = out.slot_of[token];
      if (at >= 0 && at < out.table_rows) position = at;
      if (to >= 0 && to < out.slots) slot = to;
    }
  };

  __device__ __forceinline__ bool rotates(const Token& token, int head) const {
    return token.position >= 0 && head < heads + kv_heads;
  }
  // The index of element `of_head` of a head in rows of qkv, weights and biases.
  __device__ __forceinline__ int feature(int head, int of_head) const { return head * 2 * half + of_head; }
  // Offset, in floats, of a pair's (cos, sin) in the table; if the head is not rotated, the offset for position 0.
  __device__ __forceinline__ int64_t angle(const Token& token, int head, int pair) const {
    return (static_cast<int64_t>(rotates(token, head) ? token.position : 0) * half + pair) * 2;
  }

  // Stores N adjacent elements of a head of one token: queries to qkv; keys and values to the token's slot, if it has one.
  template <int N>
  __device__ __forceinline__ void store(int row, const Token& token, int head, int of_head,
                                        const float (&value)[N]) const {
    if (row >= tokens) return;
    if (head < heads) {
      tile::store(qkv + row * qkv_stride + feature(head, of_head), value);
    } else if (token.slot >= 0) {
      const bool key = head < heads + kv_heads;
      const int page = token.slot / page_size, place = token.slot - page * page_size;
      const int kv_head = head - heads - (key ? 0 : kv_heads);
      const int64_t to = (static_cast<int64_t>(page) * kv_heads + kv_head) * page_size + place;
      tile::store((key ? k_cache : v_cache) + to * 2 * half + of_head, value);
    }
  }
};

template <class C>
RotatedOut<C> rotated_out(const QkvRopeKvWrite::Problem& p, const QkvRopeKvWrite::Args& a) {
  const Rope::Problem& rope = p.rope.rope;
  using B16 = __nv_bfloat16;
  return {.bias = p.bias ? a.bias.as<const B16>() : nullptr,
          .positions = a.positions.as<const int32_t>(),
          .slot_of = a.slot_of.as<const int32_t>(),
          .table = a.table.as<const float>(),
          .qkv = a.qkv.as<B16>(),
          .k_cache = static_cast<C*>(a.k_cache.data),
          .v_cache = static_cast<C*>(a.v_cache.data),
          .qkv_stride = a.qkv.stride[0],
          .table_rows = rope.table_rows,
          .slots = p.rope.pages * p.rope.page_size,
          .page_size = tile::Divisor(static_cast<int>(p.rope.page_size)),
          .tokens = static_cast<int>(rope.tokens),
          .heads = static_cast<int>(rope.heads),
          .kv_heads = static_cast<int>(p.rope.kv_heads),
          .half = static_cast<int>(rope.head_dim / 2),
          .settled = p.rope.settled};
}

}  // namespace sluice::cuda
