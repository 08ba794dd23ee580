#include "engine/page_pool.h"

#include <gtest/gtest.h>

namespace sluice::test {
namespace {

using Tokens = std::vector<int32_t>;

// Publishes a chain of pages, one page per part.
std::vector<int32_t> publish_chain(PagePool& pool, const std::vector<Tokens>& parts, size_t group = 0) {
  std::vector<int32_t> pages;
  int64_t prefix = kNoPrefix;
  for (const Tokens& tokens : parts) {
    const int64_t before = prefix;
    prefix = pool.hold_prefix(before, tokens);
    pool.release_prefix(before);
    pages.push_back(pool.take());
    pool.publish(pages.back(), prefix, group);
  }
  pool.release_prefix(prefix);
  return pages;
}

void release_all(PagePool& pool, const std::vector<int32_t>& pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) pool.release(*page, Reuse::kLikely);
}

// The pages of the longest cached prefix.
std::vector<int32_t> find_chain(const PagePool& pool, const std::vector<Tokens>& parts, size_t group = 0) {
  std::vector<int32_t> pages;
  int64_t prefix = kNoPrefix;
  for (const Tokens& tokens : parts) {
    const auto next = pool.prefixes().find(prefix, tokens);
    if (!next) break;
    pages.push_back(pool.prefixes().page(*next, group));
    prefix = *next;
  }
  return pages;
}

TEST(PagePool, TakesLowNumbersFirstAndCounts) {
  PagePool pool(3, page_hash);
  EXPECT_EQ(pool.available(), 3);
  EXPECT_EQ(pool.take(), 0);
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.take(), 2);
  EXPECT_EQ(pool.available(), 0);
  pool.release(1, Reuse::kLikely);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.evictions(), 0) << "no published page was evicted";
}

TEST(PagePool, FindsAPageByItsTokensAndThePageBefore) {
  PagePool pool(8, page_hash);
  const std::vector<Tokens> ab = {{1, 2}, {3, 4}}, cb = {{5, 6}, {3, 4}};
  const auto first = publish_chain(pool, ab);
  EXPECT_EQ(find_chain(pool, ab), first);
  EXPECT_EQ(find_chain(pool, {{1, 2}, {3, 5}}), (std::vector{first[0]}));
  EXPECT_TRUE(find_chain(pool, cb).empty());
  EXPECT_TRUE(find_chain(pool, {{3, 4}}).empty()) << "no chain begins with the second page's tokens";
  const auto second = publish_chain(pool, cb);
  EXPECT_EQ(find_chain(pool, cb), second);
  EXPECT_EQ(find_chain(pool, ab), first);
  EXPECT_NE(first[1], second[1]);
}

// All hashes are equal; lookups must still compare tokens.
TEST(PagePool, CollisionsFindNothingWrong) {
  PagePool pool(8, [](int64_t, std::span<const int32_t>) -> uint64_t { return 7; });
  const std::vector<Tokens> ab = {{1, 2}, {3, 4}}, cb = {{5, 6}, {3, 4}};
  const auto first = publish_chain(pool, ab);
  EXPECT_TRUE(find_chain(pool, cb).empty());
  EXPECT_EQ(find_chain(pool, {{1, 2}, {1, 2}}), (std::vector{first[0]}));
  const auto second = publish_chain(pool, cb);
  EXPECT_EQ(find_chain(pool, ab), first);
  EXPECT_EQ(find_chain(pool, cb), second);
  release_all(pool, first);
  release_all(pool, second);
  for (int i = 0; i < 5; ++i) pool.take();  // takes the four free pages and the last page of the first chain
  EXPECT_EQ(find_chain(pool, ab), (std::vector{first[0]}));
  EXPECT_EQ(find_chain(pool, cb), second);
}

TEST(PagePool, AHashDependsOnThePageBefore) {
  const Tokens tokens = {1, 2, 3, 4}, others = {1, 2, 3, 5};
  EXPECT_EQ(page_hash(1, tokens), page_hash(1, tokens));
  EXPECT_NE(page_hash(1, tokens), page_hash(2, tokens));
  EXPECT_NE(page_hash(1, tokens), page_hash(1, others));
}

TEST(PagePool, EvictsTheLeastRecentlyUsedFromTheEndOfItsChain) {
  PagePool pool(5, page_hash);
  const std::vector<Tokens> a = {{1}, {2}, {3}}, b = {{4}, {5}};
  const auto pages_a = publish_chain(pool, a), pages_b = publish_chain(pool, b);
  EXPECT_EQ(pool.available(), 0);
  release_all(pool, pages_a);
  release_all(pool, pages_b);
  EXPECT_EQ(pool.available(), 5);
  EXPECT_EQ(pool.published(), 5);
  // All of the first chain is used again, except its last page.
  pool.acquire(pages_a[0]);
  pool.acquire(pages_a[1]);
  pool.release(pages_a[1], Reuse::kLikely);
  pool.release(pages_a[0], Reuse::kLikely);
  for (const int32_t wanted : {pages_a[2], pages_b[1], pages_b[0], pages_a[1], pages_a[0]})
    EXPECT_EQ(pool.take(), wanted);
  EXPECT_EQ(pool.evictions(), 5);
  EXPECT_EQ(pool.published(), 0);
  EXPECT_TRUE(find_chain(pool, a).empty());
}

TEST(PagePool, KeepsPagesInUse) {
  PagePool pool(2, page_hash);
  const auto pages = publish_chain(pool, {{1}});
  pool.acquire(pages[0]);
  pool.release(pages[0], Reuse::kLikely);
  EXPECT_EQ(pool.available(), 1) << "one user is left";
  EXPECT_NE(pool.take(), pages[0]);
  EXPECT_EQ(pool.available(), 0);
  pool.release(pages[0], Reuse::kLikely);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(pool.take(), pages[0]);
  EXPECT_EQ(pool.evictions(), 1);
}

TEST(PagePool, UnpublishedPagesAreTakenFirst) {
  PagePool pool(2, page_hash);
  const auto pages = publish_chain(pool, {{1}});
  const int32_t other = pool.take();
  pool.release(pages[0], Reuse::kLikely);
  pool.release(other, Reuse::kLikely);
  EXPECT_EQ(pool.take(), other);
  EXPECT_EQ(find_chain(pool, {{1}}), pages);
}

TEST(PagePool, ForgetsAll) {
  PagePool pool(4, page_hash);
  const auto kept = publish_chain(pool, {{1}, {2}}), left = publish_chain(pool, {{3}});
  const auto number = pool.prefixes().find(kNoPrefix, Tokens{1});
  release_all(pool, left);
  pool.forget_all();
  EXPECT_EQ(pool.published(), 0);
  EXPECT_EQ(pool.available(), 2);
  EXPECT_TRUE(find_chain(pool, {{1}}).empty());
  EXPECT_EQ(pool.prefixes().size(), 0);
  release_all(pool, kept);
  EXPECT_EQ(pool.available(), 4);
  const auto again = publish_chain(pool, {{1}});
  EXPECT_NE(pool.prefixes().find(kNoPrefix, Tokens{1}), number);
  for (int i = 0; i < 3; ++i) pool.take();
  EXPECT_EQ(pool.evictions(), 0);
}

TEST(PagePool, PagesWhoseReuseIsUnlikelyAreTakenFirst) {
  PagePool pool(4, page_hash, {0, 8});
  const std::vector<Tokens> a = {{1}, {2}}, b = {{3}, {4}};
  const auto whole = publish_chain(pool, a), passed = publish_chain(pool, a, 1);
  release_all(pool, whole);
  for (const int32_t page : passed) pool.release(page, Reuse::kUnlikely);
  EXPECT_EQ(pool.take(), passed[0]) << "the oldest page of unlikely reuse";
  pool.acquire(passed[1]);
  pool.release(passed[1], Reuse::kLikely);
  EXPECT_EQ(find_chain(pool, a, 1), (std::vector{kNoPage, passed[1]}));
  EXPECT_EQ(pool.take(), whole[1]) << "now the least recently used page";
  EXPECT_EQ(find_chain(pool, a), (std::vector{whole[0]}));
}

// Window pages are useless without the full-attention pages before them, so both are evicted together.
TEST(PagePool, PagesOfAWindowGoWithThoseOfTheWholeContext) {
  PagePool pool(6, page_hash, {0, 8, 16});
  const std::vector<Tokens> a = {{1}, {2}};
  const auto whole = publish_chain(pool, a), window = publish_chain(pool, a, 1),
             other = publish_chain(pool, a, 2);
  release_all(pool, whole);
  release_all(pool, window);
  release_all(pool, other);
  EXPECT_EQ(pool.published(), 6);
  EXPECT_EQ(pool.take(), whole[1]);
  EXPECT_EQ(pool.published(), 3);
  EXPECT_EQ(pool.evictions(), 3);
  EXPECT_EQ(pool.prefixes().size(), 1);
  EXPECT_EQ(pool.take(), window[1]) << "free";
  EXPECT_EQ(pool.take(), other[1]);
  EXPECT_EQ(pool.available(), 3);
  EXPECT_EQ(find_chain(pool, a, 2), (std::vector{other[0]}));
}

// If all groups have windows, a page's prefix stays known as long as the page exists.
TEST(PagePool, PagesAreFoundAfterEvictedOnes) {
  PagePool pool(3, page_hash, {8});
  const std::vector<Tokens> a = {{1}, {2}, {3}}, b = {{5}, {2}, {3}};
  const auto pages = publish_chain(pool, a);
  pool.release(pages[0], Reuse::kUnlikely);
  pool.release(pages[1], Reuse::kUnlikely);
  EXPECT_EQ(pool.take(), pages[0]);
  EXPECT_EQ(pool.take(), pages[1]);
  EXPECT_EQ(find_chain(pool, a), (std::vector{kNoPage, kNoPage, pages[2]}));
  EXPECT_TRUE(find_chain(pool, b).empty());
  EXPECT_EQ(pool.prefixes().size(), 3);
  pool.release(pages[2], Reuse::kLikely);
  EXPECT_EQ(pool.take(), pages[2]);
  EXPECT_EQ(pool.prefixes().size(), 0) << "prefixes without pages are forgotten";
}

TEST(PagePool, AHeldPrefixStays) {
  PagePool pool(1, page_hash, {8});
  const Tokens one = {1}, two = {2};
  const int64_t first = pool.hold_prefix(kNoPrefix, one), second = pool.hold_prefix(first, two);
  pool.release_prefix(first);
  EXPECT_EQ(pool.prefixes().find(kNoPrefix, one), first) << "held by the second prefix";
  EXPECT_EQ(pool.hold_prefix(first, two), second);
  pool.release_prefix(second);
  EXPECT_EQ(pool.prefixes().find(first, two), second);
  pool.release_prefix(second);
  EXPECT_EQ(pool.prefixes().size(), 0);
}

}  // namespace
}  // namespace sluice::test
