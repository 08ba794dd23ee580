// One warp computes ops/route_topk.h for one token: from logits, a hash table or given ids to ids, weights and `captured` ids.
#pragma once
#include "backends/cuda/tile/shared_slots.cuh"
#include "backends/cuda/tile/topk.cuh"
#include "backends/cuda/tile/vector.cuh"

namespace sluice::cuda::tile {

// A RouteTopk problem and its tensors, as a kernel parameter.
struct Routing {
  TokenRule rule;
  RoutingInput input = RoutingInput::kLogits;
  ExpertScope scope = ExpertScope::kAll;
  int by_logits = 0;  // the experts are chosen by logits, not by a table or given ids
  int bf16 = 0;
  int wide = 0;  // a lane may load its logits 8 or 16 bytes at a time
  int tokens = 0, vocab = 0, shared_slots = 0, slots = 0;
  int expert_begin = 0, expert_count = 0, first_shared = 0;
  float scale = 1, shared_weight = 1;
  const void* logits = nullptr;
  int64_t logits_stride = 0;
  const float *bias = nullptr, *weights_in = nullptr;
  const int32_t *hash_table = nullptr, *token_ids = nullptr, *expert_map = nullptr, *tokens_valid = nullptr;
  const int32_t *ids_in = nullptr, *packed_in = nullptr;
  int32_t *ids = nullptr, *captured = nullptr;
  float* weights = nullptr;
};

inline Routing routing(const RouteTopk::Problem& p, const RouteTopk::Args& a) {
  constexpr uintptr_t kBytes = 16;
  const bool aligned = reinterpret_cast<uintptr_t>(a.logits.data) % kBytes == 0 &&
                       static_cast<uintptr_t>(bytes_of(p.logits, a.logits.stride[0])) % kBytes == 0;
  const SharedSlots shared = shared_slots(p);
  return {.rule = token_rule(p),
          .input = p.input,
          .scope = p.scope,
          .by_logits = p.input == RoutingInput::kLogits && !routing_rule(p.method).by_hash,
          .bf16 = p.logits == DType::kBF16,
          .wide = aligned && p.experts % experts_per_lane(p.experts) == 0,
          .tokens = static_cast<int>(p.tokens),
          .vocab = static_cast<int>(p.vocab),
          .shared_slots = static_cast<int>(shared.count),
          .slots = static_cast<int>(shared.all),
          .expert_begin = static_cast<int>(p.expert_begin),
          .expert_count = static_cast<int>(p.expert_count),
          .first_shared = shared.first_id,
          .scale = p.scale_here ? static_cast<float>(p.scale) : 1.f,
          .shared_weight = shared.weight,
          .logits = a.logits.data,
          .logits_stride = a.logits.stride[0],
          .bias = a.bias.as<const float>(),
          .weights_in = a.weights_in.as<const float>(),
          .hash_table = a.hash_table.as<const int32_t>(),
          .token_ids = a.token_ids.as<const int32_t>(),
          .expert_map = a.expert_map.as<const int32_t>(),
          .tokens_valid = a.tokens_valid.as<const int32_t>(),
          .ids_in = a.ids_in.as<const int32_t>(),
          .packed_in = a.packed_in.as<const int32_t>(),
          .ids = a.ids.as<int32_t>(),
          .captured = a.captured.as<int32_t>(),
          .weights = a.weights.as<float>()};
}

// The score with which a kernel is instantiated for a problem: kLogit for a softmax over all experts, and if the caller passes the choice.
inline RoutingRule::Score score_kind(const RouteTopk::Problem& p) {
  using Score = RoutingRule::Score;
  const Score score = routing_rule(p.method).score;
  return p.input != RoutingInput::kLogits || score == Score::kSoftmaxAll ? Score::kLogit : score;
}

// A lane's part of a row of logits, as in memory if the row is `wide`, otherwise as f32.
// Unpacked only when it is used, because an instruction that reads it waits for the load.
template <int N>
struct RawLogits {
  alignas(16) uint32_t word[N] = {};
};

template <int N, class T>
__device__ __forceinline__ void load_words(RawLogits<N>& raw, const T* row) {
  constexpr int kWords = N * static_cast<int>(sizeof(T)) / 4;  // 32-bit words of N elements of T
  if constexpr (N == 1) {
    raw.word[0] = __float_as_uint(to_f32(row[0]));
  } else if constexpr (kWords % 4 == 0) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      *reinterpret_cast<uint4*>(raw.word + i) = reinterpret_cast<const uint4*>(row)[i / 4];
  } else {
#pragma unroll
    for (int i = 0; i < kWords; i += 2)
      *reinterpret_cast<uint2*>(raw.word + i) = reinterpret_cast<const uint2*>(row)[i / 2];
  }
}

template <int N, bool kPlain, class T>
__device__ __forceinline__ void load_row(RawLogits<N>& raw, const Routing& r, int token) {
  const int first = static_cast<int>(threadIdx.x % 32) * N;
  const T* row = static_cast<const T*>(r.logits) + token * r.logits_stride + first;
  if (kPlain || r.wide) {
    if (kPlain || first < r.rule.experts) load_words(raw, row);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i)
      if (first + i < r.rule.experts) raw.word[i] = __float_as_uint(to_f32(row[i]));
  }
}
template <int N, bool kPlain>
__device__ __forceinline__ void load_logits(RawLogits<N>& raw, const Routing& r, int token) {
  if (r.bf16) {
    load_row<N, kPlain, __nv_bfloat16>(raw, r, token);
  } else {
    load_row<N, kPlain, float>(raw, r, token);
  }
}

// Unpacks the logits of this lane's experts; -inf past the last expert.
template <int N, bool kPlain>
__device__ __forceinline__ void take_apart(float (&logit)[N], const Routing& r, const RawLogits<N>& raw) {
  const int first = static_cast<int>(threadIdx.x % 32) * N;
  const bool pairs = r.bf16 && (kPlain || r.wide) && N > 1;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const uint32_t pair = raw.word[i / 2];
    const uint32_t bits = pairs ? (i % 2 ? pair & 0xffff0000u : pair << 16) : raw.word[i];
    logit[i] = kPlain || first + i < r.rule.experts ? __uint_as_float(bits) : -INFINITY;
  }
}

// The biases of a lane's experts, or zeros if there are none. They are weights, so this may precede wait_for_previous().
template <int N>
__device__ __forceinline__ void load_bias(float (&bias)[N], const Routing& r) {
  const int first = static_cast<int>(threadIdx.x % 32) * N;
#pragma unroll
  for (int i = 0; i < N; ++i) bias[i] = r.bias && first + i < r.rule.experts ? r.bias[first + i] : 0.f;
}

__device__ __forceinline__ float logit_at(const Routing& r, int token, int expert) {
  const int64_t at = token * r.logits_stride + expert;
  return r.bf16 ? to_f32(static_cast<const __nv_bfloat16*>(r.logits)[at])
                : static_cast<const float*>(r.logits)[at];
}

// The case of most layers: logits in aligned rows of 32 N experts, no padding, no captured ids, no map
// of ids, no shared slots. Every kernel is instantiated for this case (kPlain) and for all others.
inline bool is_plain(const Routing& r) {
  return r.by_logits && r.wide && r.rule.experts == 32 * experts_per_lane(r.rule.experts) &&
         r.scope == ExpertScope::kAll && !r.tokens_valid && !r.captured && r.shared_slots == 0 &&
         r.rule.scratch_words == 0;
}

// The experts of a token as the caller passes them or as a hash table lists them.
template <RoutingRule::Score kScore>
__device__ __forceinline__ Chosen choose_given(const Routing& r, int token, int lane) {
  const int64_t at = static_cast<int64_t>(token) * r.rule.top_k + lane;
  int expert = -1;
  float x = 0;
  if (lane < r.rule.top_k) {
    if (r.input == RoutingInput::kLogits) {
      const int row = r.token_ids[token];
      if (row >= 0 && row < r.vocab) expert = r.hash_table[static_cast<int64_t>(row) * r.rule.top_k + lane];
    } else if (r.input == RoutingInput::kPacked) {
      const int32_t packed = r.packed_in[at];
      expert = packed >> 16;
      x = __uint_as_float(static_cast<uint32_t>(packed) << 16);
    } else {
      expert = r.ids_in[at];
      x = r.weights_in[at];
    }
  }
  if (expert < 0 || expert >= r.rule.experts) expert = -1;
  if (r.input != RoutingInput::kLogits) return {expert, expert < 0 ? 0.f : x};
  if (expert >= 0) x = logit_at(r, token, expert);
  return {expert, weigh<kScore>(r.rule, x, expert < 0, {})};
}

// The id of an expert as written to the output.
__device__ __forceinline__ int scoped(const Routing& r, int expert) {
  if (expert < 0 || r.scope == ExpertScope::kAll) return expert;
  if (r.scope == ExpertScope::kMap) return max(r.expert_map[expert], -1);
  const int local = expert - r.expert_begin;
  return local >= 0 && local < r.expert_count ? local : -1;
}

// Chooses the experts of a token, which must not be padding. raw: the result of load_logits if r.by_logits.
template <int N, RoutingRule::Score kScore, bool kPlain>
__device__ __forceinline__ Chosen choose_token(const Routing& r, int token, const RawLogits<N>& raw,
                                               const float (&bias)[N], uint32_t* scratch) {
  if (!kPlain && !r.by_logits) return choose_given<kScore>(r, token, static_cast<int>(threadIdx.x % 32));
  float logit[N];
  take_apart<N, kPlain>(logit, r, raw);
  return choose_experts<N, kScore, kPlain>(r.rule, logit, bias, scratch,
                                           [&](int expert) { return logit_at(r, token, expert); });
}

// Calls put(slot, id, weight) for each slot of a token, from one lane per slot, and writes `captured`. real: the token is not padding.
template <bool kPlain, class Put>
__device__ __forceinline__ void put_token(const Routing& r, int token, bool real, Chosen chosen, Put put) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  if (lane < r.rule.top_k) {
    put(lane, kPlain ? chosen.expert : scoped(r, chosen.expert), chosen.weight * r.scale);
    if (!kPlain && r.captured) r.captured[static_cast<int64_t>(token) * r.rule.top_k + lane] = chosen.expert;
  }
  if (!kPlain && lane < r.shared_slots)
    put(r.rule.top_k + lane, real ? r.first_shared + lane : -1, real ? r.shared_weight : 0.f);
}

// Writes a token's ids, weights and `captured`, and calls place(slot, id) for each
// slot, from one lane per slot. Called by all lanes, after wait_for_previous().
template <bool kPlain = false, class Place>
__device__ __forceinline__ void emit_token(const Routing& r, int token, bool real, Chosen chosen,
                                           Place place) {
  const int64_t first = static_cast<int64_t>(token) * r.slots;
  put_token<kPlain>(r, token, real, chosen, [&](int slot, int id, float weight) {
    place(slot, id);
    r.ids[first + slot] = id;
    r.weights[first + slot] = weight;
  });
}

}  // namespace sluice::cuda::tile
