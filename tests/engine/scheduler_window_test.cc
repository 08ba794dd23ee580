// Pages of layers with a window, without a model: harness/pretend_engine.h checks what every step would read.
#include <gtest/gtest.h>

#include "engine/scheduler.h"
#include "harness/pretend_engine.h"
#include "nn/cache_layout.h"

namespace sluice::test {
namespace {

// Pages of 4 tokens; all positions, and a window of 8: a boundary of pages sees two pages before it.
SchedulerOptions hybrid() { return {.windows = {0, 8}}; }

struct Held {
  int64_t whole = 0, window = 0;
  bool operator==(const Held&) const = default;
};
void PrintTo(const Held& h, std::ostream* out) { *out << h.whole << " and " << h.window; }

// Pages of the sequence whose chunk was chosen last.
Held held(const PretendEngine& engine) {
  const Sequence& s = *engine.chunks().back().sequence;
  const auto count = [](const GroupPages& own) { return std::ssize(own.page) - own.first; };
  return {count(s.pages[0]), count(s.pages[1])};
}

int64_t add(PretendEngine& engine, Request r) { return engine.scheduler.add(std::move(r)).value(); }

// Steps until the request has ended: how much of its prompt was found.
int64_t cached(PretendEngine& engine, Request r) {
  const int64_t id = add(engine, std::move(r));
  int64_t found = -1;
  while (!engine.scheduler.idle() && !::testing::Test::HasFatalFailure())
    for (const GeneratedToken& t : engine.step())
      if (t.request == id) found = t.cached_tokens;
  return found;
}

// A request that shares nothing with another one.
void fill_with_others(PretendEngine& engine, int32_t first, int32_t tokens) {
  EXPECT_EQ(cached(engine, request(count_up(first, tokens))), 0);
}

TEST(Windows, PagesThatNoTokenSeesAreReleased) {
  PretendEngine engine(bounds_of(), hybrid(), 0);
  add(engine, request(count_up(0, 21), 31));
  engine.step();
  EXPECT_EQ(held(engine), (Held{6, 6})) << "a chunk has pages for all of itself";
  engine.step();
  EXPECT_EQ(held(engine), (Held{6, 3}))
      << "position 13, which the boundary before position 21 sees, is in the fourth";
  EXPECT_EQ(engine.scheduler.free_pages(), 32 - 9);
  for (int i = 0; i < 28; ++i) {
    ASSERT_EQ(engine.step().size(), 1u);
    ASSERT_LE(held(engine).window, 4);
  }
  EXPECT_EQ(held(engine).whole, 13);
  engine.finish();
  EXPECT_EQ(engine.scheduler.free_pages(), 32);
}

TEST(Windows, PassedPagesServeOtherSequencesOfTheNextStep) {
  StepBounds bounds = bounds_of(22);
  bounds.tokens = 21;
  PretendEngine engine(bounds, hybrid(), 1);
  add(engine, request(count_up(0, 40), 9));
  engine.step();
  engine.step();
  EXPECT_EQ(held(engine).whole, 11);
  add(engine, request(count_up(100, 12), 9));
  engine.step();
  EXPECT_EQ(engine.chunks().size(), 2u);
  engine.finish();
  EXPECT_EQ(engine.scheduler.preemptions(), 0);
}

// What is admitted is finished, in a cache as small as can be and whatever the chunks.
TEST(Windows, TheSmallestCacheFinishesTheLongestSequence) {
  for (const std::vector<int64_t>& windows : {std::vector<int64_t>{0, 8}, {0, 1, 7}, {8}, {1}, {3, 50}, {0}})
    for (const int64_t step_tokens : {4, 5, 11, 64})
      for (const int64_t prompt : {1, 22, 63}) {
        StepBounds bounds = bounds_of();
        bounds.tokens = step_tokens;
        bounds.pages = pages_needed(windows, 4, {.tokens = 64, .step_tokens = step_tokens});
        PretendEngine engine(bounds, {.windows = windows}, 1);
        const Request r = request(count_up(0, static_cast<int32_t>(prompt)), 64 - prompt);
        add(engine, r);
        add(engine, r);
        const auto answers = engine.finish();
        ASSERT_FALSE(::testing::Test::HasFailure())
            << bounds.pages << " pages, " << step_tokens << " tokens a step";
        EXPECT_EQ(answers.at(0), answer_alone(r, 64));
        EXPECT_EQ(answers.at(1), answers.at(0));
        EXPECT_EQ(engine.scheduler.free_pages(), bounds.pages);
      }
}

TEST(Windows, APromptThatDoesNotFitIsRefused) {
  StepBounds bounds = bounds_of();
  bounds.tokens = 8;
  bounds.pages = pages_needed({0, 8}, 4, {.tokens = 40, .step_tokens = 8});
  EXPECT_EQ(bounds.pages, 10 + 2 + 3) << "all; two pages of the window; eight tokens over three pages";
  Scheduler scheduler(bounds, hybrid());
  EXPECT_TRUE(scheduler.add(request(count_up(0, 39))).ok());
  EXPECT_NE(scheduler.add(request(count_up(0, 40))).status().message.find("wanted fewer than 40 tokens"),
            std::string::npos);
  bounds.pages = 5;
  EXPECT_TRUE(Scheduler(bounds, {.windows = {8}}).add(request(count_up(0, 63))).ok())
      << "windows alone do not grow with a sequence";
}

TEST(Windows, APrefixIsFoundWhereTheWindowsAtItsEndAre) {
  PretendEngine engine(bounds_of(64), hybrid(), 0);
  EXPECT_EQ(cached(engine, request(count_up(0, 42))), 0);
  Tokens other = count_up(0, 30);
  other.push_back(900);
  EXPECT_EQ(cached(engine, request(other)), 28) << "passed pages stay until others are wanted";
  ASSERT_EQ(engine.chunks()[0].first, 28);
  EXPECT_EQ(engine.chunks()[0].sequence->cached_tokens, 28);
}

// The pages in the middle are gone, those of the whole context and at the end of the prompt are not.
TEST(Windows, PassedPagesAreEvictedFirstAndThoseAtTheEndOfAPromptLast) {
  StepBounds bounds = bounds_of(30);
  bounds.tokens = 12;
  PretendEngine engine(bounds, hybrid(), 0);
  const Request first = request(count_up(0, 37), 24);
  EXPECT_EQ(cached(engine, first), 0);
  const Tokens answer = answer_alone(first, 64);
  EXPECT_EQ(engine.scheduler.pool().published(), 15 + 15) << "none has been wanted for other tokens yet";
  fill_with_others(engine, 5000, 16);
  // In place of passed pages: a prompt that shares nothing costs nothing that is likely to be found again.
  Tokens chat = count_up(0, 37);
  chat.push_back(900);
  EXPECT_EQ(cached(engine, request(chat)), 36);
  Tokens whole = first.prompt;
  whole.insert(whole.end(), answer.begin(), answer.end());
  EXPECT_EQ(cached(engine, request(whole)), 60);
  Tokens middle = count_up(0, 25);
  middle.push_back(900);
  EXPECT_EQ(cached(engine, request(middle)), 0);
}

// What a sequence leaves is enough to go on from its last full page, wherever in the next one it has ended.
TEST(Windows, TheWindowBeforeTheLastFullPageIsKept) {
  for (const int32_t tokens : {41, 42, 43, 44}) {
    StepBounds bounds = bounds_of(30);
    bounds.tokens = 12;
    PretendEngine engine(bounds, {.windows = {0, 6}}, 0);
    const Request first = request(count_up(0, 21), tokens - 21);
    EXPECT_EQ(cached(engine, first), 0);
    fill_with_others(engine, 5000, 36);
    Tokens next = first.prompt;
    const Tokens answer = answer_alone(first, 64);
    next.insert(next.end(), answer.begin(), answer.end());
    next.push_back(900);
    EXPECT_EQ(cached(engine, request(next)), (tokens - 1) / 4 * 4);
  }
}

// Where one sequence has left another the window's pages are kept from then on.
TEST(Windows, ABeginningThatSequencesShareIsFoundFromTheThirdOn) {
  PretendEngine engine(bounds_of(38), hybrid(), 0);
  const auto behind = [](int32_t own) {
    Tokens tokens = count_up(0, 16);
    const Tokens rest = count_up(own, 24);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return request(tokens, 12);
  };
  EXPECT_EQ(cached(engine, behind(1000)), 0);
  fill_with_others(engine, 5000, 36);
  EXPECT_EQ(cached(engine, behind(1100)), 0) << "the pages of the whole context were found";
  fill_with_others(engine, 6000, 36);
  EXPECT_EQ(cached(engine, behind(1200)), 16);
  fill_with_others(engine, 7000, 36);
  EXPECT_EQ(cached(engine, behind(1300)), 16);
}

TEST(Windows, WithoutAWholeContextAPrefixNeedsItsWindowAlone) {
  StepBounds bounds = bounds_of(12);
  bounds.tokens = 8;
  PretendEngine engine(bounds, {.windows = {8}}, 0);
  EXPECT_EQ(cached(engine, request(count_up(0, 50))), 0);
  EXPECT_EQ(cached(engine, request(count_up(0, 50))), 48);
  fill_with_others(engine, 5000, 40);
  EXPECT_LE(engine.scheduler.pool().published(), 12);
  EXPECT_EQ(cached(engine, request(count_up(0, 50))), 48) << "the last two pages";
  EXPECT_EQ(cached(engine, request(count_up(0, 30))), 0);
  EXPECT_EQ(engine.scheduler.free_pages(), 12);
}

// A request may compute again what has lost its window's pages, and meanwhile publishes nothing: another one that begins alike
// waits for no page that an earlier step has computed.
TEST(Windows, NobodyWaitsForWhatIsNotPublished) {
  StepBounds bounds = bounds_of(40);
  bounds.tokens = 12;
  PretendEngine engine(bounds, hybrid(), 0);
  EXPECT_EQ(cached(engine, request(count_up(0, 40), 16)), 0);
  fill_with_others(engine, 5000, 44);
  add(engine, request(count_up(0, 30), 9));
  add(engine, request(count_up(0, 27), 9));
  engine.step();
  ASSERT_EQ(engine.chunks().size(), 1u);
  EXPECT_EQ(engine.chunks()[0].first, 0);
  engine.step();
  engine.step();
  ASSERT_EQ(engine.chunks().size(), 2u);
  EXPECT_EQ(engine.chunks()[1].sequence->prompt_tokens, 27);
  engine.finish();
}

TEST(Windows, WhoLostItsPagesComesBack) {
  StepBounds bounds = bounds_of(30);
  bounds.tokens = 16;
  for (const size_t ahead : {0, 1}) {
    PretendEngine engine(bounds, hybrid(), ahead);
    std::vector<Request> requests;
    for (int32_t i = 0; i < 4; ++i) {
      requests.push_back(request(count_up(100 * i, 20 + i), 30, static_cast<uint64_t>(i)));
      add(engine, requests.back());
    }
    const auto answers = engine.finish();
    EXPECT_GT(engine.scheduler.preemptions(), 0);
    for (int64_t i = 0; i < 4; ++i)
      EXPECT_EQ(answers.at(i), answer_alone(requests[static_cast<size_t>(i)], 64)) << i;
    EXPECT_EQ(engine.scheduler.free_pages(), 30);
  }
}

TEST(Windows, PagesOfNoRequestAreReleasedAsTheyArePassed) {
  StepBounds bounds = bounds_of(22);
  bounds.tokens = 12;
  Scheduler scheduler(bounds, hybrid());
  Sequence s;
  for (int64_t end = 12; end <= 60; end += 12) {
    scheduler.take_pages(&s, end);
    EXPECT_EQ(std::ssize(s.pages[0].page), end / 4);
    EXPECT_EQ(std::ssize(s.pages[1].page) - s.pages[1].first, end == 12 ? 3 : 5);
    EXPECT_GE(s.pages[1].page.back(), 0);
    s.computed = end;
  }
  scheduler.release_pages(&s);
  EXPECT_EQ(scheduler.free_pages(), 22);
}

AttentionConfig kind(int64_t window, int64_t kv_heads = 8) {
  return {.kv_heads = kv_heads, .head_dim = 64, .window = window};
}
constexpr int64_t kPageBytes = 16 * 8 * 64 * 2;

TEST(CacheLayout, LayersOfDifferentGroupsShareTensors) {
  const CacheLayout l = cache_layout({kind(128), kind(0), kind(128), kind(0), kind(128)}, 16);
  EXPECT_EQ(l.windows, (std::vector<int64_t>{0, 128}));
  EXPECT_EQ(l.group, (std::vector<size_t>{1, 0, 1, 0, 1}));
  EXPECT_EQ(l.tensor, (std::vector<size_t>{0, 0, 1, 1, 2}));
  EXPECT_EQ(l.page_bytes_of_all(), 3 * 2 * kPageBytes);
}

TEST(CacheLayout, OneKindOfAttentionSharesNothing) {
  const CacheLayout l = cache_layout({kind(0), kind(0), kind(0)}, 16);
  EXPECT_EQ(l.windows, (std::vector<int64_t>{0}));
  EXPECT_EQ(l.tensor, (std::vector<size_t>{0, 1, 2}));
  EXPECT_EQ(l.page_bytes_of_all(), 3 * 2 * kPageBytes);
  EXPECT_EQ(pages_needed(l.windows, 16, {.sequences = 3, .tokens = 33, .step_tokens = 512}), 9);
}

// A page of the one would lie across pages of the other.
TEST(CacheLayout, PagesOfOtherSizesHaveTensorsOfTheirOwn) {
  const CacheLayout l = cache_layout({kind(0), kind(64, 4), kind(64), kind(64, 4)}, 16);
  EXPECT_EQ(l.windows, (std::vector<int64_t>{0, 64}));
  EXPECT_EQ(l.tensor, (std::vector<size_t>{0, 1, 0, 2}));
  EXPECT_EQ(l.page_bytes, (std::vector<int64_t>{kPageBytes, kPageBytes / 2, kPageBytes / 2}));
}

TEST(CacheLayout, ALongSequenceNeedsItsWindowAlone) {
  EXPECT_EQ(pages_needed({0, 128}, 16, {.tokens = 131072}), 8192 + 8 + 1);
  EXPECT_EQ(pages_needed({0, 128}, 16, {.tokens = 131072, .step_tokens = 512}), 8192 + 8 + 33);
  EXPECT_EQ(pages_needed({0, 128}, 16, {.sequences = 4, .tokens = 64}), 2 * 4 * 4) << "short ones all of it";
}

}  // namespace
}  // namespace sluice::test
