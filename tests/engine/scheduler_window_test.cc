// Pages of layers with a sliding window, without a model: harness/pretend_engine.h checks what each step
// would read.
#include <gtest/gtest.h>

#include "engine/scheduler.h"
#include "harness/pretend_engine.h"
#include "nn/cache_layout.h"

namespace sluice::test {
namespace {

// Pages of 4 tokens; one group of full attention, and one with a window of 8, in which a page boundary sees
// the two pages before it.
SchedulerOptions hybrid() { return {.windows = {0, 8}}; }

struct Held {
  int64_t whole = 0, window = 0;
  bool operator==(const Held&) const = default;
};
void PrintTo(const Held& h, std::ostream* out) { *out << h.whole << " and " << h.window; }

// Pages held by the sequence whose chunk was chosen last.
Held held(const PretendEngine& engine) {
  const Sequence& s = *engine.chunks().back().sequence;
  const auto count = [](const GroupPages& own) { return std::ssize(own.page) - own.first; };
  return {count(s.pages[0]), count(s.pages[1])};
}

int64_t add(PretendEngine& engine, Request r) { return engine.scheduler.add(std::move(r)).value(); }

// Runs the request to its end and returns how many prompt tokens were cached.
int64_t cached(PretendEngine& engine, Request r) {
  const int64_t id = add(engine, std::move(r));
  int64_t found = -1;
  while (!engine.scheduler.idle() && !::testing::Test::HasFatalFailure())
    for (const GeneratedToken& t : engine.step())
      if (t.request == id) found = t.cached_tokens;
  return found;
}

// A request that shares no prefix with other requests.
void fill_with_others(PretendEngine& engine, int32_t first, int32_t tokens) {
  EXPECT_EQ(cached(engine, request(count_up(first, tokens))), 0);
}

TEST(Windows, PagesBehindTheWindowAreReleased) {
  PretendEngine engine(bounds_of(), hybrid(), 0);
  add(engine, request(count_up(0, 21), 31));
  engine.step();
  EXPECT_EQ(held(engine), (Held{6, 6})) << "a chunk has pages for all its tokens";
  engine.step();
  EXPECT_EQ(held(engine), (Held{6, 3}))
      << "the page boundary before position 21 still sees position 13, in the fourth page";
  EXPECT_EQ(engine.scheduler.free_pages(), 32 - 9);
  for (int i = 0; i < 28; ++i) {
    ASSERT_EQ(engine.step().size(), 1u);
    ASSERT_LE(held(engine).window, 4);
  }
  EXPECT_EQ(held(engine).whole, 13);
  engine.finish();
  EXPECT_EQ(engine.scheduler.free_pages(), 32);
}

TEST(Windows, ReleasedPagesServeOtherSequencesInTheNextStep) {
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

// Admitted requests always finish, in the smallest cache and with any chunk size.
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
            << bounds.pages << " pages, " << step_tokens << " tokens per step";
        EXPECT_EQ(answers.at(0), answer_alone(r, 64));
        EXPECT_EQ(answers.at(1), answers.at(0));
        EXPECT_EQ(engine.scheduler.free_pages(), bounds.pages);
      }
}

TEST(Windows, APromptThatDoesNotFitIsRefused) {
  StepBounds bounds = bounds_of();
  bounds.tokens = 8;
  bounds.pages = pages_needed({0, 8}, 4, {.tokens = 40, .step_tokens = 8});
  EXPECT_EQ(bounds.pages, 10 + 2 + 3)
      << "full attention; the window's two pages; a step's eight tokens in three pages";
  Scheduler scheduler(bounds, hybrid());
  EXPECT_TRUE(scheduler.add(request(count_up(0, 39))).ok());
  EXPECT_NE(scheduler.add(request(count_up(0, 40))).status().message.find("wanted fewer than 40 tokens"),
            std::string::npos);
  bounds.pages = 5;
  EXPECT_TRUE(Scheduler(bounds, {.windows = {8}}).add(request(count_up(0, 63))).ok())
      << "window pages do not grow with the sequence";
}

TEST(Windows, APrefixIsFoundIfTheWindowsAtItsEndAreCached) {
  PretendEngine engine(bounds_of(64), hybrid(), 0);
  EXPECT_EQ(cached(engine, request(count_up(0, 42))), 0);
  Tokens other = count_up(0, 30);
  other.push_back(900);
  EXPECT_EQ(cached(engine, request(other)), 28) << "released pages stay cached until they are reused";
  ASSERT_EQ(engine.chunks()[0].first, 28);
  EXPECT_EQ(engine.chunks()[0].sequence->cached_tokens, 28);
}

// Window pages in the middle are evicted; full-attention pages and the window at the prompt's end are kept.
TEST(Windows, MiddleWindowPagesAreEvictedFirstAndThoseAtAPromptsEndLast) {
  StepBounds bounds = bounds_of(30);
  bounds.tokens = 12;
  PretendEngine engine(bounds, hybrid(), 0);
  const Request first = request(count_up(0, 37), 24);
  EXPECT_EQ(cached(engine, first), 0);
  const Tokens answer = answer_alone(first, 64);
  EXPECT_EQ(engine.scheduler.pool().published(), 15 + 15) << "no page has been reused yet";
  fill_with_others(engine, 5000, 16);
  // An unrelated prompt reuses the released window pages, not the pages that are likely to be found again.
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

// A finished sequence leaves enough pages to continue from its last full page, wherever in the next page it
// ended.
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

// Once two sequences diverge at a point, the window pages before that point are kept.
TEST(Windows, ASharedPrefixIsFoundFromTheThirdSequenceOn) {
  PretendEngine engine(bounds_of(38), hybrid(), 0);
  const auto behind = [](int32_t own) {
    Tokens tokens = count_up(0, 16);
    const Tokens rest = count_up(own, 24);
    tokens.insert(tokens.end(), rest.begin(), rest.end());
    return request(tokens, 12);
  };
  EXPECT_EQ(cached(engine, behind(1000)), 0);
  fill_with_others(engine, 5000, 36);
  EXPECT_EQ(cached(engine, behind(1100)), 0) << "only full-attention pages were found";
  fill_with_others(engine, 6000, 36);
  EXPECT_EQ(cached(engine, behind(1200)), 16);
  fill_with_others(engine, 7000, 36);
  EXPECT_EQ(cached(engine, behind(1300)), 16);
}

TEST(Windows, WithoutFullAttentionAPrefixNeedsOnlyItsWindow) {
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

// A request that recomputes tokens whose window pages were evicted publishes nothing meanwhile, so a request
// with the same prefix must not wait for its pages.
TEST(Windows, NoRequestWaitsForUnpublishedPages) {
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

TEST(Windows, PreemptedRequestsResume) {
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

TEST(Windows, PagesWithoutARequestAreReleasedBehindTheWindow) {
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

// A page of one size would overlap several pages of the other size.
TEST(CacheLayout, PagesOfOtherSizesHaveTensorsOfTheirOwn) {
  const CacheLayout l = cache_layout({kind(0), kind(64, 4), kind(64), kind(64, 4)}, 16);
  EXPECT_EQ(l.windows, (std::vector<int64_t>{0, 64}));
  EXPECT_EQ(l.tensor, (std::vector<size_t>{0, 1, 0, 2}));
  EXPECT_EQ(l.page_bytes, (std::vector<int64_t>{kPageBytes, kPageBytes / 2, kPageBytes / 2}));
}

TEST(CacheLayout, ALongSequenceNeedsOnlyItsWindow) {
  EXPECT_EQ(pages_needed({0, 128}, 16, {.tokens = 131072}), 8192 + 8 + 1);
  EXPECT_EQ(pages_needed({0, 128}, 16, {.tokens = 131072, .step_tokens = 512}), 8192 + 8 + 33);
  EXPECT_EQ(pages_needed({0, 128}, 16, {.sequences = 4, .tokens = 64}), 2 * 4 * 4)
      << "short sequences need all their pages";
}

}  // namespace
}  // namespace sluice::test
