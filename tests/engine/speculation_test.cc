// Which drafts are verified, and the scheduler's guarantees under any drafts.
#include "engine/speculation.h"

#include <gtest/gtest.h>

#include <numeric>

#include "harness/draft_sources.h"
#include "harness/pretend_engine.h"

namespace sluice::test {
namespace {

using Kind = KnownAnswers::Kind;

NgramMatch match(const Tokens& tokens, int64_t least, int64_t most) {
  NgramIndex index(least);
  for (size_t n = 1; n < tokens.size(); ++n) {  // the sequence grows token by token
    int64_t budget = 1 << 20;
    EXPECT_TRUE(index.update(std::span(tokens).first(n), &budget));
  }
  int64_t budget = 1 << 20;
  EXPECT_TRUE(index.update(tokens, &budget));
  return index.find(tokens, most);
}

TEST(NgramIndex, FindsTheLatestOfTheLongestMatches) {
  EXPECT_EQ(match({1, 2, 3, 4}, 1, 4).length, 0);
  EXPECT_EQ(match({1, 2, 3, 1, 2}, 2, 4).end, 2);
  EXPECT_EQ(match({1, 2, 3, 1, 2}, 3, 4).length, 0);
  const NgramMatch longest = match({9, 1, 2, 5, 8, 1, 2, 6, 9, 1, 2}, 1, 4);
  EXPECT_EQ(longest.end, 3);
  EXPECT_EQ(longest.length, 3);
  const NgramMatch latest = match({9, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2}, 1, 4);
  EXPECT_EQ(latest.end, 7);
  EXPECT_EQ(latest.length, 2);
  EXPECT_EQ(match({9, 1, 2, 5, 9, 1, 2}, 1, 2).length, 2) << "no longer than the requested length";
  EXPECT_EQ(match({4, 4, 4}, 1, 4).end, 2) << "a match may overlap the end";
}

// Compared with a linear search.
TEST(NgramIndex, AgreesWithASearch) {
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    Tokens tokens;
    for (int64_t n = random.integer(1, 60); n > 0; --n)
      tokens.push_back(static_cast<int32_t>(random.integer(0, 3)));
    const int64_t least = random.integer(1, 3), most = least + random.integer(0, 3);
    NgramMatch wanted;
    for (int64_t end = std::ssize(tokens) - 1; end >= 1; --end) {
      int64_t same = 0;
      while (same < std::min(most, end) && tokens[static_cast<size_t>(end - 1 - same)] ==
                                               tokens[tokens.size() - 1 - static_cast<size_t>(same)])
        ++same;
      if (same >= least && same > wanted.length) wanted = {.end = end, .length = same};
    }
    const NgramMatch found = match(tokens, least, most);
    EXPECT_EQ(found.end, wanted.end) << round;
    EXPECT_EQ(found.length, wanted.length) << round;
  }
}

TEST(NgramIndex, IndexesALongPromptInPieces) {
  Tokens tokens(3 * NgramIndex::kTokensOfCall);
  std::iota(tokens.begin(), tokens.end(), 0);
  tokens.push_back(5);
  NgramIndex index(1);
  int64_t budget = NgramIndex::kTokensOfCall + 100, calls = 0;
  EXPECT_FALSE(index.update(tokens, &budget));
  EXPECT_EQ(budget, 100);
  EXPECT_FALSE(index.update(tokens, &budget));
  EXPECT_EQ(budget, 0);
  EXPECT_EQ(index.find(tokens, 4).length, 0) << "before the whole prompt is indexed";
  for (bool done = false; !done; ++calls) done = index.update(tokens, &(budget = NgramIndex::kTokensOfCall));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(index.find(tokens, 4).end, 6);
}

TEST(Acceptance, IsARunningMeanPerPosition) {
  Acceptance a;
  const double first = a.at(0);
  EXPECT_LT(a.at(1), first) << "untried positions are less likely than the position before";
  for (int i = 0; i < 200; ++i) a.add(3, 1, 0.1);
  EXPECT_NEAR(a.at(0), 1, 1e-6);
  EXPECT_NEAR(a.at(1), 0, 1e-6);
  EXPECT_LE(a.at(2), a.at(1)) << "drafts after a rejected one do not count";
}

TEST(Acceptance, OfOneSequenceCountsWhereChanceDoesNotExplainIt) {
  Acceptance all, unlucky, hopeless;
  for (int i = 0; i < 400; ++i) all.add(1, i % 4 > 0 ? 1 : 0, 0.01);
  const double mean = all.at(0);
  EXPECT_NEAR(mean, 0.75, 0.02);
  for (int i = 0; i < 3; ++i) unlucky.add(1, 0, 0.05);
  EXPECT_EQ(unlucky.at(0, all), mean);
  for (int i = 0; i < 20; ++i) hopeless.add(1, 0, 0.05);
  EXPECT_LT(hopeless.at(0, all), 0.3);
  EXPECT_EQ(Acceptance().at(0, all), mean) << "a new sequence has the mean of all";
}

// Sequences that have sampled one token and whose drafts are always right.
std::vector<Sequence*> begin_all(std::vector<Sequence>* all, KnownAnswers* source) {
  std::vector<Sequence*> out;
  for (size_t i = 0; i < all->size(); ++i) {
    Sequence& s = (*all)[i];
    s.tokens = {static_cast<int32_t>(i), 1};
    s.prompt_tokens = 1, s.tokens_max = 100;
    source->learn({static_cast<int32_t>(i)}, Tokens(20, 1));
    out.push_back(&s);
  }
  return out;
}

// A step costs a constant plus a cost per token, and both determine how many drafts pay.
int64_t drafts_at(double of_step, double of_token, int64_t sequences, double waiting = 0) {
  auto source = std::make_shared<KnownAnswers>(Kind::kRight, 1000);
  SpeculationOptions options = speculation_of(source, 7);
  options.by_cost = true;
  Speculation speculation(
      options,
      {.step = [=](int64_t tokens, bool) { return of_step + of_token * static_cast<double>(tokens); },
       .waiting = waiting});
  std::vector<Sequence> all(static_cast<size_t>(sequences));
  const std::vector<Sequence*> pointers = begin_all(&all, source.get());
  (void)speculation.draft(pointers, 1000);
  int64_t drafts = 0;
  for (const Sequence& s : all) drafts += std::ssize(s.drafts);
  return drafts;
}

TEST(Speculation, VerifiesAsManyDraftsAsPay) {
  EXPECT_EQ(drafts_at(1000, 0, 1), 6) << "tokens cost nothing, but the seventh draft adds less than 2%";
  EXPECT_EQ(drafts_at(0, 1000, 1), 0) << "a token costs as much as a step";
  const int64_t some = drafts_at(1000, 300, 1);
  EXPECT_GT(some, 0);
  EXPECT_LT(some, 7);
  EXPECT_LT(drafts_at(1000, 300, 16), 16 * some) << "each of many sequences gets fewer";
  EXPECT_EQ(drafts_at(1000, 300, 1, 5000), 0) << "waiting for tokens costs more than drafts save";
}

// Acceptance estimates of equal sequences differ by chance, and drafts must not go only to sequences that
// were lucky.
TEST(Speculation, SharesDraftsEvenlyAmongEqualSequences) {
  auto source = std::make_shared<KnownAnswers>(Kind::kRight, 1000);
  SpeculationOptions options = speculation_of(source, 7);
  options.by_cost = true;
  Speculation speculation(
      options, {.step = [](int64_t tokens, bool) { return 5000 + 10.0 * static_cast<double>(tokens); }});
  std::vector<Sequence> all(64);
  const std::vector<Sequence*> pointers = begin_all(&all, source.get());
  Random random(4);
  double apart = 0;
  for (int step = 0; step < 200; ++step) {
    ASSERT_TRUE(speculation.draft(pointers, 1000));
    int64_t least = 7, most = 0;
    for (Sequence& s : all) {
      const int64_t drafts = std::ssize(s.drafts);
      least = std::min(least, drafts), most = std::max(most, drafts);
      int64_t accepted = 0;
      while (accepted < drafts && random.uniform() < 0.75) ++accepted;
      if (drafts > 0) speculation.verified(&s, drafts, accepted);
    }
    apart += static_cast<double>(most - least) / 200;
  }
  EXPECT_LT(apart, 3.5);
}

TEST(Speculation, RefusesWhatIsOutOfRange) {
  SpeculationOptions o{.method = DraftMethod::kNgram, .num_speculative_tokens = 0};
  EXPECT_EQ(check_speculation(o).message, "num_speculative_tokens: wanted 1 to 32, found 0");
  o.num_speculative_tokens = 4, o.prompt_lookup_min = 6;
  EXPECT_EQ(check_speculation(o).message, "prompt_lookup_min: wanted 1 to 5, found 6");
}

struct Drafting {
  Kind kind;
  int64_t drafts, pages;
  size_t ahead;
};

// Requests with and without a common prefix, in a small cache: pages are reused, sequences are preempted, and
// answers end at stop tokens.
std::vector<Request> crowd() {
  std::vector<Request> out;
  for (int32_t i = 0; i < 12; ++i) {
    out.push_back(request(count_up(i % 3 == 0 ? 0 : 10 * i, 3 + i % 7), 6 + i, static_cast<uint64_t>(i)));
    if (i % 4 == 0) out.back().sampling.stop_token_ids = {2};
  }
  return out;
}

class DraftingScheduler : public ::testing::TestWithParam<Drafting> {};

TEST_P(DraftingScheduler, AnswersAsWithoutDrafts) {
  const auto [kind, drafts, pages, ahead] = GetParam();
  auto source = std::make_shared<KnownAnswers>(kind, 3);
  StepBounds bounds = bounds_of(pages);
  bounds.rows = bounds.sequences * (1 + drafts);
  PretendEngine engine(bounds, {.windows = {0, 8}, .speculation = speculation_of(source, drafts)}, ahead);
  std::vector<Tokens> wanted;
  for (const Request& r : crowd()) {
    wanted.push_back(answer_alone(r, bounds.positions));
    source->learn(r.prompt, wanted.back());
    ASSERT_TRUE(engine.scheduler.add(r).ok());
  }
  const int64_t free_before = engine.scheduler.free_pages();
  const auto answers = engine.finish();
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(answers.at(static_cast<int64_t>(i)), wanted[i]) << i;
  EXPECT_EQ(engine.scheduler.free_pages(), free_before);
  const DraftCounts counts = engine.scheduler.draft_counts();
  EXPECT_GT(counts.drafts, 0);
  EXPECT_EQ(std::accumulate(counts.accepted_at.begin(), counts.accepted_at.end(), int64_t{0}),
            counts.accepted);
  EXPECT_EQ(counts.accepted == 0, kind == Kind::kWrong);
  EXPECT_EQ(counts.accepted == counts.draft_tokens, kind == Kind::kRight);
}

INSTANTIATE_TEST_SUITE_P(Kinds, DraftingScheduler,
                         ::testing::Values(Drafting{Kind::kRight, 3, 48, 0}, Drafting{Kind::kWrong, 3, 48, 0},
                                           Drafting{Kind::kMixed, 7, 48, 0}, Drafting{Kind::kMixed, 1, 34, 0},
                                           Drafting{Kind::kMixed, 5, 34, 1}, Drafting{Kind::kRight, 7, 34, 1},
                                           Drafting{Kind::kWrong, 7, 64, 1}));

// In steps with few tokens, drafts get what remains after one token per sequence.
TEST(Speculation, DraftsLeaveATokenToEverySequence) {
  auto source = std::make_shared<KnownAnswers>(Kind::kRight, 3);
  StepBounds bounds = bounds_of(64);
  bounds.tokens = 8, bounds.rows = 32;
  PretendEngine engine(bounds, {.speculation = speculation_of(source, 7)}, 0);
  for (int32_t i = 0; i < 4; ++i) {
    const Request r = request(count_up(10 * i, 2), 30, static_cast<uint64_t>(i));
    source->learn(r.prompt, answer_alone(r, bounds.positions));
    ASSERT_TRUE(engine.scheduler.add(r).ok());
  }
  (void)engine.step();  // all prompts
  for (int step = 0; step < 5; ++step) {
    std::set<int64_t> answered;
    for (const GeneratedToken& token : engine.step()) answered.insert(token.request);
    EXPECT_EQ(answered.size(), 4u) << step;
  }
  EXPECT_GT(engine.scheduler.draft_counts().accepted, 0);
}

// Without drafts a scheduler runs a step ahead as usual; with drafts it waits for the previous step's tokens.
TEST(Speculation, StepsRunAheadWithoutDrafts) {
  auto source = std::make_shared<KnownAnswers>(Kind::kRight, 3);
  StepBounds bounds = bounds_of();
  bounds.rows = 16;
  PretendEngine engine(bounds, {.speculation = speculation_of(source, 3)}, 1);
  const Request known = request(count_up(0, 4), 12), unknown = request(count_up(20, 4), 12);
  source->learn(known.prompt, answer_alone(known, bounds.positions));
  ASSERT_TRUE(engine.scheduler.add(unknown).ok());
  (void)engine.step();
  EXPECT_FALSE(engine.scheduler.needs_all_tokens());
  ASSERT_TRUE(engine.scheduler.add(known).ok());
  bool waits = false;
  for (int i = 0; i < 6; ++i) {
    (void)engine.step();
    waits = waits || engine.scheduler.needs_all_tokens();
  }
  EXPECT_TRUE(waits);
  const auto answers = engine.finish();
  EXPECT_FALSE(engine.scheduler.needs_all_tokens());
}

}  // namespace
}  // namespace sluice::test
