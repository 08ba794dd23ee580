// Drafts of EAGLE3 heads, after the model's features and after drafts, compared with the float64 runs of
// tools/parity/record_eagle3.py.
#include "harness/devices.h"
#include "harness/draft_layer_run.h"
#include "harness/eagle3_head.h"

namespace sluice::test {
namespace {

// Calls test(device, head, recording, bounds) for every head and both activation types.
template <class Test>
void for_each_head(Test test) {
  for (const auto& device : every_level(2)) {
    SCOPED_TRACE(text(device->info()));
    const Eagle3Model model(*device);
    for (const char* name : kEagle3Heads)
      for (const DType x : {DType::kBF16, DType::kF32}) {
        SCOPED_TRACE(std::string(name) + " " + text(x));
        const auto head =
            LoadedDraft::load_eagle3(*device, eagle3_data(name) + "/checkpoint", *model, {.x = x});
        ASSERT_TRUE(head.ok()) << head.status().message;
        test(*device, *head.value(), recorded_drafts(eagle3_data(name) + "/expected.safetensors"),
             x == DType::kF32 ? kF32Roundings : kBf16Roundings);
      }
  }
}

}  // namespace

TEST(Eagle3Parity, StreamsHiddenStatesAndDraftsAreThoseOfTheExactRun) {
  for_each_head([](Device& device, const LoadedDraft& head, const RecordedDrafts& r, const Allowed& allowed) {
    Drafter drafter(device, head);
    expect_extended(drafter, r, 0, kDraftPositions, allowed);
    expect_drafts(drafter, r, kDraftPositions, allowed);
  });
}

// Features arrive in chunks, as from prompts and verified drafts, and replace the keys and values that drafts
// left.
TEST(Eagle3Parity, DraftsAreTheSameHoweverTheFeaturesAreChunked) {
  for_each_head([](Device& device, const LoadedDraft& head, const RecordedDrafts& r, const Allowed& allowed) {
    Drafter drafter(device, head);
    expect_extended(drafter, r, 0, 4, allowed);
    drafter.draft({3});
    drafter.next(4), drafter.draft({0}), drafter.next(5);
    expect_extended(drafter, r, 4, 1, allowed);
    expect_extended(drafter, r, 5, 4, allowed);
    expect_drafts(drafter, r, 4, allowed);
    expect_extended(drafter, r, 8, 1, allowed);
    expect_drafts(drafter, r, 1, allowed);
  });
}

}  // namespace sluice::test
