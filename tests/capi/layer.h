// A layer used through the C ABI, with random weights in the caller's own memory.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backends/cpu/device.h"
#include "capi/support.h"
#include "harness/moe_files.h"

namespace sluice::test {

// The tensors of a layer as sluice.h requires them, in arbitrary order.
struct CallersTensors {
  CallersTensors(std::vector<StoredTensor> from) : stored(std::move(from)) {  // NOLINT
    std::rotate(stored.begin(), stored.begin() + static_cast<std::ptrdiff_t>(stored.size() / 2),
                stored.end());
    for (const StoredTensor& t : stored)
      list.push_back({t.what.name.c_str(), text(t.what.type), SLUICE_CPU,
                      static_cast<int32_t>(t.what.shape.size()), t.what.shape.data(), t.bytes.data(),
                      t.bytes.size()});
    all = {list.data(), list.size(), nullptr, -1};
  }
  CallersTensors(const CallersTensors&) = delete;
  CallersTensors& operator=(const CallersTensors&) = delete;
  sluice_weight& at(const std::string& part_of_name) {
    for (sluice_weight& w : list)
      if (std::string(w.name).find(part_of_name) != std::string::npos) return w;
    ADD_FAILURE() << "no tensor has '" << part_of_name << "' in its name";
    return list[0];
  }
  std::vector<StoredTensor> stored;
  std::vector<sluice_weight> list;
  sluice_weights all{};
};

// A layer for up to `tokens` tokens, its workspace, and tensors to run it on.
struct CapiLayer {
  static constexpr int64_t kTokens = 5;
  CapiLayer(const CapiDevice& on, const MoeConfig& config, const Slice& slice = {}) : device(on), c(config) {
    fields = fields_text(config);
    sluice_layer_options options = SLUICE_LAYER_OPTIONS_INIT;
    options.fields = fields.c_str();
    options.tokens_max = kTokens;
    options.tp_rank = slice.tp_rank, options.tp_size = slice.tp_size;
    options.ep_rank = slice.ep_rank, options.ep_size = slice.ep_size;
    Message error;
    EXPECT_EQ(sluice_layer_create(on.device, &options, &layer, error), SLUICE_OK) << error.str();
    Random random(3);
    const auto count = static_cast<size_t>(kTokens * c.hidden);
    for (size_t i = 0; i < count; ++i) x.push_back(to_bf16(static_cast<float>(random.normal())).bits);
    y.assign(count, 0x7FC1);  // NaN
    scratch.resize(sluice_layer_workspace_bytes(layer) + 256);
    args = {{"y", view(y)}, {"x", view(x)}};
  }
  ~CapiLayer() { sluice_layer_destroy(layer); }
  CapiLayer(const CapiLayer&) = delete;
  CapiLayer& operator=(const CapiLayer&) = delete;

  sluice_tensor view(std::vector<uint16_t>& v) const {
    const int64_t shape[] = {kTokens, c.hidden};
    return sluice_contiguous(v.data(), SLUICE_BF16, 2, shape);
  }
  sluice_launch launch() {
    auto* aligned = scratch.data() + (256 - reinterpret_cast<uintptr_t>(scratch.data()) % 256) % 256;
    return {args.data(), args.size(), aligned, sluice_layer_workspace_bytes(layer), device.stream()};
  }
  sluice_status load(const CallersTensors& tensors, sluice_text* error) {
    return sluice_layer_load(layer, &tensors.all, error);
  }
  // Runs the layer, which must succeed, and returns y.
  std::vector<uint16_t> run() {
    std::fill(y.begin(), y.end(), uint16_t{0x7FC1});
    Message error;
    const sluice_launch l = launch();
    EXPECT_EQ(sluice_layer_run(layer, &l, error), SLUICE_OK) << error.str();
    EXPECT_EQ(sluice_wait(device.device, l.stream, error), SLUICE_OK) << error.str();
    return y;
  }
  const CapiDevice& device;
  MoeConfig c;
  std::string fields;
  sluice_layer* layer = nullptr;
  std::vector<uint16_t> x, y;
  std::vector<char> scratch;
  std::vector<sluice_arg> args;
};

// The same layer through the C++ API, loaded from a checkpoint file.
inline std::vector<uint16_t> through_cpp(const RandomMoe& moe, MoeNaming naming, int64_t number,
                                         const Slice& slice, std::vector<uint16_t> x) {
  const auto device = cpu::open_device({.threads = 2}).value();
  const Written file(moe.tensors(naming, number));
  const auto loaded =
      load_moe(*device, *file.checkpoint, moe.config, {.naming = naming, .layer = number, .slice = slice});
  EXPECT_TRUE(loaded.ok()) << loaded.status().message;
  const int64_t tokens = CapiLayer::kTokens;
  const auto planned = Moe::plan(*device, loaded.value()->config(), tokens);
  EXPECT_TRUE(planned.ok()) << planned.status().message;
  std::vector<std::byte> scratch(planned.value()->workspace_bytes() + 256);
  auto* aligned = scratch.data() + (256 - reinterpret_cast<uintptr_t>(scratch.data()) % 256) % 256;
  std::vector<uint16_t> y(x.size());
  MoeIo io;
  io.x = make_tensor(x.data(), DType::kBF16, {tokens, moe.config.hidden});
  io.y = make_tensor(y.data(), DType::kBF16, {tokens, moe.config.hidden});
  const Status status = planned.value()->forward(
      io, loaded.value()->weights(), {aligned, planned.value()->workspace_bytes()}, device->stream());
  EXPECT_TRUE(status.ok()) << status.message;
  return y;
}

}  // namespace sluice::test
