#pragma once
#include "ops/linear.h"
#include "ops/sample.h"

namespace sluice {

// The output layer of greedy decoding: Linear and a greedy Sample, fused. Only each row's largest logit is needed, so the logits stay
// internal.
//
//   logits[t, n] = sum_k x[t, k] * w[n, k]       in f32
//   token[t]     greedy sampling (ops/sample.h): the largest logit, ties to the lower id, NaN as -inf
//   logprob[t]   ln softmax(logits)[token], as in ops/sample.h
//
// Shapes     x [tokens, width], packed; w as in Linear; token i32[tokens], logprob f32[tokens]. Limits of tokens, features and width
//            as in Linear.
// Types      x bf16 or f32, w bf16 or f32.
// Bytes      w and x once; 2 * tokens * features * width flops.
// Errors     make_plan: kInvalidArgument if the problem violates a limit above. run: never fails on data.
// Exactness  token: any token that may be the largest if each logit is off by up to Linear's bound b. logprob: of the returned token,
//            within 2^-18 * (1 + |ref|) + b[token] + max b. Unspecified if a logit may overflow f32.
// Source     linear.h and sample.h; vLLM and FlashInfer run the two operations unfused.
struct LinearArgmax {
  static constexpr std::string_view kName = "linear_argmax";
  static constexpr std::string_view kSummary = "a dense layer's largest result in each row, and its logprob";
  struct Problem {
    int64_t tokens = 1, features = 201088, width = 2880;
    DType x = DType::kBF16, w = DType::kBF16;
    WeightLayout layout = WeightLayout::kRowMajor;
    bool operator==(const Problem&) const = default;
    template <class V, class P>
    static void fields(V& v, P& p) {
      v("tokens", p.tokens, "rows of x");
      v("features", p.features, "rows of w");
      v("width", p.width, "length of the sums");
      v("x", p.x, "type of the activations");
      v("w", p.w, "type of the weights");
      v("layout", p.layout, "layout of the weights");
    }
  };
  struct Args {
    Tensor x, w, token, logprob;
  };
  template <class V>
  static void slots(const Problem& p, V v) {
    v(slot("x", Role::kIn, p.x, {p.tokens, p.width}), &Args::x);
    Linear::slots(linear(p), [&](const SlotSpec& spec, Tensor Linear::Args::*member) {
      if (member == &Linear::Args::w) v(spec, &Args::w);
    });
    v(slot("token", Role::kOut, DType::kI32, {p.tokens}), &Args::token);
    v(slot("logprob", Role::kOut, DType::kF32, {p.tokens}), &Args::logprob);
  }
  // The two parts.
  static Linear::Problem linear(const Problem& p) {
    return {.tokens = p.tokens,
            .features = p.features,
            .width = p.width,
            .x = p.x,
            .w = p.w,
            .y = DType::kF32,
            .layout = p.layout};
  }
  static Linear::Args linear(const Args& a, const Tensor& logits) {
    return {.x = a.x, .w = a.w, .bias = {}, .residual = {}, .y = logits};
  }
  static Sample::Problem sample(const Problem& p) {
    return {.rows = p.tokens, .vocab = p.features, .greedy = true};
  }
  static Sample::Args sample(const Args& a, const Tensor& logits) {
    return {.logits = logits,
            .temperature = {},
            .top_k = {},
            .top_p = {},
            .min_p = {},
            .seed = {},
            .step = {},
            .token = a.token,
            .logprob = a.logprob};
  }
  static Refusal validate(const Problem& p);
  static double bytes(const Problem& p);
  static double flops(const Problem& p) { return Linear::flops(linear(p)); }
  static Problem at_tokens(Problem p, int64_t n) { return p.tokens = n, p; }
  static int64_t tokens_of(const Problem& p) { return p.tokens; }
};

Expectations reference(const LinearArgmax::Problem& problem, const LinearArgmax::Args& args);

}  // namespace sluice
