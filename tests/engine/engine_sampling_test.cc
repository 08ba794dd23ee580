// Penalties, biases and log probabilities of whole engines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "harness/devices.h"
#include "harness/engine_runs.h"
#include "harness/far_model.h"
#include "harness/wrapped_device.h"

namespace sluice::test {
namespace {

class EngineSampling : public ::testing::Test {
 protected:
  std::unique_ptr<Device> device_ = cpu::open_device({.threads = 2}).value();
  DecoderModel model_{small_decoder()};
  std::map<int64_t, Answer> answers(const EngineOptions& options, const std::vector<Request>& requests) {
    return run(*engine_of(*device_, model_, options), requests);
  }
  // The logits from which each token of an answer was drawn.
  std::vector<std::vector<double>> logits_of(const Request& r, const Answer& answer) {
    std::vector<int32_t> tokens = r.prompt;
    tokens.insert(tokens.end(), answer.ids.begin(), answer.ids.end());
    std::vector<int64_t> positions(answer.ids.size());
    std::iota(positions.begin(), positions.end(), static_cast<int64_t>(r.prompt.size()) - 1);
    const auto flat = engine_of(*device_, model_, invariant())->logits(tokens, positions).value();
    std::vector<std::vector<double>> out;
    for (auto row = flat.begin(); row != flat.end(); row += kSmallVocab)
      out.emplace_back(row, row + kSmallVocab);
    return out;
  }
};

std::vector<double> logprobs_of(const std::vector<double>& logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - largest);
  std::vector<double> out;
  for (const double x : logits) out.push_back(x - largest - std::log(sum));
  return out;
}

void expect_logprob(double got, double want) { EXPECT_NEAR(got, want, 0x1p-18 * (1 + std::abs(want))); }

// The logits as vLLM adjusts them, with the tokens before.
std::vector<double> adjusted(std::vector<double> x, const SamplingParams& s,
                             const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  for (const auto& [id, bias] : s.logit_bias) x[static_cast<size_t>(id)] += static_cast<double>(bias);
  for (int32_t id = 0; id < kSmallVocab; ++id) {
    double& logit = x[static_cast<size_t>(id)];
    const auto count = static_cast<double>(std::count(answer.begin(), answer.end(), id));
    const bool prompted = std::count(prompt.begin(), prompt.end(), id) > 0;
    if (prompted || count > 0)
      logit = logit > 0 ? logit / s.repetition_penalty.value_or(1) : logit * s.repetition_penalty.value_or(1);
    logit -= s.frequency_penalty.value_or(0) * count + (count > 0 ? s.presence_penalty.value_or(0) : 0);
  }
  return x;
}

// Greedy answers are the largest of the adjusted logits, and their logprobs and ranks those of the others.
TEST_F(EngineSampling, PenaltiesAndBiasesChangeAnAnswerAsTheContractSays) {
  Request plain{.prompt = {9, 8, 7, 9, 9}};
  plain.sampling.temperature = 0, plain.sampling.max_tokens = 40;
  const Answer without = answers(invariant(), {plain}).at(0);
  std::vector<SamplingParams> ways(6, plain.sampling);
  ways[0].frequency_penalty = 0.4;
  ways[1].presence_penalty = 1.5;
  ways[2].repetition_penalty = 1.7;
  ways[3].logit_bias = {{55, 2.5f}, {without.ids[0], -100.f}};
  ways[4].frequency_penalty = 0.3, ways[4].presence_penalty = 0.2, ways[4].repetition_penalty = 1.2,
  ways[4].logit_bias = {{1, 1.5f}};
  ways[5].frequency_penalty = -0.3;
  for (size_t way = 0; way < ways.size(); ++way) {
    Request r = plain;
    r.sampling = ways[way];
    r.sampling.logprobs = 5;
    const Answer answer = answers(invariant(), {r}).at(0);
    ASSERT_EQ(answer.ids.size(), 40u);
    EXPECT_TRUE(way == 5 || answer.ids != without.ids) << way;
    const auto logits = logits_of(r, answer);
    int changed = 0;
    for (size_t i = 0; i < answer.ids.size(); ++i) {
      const std::vector<int32_t> before(answer.ids.begin(),
                                        answer.ids.begin() + static_cast<std::ptrdiff_t>(i));
      const auto x = adjusted(logits[i], r.sampling, r.prompt, before);
      const auto id = static_cast<size_t>(answer.ids[i]);
      EXPECT_EQ(std::max_element(x.begin(), x.end()) - x.begin(), answer.ids[i]) << way << ", token " << i;
      expect_logprob(answer.logprobs[i], logprobs_of(logits[i])[id]);
      const auto above = std::count_if(logits[i].begin(), logits[i].end(),
                                       [&](double other) { return other > logits[i][id]; });
      EXPECT_EQ(answer.ranks[i], above + 1) << way << ", token " << i;
      changed += above > 0;
    }
    EXPECT_TRUE(way == 5 || changed > 0) << way;
  }
}

TEST_F(EngineSampling, LogprobsAreThoseOfTheLogits) {
  Request r{.prompt = {9, 8, 7}};
  r.sampling.temperature = 0, r.sampling.max_tokens = 20, r.sampling.logprobs = 7;
  const Answer answer = answers(invariant(), {r}).at(0);
  const auto logits = logits_of(r, answer);
  ASSERT_EQ(answer.tops.size(), 20u);
  for (size_t i = 0; i < answer.tops.size(); ++i) {
    const std::vector<double> want = logprobs_of(logits[i]);
    std::vector<int32_t> order(kSmallVocab);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[i][static_cast<size_t>(a)] > logits[i][static_cast<size_t>(b)];
    });
    EXPECT_EQ(answer.ranks[i], 1);
    ASSERT_EQ(answer.tops[i].size(), 7u);
    for (size_t k = 0; k < 7; ++k) {
      EXPECT_EQ(answer.tops[i][k].id, order[k]) << "token " << i << ", place " << k;
      expect_logprob(answer.tops[i][k].logprob, want[static_cast<size_t>(order[k])]);
    }
    EXPECT_EQ(answer.tops[i][0], (TokenLogprob{answer.ids[i], answer.logprobs[i]}));
  }
}

// What is asked beside the tokens changes none of them, and nobody gets what another one asked for.
TEST_F(EngineSampling, ListsAreForThoseWhoAsk) {
  const auto plain = answers(invariant(), some_requests());
  std::vector<Request> requests = some_requests();
  requests[1].sampling.logprobs = 0;
  requests[3].sampling.logprobs = 2;
  const auto got = answers(invariant(), requests);
  for (int64_t i = 0; i < std::ssize(requests); ++i) {
    EXPECT_EQ(got.at(i).ids, plain.at(i).ids) << i;
    const bool ranked = i == 1 || i == 3;
    for (size_t t = 0; t < got.at(i).ids.size(); ++t) {
      EXPECT_EQ(got.at(i).ranks[t] > 0, ranked) << i;
      EXPECT_EQ(got.at(i).tops[t].size(), i == 3 ? 2u : 0u) << i;
      EXPECT_NEAR(got.at(i).logprobs[t], plain.at(i).logprobs[t], 1e-5) << i;
    }
  }
}

TEST_F(EngineSampling, AheadRecordedInChunksAndShortOfPagesGivesTheSameAnswers) {
  const auto wanted = answers(invariant(), adjusted_requests());
  EXPECT_NE(wanted.at(0).ids, answers(invariant(), some_requests()).at(0).ids);
  EngineOptions ahead = invariant();
  ahead.steps_ahead = 1, ahead.recorded_sequences = 8;
  EXPECT_EQ(answers(ahead, adjusted_requests()), wanted);
  ahead.max_num_batched_tokens = 8;
  EXPECT_EQ(answers(ahead, adjusted_requests()), wanted) << "with prompts in pieces";
  EngineOptions scarce = invariant();
  scarce.steps_ahead = 1, scarce.max_model_len = 64;
  // One sequence, and not a page more.
  scarce.kv_cache_bytes = bytes_of_pages(model_.config, scarce.page_size, 32);
  const auto engine = engine_of(*device_, model_, scarce);
  EXPECT_EQ(run(*engine, adjusted_requests()), wanted);
  EXPECT_GT(engine->scheduler().preemptions(), 0);
  PoisonedDevice poisoned(*device_);
  ahead.max_num_batched_tokens = 64;
  EXPECT_EQ(run(*engine_of(poisoned, model_, ahead), adjusted_requests()), wanted);
  const auto alone = engine_of(*device_, model_, ahead);
  int64_t i = 0;
  for (const Request& r : adjusted_requests()) {
    EXPECT_EQ(run(*alone, {r}).at(i), wanted.at(i)) << i;
    ++i;
  }
}

// Steps that request log probabilities are launched, not captured, and leave captured steps as they are.
TEST_F(EngineSampling, StepsWithListsAreNotRecorded) {
  EngineOptions options = invariant();
  options.steps_ahead = 1, options.recorded_sequences = 8;
  const auto engine = engine_of(*device_, model_, options);
  Request r{.prompt = {1, 2, 3}};
  r.sampling.max_tokens = 5, r.sampling.logprobs = 1;
  (void)run(*engine, {r});
  r.sampling.logprobs.reset(), r.sampling.presence_penalty = 1;
  (void)run(*engine, {r});
  EXPECT_EQ(engine->recordings(), 0);
  const auto plain = answers(invariant(), some_requests());
  const auto got = run(*engine, some_requests());
  EXPECT_GT(engine->recordings(), 0);
  for (int64_t i = 0; i < std::ssize(some_requests()); ++i) EXPECT_EQ(got.at(2 + i), plain.at(i)) << i;
}

TEST_F(EngineSampling, GoesOnAfterAFault) {
  const auto wanted = answers(invariant(), adjusted_requests());
  for (const int first : {0, 3, 8}) {
    FailingDevice failing(*device_, first, 2);
    EngineOptions options = invariant();
    options.steps_ahead = 1;
    const auto engine = engine_of(failing, model_, options);
    for (const Request& r : adjusted_requests()) ASSERT_TRUE(engine->add(r).ok());
    std::map<int64_t, Answer> got;
    int faults = 0, steps = 0;
    while (!engine->idle() && ++steps < 1000) {
      const auto tokens = engine->step();
      faults += tokens.ok() ? 0 : 1;
      if (!tokens.ok()) continue;
      for (const GeneratedToken& t : tokens.value()) got[t.request].push(t);
    }
    EXPECT_EQ(faults, 2);
    EXPECT_EQ(got, wanted) << "a fault at wait " << first;
  }
}

TEST(EngineSamplingFar, RunsOnADeviceWithMemoryOfItsOwn) {
  FarModel far;
  const auto wanted = run(*far.plain_engine(), adjusted_requests());
  ASSERT_EQ(wanted.size(), adjusted_requests().size());
  EXPECT_EQ(run(*far.engine(invariant()), adjusted_requests()), wanted);
}

TEST_F(EngineSampling, RefusesWhatIsOutOfRange) {
  const auto engine = engine_of(*device_, model_, roomy());
  const auto refused = [&](auto change) {
    Request r{.prompt = {1}};
    change(r.sampling);
    const auto added = engine->add(r);
    return added.ok() ? "" : added.status().message;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto with = [&](std::optional<double> SamplingParams::*member, double value) {
    return refused([&](SamplingParams& s) { s.*member = value; });
  };
  EXPECT_EQ(with(&SamplingParams::repetition_penalty, 0), "repetition_penalty: wanted 0.01 to 100, found 0");
  EXPECT_NE(with(&SamplingParams::repetition_penalty, nan), "");
  EXPECT_EQ(with(&SamplingParams::frequency_penalty, 2.5), "frequency_penalty: wanted -2 to 2, found 2.5");
  EXPECT_EQ(with(&SamplingParams::presence_penalty, -3), "presence_penalty: wanted -2 to 2, found -3");
  EXPECT_EQ(refused([](SamplingParams& s) { s.logprobs = 21; }), "logprobs: wanted 0 to 20, found 21");
  const auto biased = [&](std::vector<std::pair<int32_t, float>> bias) {
    return refused([&](SamplingParams& s) { s.logit_bias = std::move(bias); });
  };
  EXPECT_EQ(biased({{101, 1.f}}), "logit_bias: wanted tokens from 0 to 100 (the vocabulary), found 101");
  EXPECT_EQ(biased({{-1, 1.f}}), "logit_bias: wanted tokens from 0 to 100 (the vocabulary), found -1");
  EXPECT_EQ(biased({{5, 100.5f}}), "logit_bias of token 5: wanted -100 to 100, found 100.5");
  EXPECT_EQ(biased({{5, 1.f}, {6, 1.f}, {5, 2.f}}), "logit_bias: wanted each token once, found 5 twice");
  EXPECT_TRUE(engine->idle());
}

}  // namespace
}  // namespace sluice::test
