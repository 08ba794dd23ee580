#pragma once
#include "ops/op.h"

namespace sluice {

enum class RopePairs : uint8_t {
  kHalves,       // (i, i + rotary / 2): NeoX, Llama, gpt-oss
  kInterleaved,  // (2i, 2i + 1): GPT-J, DeepSeek
};
template <>
struct EnumWords<RopePairs> {
  static constexpr std::string_view words[] = {"halves", "interleaved"};
};

// Rotates pairs of elements in each head, in place, by angles that grow with the position.
//
//   with (c, s) = table[positions[t], i] and (a, b) pair i of the `rotary` elements from `first` on:
//   a' = a c - b s,   b' = b c + a s
//
// A token whose position is outside [0, table_rows), -1 by convention, is not changed. The other elements of
// a head are not changed either.
//
// Shapes     x [tokens, heads, head_dim], rows may be strided; positions i32[tokens]; table f32[table_rows,
//            rotary / 2, 2] as rope_table() writes it. tokens >= 0; heads >= 1; rotary even,
//            at least 2; first >= 0; first + rotary <= head_dim <= 1024; table_rows >= 1.
// Types      x bf16 or f32; f32 arithmetic, one rounding.
// Bytes      reads and writes x once.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  3 * 2^-24 * (|a c| + |b s|) + half an ulp; unchanged elements are equal. Numbers below 2^-126
//            may be flushed to zero.
// Source     Su et al., "RoFormer" (2021); openai/gpt-oss gpt_oss/torch/model.py, RotaryEmbedding.
struct Rope {
  static constexpr std::string_view kName = "rope";
  static constexpr std::string_view kSummary =
      "rotates pairs of elements by angles that grow with the position";
  struct Problem {
    int64_t tokens = 1, heads = 64, head_dim = 64, rotary = 64, first = 0, table_rows = 4096;
    RopePairs pairs = RopePairs::kHalves;
    DType x = DType::kBF16;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of x");
      v("heads", p.heads, "heads of each row");
      v("head_dim", p.head_dim, "elements of a head");
      v("rotary", p.rotary, "elements of a head that rotate");
      v("first", p.first, "elements of a head before the rotated elements");
      v("table_rows", p.table_rows, "positions in the table");
      v("pairs", p.pairs, "which elements rotate together");
      v("x", p.x, "type of x");
    }
  };
  struct Args {
    Tensor positions, table, x;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("positions", Role::kIn, DType::kI32, {p.tokens}), &Args::positions);
    v(slot("table", Role::kIn, DType::kF32, {p.table_rows, p.rotary / 2, 2}), &Args::table);
    v(slot("x", Role::kInOut, p.x, {p.tokens, p.heads, p.head_dim}, true, Rows::kMayBeStrided), &Args::x);
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return 3.0 * p.tokens * p.heads * p.rotary; }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const Rope::Problem& problem, const Rope::Args& args);

// The parameters of a rotary table. factor == 1 is plain RoPE; a factor above 1 extends the context as in YaRN.
struct RopeScaling {
  double theta = 150000;           // base of the geometric series of wavelengths; above 1
  double factor = 1;               // context extension; 32 in gpt-oss
  double original_context = 4096;  // context length in training, before extension
  double beta_fast = 32;  // pairs that rotate more often than this over original_context keep their frequency
  double beta_slow = 1;   // pairs that rotate less often get frequency / factor; linear blend in between
  // The variable of the linear blend: a pair's index (YaRN), or its rotations over original_context (Llama 3).
  enum class Blend : uint8_t { kPairs, kRotations } blend = Blend::kPairs;
  double attention_factor = 0;  // multiplies cos and sin; 0: 0.1 ln(factor) + 1
  enum class Truncate : uint8_t {
    kNo,
    kYes
  } truncate = Truncate::kNo;  // whether to round the blend's ends to whole pairs
};

// Fills `table` [rows, rotary / 2, 2] with (cos, sin) of each position and pair, computed in double and
// rounded once to f32. kInvalidArgument: rotary is odd or below 2, rows is negative, or a scaling parameter
// is outside its bounds. Source: Peng et al., "YaRN" (2023), section 3; the blend of openai/gpt-oss (no
// truncation) and of Hugging Face modeling_rope_utils (truncate, llama3).
Status rope_table(const RopeScaling& scaling, int64_t rows, int64_t rotary, float* table);

}  // namespace sluice
