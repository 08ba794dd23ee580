// Models with draft layers on a GPU: the shipped model with its draft head, and a small DeepSeek V3.
#include "gpu/gpu.h"
#include "gpu/shipped.h"
#include "harness/engine_runs.h"
#include "harness/recorded_logits.h"
#include "models/draft.h"

namespace sluice::test {

TEST_F(OnGpu, DraftHeadLeavesTheAnswersAndDraftsSomeOfThem) {
  const auto model = LoadedModel::load(gpu(), shipped_model());
  ASSERT_TRUE(model.ok()) << model.status().message;
  const auto head = LoadedDraft::load_eagle3(gpu(), shipped_head(), *model.value());
  ASSERT_TRUE(head.ok()) << head.status().message;
  const auto file = Checkpoint::open(recorded_file());
  ASSERT_TRUE(file.ok()) << file.status().message;
  const DecoderConfig& decoder = model.value()->config().decoder;
  for (const double temperature : {0.0, 0.9}) {
    std::vector<Request> requests;
    for (const char* prompt : kPrompts) {
      Request r{.prompt = recorded(*file.value(), prompt).ids};
      r.sampling.temperature = temperature, r.sampling.seed = 3, r.sampling.max_tokens = 40;
      requests.push_back(std::move(r));
    }
    // The page tables of one sequence have another alignment than the tables of several sequences.
    for (const int64_t sequences : {1, 3, 16}) {
      EngineOptions options{.max_model_len = 2048, .max_num_seqs = sequences, .max_num_batched_tokens = 256};
      options.policy.batch_invariant = true;
      const auto wanted = run(*engine_of(gpu(), decoder, model.value()->weights(), options), requests);
      options.draft_head = DraftHead{head.value()->config(), &head.value()->weights()};
      for (const int64_t drafts : {1, 4, 7}) {
        const std::string what = "temperature " + std::to_string(temperature) + ", " +
                                 std::to_string(sequences) + " sequences, " + std::to_string(drafts) +
                                 " drafts";
        options.speculation = {
            .method = DraftMethod::kEagle3, .num_speculative_tokens = drafts, .by_cost = false};
        const auto engine = engine_of(gpu(), decoder, model.value()->weights(), options);
        const auto found = run(*engine, requests);
        for (const auto& [request, answer] : wanted) {
          EXPECT_EQ(found.at(request).ids, answer.ids) << what << ", request " << request;
          EXPECT_EQ(found.at(request).logprobs, answer.logprobs) << what << ", request " << request;
        }
        const DraftCounts counts = engine->scheduler().draft_counts();
        EXPECT_GT(counts.accepted_at[static_cast<size_t>(drafts) - 1], 0) << what;
        EXPECT_LT(counts.accepted, counts.draft_tokens) << what;
      }
    }
  }
}

TEST_F(OnGpu, MultiTokenPredictionLeavesTheAnswers) {
  const std::string name = "deepseek_v3/gpu";
  const auto model = LoadedModel::load(gpu(), test_data(name));
  ASSERT_TRUE(model.ok()) << model.status().message;
  const auto draft = LoadedDraft::load_mtp(gpu(), test_data(name), *model.value());
  ASSERT_TRUE(draft.ok()) << draft.status().message;
  const auto requests = adjusted_requests(96);
  for (const int64_t sequences : {1, 3, 8}) {
    EngineOptions options = invariant();
    options.max_num_seqs = sequences;
    const auto engine = [&] {
      return engine_of(gpu(), model.value()->config().decoder, model.value()->weights(), options);
    };
    const auto wanted = run(*engine(), requests);
    options.draft_head = DraftHead{draft.value()->config(), &draft.value()->weights()};
    for (const int64_t drafts : {1, 3, 7}) {
      options.speculation = {.method = DraftMethod::kMtp, .num_speculative_tokens = drafts, .by_cost = false};
      const auto drafting = engine();
      EXPECT_EQ(run(*drafting, requests), wanted) << sequences << " sequences, " << drafts << " drafts";
      EXPECT_GT(drafting->scheduler().draft_counts().draft_tokens, 0);
    }
  }
}

}  // namespace sluice::test
