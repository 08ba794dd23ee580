// The scheduler's prefix cache and its limit on prefill tokens during decoding, without a model:
// harness/pretend_engine.h checks what each step would read.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "harness/pretend_engine.h"

namespace sluice::test {
namespace {

class PrefixCache : public ::testing::Test {
 protected:
  int64_t add(Request r) { return engine_.scheduler.add(std::move(r)).value(); }
  Scheduler& scheduler() { return engine_.scheduler; }
  PretendEngine engine_{bounds_of(), {}, 0};
};

TEST_F(PrefixCache, ALaterRequestStartsAfterTheSharedPrefix) {
  add(request(count_up(0, 10)));
  engine_.finish();
  Tokens other = count_up(0, 8);
  other.insert(other.end(), {50, 51, 52});
  add(request(other));
  EXPECT_EQ(engine_.step().at(0).cached_tokens, 8);
  ASSERT_EQ(engine_.chunks().size(), 1u);
  EXPECT_EQ(engine_.chunks()[0].first, 8);
  EXPECT_EQ(engine_.chunks()[0].count, 3);
  EXPECT_EQ(scheduler().prefix_cache().queries, 10 + 11);
  EXPECT_EQ(scheduler().prefix_cache().hits, 8);
  EXPECT_EQ(scheduler().free_pages(), 32);
}

TEST_F(PrefixCache, TheLastTokenIsComputedInAnyCase) {
  add(request(count_up(0, 8)));
  engine_.finish();
  add(request(count_up(0, 8)));
  EXPECT_EQ(engine_.step().at(0).cached_tokens, 4) << "the last token's page is recomputed";
  add(request(count_up(0, 9)));
  EXPECT_EQ(engine_.step().at(0).cached_tokens, 8);
}

TEST_F(PrefixCache, AnswersAreFoundToo) {
  const Request first = request(count_up(0, 6), 7);
  add(first);
  const Tokens answer = engine_.finish().at(0);
  Tokens next = first.prompt;
  next.insert(next.end(), answer.begin(), answer.end());
  next.push_back(9);
  add(request(next));
  // The answer's last token was sampled but never computed: 12 tokens are computed, in three full pages.
  EXPECT_EQ(engine_.step().at(0).cached_tokens, 12);
}

// The second request waits for pages that it shares; the third request does not wait for the second.
TEST_F(PrefixCache, RequestsWithACommonPrefixShareThePagesOfTheFirst) {
  add(request(count_up(0, 10), 2));
  add(request(count_up(0, 9), 2));
  add(request(count_up(1, 9), 2));
  EXPECT_EQ(engine_.step().size(), 2u);
  ASSERT_EQ(engine_.chunks().size(), 2u);
  const Tokens first = engine_.chunks()[0].sequence->pages[0].page;
  EXPECT_EQ(engine_.chunks()[1].sequence->prompt_tokens, 9);
  EXPECT_EQ(engine_.chunks()[1].first, 0);
  EXPECT_EQ(scheduler().free_pages(), 32 - 3 - 3);
  EXPECT_EQ(engine_.step().size(), 3u);
  const auto& chunks = engine_.chunks();
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[2].first, 8);
  const auto& b = chunks[2].sequence->pages[0].page;
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 2, b.begin()));
  EXPECT_NE(first[2], b[2]);
}

TEST_F(PrefixCache, PagesWithTheSameTokensBecomeOne) {
  add(request(count_up(0, 8), 9));
  add(request(count_up(0, 8), 9));
  EXPECT_EQ(engine_.step().size(), 1u);                              // the second waits for a page
  for (int i = 0; i < 6; ++i) EXPECT_EQ(engine_.step().size(), 2u);  // 14 and 13 tokens are computed
  const auto& chunks = engine_.chunks();
  ASSERT_EQ(chunks.size(), 2u);
  const auto& a = chunks[0].sequence->pages[0].page;
  const auto& b = chunks[1].sequence->pages[0].page;
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 3, b.begin()));
  EXPECT_NE(a[3], b[3]) << "the page in progress is separate";
  EXPECT_EQ(scheduler().pool().published(), 3);
  EXPECT_EQ(scheduler().free_pages(), 32 - 5);
}

TEST_F(PrefixCache, SwitchedOffItFindsNothing) {
  PretendEngine off(bounds_of(), {.prefix_cache = false}, 0);
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(off.scheduler.add(request(count_up(0, 10))).ok());
    EXPECT_EQ(off.step().at(0).cached_tokens, 0);
  }
  EXPECT_EQ(off.scheduler.pool().published(), 0);
  EXPECT_EQ(off.scheduler.prefix_cache().queries, 0);
}

// A page that contains a sampled token is published only when the host knows the token.
TEST_F(PrefixCache, AStepAheadPublishesWhatIsKnown) {
  PretendEngine ahead(bounds_of(), {}, 1);
  ASSERT_TRUE(ahead.scheduler.add(request(count_up(0, 3), 20)).ok());
  ASSERT_EQ(ahead.step().size(), 1u);
  EXPECT_EQ(ahead.chunks().at(0).first, 3) << "the last token of the page is in flight";
  ASSERT_TRUE(ahead.chunks()[0].taken) << "it was unknown when the chunk was chosen";
  EXPECT_EQ(ahead.scheduler.pool().published(), 1) << "it is known after the previous step";
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(ahead.step().size(), 1u);
    EXPECT_EQ(ahead.scheduler.pool().published(), 1);
  }
  ASSERT_EQ(ahead.step().size(), 1u);
  EXPECT_EQ(ahead.scheduler.pool().published(), 2);
  Request same = request(count_up(0, 3));
  const Tokens answer = answer_alone(request(count_up(0, 3), 5), 64);
  same.prompt.insert(same.prompt.end(), answer.begin(), answer.end());
  same.prompt.push_back(9);
  const int64_t id = ahead.scheduler.add(same).value();
  int64_t cached = -1;
  while (!ahead.scheduler.idle() && !HasFatalFailure())
    for (const GeneratedToken& t : ahead.step())
      if (t.request == id) cached = t.cached_tokens;
  EXPECT_EQ(cached, 8);
}

TEST_F(PrefixCache, CancelKeepsPagesInUseAndPublishedPages) {
  const int64_t first = add(request(count_up(0, 12), 9));
  add(request(count_up(0, 9), 9));
  engine_.step();
  engine_.step();
  scheduler().cancel(first);
  EXPECT_EQ(scheduler().free_pages(), 32 - 3);
  add(request(count_up(0, 13), 1));
  EXPECT_EQ(engine_.step().size(), 2u);
  ASSERT_EQ(engine_.chunks().size(), 2u);
  EXPECT_EQ(engine_.chunks()[1].first, 12);
  engine_.finish();
  EXPECT_EQ(scheduler().free_pages(), 32);
}

TEST_F(PrefixCache, APreemptedRequestResumesAfterItsRemainingPages) {
  PretendEngine engine(bounds_of(16), {}, 0);
  ASSERT_TRUE(engine.scheduler.add(request(count_up(0, 20), 30, 1)).ok());
  ASSERT_TRUE(engine.scheduler.add(request(count_up(0, 18), 30, 2)).ok());
  ASSERT_TRUE(engine.scheduler.add(request(count_up(0, 17), 30, 3)).ok());
  const PrefixCacheCounts before = engine.scheduler.prefix_cache();
  int64_t computed = 0;
  std::map<int64_t, Tokens> answers;
  while (!engine.scheduler.idle() && !HasFatalFailure()) {
    for (const GeneratedToken& t : engine.step()) answers[t.request].push_back(t.id), ++computed;
  }
  EXPECT_GT(engine.scheduler.preemptions(), 0);
  for (int64_t i = 0; i < 3; ++i)
    EXPECT_EQ(answers[i], answer_alone(request(count_up(0, 20 - 2 * (i > 0) - (i > 1)), 30, i + 1), 64));
  EXPECT_EQ(engine.scheduler.prefix_cache().queries - before.queries, 20 + 18 + 17) << "once per request";
  EXPECT_EQ(engine.scheduler.prefix_cache().hits, 16 + 16);
  EXPECT_GT(engine.scheduler.prefix_cache().evictions, 0);
  EXPECT_EQ(engine.scheduler.free_pages(), 16);
}

TEST_F(PrefixCache, AFaultEmptiesIt) {
  add(request(count_up(40, 9)));
  engine_.finish();
  add(request(count_up(0, 9), 3));
  add(request(count_up(0, 10), 3));
  engine_.step();
  EXPECT_TRUE(engine_.step(PretendEngine::Fault::kWhenAwaited).empty());
  const std::vector<Chunk> chunks = engine_.chunks();
  ASSERT_EQ(chunks.size(), 2u);
  EXPECT_EQ(chunks[1].first, 8);
  EXPECT_EQ(scheduler().pool().published(), 0);
  EXPECT_EQ(scheduler().free_pages(), 32);
  engine_.step();
  ASSERT_EQ(engine_.chunks().size(), 1u);
  EXPECT_EQ(engine_.chunks()[0].sequence->id, chunks[0].sequence->id) << "in the same order";
  EXPECT_EQ(engine_.chunks()[0].first, 0);
  const auto tokens = engine_.step();
  const auto& again = engine_.chunks();
  ASSERT_EQ(again.size(), 2u);
  EXPECT_EQ(again[1].first, 8);
  EXPECT_EQ(again[1].number, 0);
  EXPECT_EQ(scheduler().prefix_cache().queries, 9 + 9 + 10);
  EXPECT_EQ(tokens.at(1).cached_tokens, 8);
}

TEST_F(PrefixCache, PagesWithoutARequest) {
  add(request(count_up(0, 62)));
  engine_.finish();
  EXPECT_EQ(scheduler().pool().published(), 15);
  Sequence other;
  scheduler().take_pages(&other, 63);
  const Tokens& pages = other.pages.at(0).page;
  EXPECT_EQ(std::set(pages.begin(), pages.end()).size(), 16u);
  EXPECT_EQ(scheduler().pool().published(), 15) << "free pages are taken first";
  scheduler().release_pages(&other);
  EXPECT_EQ(scheduler().free_pages(), 32);
  add(request(count_up(0, 62)));
  EXPECT_EQ(engine_.step().at(0).cached_tokens, 60);
}

// Token counts of the chunks of the last chosen step.
std::vector<int64_t> counts_of(const PretendEngine& engine) {
  std::vector<int64_t> out;
  for (const Chunk& c : engine.chunks()) out.push_back(c.count);
  return out;
}

using Counts = std::vector<int64_t>;

TEST(MixedPrefill, PromptsShareTheBoundWhileOthersDecode) {
  PretendEngine engine(bounds_of(), {.mixed_prefill_tokens = 8}, 0);
  const auto step = [&](Request r) {
    EXPECT_TRUE(engine.scheduler.add(std::move(r)).ok());
    engine.step();
    return counts_of(engine);
  };
  EXPECT_EQ(step(request(count_up(0, 20), 40)), (Counts{20})) << "no request decodes";
  EXPECT_EQ(step(request(count_up(50, 22), 40)), (Counts{1, 8}));
  EXPECT_EQ(step(request(count_up(90, 5), 40)), (Counts{1, 8})) << "the older prompt continues first";
  engine.step();
  EXPECT_EQ(counts_of(engine), (Counts{1, 6, 2})) << "the second prompt gets the rest of the bound";
  engine.step();
  EXPECT_EQ(counts_of(engine), (Counts{1, 1, 3}));
  engine.step();
  EXPECT_EQ(counts_of(engine), (Counts{1, 1, 1}));
}

TEST(MixedPrefill, PromptsTakeTheWholeStepWhenNoneDecodes) {
  PretendEngine engine(bounds_of(), {.mixed_prefill_tokens = 1}, 0);
  for (const int32_t first : {0, 50, 100})
    ASSERT_TRUE(engine.scheduler.add(request(count_up(first, 30), 3)).ok());
  engine.step();
  EXPECT_EQ(counts_of(engine), (Counts{30, 30, 4}));
  for (int i = 0; i < 2; ++i) {
    engine.step();
    EXPECT_EQ(counts_of(engine), (Counts{1, 1, 1}));
  }
  engine.step();
  EXPECT_EQ(counts_of(engine), (Counts{24})) << "the decoding requests have ended";
}

// With a step ahead, a request counts as decoding as soon as its first token is in flight.
TEST(MixedPrefill, TokensInFlightCountAsDecodes) {
  PretendEngine engine(bounds_of(), {.mixed_prefill_tokens = 4}, 1);
  ASSERT_TRUE(engine.scheduler.add(request(count_up(0, 60), 4)).ok());
  ASSERT_TRUE(engine.scheduler.add(request(count_up(90, 20), 4)).ok());
  engine.step();
  ASSERT_EQ(engine.chunks().size(), 2u);
  EXPECT_TRUE(engine.chunks()[0].taken);
  EXPECT_EQ(counts_of(engine), (Counts{1, 4}));
}

// A filter that is never called: the test decides when its mask is late.
class NoFilter final : public TokenFilter {
 public:
  Status allowed(std::span<uint32_t>, const std::stop_token&) override { return {}; }
  Status accept(int32_t, const std::stop_token&) override { return {}; }
  std::unique_ptr<TokenFilter> copy() const override { return std::make_unique<NoFilter>(*this); }
};

TEST(LateMask, SitsOutAndThenRecomputesItsLastToken) {
  PretendEngine engine(bounds_of(), {}, 0);
  bool late = true;
  engine.is_late = [&] { return late; };
  Request filtered = request(count_up(0, 8), 3);
  filtered.filter = std::make_shared<NoFilter>();
  const Request plain = request(count_up(50, 5), 6);
  ASSERT_EQ(engine.scheduler.add(filtered).value(), 0);
  ASSERT_EQ(engine.scheduler.add(plain).value(), 1);
  std::map<int64_t, Tokens> answers;
  const auto step = [&] {
    for (const GeneratedToken& t : engine.step()) answers[t.request].push_back(t.id);
    return counts_of(engine);
  };
  EXPECT_EQ(step(), (Counts{8, 5}));
  EXPECT_EQ(engine.scheduler.pool().published(), 1 + 1)
      << "the filtered request's last page is not final yet";
  EXPECT_EQ(step(), (Counts{1}));
  EXPECT_EQ(answers[0].size(), 0u);
  EXPECT_EQ(answers[1].size(), 2u);
  late = false;
  engine.scheduler.filtered().at(0)->sits_out = false;
  EXPECT_EQ(step(), (Counts{1, 1}));
  EXPECT_EQ(engine.scheduler.pool().published(), 2 + 1);
  while (!engine.scheduler.idle()) step();
  EXPECT_EQ(answers[0], answer_alone(filtered, 64));
  EXPECT_EQ(answers[1], answer_alone(plain, 64));
}

// All cached pages of prefixes of `texts`. With full attention in group 0, a prefix ends where that group
// lacks a page.
std::set<int32_t> found_in(const PagePool& pool, const std::vector<Tokens>& texts, int64_t page_size,
                           const std::vector<int64_t>& windows) {
  std::set<int32_t> found;
  for (const Tokens& text : texts) {
    int64_t prefix = kNoPrefix;
    for (auto rest = std::span<const int32_t>(text); std::ssize(rest) >= page_size;) {
      const auto next = pool.prefixes().find(prefix, rest.first(static_cast<size_t>(page_size)));
      if (!next || (windows[0] == 0 && pool.prefixes().page(*next, 0) == kNoPage)) break;
      for (size_t group = 0; group < windows.size(); ++group)
        if (const int32_t page = pool.prefixes().page(*next, group); page != kNoPage) found.insert(page);
      prefix = *next;
      rest = rest.subspan(static_cast<size_t>(page_size));
    }
  }
  return found;
}

// While a sequence decodes with a token in flight, chunks of more than one token have at most `most` tokens
// in total.
void expect_bound(const std::vector<Chunk>& chunks, int64_t most) {
  const bool decodes = std::ranges::any_of(chunks, [](const Chunk& c) { return c.taken.has_value(); });
  int64_t prompts = 0;
  for (const Chunk& c : chunks) prompts += c.count > 1 ? c.count : 0;
  EXPECT_TRUE(!decodes || prompts <= most) << prompts << " tokens of prompts";
}

struct Mix {
  size_t ahead;
  int64_t pages, tokens;
  PageHash hash;
  const char* why;
  int64_t mixed = 0;  // SchedulerOptions::mixed_prefill_tokens
  std::vector<int64_t> windows = {0};
  int64_t filtered = 0;  // one request in this many has a filter, whose masks are often late; 0: none
};
void PrintTo(const Mix& mix, std::ostream* out) { *out << mix.why; }

class PrefixCacheMix : public ::testing::TestWithParam<Mix> {};

// Random requests with common prefixes are added, cancelled, preempted and hit by faults. Each request reads
// only its own tokens and gets the answer that it gets alone, and no page is lost.
TEST_P(PrefixCacheMix, ReadsAndAnswersAreThoseOfRequestsAlone) {
  StepBounds bounds = bounds_of(GetParam().pages);
  bounds.tokens = GetParam().tokens;
  PretendEngine engine(
      bounds,
      {.mixed_prefill_tokens = GetParam().mixed, .hash = GetParam().hash, .windows = GetParam().windows},
      GetParam().ahead);
  Scheduler& scheduler = engine.scheduler;
  Random random(17);
  std::vector<Request> requests;
  std::vector<Tokens> texts, answers;
  std::vector<bool> cancelled;
  const auto add = [&] {
    Request r;
    if (!texts.empty() && random.integer(0, 3) > 0) {
      // Shares a prefix with a recent request.
      r.prompt = texts[static_cast<size_t>(
          random.integer(std::max<int64_t>(0, std::ssize(texts) - 6), std::ssize(texts) - 1))];
      r.prompt.resize(
          static_cast<size_t>(random.integer((std::ssize(r.prompt) + 1) / 2, std::ssize(r.prompt))));
    }
    for (int64_t n = random.integer(r.prompt.empty(), 9); n > 0 && r.prompt.size() < 40; --n)
      r.prompt.push_back(static_cast<int32_t>(random.integer(0, 2)));
    r.sampling.max_tokens = random.integer(1, 20);
    r.sampling.seed = static_cast<uint64_t>(random.integer(0, 1));
    if (random.integer(0, 3) == 0) r.sampling.stop_token_ids = {2};
    if (GetParam().filtered > 0 && random.integer(1, GetParam().filtered) == 1)
      r.filter = std::make_shared<NoFilter>();
    ASSERT_EQ(scheduler.add(r).value(), std::ssize(requests));
    requests.push_back(r), answers.emplace_back(), cancelled.push_back(false);
    texts.push_back(r.prompt);
  };
  if (GetParam().filtered > 0) engine.is_late = [&] { return random.integer(0, 2) == 0; };
  for (int steps = 0; steps < 3000 || !scheduler.idle(); ++steps) {
    ASSERT_LT(steps, 10000);
    for (const auto& s : scheduler.filtered()) s->sits_out = s->sits_out && random.integer(0, 3) > 0;
    if (steps < 3000 && random.integer(0, 3) == 0) add();
    if (!requests.empty() && random.integer(0, 9) == 0) {
      const auto who =
          random.integer(std::max<int64_t>(0, std::ssize(requests) - 9), std::ssize(requests) - 1);
      scheduler.cancel(who);
      cancelled[static_cast<size_t>(who)] = true;
    }
    const int64_t what = random.integer(0, 199);
    const auto drawn = engine.step(what == 0   ? PretendEngine::Fault::kWhenBegun
                                   : what == 1 ? PretendEngine::Fault::kWhenAwaited
                                               : PretendEngine::Fault::kNone);
    ASSERT_FALSE(HasFatalFailure());
    if (GetParam().mixed > 0) expect_bound(engine.chunks(), GetParam().mixed);
    for (const GeneratedToken& t : drawn) {
      const auto at = static_cast<size_t>(t.request);
      ASSERT_FALSE(cancelled[at]);
      answers[at].push_back(t.id);
      texts[at].push_back(t.id);
      EXPECT_LT(t.cached_tokens, std::ssize(requests[at].prompt));
    }
    // Every published page can be found, even between steps, so no chain has a gap.
    if (steps % 16 == 0) {
      ASSERT_EQ(std::ssize(found_in(scheduler.pool(), texts, bounds.page_size, GetParam().windows)),
                scheduler.pool().published());
    }
  }
  EXPECT_EQ(scheduler.free_pages(), bounds.pages);
  EXPECT_GT(scheduler.prefix_cache().hits, 1000);
  EXPECT_GT(scheduler.prefix_cache().evictions, 100);
  EXPECT_GT(scheduler.preemptions(), 10);
  for (size_t i = 0; i < requests.size(); ++i) {
    Tokens wanted = answer_alone(requests[i], bounds.positions);
    if (cancelled[i]) wanted.resize(std::min(wanted.size(), answers[i].size()));
    EXPECT_EQ(answers[i], wanted) << "request " << i;
  }
}

uint64_t one_hash(int64_t, std::span<const int32_t>) { return 1; }

INSTANTIATE_TEST_SUITE_P(
    All, PrefixCacheMix,
    ::testing::Values(Mix{0, 24, 64, page_hash, "no step ahead"}, Mix{1, 24, 64, page_hash, "a step ahead"},
                      Mix{1, 24, 9, page_hash, "in small chunks"},
                      Mix{1, 24, 64, page_hash, "a small bound on prefill while decoding", 3},
                      Mix{1, 17, 64, page_hash, "hardly any free pages"},
                      Mix{1, 24, 64, one_hash, "equal hashes"},
                      Mix{0, 24, 11, page_hash, "a window", 0, {0, 6}},
                      Mix{1, 24, 11, page_hash, "a window, ahead", 0, {0, 6}},
                      Mix{1, 32, 64, page_hash, "a window, large chunks", 0, {0, 6}},
                      Mix{1, 22, 9, page_hash, "a window, hardly any free pages", 3, {0, 13}},
                      Mix{1, 28, 11, page_hash, "several windows", 0, {0, 1, 7}},
                      Mix{1, 9, 11, page_hash, "windows alone", 0, {6}},
                      Mix{0, 13, 11, page_hash, "two windows, no full attention", 0, {3, 9}},
                      Mix{1, 24, 11, one_hash, "a window, equal hashes", 0, {0, 6}},
                      Mix{0, 24, 64, page_hash, "late masks", 0, {0}, 2},
                      Mix{1, 24, 64, page_hash, "late masks, a step ahead", 0, {0}, 9},
                      Mix{1, 22, 9, page_hash, "late masks, a window", 3, {0, 6}, 3}));

}  // namespace
}  // namespace sluice::test
