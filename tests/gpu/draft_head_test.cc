// The shipped model with its draft head on a GPU.
#include "gpu/gpu.h"
#include "gpu/shipped.h"
#include "harness/engine_runs.h"
#include "harness/recorded_logits.h"
#include "models/eagle3.h"

namespace sluice::test {

// Greedy and sampled answers apart: a step of greedy rows alone takes logprobs from another kernel than a mixed one.
TEST_F(OnGpu, DraftHeadLeavesTheAnswersAndDraftsSomeOfThem) {
  const auto model = LoadedModel::load(gpu(), shipped_model());
  ASSERT_TRUE(model.ok()) << model.status().message;
  const auto head = LoadedEagle3::load(gpu(), shipped_head(), *model.value());
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
    // Tables of one sequence have other alignments than those of several.
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

}  // namespace sluice::test
