// Engines whose model is divided among several CPU devices.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "backends/backends.h"
#include "harness/devices.h"
#include "harness/engine_runs.h"
#include "harness/model_copy.h"
#include "harness/random_gpt_oss.h"
#include "harness/recorded_logits.h"
#include "harness/sum_filter.h"
#include "harness/wrapped_device.h"
#include "models/draft.h"
#include "models/load.h"

namespace sluice::test {
namespace {

// Fails the copy that follows a fixed number of successful copies.
class RankDevice final : public WrappedDevice {
 public:
  using WrappedDevice::WrappedDevice;
  Status copy(void* to, const void* from, size_t bytes, Stream s) override {
    if (copies_left == 0) return Status{Code::kDevice, "a copy failed"};
    if (copies_left > 0) --copies_left;
    return inner_.copy(to, from, bytes, s);
  }
  int copies_left = -1;  // none fails
};

// A model on `ranks` CPU devices with a thread each.
class RanksModel {
 public:
  RanksModel(const std::string& directory, int64_t ranks, DType x,
             LoadFormat format = LoadFormat::kSafetensors, CacheType cache = CacheType::kSame,
             bool expert_parallel = false) {
    std::vector<Device*> devices;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      owned_.push_back(cpu::open_device({.threads = 1}).value());
      devices.push_back(owned_.back().get());
      wrapped.push_back(std::make_unique<RankDevice>(*owned_.back()));
      auto made =
          LoadedModel::load(*owned_.back(), directory,
                            {.x = x,
                             .slice = {.rank = rank, .ranks = ranks, .expert_parallel = expert_parallel},
                             .format = format});
      EXPECT_TRUE(made.ok()) << made.status().message;
      models.push_back(std::move(made).value());
      configs.push_back(models.back()->config().decoder.with_caches(cache));
    }
    if (ranks > 1) group = make_group(devices).value();
  }
  std::unique_ptr<Engine> engine(EngineOptions options) {
    options.group = group.get();
    for (size_t i = 1; i < models.size(); ++i)
      options.other_ranks.push_back({wrapped[i].get(), &configs[i], &models[i]->weights()});
    return engine_of(*wrapped.front(), configs.front(), models.front()->weights(), options);
  }

 private:
  std::vector<std::unique_ptr<Device>> owned_;

 public:
  std::vector<std::unique_ptr<RankDevice>> wrapped;
  std::unique_ptr<Group> group;
  std::vector<std::unique_ptr<LoadedModel>> models;
  std::vector<DecoderConfig> configs;
};

// A random gpt-oss model whose heads four ranks divide.
class RandomDirectory {
 public:
  RandomDirectory() : path_(testing::TempDir() + "sluice_ranks_" + std::to_string(getpid())) {
    std::filesystem::create_directories(path_);
    write_random_gpt_oss(path_);
  }
  ~RandomDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

EngineOptions shipped_options() {
  return {.max_model_len = 2048, .max_num_seqs = 4, .max_num_batched_tokens = 100};
}

// The bounds of models/parity_test.cc, which tests one device.
TEST(EngineRanks, LogitsOfTheShippedModelAreWithinTheNoiseOfItsRoundings) {
  RanksModel m(kShipped, 2, DType::kBF16);
  const auto engine = m.engine(shipped_options());
  const auto file = Checkpoint::open(recorded_file());
  ASSERT_TRUE(file.ok()) << file.status().message;
  for (const char* prompt : kPrompts) {
    const Recorded r = recorded(*file.value(), prompt);
    const auto got = engine->logits(r.ids, r.positions);
    ASSERT_TRUE(got.ok()) << got.status().message;
    for (size_t row = 0; row < r.positions.size(); ++row) {
      const Distance d = distance(r, got.value(), row, 1);
      EXPECT_LE(d.rms, 4) << prompt;
      EXPECT_LE(d.most, 2) << prompt;
    }
  }
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double most = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

// In f32 the parts are added in another order, and nothing else differs. Dummy weights are those of the same model for any number of
// ranks.
TEST(EngineRanks, LogitsInF32AreThoseOfOneDeviceUpToTheOrderOfSums) {
  const RandomDirectory directory;
  std::vector<int32_t> prompt;
  Random random(3);
  for (int i = 0; i < 70; ++i) prompt.push_back(static_cast<int32_t>(random.integer(0, 999)));
  for (const LoadFormat format : {LoadFormat::kSafetensors, LoadFormat::kDummy}) {
    const auto logits = [&](int64_t ranks) {
      RanksModel m(directory.path(), ranks, DType::kF32, format);
      const auto engine = m.engine({.max_model_len = 128, .max_num_seqs = 2, .max_num_batched_tokens = 32});
      auto out = engine->logits(prompt, {0, 31, 69});
      EXPECT_TRUE(out.ok()) << out.status().message;
      return out.ok() ? out.value() : std::vector<float>{};
    };
    const std::vector<float> one = logits(1), two = logits(2);
    double largest = 0;
    for (const float x : one) largest = std::max(largest, std::abs(static_cast<double>(x)));
    EXPECT_GT(largest, 0.1);
    EXPECT_LT(largest_difference(one, two), 1e-4 * largest);
    EXPECT_EQ(two, logits(2)) << "other bits in another run";
  }
}

std::map<int64_t, Answer> answers(RanksModel& m, EngineOptions options,
                                  const std::vector<Request>& requests) {
  return run(*m.engine(std::move(options)), requests);
}

void expect_same_tokens(const std::map<int64_t, Answer>& got, const std::map<int64_t, Answer>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (const auto& [request, answer] : wanted) {
    EXPECT_EQ(got.at(request).ids, answer.ids) << "request " << request;
    EXPECT_EQ(got.at(request).finish, answer.finish) << "request " << request;
  }
}

TEST(EngineRanks, AnswersAreThoseOfOneDevice) {
  RanksModel one(kShipped, 1, DType::kF32), two(kShipped, 2, DType::kF32);
  for (const auto& requests : {some_requests(1000), adjusted_requests(1000)})
    for (const int64_t ahead : {0, 1})
      for (const int64_t recorded : {0, 4}) {
        EngineOptions options = invariant();
        const auto wanted = answers(one, options, requests);
        options.steps_ahead = ahead, options.recorded_sequences = recorded;
        expect_same_tokens(answers(two, options, requests), wanted);
      }
}

TEST(EngineRanks, CachesInFp8AreDividedToo) {
  RanksModel one(kShipped, 1, DType::kF32, LoadFormat::kSafetensors, CacheType::kE4M3),
      two(kShipped, 2, DType::kF32, LoadFormat::kSafetensors, CacheType::kE4M3);
  EXPECT_EQ(2 * two.engine(roomy())->memory().kv_cache_bytes, one.engine(roomy())->memory().kv_cache_bytes);
  expect_same_tokens(answers(two, invariant(), some_requests(1000)),
                     answers(one, invariant(), some_requests(1000)));
}

// Ranks have whole experts: 16 on two ranks, and 8 on four.
TEST(EngineRanks, WholeExpertsOnEachRankGiveTheSameAnswers) {
  RanksModel one(kShipped, 1, DType::kF32);
  RanksModel two(kShipped, 2, DType::kF32, LoadFormat::kSafetensors, CacheType::kSame, true);
  EXPECT_EQ(two.configs[1].moe().expert_begin, 8);
  EXPECT_EQ(two.configs[1].moe().intermediate, one.configs[0].moe().intermediate);
  for (const auto& requests : {some_requests(1000), adjusted_requests(1000)})
    expect_same_tokens(answers(two, invariant(), requests), answers(one, invariant(), requests));

  RandomDirectory directory;
  Json config = parse_json(kRandomGptOss, "config").value();
  config["num_key_value_heads"] = 4;
  std::ofstream(directory.path() + "/config.json") << config.dump();
  RanksModel whole(directory.path(), 1, DType::kF32, LoadFormat::kDummy),
      four(directory.path(), 4, DType::kF32, LoadFormat::kDummy, CacheType::kSame, true);
  expect_same_tokens(answers(four, invariant(), some_requests(1000)),
                     answers(whole, invariant(), some_requests(1000)));
}

TEST(EngineRanks, PreemptedRequestsAndPrefixesGiveTheSameAnswers) {
  RanksModel one(kShipped, 1, DType::kF32), two(kShipped, 2, DType::kF32);
  EngineOptions options = invariant();
  const auto wanted = answers(one, options, some_requests(1000));
  options.max_model_len = 64;
  options.kv_cache_bytes = bytes_of_pages(two.configs.front(), options.page_size, 32);
  const auto engine = two.engine(options);
  expect_same_tokens(run(*engine, some_requests(1000)), wanted);
  EXPECT_GT(engine->scheduler().preemptions(), 0);
  // The same prompts again, whose pages are cached.
  for (int round = 0; round < 2; ++round) {
    Request r = some_requests(1000)[2];
    ASSERT_TRUE(engine->add(r).ok());
    Answer again;
    while (!engine->idle()) {
      const auto tokens = engine->step();
      ASSERT_TRUE(tokens.ok()) << tokens.status().message;
      for (const GeneratedToken& t : tokens.value()) {
        again.push(t);
        EXPECT_TRUE(round == 0 || t.cached_tokens > 0);
      }
    }
    EXPECT_EQ(again.ids, wanted.at(2).ids);
  }
}

TEST(EngineRanks, FiltersMaskTheSameTokensOnAllRanks) {
  RanksModel one(kShipped, 1, DType::kF32), two(kShipped, 2, DType::kF32);
  std::vector<Request> requests = some_requests(1000);
  for (Request& r : requests) r.filter = std::make_shared<SumFilter>(5, 1024);
  std::vector<Request> same = some_requests(1000);
  for (Request& r : same) r.filter = std::make_shared<SumFilter>(5, 1024);
  expect_same_tokens(answers(two, invariant(), requests), answers(one, invariant(), same));
}

// Rank 0 drafts, and all ranks verify.
TEST(EngineRanks, DraftsDoNotChangeAnswers) {
  RanksModel two(kShipped, 2, DType::kF32);
  for (const auto& requests : {some_requests(1000), adjusted_requests(1000)}) {
    const auto wanted = answers(two, invariant(), requests);
    for (const int64_t recorded : {0, 4}) {
      EngineOptions options = invariant();
      options.recorded_sequences = recorded;
      options.speculation = {.method = DraftMethod::kNgram,
                             .num_speculative_tokens = 3,
                             .prompt_lookup_min = 1,
                             .prompt_lookup_max = 3,
                             .by_cost = false};
      const auto engine = two.engine(options);
      EXPECT_EQ(run(*engine, requests), wanted);
      EXPECT_GT(engine->draft_counts().accepted, 0);
    }
  }
}

// The head's drafts depend on hidden states, so the same drafts are accepted as on one device.
TEST(EngineRanks, ADraftHeadRunsOnRank0) {
  RanksModel one(kShipped, 1, DType::kF32), two(kShipped, 2, DType::kF32);
  DraftCounts counts[2];
  std::map<int64_t, Answer> got[2];
  for (RanksModel* m : {&one, &two}) {
    const int at = m == &two ? 1 : 0;
    const auto head =
        LoadedDraft::load_eagle3(*m->wrapped.front(), SLUICE_SOURCE_DIR "/models/sluice-16e-tiny-eagle3",
                                 *m->models.front(), {.x = DType::kF32});
    ASSERT_TRUE(head.ok()) << head.status().message;
    EngineOptions options = invariant();
    options.speculation = {.method = DraftMethod::kEagle3, .num_speculative_tokens = 3, .by_cost = false};
    options.draft_head = DraftHead{head.value()->config(), &head.value()->weights()};
    const auto engine = m->engine(options);
    got[at] = run(*engine, some_requests(1000));
    counts[at] = engine->draft_counts();
  }
  expect_same_tokens(got[1], got[0]);
  expect_same_tokens(got[1], answers(two, invariant(), some_requests(1000)));
  EXPECT_GT(counts[0].accepted, 0);
  EXPECT_EQ(counts[1].draft_tokens, counts[0].draft_tokens);
  EXPECT_EQ(counts[1].accepted, counts[0].accepted);
}

TEST(EngineRanks, CancelledRequestsLeaveTheOthersAlone) {
  RanksModel one(kShipped, 1, DType::kF32), two(kShipped, 2, DType::kF32);
  const auto wanted = answers(one, invariant(), some_requests(1000));
  const auto engine = two.engine(invariant());
  for (const Request& r : some_requests(1000)) ASSERT_TRUE(engine->add(r).ok());
  std::map<int64_t, Answer> got;
  for (int step = 0; !engine->idle(); ++step) {
    if (step == 3) engine->cancel(1);
    const auto tokens = engine->step();
    ASSERT_TRUE(tokens.ok()) << tokens.status().message;
    for (const GeneratedToken& t : tokens.value()) got[t.request].push(t);
  }
  for (const int64_t request : {0, 2, 3, 4}) EXPECT_EQ(got.at(request).ids, wanted.at(request).ids);
}

// Each failure ends its step with one error on all ranks; the requests then continue from their tokens.
TEST(EngineRanks, AFailureOfAnyRankIsOneErrorAndTheNextStepRecovers) {
  RanksModel one(kShipped, 1, DType::kF32), two(kShipped, 2, DType::kF32);
  const auto wanted = answers(one, invariant(), some_requests(1000));
  const auto engine = two.engine(invariant());
  for (const Request& r : some_requests(1000)) ASSERT_TRUE(engine->add(r).ok());
  std::map<int64_t, Answer> got;
  int failures = 0;
  for (int step = 0; !engine->idle(); ++step) {
    RankDevice& device = *two.wrapped[static_cast<size_t>(step / 3 % 2)];
    if (step % 3 == 2 && step < 12) device.copies_left = 0;
    const auto begin = std::chrono::steady_clock::now();
    const auto tokens = engine->step();
    if (device.copies_left == 0) {
      EXPECT_EQ(tokens.status().message, "rank " + std::to_string(step / 3 % 2) + ": a copy failed");
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
      device.copies_left = -1;
      ++failures;
      continue;
    }
    ASSERT_TRUE(tokens.ok()) << tokens.status().message;
    for (const GeneratedToken& t : tokens.value()) got[t.request].push(t);
  }
  EXPECT_EQ(failures, 4);
  expect_same_tokens(got, wanted);
}

TEST(EngineRanks, FourRanksAgreeWithOne) {
  RandomDirectory directory;
  Json config = parse_json(kRandomGptOss, "config").value();
  config["num_key_value_heads"] = 4;
  std::ofstream(directory.path() + "/config.json") << config.dump();
  RanksModel one(directory.path(), 1, DType::kF32, LoadFormat::kDummy),
      four(directory.path(), 4, DType::kF32, LoadFormat::kDummy);
  expect_same_tokens(answers(four, invariant(), some_requests(1000)),
                     answers(one, invariant(), some_requests(1000)));
}

std::string refusal_of_load(const std::string& directory, int64_t ranks) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const auto made =
      LoadedModel::load(*device, directory, {.slice = {.ranks = ranks}, .format = LoadFormat::kDummy});
  return made.ok() ? "" : made.status().message;
}

TEST(EngineRanks, RefusesSizesByName) {
  EXPECT_EQ(refusal_of_load(kShipped, 3),
            "tensor parallelism: wanted a number of ranks that divides num_attention_heads = 8, found 3");
  EXPECT_EQ(refusal_of_load(kShipped, 4),
            "tensor parallelism: wanted a number of ranks that divides num_key_value_heads = 2, found 4");
  EXPECT_EQ(refusal_of_load(kShipped, 9), "tensor parallelism: wanted 1 to 8 ranks, found 9");
}

TEST(EngineRanks, RefusesWhatHasNoSlices) {
  RanksModel two(kShipped, 2, DType::kF32);
  EngineOptions options = roomy();
  options.other_ranks.push_back({two.wrapped[1].get(), &two.configs[1], &two.models[1]->weights()});
  const auto refused = [&] {
    return Engine::make(*two.wrapped[0], two.configs[0], two.models[0]->weights(), options).status().message;
  };
  EXPECT_EQ(refused(),
            "tensor parallelism: wanted a group and a slice of 2 ranks, found no group and a slice of 2");
  DecoderConfig latent = two.configs[0];
  latent.ranks = 1;
  latent.layers[0].attention = latent_attention(256, 8, 32, {});
  EXPECT_NE(sliced(latent, {.ranks = 2}).status().message.find("found latent attention"), std::string::npos);
}

}  // namespace
}  // namespace sluice::test
