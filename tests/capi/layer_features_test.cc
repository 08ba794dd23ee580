// What a layer can take and give beside x and y, through the handle: the bits of the C++ layer on the same tensors.
#include "capi/layer.h"
#include "nn/moe_problems.h"

namespace sluice::test {
namespace {

constexpr int64_t kTokens = CapiLayer::kTokens;

// Tensors of a call, by name, filled with what is legal there.
struct Call {
  Call(const MoeConfig& c, uint64_t seed) {
    Random random(seed);
    for_each_io(c, kTokens, [&](const SlotSpec& spec, Tensor MoeIo::*) {
      if (!spec.used) return;
      int64_t count = 1;
      for (int i = 0; i < spec.rank; ++i) count *= spec.shape[static_cast<size_t>(i)];
      std::vector<std::byte> bytes(static_cast<size_t>(bytes_of(spec.dtype, count)));
      for (int64_t i = 0; i < count; ++i) put(c, spec, i, random, bytes.data());
      memory.push_back(std::move(bytes));
      specs.push_back(spec);
    });
  }
  static void put(const MoeConfig& c, const SlotSpec& spec, int64_t i, Random& random, std::byte* to) {
    const int64_t expert = (i + i / c.top_k * 3) % c.experts;  // others in every slot of a token
    const float real = static_cast<float>(random.normal());
    int32_t whole = 0;
    if (spec.name == "ids_in") whole = i % 7 == 3 ? -1 : static_cast<int32_t>(expert);
    if (spec.name == "packed_in") whole = static_cast<int32_t>(expert << 16 | to_bf16(.25f).bits);
    if (spec.name == "token_ids") whole = static_cast<int32_t>(random.integer(0, c.hash_vocab - 1));
    if (spec.name == "adapter") whole = static_cast<int32_t>(i % 3) - 1;
    if (spec.name == "tokens_valid") whole = 3;
    const uint16_t half = to_bf16(real).bits;
    if (spec.dtype == DType::kI32) std::memcpy(to + 4 * i, &whole, 4);
    if (spec.dtype == DType::kF32) std::memcpy(to + 4 * i, &real, 4);
    if (spec.dtype == DType::kBF16) std::memcpy(to + 2 * i, &half, 2);
  }
  Tensor view(size_t i) {
    Tensor t{.data = memory[i].data(), .dtype = specs[i].dtype, .rank = static_cast<int8_t>(specs[i].rank)};
    t.shape = specs[i].shape;
    int64_t stride = 1;
    for (int d = specs[i].rank - 1; d >= 0; --d) {
      t.stride[static_cast<size_t>(d)] = stride;
      stride *= t.shape[static_cast<size_t>(d)];
    }
    return t;
  }
  std::vector<std::vector<std::byte>> memory;
  std::vector<SlotSpec> specs;
};

// Beside a checkpoint's tensors: what adapters and parameters of each expert want.
void add_beside(const MoeConfig& c, std::vector<StoredTensor>* tensors) {
  Random random(9);
  MoeWeights unused;
  for (const auto& [spec, tensor] : weight_slots(c, &unused)) {
    const bool act = spec.name == "experts.act_params";
    if (!spec.used || !(act || spec.name.starts_with("lora_"))) continue;
    const bool f32 = spec.dtype == DType::kF32;
    StoredTensor t{{std::string(spec.name), f32 ? StoredType::kF32 : StoredType::kBF16, {}}, {}};
    int64_t count = 1;
    for (int i = 0; i < spec.rank; ++i) {
      t.what.shape.push_back(spec.shape[static_cast<size_t>(i)]);
      count *= t.what.shape.back();
    }
    for (int64_t i = 0; i < count; ++i) {
      const float v = act ? (i % 3 == 2 ? 5.f : 1.25f) : .1f * static_cast<float>(random.normal());
      const uint16_t half = to_bf16(v).bits;
      const auto* bytes =
          f32 ? reinterpret_cast<const std::byte*>(&v) : reinterpret_cast<const std::byte*>(&half);
      t.bytes.insert(t.bytes.end(), bytes, bytes + (f32 ? 4 : 2));
    }
    tensors->push_back(std::move(t));
  }
}

void agrees(const MoeConfig& config, MoeNaming naming) {
  SCOPED_TRACE(fields_text(config));
  const RandomMoe moe(config, 5);
  std::vector<StoredTensor> stored = moe.tensors(naming, 0);
  if (!has_router(config))
    std::erase_if(stored,
                  [](const StoredTensor& t) { return t.what.name.find("router") != std::string::npos; });
  add_beside(config, &stored);
  const CapiDevice device;
  CapiLayer layer(device, config);
  const CallersTensors tensors(stored);
  Message error;
  ASSERT_EQ(layer.load(tensors, error), SLUICE_OK) << error.str();
  Call ours(config, 3), theirs(config, 3);
  std::vector<std::string> names;
  for (const SlotSpec& spec : ours.specs) names.emplace_back(spec.name);
  layer.args.clear();
  for (size_t i = 0; i < names.size(); ++i) {
    const Tensor t = ours.view(i);
    layer.args.push_back({names[i].c_str(), sluice_contiguous(t.data, static_cast<sluice_dtype>(t.dtype),
                                                              t.rank, t.shape.data())});
  }
  const sluice_launch launch = layer.launch();
  ASSERT_EQ(sluice_layer_run(layer.layer, &launch, error), SLUICE_OK) << error.str();

  const auto cpu = cpu::open_device({.threads = 2}).value();
  const Written file(stored);
  const auto loaded = load_moe(*cpu, *file.checkpoint, config, {.naming = naming});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  const auto planned = Moe::plan(*cpu, config, kTokens);
  ASSERT_TRUE(planned.ok()) << planned.status().message;
  MoeIo io;
  size_t at = 0;
  for_each_io(config, kTokens, [&](const SlotSpec& spec, Tensor MoeIo::*member) {
    if (spec.used) io.*member = theirs.view(at++);
  });
  std::vector<std::byte> scratch(planned.value()->workspace_bytes() + 256);
  auto* aligned = scratch.data() + (256 - reinterpret_cast<uintptr_t>(scratch.data()) % 256) % 256;
  const Status status = planned.value()->forward(
      io, loaded.value()->weights(), {aligned, planned.value()->workspace_bytes()}, cpu->stream());
  ASSERT_TRUE(status.ok()) << status.message;
  const Call untouched(config, 3);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(ours.memory[i], theirs.memory[i]) << names[i];
    EXPECT_EQ(ours.memory[i] == untouched.memory[i], ours.specs[i].role == Role::kIn) << names[i];
  }
}

TEST(CapiLayerFeatures, GiveTheBitsOfTheCppLayer) {
  const MoeConfig plain = small_config(MoeNaming::kGptOss);
  const auto with = [&](auto change) {
    MoeConfig c = plain;
    change(c);
    return c;
  };
  agrees(with([](MoeConfig& c) { c.residual = c.capture = true; }), MoeNaming::kGptOss);
  agrees(with([](MoeConfig& c) { c.padded = true; }), MoeNaming::kGptOss);
  agrees(with([](MoeConfig& c) { c.lora_rank = 4, c.lora_adapters = 2; }), MoeNaming::kGptOss);
  agrees(with([](MoeConfig& c) { c.per_expert = true; }), MoeNaming::kGptOss);
  agrees(with([](MoeConfig& c) { c.input = RoutingInput::kPrecomputed, c.router_bias = false; }),
         MoeNaming::kGptOss);
  agrees(with([](MoeConfig& c) { c.input = RoutingInput::kPacked, c.router_bias = false; }),
         MoeNaming::kGptOss);
  MoeConfig hash = small_config(MoeNaming::kDeepSeekV4);
  hash.method = RoutingMethod::kHash, hash.correction_bias = false, hash.hash_vocab = 64;
  agrees(hash, MoeNaming::kDeepSeekV4);
}

TEST(CapiLayerFeatures, WhatStandsBesideACheckpointIsNamed) {
  MoeConfig config = small_config(MoeNaming::kGptOss);
  config.per_expert = true;
  const RandomMoe moe(config, 5);
  const CapiDevice device;
  CapiLayer layer(device, config);
  const CallersTensors tensors(moe.tensors(MoeNaming::kGptOss, 0));
  Message error;
  EXPECT_EQ(layer.load(tensors, error), SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(error.str().find("per_expert: wanted 'experts.act_params' beside"), std::string::npos)
      << error.str();
}

}  // namespace
}  // namespace sluice::test
