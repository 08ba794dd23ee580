#include "cases/sample.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Sample, Conformance, Sample);

namespace {

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
};

struct Settings {
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
};

// Samples `rows` times from the same logits with seed 42 and steps that begin with `first_step`.
Drawn draw(const std::vector<float>& logits, const Settings& settings, int64_t rows, int64_t first_step) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const Sample::Problem problem{.rows = rows, .vocab = std::ssize(logits)};
  HostArgs<Sample> host(problem, Spread::kContiguous);
  const Sample::Args& a = host.args();
  set_each(a.logits, [&](int64_t, int64_t c) { return logits[static_cast<size_t>(c)]; });
  set_each(a.temperature, [&](int64_t, int64_t) { return settings.temperature; });
  set_each(a.top_k, [&](int64_t, int64_t) { return settings.top_k; });
  set_each(a.top_p, [&](int64_t, int64_t) { return settings.top_p; });
  set_each(a.min_p, [&](int64_t, int64_t) { return settings.min_p; });
  set_each(a.seed, [&](int64_t, int64_t) { return 42; });
  set_each(a.step, [&](int64_t row, int64_t) { return first_step + row; });
  const auto plan = make_plan<Sample>(*device, problem);
  EXPECT_TRUE(plan.ok()) << plan.status().message;
  void* scratch = device->allocate(plan.value().workspace_bytes()).value();
  const Workspace workspace{static_cast<std::byte*>(scratch), plan.value().workspace_bytes()};
  EXPECT_TRUE(plan.value().run(a, workspace, device->stream()).ok());
  device->release(scratch);
  return {{a.token.as<int32_t>(), a.token.as<int32_t>() + rows},
          {a.logprob.as<float>(), a.logprob.as<float>() + rows}};
}

// Pearson's chi-squared statistic of `tokens`; a token of probability 0 must not occur.
double chi_square(const std::vector<int32_t>& tokens, const std::vector<double>& p) {
  std::vector<double> seen(p.size());
  for (const int32_t t : tokens) ++seen[static_cast<size_t>(t)];
  double out = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * static_cast<double>(tokens.size());
    if (expected > 0) {
      out += (seen[i] - expected) * (seen[i] - expected) / expected;
    } else {
      EXPECT_EQ(seen[i], 0) << i;
    }
  }
  return out;
}

std::vector<double> normalised(std::vector<double> weights) {
  double sum = 0;
  for (const double w : weights) sum += w;
  for (double& w : weights) w /= sum;
  return weights;
}

// Weights 1, 2, 4, ... 128 in shuffled order.
const std::vector<float> kLogits = {
    0.f,           3 * 0.6931472f, 0.6931472f, 6 * 0.6931472f, 7 * 0.6931472f, 4 * 0.6931472f, 2 * 0.6931472f,
    5 * 0.6931472f};
// Values of chi-squared that are exceeded by chance once in a thousand, for the degrees of freedom used
// below.
constexpr double kChi7 = 24.32, kChi2 = 13.82, kChi1 = 10.83;
constexpr int64_t kDraws = 20000;

}  // namespace

TEST(SampleTest, FrequenciesMatchProbabilities) {
  const auto at = [](const Settings& s) { return draw(kLogits, s, kDraws, 0).tokens; };
  EXPECT_LT(chi_square(at({}), normalised({1, 8, 2, 64, 128, 16, 4, 32})), kChi7);
  EXPECT_LT(chi_square(at({.temperature = 3}),
                       normalised({1, 2, std::cbrt(2), 4, std::exp2(7 / 3.), std::exp2(4 / 3.),
                                   std::exp2(2 / 3.), std::exp2(5 / 3.)})),
            kChi7);
  EXPECT_LT(chi_square(at({.top_k = 3}), normalised({0, 0, 0, 64, 128, 0, 0, 32})), kChi2);
  EXPECT_LT(chi_square(at({.top_p = 0.7f}), normalised({0, 0, 0, 64, 128, 0, 0, 0})), kChi1);
  EXPECT_LT(chi_square(at({.top_p = 0.76f}), normalised({0, 0, 0, 64, 128, 0, 0, 32})), kChi2);
  EXPECT_LT(chi_square(at({.min_p = 0.2f}), normalised({0, 0, 0, 64, 128, 0, 0, 32})), kChi2);
  // top_p applies after top_k has renormalised: 128 / 192 is below 0.7 and above 0.6.
  EXPECT_LT(chi_square(at({.top_k = 2, .top_p = 0.7f}), normalised({0, 0, 0, 64, 128, 0, 0, 0})), kChi1);
  EXPECT_EQ(chi_square(at({.top_k = 2, .top_p = 0.6f}), {0, 0, 0, 0, 1, 0, 0, 0}), 0);
}

TEST(SampleTest, NarrowCutsAreGreedy) {
  for (const Settings& s : {Settings{.temperature = 0}, Settings{.top_k = 1}, Settings{.top_p = 1e-6f},
                            Settings{.top_p = 0}, Settings{.min_p = 1}, Settings{.temperature = 1e-4f}})
    for (const int32_t token : draw(kLogits, s, 50, 0).tokens) EXPECT_EQ(token, 4);
}

TEST(SampleTest, GreedyTiesGoToTheLowerId) {
  EXPECT_EQ(draw({-1, 2, 2, 2}, {.temperature = 0}, 1, 0).tokens[0], 1);
  EXPECT_EQ(draw({-0.f, 0.f}, {.temperature = 0}, 1, 0).tokens[0], 0);
  EXPECT_EQ(draw({-1, 2, 2, 2}, {.top_k = 1}, 1, 0).tokens[0], 1);
  std::vector<float> wide(30000, 0.f);
  wide[20000] = wide[29999] = 5;
  EXPECT_EQ(draw(wide, {.temperature = 0}, 1, 0).tokens[0], 20000);
}

// A very high temperature makes the k largest logits equally likely: all of them are sampled, and no others.
TEST(SampleTest, TopKKeepsExactlyTheLargest) {
  constexpr int64_t kVocab = 6007, kTopK = 40;  // a prime, so i * 1000 % kVocab is a permutation
  std::vector<float> logits(kVocab);
  for (int64_t i = 0; i < kVocab; ++i) logits[static_cast<size_t>(i)] = static_cast<float>(i * 1000 % kVocab);
  const auto drawn = draw(logits, {.temperature = HUGE_VALF, .top_k = kTopK}, 800, 0).tokens;
  std::set<float> seen;
  for (const int32_t token : drawn) seen.insert(logits[static_cast<size_t>(token)]);
  EXPECT_EQ(std::ssize(seen), kTopK);
  EXPECT_EQ(*seen.begin(), static_cast<float>(kVocab - kTopK));
}

TEST(SampleTest, SeedAndStepDecide) {
  const std::vector<float> flat(1000, 0.f);
  const auto once = draw(flat, {}, 100, 7).tokens, again = draw(flat, {}, 100, 7).tokens;
  EXPECT_EQ(once, again);
  EXPECT_GT(std::set<int32_t>(once.begin(), once.end()).size(), 80u);
  const auto shifted = draw(flat, {}, 99, 8).tokens;
  EXPECT_TRUE(std::equal(shifted.begin(), shifted.end(), once.begin() + 1))
      << "a row's token depends on other rows";
}

TEST(SampleTest, LogprobIgnoresSamplingSettings) {
  const auto drawn = draw(kLogits, {.temperature = 2, .top_k = 4}, 200, 0);
  for (size_t i = 0; i < drawn.tokens.size(); ++i)
    EXPECT_NEAR(drawn.logprobs[i], kLogits[static_cast<size_t>(drawn.tokens[i])] - std::log(255.0), 1e-5);
}

}  // namespace sluice::test
