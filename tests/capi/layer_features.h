// A layer's optional inputs and outputs through the handle, on any device: the same bits as the C++ layer on
// the same tensors.
#pragma once
#include "backends/backends.h"
#include "capi/layer.h"
#include "nn/moe/problems.h"

namespace sluice::test {

// In a namespace because only this header's tests use these constants and helpers.
namespace features {

constexpr int64_t kTokens = CapiLayer::kTokens;

// Tensors of a call, by name, filled with legal values.
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
    const int64_t expert = (i + i / c.top_k * 3) % c.experts;  // different experts in the slots of a token
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

// Tensors in addition to a checkpoint's: adapters, and activation parameters per expert.
inline void add_beside(const MoeConfig& c, std::vector<StoredTensor>* tensors) {
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

// Memory of a device opened through the C ABI, which can be written and read from the host.
class Lent {
 public:
  Lent(sluice_device* device, const std::vector<std::byte>& bytes) : device_(device), bytes_(bytes.size()) {
    EXPECT_EQ(sluice_allocate(device, bytes.size(), &data_, nullptr), SLUICE_OK);
    EXPECT_EQ(sluice_copy(device, data_, bytes.data(), bytes.size(), sluice_device_stream(device), nullptr),
              SLUICE_OK);
    EXPECT_EQ(sluice_wait(device, sluice_device_stream(device), nullptr), SLUICE_OK);
  }
  ~Lent() { sluice_release(device_, data_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  void* data() const { return data_; }
  std::vector<std::byte> read() const {
    std::vector<std::byte> out(bytes_);
    EXPECT_EQ(sluice_copy(device_, out.data(), data_, bytes_, sluice_device_stream(device_), nullptr),
              SLUICE_OK);
    EXPECT_EQ(sluice_wait(device_, sluice_device_stream(device_), nullptr), SLUICE_OK);
    return out;
  }

 private:
  sluice_device* device_;
  void* data_ = nullptr;
  size_t bytes_;
};
using Loans = std::vector<std::unique_ptr<Lent>>;

// The handle's inputs and outputs after a run on `backend`; weights are on the host or on the device.
inline void run_handle(sluice_backend backend, bool weights_there, const MoeConfig& config,
                       const std::vector<StoredTensor>& stored, Call* call) {
  sluice_device_options options = SLUICE_DEVICE_OPTIONS_INIT;
  options.backend = backend;
  Message error;
  sluice_device* device = nullptr;
  ASSERT_EQ(sluice_open(&options, &device, error), SLUICE_OK) << error.str();
  {
    const std::string fields = fields_text(config);
    sluice_layer_options wanted = SLUICE_LAYER_OPTIONS_INIT;
    wanted.fields = fields.c_str(), wanted.tokens_max = kTokens;
    sluice_layer* layer = nullptr;
    ASSERT_EQ(sluice_layer_create(device, &wanted, &layer, error), SLUICE_OK) << error.str();
    CallersTensors tensors(stored);
    Loans loans;
    for (sluice_weight& w : tensors.list) {
      if (!weights_there) continue;
      const auto* from = static_cast<const std::byte*>(w.data);
      loans.push_back(std::make_unique<Lent>(device, std::vector<std::byte>(from, from + w.bytes)));
      w.data = loans.back()->data(), w.where = backend;
    }
    ASSERT_EQ(sluice_layer_load(layer, &tensors.all, error), SLUICE_OK) << error.str();
    loans.clear();
    std::vector<std::string> names;
    for (const SlotSpec& spec : call->specs) names.emplace_back(spec.name);
    std::vector<sluice_arg> args;
    for (size_t i = 0; i < names.size(); ++i) {
      loans.push_back(std::make_unique<Lent>(device, call->memory[i]));
      const Tensor t = call->view(i);
      sluice_tensor to =
          sluice_contiguous(loans[i]->data(), static_cast<sluice_dtype>(t.dtype), t.rank, t.shape.data());
      to.where = backend;
      args.push_back({names[i].c_str(), to});
    }
    const size_t bytes = sluice_layer_workspace_bytes(layer);
    const Lent workspace(device, std::vector<std::byte>(bytes, std::byte{0xA5}));
    const sluice_launch launch{args.data(), args.size(), workspace.data(), bytes,
                               sluice_device_stream(device)};
    EXPECT_EQ(sluice_layer_run(layer, &launch, error), SLUICE_OK) << error.str();
    for (size_t i = 0; i < names.size(); ++i) call->memory[i] = loans[i]->read();
    sluice_layer_destroy(layer);
  }
  sluice_close(device);
}

// The same through the C++ API, loaded from a checkpoint file.
inline void run_cpp(Backend backend, MoeNaming naming, const MoeConfig& config,
                    const std::vector<StoredTensor>& stored, Call* call) {
  const auto device = open_device({.backend = backend});
  ASSERT_TRUE(device.ok()) << device.status().message;
  Device& on = *device.value();
  const Written file(stored);
  const auto loaded = load_moe(on, *file.checkpoint, config, {.naming = naming});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  const auto planned = Moe::plan(on, config, kTokens);
  ASSERT_TRUE(planned.ok()) << planned.status().message;
  std::vector<OwnedTensor> owned;
  const auto take = [&](int64_t bytes) {
    owned.push_back(OwnedTensor::make(on, slot("", Role::kOut, DType::kU8, {bytes}), "test").value());
    return owned.back().view().data;
  };
  MoeIo io;
  size_t at = 0;
  for_each_io(config, kTokens, [&](const SlotSpec& spec, Tensor MoeIo::*member) {
    if (!spec.used) return;
    Tensor t = call->view(at);
    t.data = take(static_cast<int64_t>(call->memory[at].size())), t.where = backend;
    EXPECT_TRUE(on.copy(t.data, call->memory[at].data(), call->memory[at].size(), on.stream()).ok());
    io.*member = t, ++at;
  });
  const size_t bytes = planned.value()->workspace_bytes();
  const Workspace workspace{static_cast<std::byte*>(take(static_cast<int64_t>(bytes))), bytes};
  const Status status = planned.value()->forward(io, loaded.value()->weights(), workspace, on.stream());
  EXPECT_TRUE(status.ok()) << status.message;
  for (size_t i = 0; i < call->memory.size(); ++i)
    EXPECT_TRUE(
        on.copy(call->memory[i].data(), owned[i].view().data, call->memory[i].size(), on.stream()).ok());
  EXPECT_TRUE(on.wait(on.stream()).ok());
}

inline void agrees(Backend backend, MoeConfig config, MoeNaming naming) {
  config.layout = layout_for(backend);
  SCOPED_TRACE(fields_text(config));
  const RandomMoe moe(config, 5);
  std::vector<StoredTensor> stored = moe.tensors(naming, 0);
  if (!has_router(config))
    std::erase_if(stored,
                  [](const StoredTensor& t) { return t.what.name.find("router") != std::string::npos; });
  add_beside(config, &stored);
  const auto c_backend = backend == Backend::kCuda ? SLUICE_CUDA : SLUICE_CPU;
  Call want(config, 3), untouched(config, 3);
  run_cpp(backend, naming, config, stored, &want);
  for (const bool weights_there : {false, true}) {
    Call got(config, 3);
    run_handle(c_backend, weights_there, config, stored, &got);
    for (size_t i = 0; i < got.specs.size(); ++i) {
      EXPECT_EQ(got.memory[i], want.memory[i]) << got.specs[i].name;
      EXPECT_EQ(got.memory[i] == untouched.memory[i], got.specs[i].role == Role::kIn) << got.specs[i].name;
    }
  }
}

// Tests every feature on `backend`.
inline void all_agree(Backend backend) {
  const MoeConfig plain = small_config(MoeNaming::kGptOss);
  const auto with = [&](auto change) {
    MoeConfig c = plain;
    change(c);
    return agrees(backend, c, MoeNaming::kGptOss);
  };
  with([](MoeConfig& c) { c.residual = c.capture = true; });
  with([](MoeConfig& c) { c.residual = c.norm_x = c.norm_y = true; });
  with([](MoeConfig& c) { c.padded = true; });
  with([](MoeConfig& c) { c.lora_rank = 4, c.lora_adapters = 2; });
  with([](MoeConfig& c) { c.per_expert = true; });
  with([](MoeConfig& c) { c.input = RoutingInput::kPrecomputed, c.router_bias = false; });
  with([](MoeConfig& c) { c.input = RoutingInput::kPacked, c.router_bias = false; });
  MoeConfig hash = small_config(MoeNaming::kDeepSeekV4);
  hash.method = RoutingMethod::kHash, hash.correction_bias = false, hash.hash_vocab = 64;
  agrees(backend, hash, MoeNaming::kDeepSeekV4);
}

}  // namespace features
}  // namespace sluice::test
