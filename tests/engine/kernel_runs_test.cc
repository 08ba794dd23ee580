// How often kernels have run: held to what steps enqueue, and to the same steps without recordings.
#include <gtest/gtest.h>

#include <map>

#include "backends/cpu/device.h"
#include "backends/cpu/queue.h"
#include "harness/offering_device.h"
#include "harness/sum_filter.h"

namespace sluice::test {
namespace {

std::map<std::string, int64_t> runs_of(const Engine& engine) {
  std::map<std::string, int64_t> out;
  for (const KernelRuns::Entry& e : engine.kernel_runs().all()) {
    EXPECT_TRUE(out.emplace(e.kernel, e.runs).second) << e.kernel << " stands there twice";
    EXPECT_GT(e.runs, 0) << e.kernel;
  }
  return out;
}

// What the CPU gets of the engine's next step, kernels and copies; nothing of it is executed.
int64_t enqueued_by_a_step(Device& device, Engine& engine) {
  int64_t enqueued = 0;
  const auto recording = device.record(device.stream(), [&]() -> Status {
    (void)engine.step();
    enqueued = std::ssize(*cpu::queue_of(device.stream()).recording);
    return {};
  });
  EXPECT_TRUE(recording.ok());
  return enqueued;
}

// A kernel of the CPU enqueues itself once.
int64_t enqueued_by(const Engine& engine) {
  int64_t out = 0;
  for (const auto& [kernel, runs] : runs_of(engine)) out += runs;
  return out;
}

struct StepCase {
  std::vector<Request> requests;
  int64_t copies;
  const char* why;
};

TEST(KernelRuns, AreAllThatAStepEnqueues) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const DecoderModel model(small_decoder());
  const std::vector<Request> filtered = filtered_requests().requests;
  Request prompt = some_requests()[2], with_logprobs = some_requests()[1];
  with_logprobs.sampling.logprobs = 3;
  const StepCase cases[] = {{some_requests(), 2, "prompts, one in part"},
                            {{prompt}, 2, "one prompt"},
                            {{with_logprobs}, 2, "a list of log probabilities"},
                            {adjusted_requests(), 3, "penalties and biases"},
                            {filtered, 4, "filters beside them"}};
  for (const StepCase& c : cases) {
    for (const bool counts : {false, true}) {
      EngineOptions options = roomy();
      options.count_experts = counts;
      const auto engine = engine_of(*device, model, options);
      for (const Request& r : c.requests) ASSERT_TRUE(engine->add(r).ok());
      ASSERT_TRUE(engine->ask_expert_counts().ok());
      const int64_t enqueued = enqueued_by_a_step(*device, *engine);
      EXPECT_EQ(enqueued_by(*engine) + c.copies + (counts ? 1 : 0), enqueued) << c.why;
      EXPECT_EQ(runs_of(*engine).contains("cpu.count_experts.scan"), counts);
    }
  }
}

TEST(KernelRuns, OfAReplayedStepAreThoseOfOneThatIsLaunched) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const DecoderModel model(small_decoder());
  for (const int64_t ahead : {0, 1}) {
    EngineOptions options = roomy();
    options.steps_ahead = ahead, options.recorded_sequences = 0;
    const auto launched = engine_of(*device, model, options);
    const auto wanted = run(*launched, some_requests());
    options.recorded_sequences = 8;
    const auto replayed = engine_of(*device, model, options);
    EXPECT_EQ(run(*replayed, some_requests()), wanted);
    EXPECT_GT(replayed->recordings(), 2);
    auto runs = runs_of(*launched), with_recordings = runs_of(*replayed);
    // A recorded step always takes the tokens of the step before; a launched one only where it needs them.
    const char* take = "cpu.take_tokens.copy";
    EXPECT_EQ(with_recordings.contains(take), ahead > 0);
    EXPECT_GE(with_recordings[take], runs[take]);
    with_recordings.erase(take), runs.erase(take);
    EXPECT_EQ(with_recordings, runs);
  }
}

// Where the host does not read the logits, nobody does in a step of greedy requests that list none.
TEST(KernelRuns, OfGreedyStepsHaveNoLogits) {
  const auto cpu = cpu::open_device({.threads = 1}).value();
  Offering<LinearArgmax> device(*cpu);
  const DecoderModel model(small_decoder());
  Request greedy{.prompt = {3, 1, 4, 1, 5}};
  greedy.sampling.temperature = 0, greedy.sampling.max_tokens = 5;
  Request other = greedy;
  other.prompt = {2, 7, 1};
  Request sampled = other, with_logprobs = other, biased = other;
  sampled.sampling.temperature = 1;
  with_logprobs.sampling.logprobs = 2;
  biased.sampling.logit_bias = {{3, 1.f}};
  constexpr const char *kGreedy = "cpu.linear_argmax.own", *kSample = "cpu.sample.scan";
  for (const int64_t recorded : {0, 8}) {
    const auto answers = [&](const Request& beside, int64_t ahead, std::map<std::string, int64_t>* runs) {
      EngineOptions options = roomy();
      options.steps_ahead = ahead, options.recorded_sequences = recorded;
      const auto engine = engine_of(device, model, options);
      auto out = run(*engine, {greedy, beside});
      *runs = runs_of(*engine);
      return out;
    };
    for (const auto& [beside, alike] : std::vector<std::pair<Request, bool>>{
             {other, true}, {sampled, false}, {with_logprobs, false}, {biased, false}}) {
      std::map<std::string, int64_t> runs, plain;
      EXPECT_EQ(answers(beside, 1, &runs), answers(beside, 0, &plain));
      EXPECT_EQ(plain[kGreedy], 0);
      EXPECT_EQ(runs[kGreedy], alike ? 5 : 0);
      EXPECT_EQ(runs[kSample], alike ? 0 : 5);
    }
  }
}

TEST(KernelRuns, AreOnePerLayerAndStep) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const DecoderModel model(small_decoder());
  const auto engine = engine_of(*device, model, roomy());
  Request r{.prompt = {3, 1, 4, 1, 5}};
  r.sampling.max_tokens = 7;  // of which the prompt's step draws the first
  run(*engine, {r});
  const auto runs = runs_of(*engine);
  const auto kernel_of = [&](const std::string& stage) -> std::string {
    for (const auto& [name, kernel] : engine->decoder().kernels(1, 1))
      if (name == stage) return kernel.substr(0, kernel.find(':'));
    return "";
  };
  const int64_t layers = std::ssize(model.config.layers), steps = 7;
  EXPECT_EQ(runs.at(kernel_of("embed")), steps + 1) << "it gathers the prompt's row of logits, too";
  EXPECT_EQ(runs.at(kernel_of("norm")), (2 * layers + 1) * steps) << "all norms have one kernel here";
  EXPECT_EQ(runs.at(kernel_of("combine")), layers * steps);
  EXPECT_EQ(runs.at(kernel_of("attention.rope+attention.kv_write")), layers * steps);
  EXPECT_EQ(runs.at(kernel_of("route")), layers * steps);
}

}  // namespace
}  // namespace sluice::test
