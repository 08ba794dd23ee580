#pragma once
#include "cases/large/expert_gemm_large.h"
#include "cases/linear.h"
#include "ops/fused/linear_argmax.h"

namespace sluice::test {

template <>
struct Suite<LinearArgmax> {
  static std::vector<Case<LinearArgmax>> cases() {
    constexpr DType kF = DType::kF32;
    constexpr auto kPanels = WeightLayout::kPanels16;
    std::vector<Case<LinearArgmax>> out = {
        {{.tokens = 1, .features = 2003, .width = 2880}, "gpt-oss: a slice of the output layer"},
        {{.tokens = 3, .features = 97, .width = 64}, "narrower than tensor cores accept"},
        {{.tokens = 9, .features = 300, .width = 512, .layout = kPanels}, "panels"},
        {{.tokens = 5, .features = 70, .width = 31, .x = kF, .w = kF}, "all in f32"},
        {{.tokens = 1, .features = 1, .width = 1}, "the smallest sizes"},
        {{.tokens = 2, .features = 1, .width = 128}, "one feature: logprob 0"},
        {{.tokens = 0, .features = 128, .width = 288}, "no tokens"},
        {{.tokens = 16, .features = 180, .width = 1096}, "a full tile of rows; features end within one"},
        {{.tokens = 33, .features = 127, .width = 200}, "one row more than a pass"},
        {{.tokens = 65, .features = 64, .width = 136}, "a whole number of feature blocks"},
        {{.tokens = 129, .features = 130, .width = 264}, "one row and two features more than a tile"},
        {{.tokens = 300, .features = 520, .width = 128}, "several tiles of rows"},
    };
    for (const auto& p : {LinearArgmax::Problem{.tokens = 6, .features = 100, .width = 136},
                          LinearArgmax::Problem{.tokens = 70, .features = 70, .width = 256},
                          LinearArgmax::Problem{.tokens = 6, .features = 20, .width = 24, .x = kF}})
      for (const Fill fill : {Fill::kSomeNan, Fill::kInfinite, Fill::kTiny, Fill::kHuge, Fill::kAllEqual,
                              Fill::kEmpty, Fill::kZerosMixed})
        out.push_back({p, "special values", fill});
    return out;
  }
  static void fill(const LinearArgmax::Problem& p, Fill fill, HostArgs<LinearArgmax>& host, Random& random) {
    fill_linear(LinearArgmax::linear(p), fill, LinearArgmax::linear(host.args(), {}), random);
  }
  // Half of the problems have types, width and layout that tensor cores accept.
  static LinearArgmax::Problem random(Random& r) {
    const Linear::Problem p = Suite<Linear>::random(r);
    return {.tokens = p.tokens,
            .features = coin(r) ? p.features : r.integer(1, 700),
            .width = p.width,
            .x = p.x,
            .w = p.w,
            .layout = p.layout};
  }
};

template <>
inline std::vector<Case<LinearArgmax>> large_cases<LinearArgmax>() {
  return {{{.tokens = 1, .features = 40000, .width = 128},
           "more feature blocks than one pass of the final reduction"},
          {{.tokens = 3, .features = 270000, .width = 128}, "more feature blocks than a thread holds"},
          {{.tokens = 64, .features = 9000, .width = 264}, "more tiles of features than SMs"},
          {{.tokens = 600, .features = 4400, .width = 128}, "more of the largest tiles than SMs"}};
}

}  // namespace sluice::test
