#include "serve/page_pool.h"

#include <gtest/gtest.h>

namespace sluice::test {
namespace {

using Tokens = std::vector<int32_t>;

// Publishes a page of its own for each part, one behind the other.
std::vector<int32_t> publish_chain(PagePool& pool, const std::vector<Tokens>& parts) {
  std::vector<int32_t> pages;
  int64_t parent = kNoParent;
  for (const Tokens& tokens : parts) {
    pages.push_back(pool.take());
    pool.publish(pages.back(), parent, tokens);
    parent = pool.number(pages.back());
  }
  return pages;
}

void release_all(PagePool& pool, const std::vector<int32_t>& pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) pool.release(*page);
}

// The pages of the longest prefix that is published.
std::vector<int32_t> find_chain(const PagePool& pool, const std::vector<Tokens>& parts) {
  std::vector<int32_t> pages;
  int64_t parent = kNoParent;
  for (const Tokens& tokens : parts) {
    const auto page = pool.find(parent, tokens);
    if (!page) break;
    pages.push_back(*page);
    parent = pool.number(*page);
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
  pool.release(1);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(pool.take(), 1);
  EXPECT_EQ(pool.evictions(), 0) << "nothing was published";
}

TEST(PagePool, FindsAPageByItsTokensAndThePageBefore) {
  PagePool pool(8, page_hash);
  const std::vector<Tokens> ab = {{1, 2}, {3, 4}}, cb = {{5, 6}, {3, 4}};
  const auto first = publish_chain(pool, ab);
  EXPECT_EQ(find_chain(pool, ab), first);
  EXPECT_EQ(find_chain(pool, {{1, 2}, {3, 5}}), (std::vector{first[0]}));
  EXPECT_TRUE(find_chain(pool, cb).empty());
  EXPECT_TRUE(find_chain(pool, {{3, 4}}).empty()) << "the second page is the start of nothing";
  const auto second = publish_chain(pool, cb);
  EXPECT_EQ(find_chain(pool, cb), second);
  EXPECT_EQ(find_chain(pool, ab), first);
  EXPECT_NE(first[1], second[1]);
}

// Every hash the same: what is found is what was asked for, all the same.
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
  for (int i = 0; i < 5; ++i) pool.take();  // four free pages, and the end of the first chain
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
  // The first chain is used again, but for its last page.
  pool.acquire(pages_a[0]);
  pool.acquire(pages_a[1]);
  pool.release(pages_a[1]);
  pool.release(pages_a[0]);
  for (const int32_t wanted : {pages_a[2], pages_b[1], pages_b[0], pages_a[1], pages_a[0]})
    EXPECT_EQ(pool.take(), wanted);
  EXPECT_EQ(pool.evictions(), 5);
  EXPECT_EQ(pool.published(), 0);
  EXPECT_TRUE(find_chain(pool, a).empty());
}

TEST(PagePool, KeepsWhatSomebodyUses) {
  PagePool pool(2, page_hash);
  const auto pages = publish_chain(pool, {{1}});
  pool.acquire(pages[0]);
  pool.release(pages[0]);
  EXPECT_EQ(pool.available(), 1) << "one user is left";
  EXPECT_NE(pool.take(), pages[0]);
  EXPECT_EQ(pool.available(), 0);
  pool.release(pages[0]);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(pool.take(), pages[0]);
  EXPECT_EQ(pool.evictions(), 1);
}

TEST(PagePool, PagesThatWereNotPublishedAreTakenBeforeThoseThatWere) {
  PagePool pool(2, page_hash);
  const auto pages = publish_chain(pool, {{1}});
  const int32_t other = pool.take();
  pool.release(pages[0]);
  pool.release(other);
  EXPECT_EQ(pool.take(), other);
  EXPECT_EQ(find_chain(pool, {{1}}), pages);
}

TEST(PagePool, ForgetsAll) {
  PagePool pool(4, page_hash);
  const auto kept = publish_chain(pool, {{1}, {2}}), left = publish_chain(pool, {{3}});
  const int64_t number = pool.number(kept[0]);
  release_all(pool, left);
  pool.forget_all();
  EXPECT_EQ(pool.published(), 0);
  EXPECT_EQ(pool.available(), 2);
  EXPECT_TRUE(find_chain(pool, {{1}}).empty());
  EXPECT_EQ(pool.number(kept[0]), kNoParent);
  release_all(pool, kept);
  EXPECT_EQ(pool.available(), 4);
  const auto again = publish_chain(pool, {{1}});
  EXPECT_NE(pool.number(again[0]), number);
  for (int i = 0; i < 3; ++i) pool.take();
  EXPECT_EQ(pool.evictions(), 0);
}

}  // namespace
}  // namespace sluice::test
