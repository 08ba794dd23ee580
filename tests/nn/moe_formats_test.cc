// Layers from checkpoints with experts in FP8, MXFP8, MXFP4 and NVFP4, in their published forms.
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/cpu/device.h"
#include "harness/moe_forward.h"
#include "harness/moe_reach.h"
#include "nn/far_tensors.h"
#include "nn/moe/canary.h"
#include "nn/moe/slice.h"
#include "nn/stored_formats.h"

namespace sluice::test {
namespace {

constexpr int64_t kTokens = 3;

// Neither width is a multiple of 128, and the second of two ranks begins inside a block of 128.
MoeConfig small_layer(MoeNaming naming) {
  MoeConfig c = small_config(naming);
  c.x = c.g = DType::kF32, c.hidden = 192, c.intermediate = 320, c.experts = 4, c.top_k = 2;
  if (c.groups > 1) c.groups = 2, c.topk_groups = 1;
  if (c.latent > 0) c.latent = 0;
  if (c.shared_intermediate > 0) c.shared_intermediate = c.shared_as_slots ? 320 : 64;
  return c;
}

std::vector<float> random_rows(const MoeConfig& c) {
  Random random(4);
  std::vector<float> out(static_cast<size_t>(kTokens * c.hidden));
  for (float& v : out) v = static_cast<float>(random.normal());
  return out;
}

// Both layers are exact within `reach`.
void expect_near(const std::vector<float>& found, const std::vector<float>& wanted,
                 const std::vector<Reach>& reach) {
  double largest = 0, loosest = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(found[i], wanted[i], 2 * reach[i].error) << i;
    largest = std::max(largest, std::abs(double{wanted[i]})), loosest = std::max(loosest, 2 * reach[i].error);
  }
  EXPECT_LT(loosest, largest * 2e-2) << "the bound is too loose to prove anything";
}

void expect_equals_bf16(const StoredWay& way, MoeNaming naming) {
  SCOPED_TRACE(way.name + " as " + std::string(word(naming)));
  const auto device = cpu::open_device({.threads = 2}).value();
  const StoredLayer layer(way, naming, small_layer(naming), 7);
  const Written stored(layer.tensors), plain(layer.plain.tensors(naming, 0));
  std::vector<float> values = random_rows(layer.config);
  const Tensor x = make_tensor(values.data(), DType::kF32, {kTokens, layer.config.hidden});
  const std::vector<Reach> reach = reach_of(layer.plain, x);
  const auto wanted =
      forward(*device, *plain.checkpoint, layer.plain.config, {.naming = naming, .threads = 2}, x);
  const auto loaded = load_moe(*device, *stored.checkpoint, layer.config, {.naming = naming, .threads = 2});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  const Status checked = canary(*device, *loaded.value(), *stored.checkpoint);
  EXPECT_TRUE(checked.ok()) << checked.message;
  expect_near(forward(*device, *stored.checkpoint, layer.config, {.naming = naming, .threads = 2}, x), wanted,
              reach);
  std::vector<float> sum(wanted.size());
  for (const int64_t rank : {0, 1}) {
    const auto part = forward(*device, *stored.checkpoint, layer.config,
                              {.naming = naming, .slice = {.tp_rank = rank, .tp_size = 2}, .threads = 2}, x);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  expect_near(sum, wanted, reach);
}

std::string error_of(const std::vector<StoredTensor>& tensors, const MoeConfig& config,
                     MoeNaming naming = MoeNaming::kQwen3Moe) {
  const auto device = cpu::open_device({.threads = 1}).value();
  const Written file(tensors);
  const auto loaded = load_moe(*device, *file.checkpoint, config, {.naming = naming});
  EXPECT_FALSE(loaded.ok());
  const std::string message = loaded.ok() ? "" : loaded.status().message;
  const size_t at = message.find("model.safetensors: ");
  return at == std::string::npos ? message : message.substr(at + 19);
}

StoredWay way_of(const std::string& name) {
  for (const StoredWay& way : stored_ways())
    if (way.name == name) return way;
  ADD_FAILURE() << name;
  return {};
}

}  // namespace

TEST(MoeFormats, EveryPublishedFormEqualsItsWeightsInBf16) {
  for (const StoredWay& way : stored_ways()) expect_equals_bf16(way, MoeNaming::kQwen3Moe);
}

// One form of each format.
TEST(MoeFormats, EveryNamingOfSeparateMatricesHasEveryFormat) {
  for (const char* name : {"FP8 blocks", "FP8 by channel", "MXFP8", "MXFP4 of quark", "NVFP4 of modelopt",
                           "NVFP4 of compressed-tensors"})
    for (const MoeNaming naming :
         {MoeNaming::kDeepSeekV3, MoeNaming::kDeepSeekV4, MoeNaming::kMiniMaxM2, MoeNaming::kMiniMaxM3,
          MoeNaming::kNemotron3, MoeNaming::kMistralLarge3, MoeNaming::kGlm5Next})
      expect_equals_bf16(way_of(name), naming);
}

// Stacks the matrices of the routed experts under the plain names, gate before up.
std::vector<StoredTensor> stacked(const StoredWay& way, const StoredLayer& layer) {
  const auto named = [&](const std::string& name) -> const StoredTensor* {
    const auto at = std::ranges::find(layer.tensors, name, [](const StoredTensor& t) { return t.what.name; });
    return at == layer.tensors.end() ? nullptr : &*at;
  };
  std::vector<StoredTensor> out;
  const auto stack = [&](const std::string& name, const std::vector<std::string>& parts,
                         const std::string& suffix) {
    if (suffix.empty()) return;
    StoredTensor all;
    for (int64_t e = 0; e < layer.config.experts; ++e)
      for (const std::string& part : parts) {
        const StoredTensor* one =
            named("model.layers.0.mlp.experts." + std::to_string(e) + "." + part + suffix);
        ASSERT_TRUE(one) << part << suffix;
        all.what = one->what;
        // A scale of a whole matrix becomes one for each of its rows.
        const int64_t copies = one->what.shape.empty() || one->what.shape == std::vector<int64_t>{1}
                                   ? (part == "down_proj" ? layer.config.hidden : layer.config.intermediate)
                                   : 1;
        if (copies > 1) all.what.shape = {copies};
        for (int64_t copy = 1; copy < copies; ++copy)
          all.bytes.insert(all.bytes.end(), one->bytes.begin(), one->bytes.end());
        all.bytes.insert(all.bytes.end(), one->bytes.begin(), one->bytes.end());
      }
    all.what.name = name;
    all.what.shape[0] *= static_cast<int64_t>(parts.size());
    all.what.shape.insert(all.what.shape.begin(), layer.config.experts);
    out.push_back(std::move(all));
  };
  for (const auto& [name, parts] :
       {std::pair{std::string("experts.up"), std::vector<std::string>{"gate_proj", "up_proj"}},
        std::pair{std::string("experts.down"), std::vector<std::string>{"down_proj"}}}) {
    stack(name, parts, way.codes);
    stack(name + "_scale", parts, way.scales);
    stack(name + "_row_scale", parts, way.row_scale);
  }
  for (StoredTensor t : layer.tensors)
    if (t.what.name == "model.layers.0.mlp.gate.weight") t.what.name = "router", out.push_back(std::move(t));
  return out;
}

// Engines hold the experts of a layer in one tensor. The second of two ranks begins inside a block of 128.
TEST(MoeFormats, StackedExpertsEqualSeparateOnes) {
  const auto device = cpu::open_device({.threads = 2}).value();
  for (const char* name : {"FP8 blocks", "FP8 blocks, bf16 scales", "FP8 by channel", "FP8 by tensor",
                           "MXFP8", "MXFP4 of quark", "NVFP4 of modelopt"}) {
    SCOPED_TRACE(name);
    MoeConfig c = small_layer(MoeNaming::kQwen3Moe);
    c.intermediate = 384, c.gate_order = GateOrder::kGateFirst;
    const StoredLayer layer(way_of(name), MoeNaming::kQwen3Moe, c, 7);
    const std::vector<StoredTensor> tensors = stacked(way_of(name), layer);
    if (HasFatalFailure()) return;
    const Written separate(layer.tensors), plain(tensors);
    std::vector<float> values = random_rows(layer.config);
    const Tensor x = make_tensor(values.data(), DType::kF32, {kTokens, layer.config.hidden});
    for (const Slice& slice : {Slice{}, Slice{.tp_rank = 0, .tp_size = 2}, Slice{.tp_rank = 1, .tp_size = 2},
                               Slice{.ep_rank = 1, .ep_size = 2}}) {
      const auto of = [&](const Written& files, MoeNaming naming) {
        return forward(*device, *files.checkpoint, layer.config,
                       {.naming = naming, .slice = slice, .threads = 2}, x);
      };
      EXPECT_EQ(of(plain, MoeNaming::kPlain), of(separate, MoeNaming::kQwen3Moe));
    }
    // Through the upload ring of a device with memory of its own.
    FarDevice far;
    c = layer.config, c.x = c.g = DType::kBF16, c.layout = WeightLayout::kFragments;
    const auto loaded = load_moe(far, *plain.checkpoint, c, {.naming = MoeNaming::kPlain, .threads = 2});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message;
    const Status checked = canary(far, *loaded.value(), *plain.checkpoint);
    EXPECT_TRUE(checked.ok()) << checked.message;
    // From tensors in the memory of that device.
    const FarTensors there(far, tensors);
    for (const Slice& slice : {Slice{}, Slice{.tp_rank = 1, .tp_size = 2, .ep_rank = 1, .ep_size = 2}}) {
      const MoeLoadOptions options{.naming = MoeNaming::kPlain, .slice = slice, .threads = 2};
      const auto of_file = load_moe(far, *plain.checkpoint, c, options);
      const auto of_device = load_moe(far, *there.tensors, c, options);
      ASSERT_TRUE(of_file.ok() && of_device.ok()) << of_device.status().message;
      EXPECT_EQ(packed(*of_device.value()), packed(*of_file.value()));
    }
  }
}

TEST(MoeFormats, ErrorsOfStackedExpertsNameTheTensor) {
  MoeConfig c = small_layer(MoeNaming::kQwen3Moe);
  c.intermediate = 384, c.gate_order = GateOrder::kGateFirst;
  const auto error = [&](const char* way, const std::string& name, std::vector<int64_t> shape,
                         GateOrder order) {
    const StoredLayer layer(way_of(way), MoeNaming::kQwen3Moe, c, 7);
    std::vector<StoredTensor> tensors = stacked(way_of(way), layer);
    for (StoredTensor& t : tensors)
      if (t.what.name == name) {
        t.what.shape = shape;
        t.bytes.assign(static_cast<size_t>(*stored_bytes(t.what.type, shape)), std::byte{});
      }
    MoeConfig config = layer.config;
    config.gate_order = order;
    return error_of(tensors, config, MoeNaming::kPlain);
  };
  const GateOrder first = GateOrder::kGateFirst;
  EXPECT_EQ(error("FP8 blocks", "experts.up_scale", {4, 5, 2}, first),
            "experts.up_scale: wanted F32[4, 6, 2], found F32[4, 5, 2]");
  EXPECT_EQ(error("FP8 by channel", "experts.down_row_scale", {4, 5}, first),
            "experts.down_row_scale: wanted F32[4, 192], found F32[4, 5]");
  EXPECT_EQ(error("NVFP4 of modelopt", "experts.up_row_scale", {5}, first),
            "experts.up_row_scale: wanted F32[4], found F32[5]");
  EXPECT_NE(error("FP8 blocks", "", {}, GateOrder::kInterleaved)
                .find("wanted gate_first or up_first and a multiple of 32 with block scales, found "
                      "interleaved"),
            std::string::npos);
}

// A device with memory of its own gets rows through the upload ring and packs them itself.
TEST(MoeFormats, EveryFormatIsUploaded) {
  FarDevice device;
  for (const char* name : {"FP8 blocks", "FP8 by channel", "MXFP8", "MXFP4 of quark", "NVFP4 of modelopt"}) {
    SCOPED_TRACE(name);
    StoredLayer layer(way_of(name), MoeNaming::kQwen3Moe, small_layer(MoeNaming::kQwen3Moe), 7);
    layer.config.x = layer.config.g = DType::kBF16, layer.config.layout = WeightLayout::kFragments;
    const Written stored(layer.tensors);
    const auto loaded =
        load_moe(device, *stored.checkpoint, layer.config, {.naming = MoeNaming::kQwen3Moe, .threads = 2});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message;
    EXPECT_TRUE(loaded.value()->verify().ok()) << loaded.value()->verify().message;
    const Status checked = canary(device, *loaded.value(), *stored.checkpoint);
    EXPECT_TRUE(checked.ok()) << checked.message;
  }
}

TEST(MoeFormats, ErrorsNameTheTensor) {
  const std::string expert = "model.layers.0.mlp.experts.1.up_proj";
  const auto changed = [&](const char* way, const std::string& suffix, auto change) {
    StoredLayer layer(way_of(way), MoeNaming::kQwen3Moe, small_layer(MoeNaming::kQwen3Moe), 7);
    const auto at =
        std::ranges::find(layer.tensors, expert + suffix, [](const StoredTensor& t) { return t.what.name; });
    EXPECT_NE(at, layer.tensors.end());
    change(&layer, at);
    return error_of(layer.tensors, layer.config);
  };
  const auto gone = [](StoredLayer* l, auto at) { l->tensors.erase(at); };
  const auto typed = [](StoredType type, std::vector<int64_t> shape) {
    return [=](StoredLayer*, auto at) {
      at->what.type = type, at->what.shape = shape;
      at->bytes.assign(static_cast<size_t>(*stored_bytes(type, shape)), std::byte{});
    };
  };
  EXPECT_NE(changed("FP8 blocks", ".weight_scale_inv", gone)
                .find("wanted tensor '" + expert + ".weight_scale_inv'"),
            std::string::npos);
  EXPECT_NE(
      changed("FP8 by channel", ".weight_scale", gone).find("wanted tensor '" + expert + ".weight_scale'"),
      std::string::npos);
  EXPECT_NE(changed("NVFP4 of modelopt", ".weight_scale_2", gone)
                .find("wanted tensor '" + expert + ".weight_scale_2'"),
            std::string::npos);
  EXPECT_EQ(changed("FP8 blocks", ".weight_scale_inv", typed(StoredType::kF32, {3, 3})),
            expert + ".weight_scale_inv: wanted F32[3, 2], found F32[3, 3]");
  EXPECT_EQ(changed("FP8 blocks", ".weight_scale_inv", typed(StoredType::kF16, {3, 2})),
            expert + ".weight_scale_inv: wanted F32[3, 2], found F16[3, 2]");
  EXPECT_EQ(changed("FP8 blocks", ".weight", typed(StoredType::kBF16, {320, 192})),
            expert + ".weight: wanted F8_E4M3[320, 192], found BF16[320, 192]");
  EXPECT_EQ(changed("FP8 by channel", ".weight_scale", typed(StoredType::kF32, {3, 2})),
            expert + ".weight_scale: wanted F32[320, 1], found F32[3, 2]");
  EXPECT_EQ(changed("MXFP8", ".weight_scale_inv", typed(StoredType::kF32, {3, 2})),
            expert + ".weight_scale_inv: wanted F8_E8M0[320, 6], found F32[3, 2]");
  EXPECT_EQ(changed("NVFP4 of modelopt", ".weight_scale", typed(StoredType::kU8, {320, 6})),
            expert + ".weight_scale: wanted F8_E4M3[320, 12], found U8[320, 6]");
  EXPECT_EQ(changed("NVFP4 of modelopt", ".weight_scale_2", typed(StoredType::kF32, {320, 1})),
            expert + ".weight_scale_2: wanted F32[], found F32[320, 1]");
  // The reciprocal of zero.
  EXPECT_NE(changed("NVFP4 of compressed-tensors", ".weight_global_scale",
                    [](StoredLayer*, auto at) { std::ranges::fill(at->bytes, std::byte{}); })
                .find("wanted a finite scale, found an infinity"),
            std::string::npos);
}

TEST(MoeFormats, ImpossibleFormatsAreRefused) {
  const StoredLayer layer(way_of("FP8 blocks"), MoeNaming::kQwen3Moe, small_layer(MoeNaming::kQwen3Moe), 7);
  MoeConfig c = layer.config;
  c.expert_w = DType::kE4M3, c.expert_scales = WeightScales::kNv;
  EXPECT_NE(error_of(layer.tensors, c).find("expert_w and expert_scales: wanted"), std::string::npos)
      << error_of(layer.tensors, c);
  c.expert_scales = WeightScales::kMx, c.intermediate = 328;
  EXPECT_NE(error_of(layer.tensors, c)
                .find("intermediate: wanted a multiple of 32 (blocks of e4m3 with scales=mx), found 328"),
            std::string::npos)
      << error_of(layer.tensors, c);
}

TEST(MoeFormats, SlicesOfBlocksAreOf64Columns) {
  MoeConfig c = small_layer(MoeNaming::kQwen3Moe);
  c.intermediate = 96;
  EXPECT_EQ(sliced(c, {.tp_rank = 0, .tp_size = 2}).value().intermediate, 64);
  c.intermediate = 160;
  EXPECT_EQ(sliced(c, {.tp_rank = 0, .tp_size = 2}).value().intermediate, 96);
  c.expert_w = DType::kE4M3, c.expert_scales = WeightScales::kBlocks;
  EXPECT_EQ(sliced(c, {.tp_rank = 0, .tp_size = 2}).value().intermediate, 128);
  EXPECT_NE(
      sliced(c, {.tp_rank = 3, .tp_size = 4}).status().message.find("at least one block of 64, found none"),
      std::string::npos);
}

}  // namespace sluice::test
