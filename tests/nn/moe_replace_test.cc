#include <gtest/gtest.h>

#include "harness/devices.h"
#include "harness/moe_files.h"
#include "nn/moe/canary.h"
#include "nn/moe/layer.h"

namespace sluice::test {
namespace {

constexpr int64_t kManyTokens = 40;  // enough to choose every expert

std::vector<std::byte> bytes_of_y(Device& device, const MoeConfig& config, const MoeWeights& weights) {
  const auto moe = Moe::plan(device, config, kManyTokens);
  EXPECT_TRUE(moe.ok()) << moe.status().message;
  Random random(3);
  std::vector<uint16_t> x(static_cast<size_t>(kManyTokens * config.hidden)), y(x.size());
  for (uint16_t& v : x) v = to_bf16(static_cast<float>(random.normal())).bits;
  std::vector<std::byte> scratch(moe.value()->workspace_bytes() + 256);
  auto* aligned = scratch.data() + (256 - reinterpret_cast<uintptr_t>(scratch.data()) % 256) % 256;
  const MoeIo io{.x = make_tensor(x.data(), DType::kBF16, {kManyTokens, config.hidden}),
                 .residual = {},
                 .token_ids = {},
                 .y = make_tensor(y.data(), DType::kBF16, {kManyTokens, config.hidden})};
  const Status status =
      moe.value()->forward(io, weights, {aligned, moe.value()->workspace_bytes()}, device.stream());
  EXPECT_TRUE(status.ok()) << status.message;
  std::vector<std::byte> out(y.size() * 2);
  std::memcpy(out.data(), y.data(), out.size());
  return out;
}

// `moe` with expert `e` of `other` in place of its own.
RandomMoe with_expert(RandomMoe moe, const RandomMoe& other, size_t e) {
  if (!moe.gate.empty()) moe.gate[e] = other.gate[e];
  moe.up[e] = other.up[e], moe.down[e] = other.down[e];
  const auto copy = [&](std::vector<uint16_t>& to, const std::vector<uint16_t>& from) {
    const size_t rows = to.size() / moe.up.size();
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(e * rows), rows,
                to.begin() + static_cast<std::ptrdiff_t>(e * rows));
  };
  copy(moe.up_bias, other.up_bias), copy(moe.down_bias, other.down_bias);
  return moe;
}

TEST(MoeReplace, AReplacedExpertEqualsALoadedOneAndNoPointerMoves) {
  const auto device = cpu::open_device({.threads = 2}).value();
  for (MoeNaming naming : kNamings) {
    for (const Slice& slice : {Slice{}, Slice{.tp_rank = 0, .tp_size = 2, .ep_rank = 1, .ep_size = 2}}) {
      const RandomMoe before(small_config(naming), 5), other(small_config(naming), 6),
          after = with_expert(before, other, 5);
      const Written file(before.tensors(naming, 0)), update(other.tensors(naming, 0)),
          whole(after.tensors(naming, 0));
      const MoeLoadOptions options{.naming = naming, .slice = slice, .threads = 2};
      const auto loaded = load_moe(*device, *file.checkpoint, before.config, options);
      const auto fresh = load_moe(*device, *whole.checkpoint, before.config, options);
      ASSERT_TRUE(loaded.ok() && fresh.ok()) << loaded.status().message << fresh.status().message;
      EXPECT_NE(loaded.value()->fingerprint(), fresh.value()->fingerprint());
      MoeWeights weights = loaded.value()->weights();
      const auto old_y = bytes_of_y(*device, loaded.value()->config(), weights);
      const Status replaced = loaded.value()->replace_expert(*update.checkpoint, 5);
      ASSERT_TRUE(replaced.ok()) << replaced.message;
      EXPECT_EQ(loaded.value()->fingerprint(), fresh.value()->fingerprint());
      MoeWeights now = loaded.value()->weights(), want = fresh.value()->weights();
      const auto slots = weight_slots(loaded.value()->config(), &weights),
                 slots_now = weight_slots(loaded.value()->config(), &now),
                 slots_want = weight_slots(loaded.value()->config(), &want);
      for (size_t i = 0; i < slots.size(); ++i) {
        const Tensor &was = *slots[i].second, &is = *slots_now[i].second, &wanted = *slots_want[i].second;
        EXPECT_EQ(was.data, is.data);
        if (!is.present()) continue;
        EXPECT_EQ(std::memcmp(is.data, wanted.data, static_cast<size_t>(bytes_of(is.dtype, elements_of(is)))),
                  0)
            << word(naming) << " " << slots[i].first.name;
      }
      const auto new_y = bytes_of_y(*device, loaded.value()->config(), now);
      EXPECT_TRUE(new_y == bytes_of_y(*device, loaded.value()->config(), want)) << word(naming);
      EXPECT_FALSE(new_y == old_y) << word(naming) << ": some token must choose expert 5";
      EXPECT_TRUE(loaded.value()->verify().ok());
      EXPECT_TRUE(canary(*device, *loaded.value(), *whole.checkpoint).ok());
    }
  }
}

// A copy of a checkpoint's tensors in the caller's memory.
struct InMemory {
  explicit InMemory(const Checkpoint& from, std::string_view only = "") {
    std::vector<CheckpointTensor> tensors;
    for (const CheckpointTensor& t : from.tensors()) {
      if (t.name.find(only) == std::string::npos) continue;
      bytes.emplace_back(t.data, t.data + t.bytes);
      tensors.push_back({.name = t.name, .type = t.type, .shape = t.shape, .data = bytes.back().data()});
    }
    checkpoint = Checkpoint::of_memory("the caller's", std::move(tensors)).value();
  }
  std::vector<std::vector<std::byte>> bytes;
  std::unique_ptr<Checkpoint> checkpoint;
};

TEST(MoeReplace, FromTheCallersTensorsAllOrOneExpert) {
  const auto device = cpu::open_device({.threads = 2}).value();
  for (MoeNaming naming : kNamings) {
    const RandomMoe before(small_config(naming), 5), other(small_config(naming), 6),
        one = with_expert(before, other, 5);
    const Written file(before.tensors(naming, 0)), update(other.tensors(naming, 0)),
        mixed(one.tensors(naming, 0));
    const InMemory all(*update.checkpoint);
    const MoeLoadOptions options{.naming = naming, .threads = 2};
    const auto loaded = load_moe(*device, *file.checkpoint, before.config, options);
    const auto want_one = load_moe(*device, *mixed.checkpoint, before.config, options);
    const auto want_all = load_moe(*device, *update.checkpoint, before.config, options);
    ASSERT_TRUE(loaded.ok() && want_one.ok() && want_all.ok()) << loaded.status().message;
    LoadedMoe& l = *loaded.value();
    // If each expert has its own tensors, only expert 5's tensors are needed.
    const bool apart = moe_names(naming).storage == ExpertStorage::kOneByOne;
    const InMemory few(*update.checkpoint, apart ? ".5." : "");
    const Status replaced = l.replace_expert(*few.checkpoint, 5);
    ASSERT_TRUE(replaced.ok()) << replaced.message;
    EXPECT_EQ(l.fingerprint(), want_one.value()->fingerprint());
    EXPECT_TRUE(bytes_of_y(*device, l.config(), l.weights()) ==
                bytes_of_y(*device, l.config(), want_one.value()->weights()))
        << word(naming);
    const Status whole = l.replace(*all.checkpoint);
    ASSERT_TRUE(whole.ok()) << whole.message;
    EXPECT_EQ(l.fingerprint(), want_all.value()->fingerprint());
    EXPECT_TRUE(bytes_of_y(*device, l.config(), l.weights()) ==
                bytes_of_y(*device, l.config(), want_all.value()->weights()))
        << word(naming);
    EXPECT_TRUE(l.verify().ok());
    if (!apart) continue;
    const Status missing = l.replace_expert(*few.checkpoint, 4);
    EXPECT_EQ(missing.code, Code::kCorrupt);
    EXPECT_NE(missing.message.find("layer 0: the caller's: wanted tensor"), std::string::npos)
        << missing.message;
  }
  const Status none =
      Checkpoint::of_memory("mine", {{.name = "w", .type = StoredType::kBF16, .shape = {2, 3}}}).status();
  EXPECT_EQ(none.message, "mine: w: wanted a pointer to 12 bytes for BF16[2, 3], found null");
}

TEST(MoeReplace, AFailedReplacementChangesNothing) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const RandomMoe moe(small_config(MoeNaming::kGptOss), 5);
  RandomMoe bad(small_config(MoeNaming::kGptOss), 6);
  bad.down[2].scales[7] = 255;  // found after W13 was checked
  const Written file(moe.tensors(MoeNaming::kGptOss, 0)), update(bad.tensors(MoeNaming::kGptOss, 0));
  const auto loaded =
      load_moe(*device, *file.checkpoint, moe.config, {.slice = {.ep_rank = 0, .ep_size = 2}});
  ASSERT_TRUE(loaded.ok());
  const uint64_t print = loaded.value()->fingerprint();
  const Status nan = loaded.value()->replace_expert(*update.checkpoint, 2);
  EXPECT_EQ(nan.code, Code::kCorrupt);
  EXPECT_NE(nan.message.find("down_proj_scales: expert 2, row 1, block 2"), std::string::npos) << nan.message;
  const Status elsewhere = loaded.value()->replace_expert(*update.checkpoint, 4);
  EXPECT_EQ(elsewhere.code, Code::kInvalidArgument);
  EXPECT_NE(elsewhere.message.find("wanted an expert from 0 to 3 (the experts of this rank), found 4"),
            std::string::npos)
      << elsewhere.message;
  EXPECT_EQ(loaded.value()->fingerprint(), print);
  EXPECT_TRUE(loaded.value()->verify().ok());
}

// For bf16 weights: every value is checked before the first byte is written.
TEST(MoeReplace, NonFiniteNumbersChangeNothing) {
  const auto device = cpu::open_device({.threads = 2}).value();
  for (const MoeNaming naming : {MoeNaming::kQwen3Moe, MoeNaming::kGptOssBf16, MoeNaming::kNemotron3}) {
    const RandomMoe moe(small_config(naming), 5);
    RandomMoe bad(small_config(naming), 6);
    bad.down[2].w[2 * 7] = 0x80, bad.down[2].w[2 * 7 + 1] = 0xff;
    const Written file(moe.tensors(naming, 0)), update(bad.tensors(naming, 0));
    const auto loaded = load_moe(*device, *file.checkpoint, moe.config, {.naming = naming});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message;
    const uint64_t print = loaded.value()->fingerprint();
    for (const Status& status : {loaded.value()->replace_expert(*update.checkpoint, 2),
                                 loaded.value()->replace(*update.checkpoint)}) {
      EXPECT_EQ(status.code, Code::kCorrupt);
      EXPECT_NE(status.message.find("expert 2, row 0, column 7: wanted finite numbers, found an infinity"),
                std::string::npos)
          << status.message;
      EXPECT_EQ(loaded.value()->fingerprint(), print);
      EXPECT_TRUE(loaded.value()->verify().ok());
    }
    EXPECT_TRUE(loaded.value()->replace_expert(*update.checkpoint, 3).ok());
  }
}

}  // namespace
}  // namespace sluice::test
