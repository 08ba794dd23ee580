#include "nn/moe/load.h"

#include <gtest/gtest.h>

#include "harness/devices.h"
#include "harness/moe_files.h"
#include "nn/moe/canary.h"

namespace sluice::test {
namespace {

constexpr int64_t kLayer = 12;

std::unique_ptr<Device> device() { return cpu::open_device({.threads = 2}).value(); }

std::vector<uint8_t> bytes_of_tensor(const Tensor& t) {
  const auto* begin = t.as<const uint8_t>();
  return t.present() ? std::vector<uint8_t>(begin, begin + bytes_of(t.dtype, elements_of(t)))
                     : std::vector<uint8_t>{};
}

// One expert's packed bytes, computed plainly: rows joined in the config's order, then pack_matrix.
void expect_packed(const RandomMatrix& m, const PackedMatrix& matrix, const Tensor& w, const Tensor& scales,
                   int64_t expert) {
  const PackedSizes s = packed_sizes(matrix);
  std::vector<uint8_t> codes(static_cast<size_t>(s.code_bytes)),
      panel_scales(static_cast<size_t>(s.scale_bytes));
  RandomMatrix copy = m;
  const Status packed =
      pack_matrix(matrix,
                  {make_tensor(copy.w.data(), matrix.w, {m.rows, m.width}),
                   m.fp4 ? make_tensor(copy.scales.data(), DType::kU8, {m.rows, m.width / 32}) : Tensor{}},
                  {make_tensor(codes.data(), DType::kU8, {s.code_bytes}),
                   m.fp4 ? make_tensor(panel_scales.data(), DType::kU8, {s.scale_bytes}) : Tensor{}});
  ASSERT_TRUE(packed.ok()) << packed.message;
  EXPECT_EQ(std::memcmp(w.row<uint8_t>(expert), codes.data(), codes.size()), 0) << "expert " << expert;
  if (m.fp4) {
    EXPECT_EQ(std::memcmp(scales.row<uint8_t>(expert), panel_scales.data(), panel_scales.size()), 0)
        << "expert " << expert;
  }
}

PackedMatrix matrix_of(const MoeConfig& c, const RandomMatrix& m, bool up) {
  const bool gated = up && is_gated(c.act);
  return {.features = gated ? m.rows / 2 : m.rows,
          .width = m.width,
          .gated = gated,
          .gate_order = c.gate_order,
          .w = m.fp4 ? DType::kE2M1 : DType::kBF16,
          .layout = c.layout};
}

class MoeLoadIn : public testing::TestWithParam<WeightLayout> {};
INSTANTIATE_TEST_SUITE_P(Layouts, MoeLoadIn,
                         testing::Values(WeightLayout::kPanels16, WeightLayout::kFragments),
                         [](const auto& layout) { return std::string(word(layout.param)); });

TEST_P(MoeLoadIn, EveryNamingIsDetectedAndLoadedByteForByte) {
  const auto d = device();
  for (MoeNaming naming : kNamings) {
    MoeConfig config = small_config(naming);
    config.layout = GetParam();
    const RandomMoe moe(config, 5);
    const int64_t layer = naming == MoeNaming::kPlain ? 0 : kLayer;  // its names have no layer number
    const Written file(moe.tensors(naming, layer));
    const auto detected = detect(*file.checkpoint);
    ASSERT_TRUE(detected.ok()) << detected.status().message;
    EXPECT_EQ(detected.value(), naming) << word(naming);
    EXPECT_EQ(moe_layers(*file.checkpoint, naming), std::vector<int64_t>{layer});
    int64_t done = 0, total = 0, calls = 0;
    const auto loaded =
        load_moe(*d, *file.checkpoint, moe.config,
                 {.naming = naming, .layer = layer, .threads = 2, .progress = [&](int64_t now, int64_t all) {
                    EXPECT_GT(now, done);
                    done = now, total = all, ++calls;
                  }});
    ASSERT_TRUE(loaded.ok()) << word(naming) << ": " << loaded.status().message;
    EXPECT_EQ(done, total);
    const int64_t slots = shared_slots(moe.config), width = moe.config.intermediate;
    EXPECT_EQ(calls, 16 + (slots ? 2 * slots : moe.config.shared_intermediate ? 2 : 0));
    const MoeWeights& w = loaded.value()->weights();
    const bool gated = is_gated(moe.config.act);
    for (size_t e = 0; e < 8; ++e) {
      const RandomMatrix up = RandomMoe::joined(gated ? moe.gate[e] : moe.up[e], gated ? &moe.up[e] : nullptr,
                                                moe.config.gate_order);
      expect_packed(up, matrix_of(moe.config, up, true), w.experts.up, w.experts.up_scale,
                    static_cast<int64_t>(e));
      expect_packed(moe.down[e], matrix_of(moe.config, moe.down[e], false), w.experts.down,
                    w.experts.down_scale, static_cast<int64_t>(e));
    }
    for (int64_t j = 0; j < slots; ++j) {
      const auto part = [&](const RandomMatrix& m) { return RandomMoe::rows_of(m, j * width, width); };
      const RandomMatrix shared_up = part(moe.shared_up),
                         up = RandomMoe::joined(gated ? part(moe.shared_gate) : shared_up,
                                                gated ? &shared_up : nullptr, moe.config.gate_order);
      const RandomMatrix down = RandomMoe::columns_of(moe.shared_down, j * width, width);
      expect_packed(up, matrix_of(moe.config, up, true), w.experts.up, {}, 8 + j);
      expect_packed(down, matrix_of(moe.config, down, false), w.experts.down, {}, 8 + j);
      EXPECT_FALSE(w.shared.up.present());
    }
    if (moe.config.shared_intermediate && slots == 0) {
      const RandomMatrix up = RandomMoe::joined(gated ? moe.shared_gate : moe.shared_up,
                                                gated ? &moe.shared_up : nullptr, moe.config.gate_order);
      expect_packed(up, matrix_of(moe.config, up, true), w.shared.up, {}, 0);
      expect_packed(moe.shared_down, matrix_of(moe.config, moe.shared_down, false), w.shared.down, {}, 0);
    }
    const auto same = [](const Tensor& t, const auto& v) {
      const auto* begin = reinterpret_cast<const uint8_t*>(v.data());
      EXPECT_EQ(bytes_of_tensor(t), std::vector<uint8_t>(begin, begin + v.size() * sizeof(v[0])));
    };
    std::vector<float> wide;  // a bf16 router that the model computes in f32
    for (uint16_t bits : moe.router) wide.push_back(to_float(BF16{bits}));
    moe.config.router_w == DType::kF32 ? same(w.router, wide) : same(w.router, moe.router);
    same(w.router_bias, moe.router_bias), same(w.correction_bias, moe.correction_bias);
    same(w.experts.up_bias, moe.up_bias), same(w.experts.down_bias, moe.down_bias);
    EXPECT_TRUE(loaded.value()->verify().ok());
    EXPECT_TRUE(Moe::plan(*d, loaded.value()->config(), 4).ok());
  }
}

// Fine-tuning tools save bf16 weights in F32.
TEST_P(MoeLoadIn, NumbersInF32GiveTheSameBytes) {
  const auto d = device();
  const auto packed = [&](const RandomMoe& moe, const MoeLoadOptions& options,
                          const std::vector<StoredTensor>& tensors) {
    const Written file(tensors);
    std::vector<std::byte> out;
    const auto loaded = load_moe(*d, *file.checkpoint, moe.config, options);
    EXPECT_TRUE(loaded.ok()) << word(options.naming) << ": " << loaded.status().message;
    if (!loaded.ok()) return out;
    const auto append = [&](std::span<const std::byte> bytes) -> Status {
      out.insert(out.end(), bytes.begin(), bytes.end());
      return {};
    };
    EXPECT_TRUE(loaded.value()->write_packed(append).ok());
    if (moe.config.layout == WeightLayout::kPanels16) {  // the host's kernels read only this layout
      const Status looked = canary(*d, *loaded.value(), *file.checkpoint);
      EXPECT_TRUE(looked.ok()) << word(options.naming) << ": " << looked.message;
    }
    return out;
  };
  for (MoeNaming naming : kNamings) {
    MoeConfig config = small_config(naming);
    config.layout = GetParam();
    const RandomMoe moe(config, 5);
    const int64_t layer = naming == MoeNaming::kPlain ? 0 : kLayer;
    const std::vector<StoredTensor> as_is = moe.tensors(naming, layer);
    std::vector<StoredTensor> wide = as_is;
    for (StoredTensor& t : wide) {
      if (t.what.type != StoredType::kBF16) continue;
      std::vector<std::byte> bytes(2 * t.bytes.size());
      for (size_t i = 0; i < t.bytes.size(); i += 2)
        std::memcpy(bytes.data() + 2 * i + 2, t.bytes.data() + i, 2);
      t.what.type = StoredType::kF32, t.bytes = std::move(bytes);
    }
    std::vector<Slice> slices{{}};
    if (config.expert_w == DType::kBF16 && !config.shared_as_slots)
      slices.push_back({.tp_rank = 1, .tp_size = 2});  // this slice also cuts a bias
    for (const Slice& slice : slices) {
      const MoeLoadOptions options{.naming = naming, .layer = layer, .slice = slice, .threads = 2};
      const std::vector<std::byte> wanted = packed(moe, options, as_is);
      ASSERT_FALSE(wanted.empty());
      EXPECT_EQ(packed(moe, options, wide), wanted) << word(naming);
    }
  }
}

TEST(MoeLoad, TheHashTableIsNarrowedAndBounded) {
  const auto d = device();
  MoeConfig config = small_config(MoeNaming::kDeepSeekV4);
  config.method = RoutingMethod::kHash, config.correction_bias = false, config.hash_vocab = 50;
  RandomMoe moe(config, 2);
  {
    const Written file(moe.tensors(MoeNaming::kDeepSeekV4, 0));
    const auto loaded = load_moe(*d, *file.checkpoint, config, {.naming = MoeNaming::kDeepSeekV4});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message;
    for (size_t i = 0; i < moe.hash_table.size(); ++i)
      EXPECT_EQ(loaded.value()->weights().hash_table.as<int32_t>()[i], moe.hash_table[i]);
  }
  for (int64_t bad : {int64_t{8}, int64_t{-1}, int64_t{1} << 32}) {
    moe.hash_table[17 * 3 + 2] = bad;
    const Written file(moe.tensors(MoeNaming::kDeepSeekV4, 0));
    const Status status = load_moe(*d, *file.checkpoint, config, {.naming = MoeNaming::kDeepSeekV4}).status();
    EXPECT_EQ(status.code, Code::kCorrupt);
    EXPECT_NE(status.message.find("tid2eid: row 17, slot 2: wanted an expert from 0 to 7, found " +
                                  std::to_string(bad)),
              std::string::npos)
        << status.message;
  }
}

TEST(MoeLoad, AnF8SharedExpertIsReadAsBf16) {
  const auto d = device();
  const RandomMoe moe(small_config(MoeNaming::kDeepSeekV4), 2);
  std::vector<StoredTensor> tensors = moe.tensors(MoeNaming::kDeepSeekV4, 1);
  std::vector<StoredTensor> scales;
  for (StoredTensor& t : tensors) {
    if (t.what.name.find("shared_experts") == std::string::npos) continue;
    t.what.type = StoredType::kF8E4M3;
    t.bytes.resize(t.bytes.size() / 2);
    for (size_t i = 0; i < t.bytes.size(); ++i) t.bytes[i] = static_cast<std::byte>(i * 7 % 127);
    std::string name = t.what.name.substr(0, t.what.name.size() - 6) + "scale";
    scales.push_back({{name, StoredType::kF8E8M0, {1, 1}}, {std::byte{130}}});
  }
  tensors.insert(tensors.end(), scales.begin(), scales.end());
  const Written file(tensors);
  const auto loaded =
      load_moe(*d, *file.checkpoint, moe.config, {.naming = MoeNaming::kDeepSeekV4, .layer = 1});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  const PanelShape s = panel_shape(96, false, 96);
  for (int64_t i = 0; i < 96; ++i)
    for (int64_t k = 0; k < 96; ++k) {
      const BF16 got = loaded.value()
                           ->weights()
                           .shared.down.as<BF16>()[panel_bf16_index(s, panel_row(false, i, false), k)];
      EXPECT_EQ(to_float(got), 8 * to_float(E4M3{static_cast<uint8_t>((i * 96 + k) * 7 % 127)}));
    }
}

// Sets element `at` of a bf16 tensor to these bits.
void spoil(StoredTensor& t, size_t at, uint16_t bits) {
  ASSERT_LE(2 * at + 2, t.bytes.size()) << t.what.name;
  std::memcpy(t.bytes.data() + 2 * at, &bits, 2);
}

struct RefusedLoad {
  const char* why;
  MoeNaming naming;
  void (*change)(MoeConfig&, std::vector<StoredTensor>&);
  Code code;
  const char* words;
};

StoredTensor& named(std::vector<StoredTensor>& tensors, const std::string& part) {
  for (StoredTensor& t : tensors)
    if (t.what.name.find(part) != std::string::npos) return t;
  return tensors[0];
}

TEST(MoeLoad, MismatchedTensorsAreRefusedByName) {
  using Tensors = std::vector<StoredTensor>;
  const RefusedLoad kCases[] = {
      {"FP8 experts", MoeNaming::kDeepSeekV3,
       [](MoeConfig&, Tensors& t) {
         StoredTensor& w = named(t, "experts.3.up_proj");
         w.what.type = StoredType::kF8E4M3, w.bytes.resize(w.bytes.size() / 2);
       },
       Code::kUnsupported,
       "layers.12.mlp.experts.3.up_proj.weight: wanted BF16[160, 96], found F8_E4M3[160, 96]"},
      {"another shape", MoeNaming::kGptOss, [](MoeConfig& c, Tensors&) { c.intermediate = 192; },
       Code::kCorrupt, "gate_up_proj_bias: wanted BF16[8, 384], found BF16[8, 320]"},
      {"a missing tensor", MoeNaming::kQwen3Moe,
       [](MoeConfig&, Tensors& t) {
         named(t, "experts.7.down_proj").what.name = "model.layers.12.mlp.experts.7.down_prj.weight";
       },
       Code::kCorrupt, "wanted tensor 'model.layers.12.mlp.experts.7.down_proj.weight', found no such name"},
      {"a bias that the config lacks", MoeNaming::kGptOss, [](MoeConfig& c, Tensors&) { c.up_bias = false; },
       Code::kInvalidArgument, "up_bias: the checkpoint has "},
      {"a bias that the naming lacks", MoeNaming::kQwen3Moe,
       [](MoeConfig& c, Tensors&) { c.router_bias = true; }, Code::kInvalidArgument,
       "these checkpoints have none"},
      {"a shared expert that the config lacks", MoeNaming::kDeepSeekV3,
       [](MoeConfig& c, Tensors&) { c.shared_intermediate = 0; }, Code::kInvalidArgument,
       "shared_intermediate: wanted above 0"},
      {"another order", MoeNaming::kGptOss,
       [](MoeConfig& c, Tensors&) { c.gate_order = GateOrder::kGateFirst; }, Code::kInvalidArgument,
       "gate_order: wanted interleaved, found gate_first"},
      {"no gate", MoeNaming::kNemotron3, [](MoeConfig& c, Tensors&) { c.act = Activation::kSwiGlu; },
       Code::kInvalidArgument, "act: wanted an activation without a gate"},
      {"another type", MoeNaming::kGptOss, [](MoeConfig& c, Tensors&) { c.expert_w = DType::kBF16; },
       Code::kInvalidArgument, "expert_w: wanted e2m1, found bf16"},
      {"another layout", MoeNaming::kGptOss,
       [](MoeConfig& c, Tensors&) { c.layout = WeightLayout::kRowMajor; }, Code::kInvalidArgument,
       "layout: wanted panels16 or fragments"},
      {"a NaN scale", MoeNaming::kGptOss,
       [](MoeConfig&, Tensors& t) {
         named(t, "down_proj_scales").bytes[(5 * 96 + 33) * 5 + 2] = std::byte{255};
       },
       Code::kCorrupt, "layer 12: "},
      {"a NaN scale", MoeNaming::kGptOss,
       [](MoeConfig&, Tensors& t) {
         named(t, "gate_up_proj_scales").bytes[(6 * 320 + 77) * 3 + 1] = std::byte{255};
       },
       Code::kCorrupt,
       "gate_up_proj_scales: expert 6, row 77, block 1: wanted a scale of 0 to 254, found 255"},
      {"a NaN scale", MoeNaming::kDeepSeekV4,
       [](MoeConfig&, Tensors& t) { named(t, "experts.2.w2.scale").bytes[7 * 5 + 4] = std::byte{255}; },
       Code::kCorrupt, "experts.2.w2.scale: expert 2, row 7, block 4"},
      {"a NaN weight", MoeNaming::kQwen3Moe,
       [](MoeConfig&, Tensors& t) { spoil(named(t, "experts.3.down_proj"), 7 * 160 + 5, 0x7fc1); },
       Code::kCorrupt,
       "experts.3.down_proj.weight: expert 3, row 7, column 5: wanted finite numbers, found NaN"},
      {"an infinite weight, the last", MoeNaming::kQwen3Moe,
       [](MoeConfig&, Tensors& t) { spoil(named(t, "experts.7.gate_proj"), 159 * 96 + 95, 0xff80); },
       Code::kCorrupt, "row 159, column 95: wanted finite numbers, found an infinity"},
      {"a NaN in a transposed matrix", MoeNaming::kLlama4,
       [](MoeConfig&, Tensors& t) {
         spoil(named(t, "experts.gate_up_proj"), (6 * 96 + 11) * 320 + 77, 0x7f81);
       },
       Code::kCorrupt, "gate_up_proj: expert 6, row 77, column 11: wanted finite numbers, found NaN"},
      {"a NaN in the shared expert", MoeNaming::kDeepSeekV3,
       [](MoeConfig&, Tensors& t) { spoil(named(t, "shared_experts.up_proj"), 3 * 96 + 2, 0xffff); },
       Code::kCorrupt, "shared_experts.up_proj.weight: row 3, column 2: wanted finite numbers, found NaN"},
  };
  const auto d = device();
  for (const RefusedLoad& c : kCases) {
    MoeConfig config = small_config(c.naming);
    const RandomMoe moe(config, 5);
    Tensors tensors = moe.tensors(c.naming, kLayer);
    c.change(config, tensors);
    const Written file(tensors);
    const Status status =
        load_moe(*d, *file.checkpoint, config, {.naming = c.naming, .layer = kLayer, .threads = 1}).status();
    EXPECT_EQ(status.code, c.code) << c.why << ": " << status.message;
    EXPECT_NE(status.message.find(c.words), std::string::npos) << c.why << ": " << status.message;
  }
}

// The roles of w1, w2 and w3 follow the publishers' own loaders: a checkpoint written by this file would
// repeat a mistake.
TEST(MoeLoad, NamesAreThoseOfThePublishers) {
  const auto names = [](MoeNaming naming) {
    const MoeNames& n = moe_names(naming);
    std::vector<std::string> out;
    for (const std::string_view pattern : {n.router, n.gate, n.up, n.down, n.shared_gate, n.shared_down})
      out.push_back(tensor_name(pattern, 3, 17));
    return out;
  };
  const std::string m3 = "language_model.model.layers.3.block_sparse_moe.";
  EXPECT_EQ(
      names(MoeNaming::kMiniMaxM3),
      (std::vector<std::string>{m3 + "gate.weight", m3 + "experts.17.w1.weight", m3 + "experts.17.w3.weight",
                                m3 + "experts.17.w2.weight", m3 + "shared_experts.gate_proj.weight",
                                m3 + "shared_experts.down_proj.weight"}));
  EXPECT_EQ(
      names(MoeNaming::kMistralLarge3),
      (std::vector<std::string>{"layers.3.gate.weight", "layers.3.experts.17.w1.weight",
                                "layers.3.experts.17.w3.weight", "layers.3.experts.17.w2.weight",
                                "layers.3.shared_experts.w1.weight", "layers.3.shared_experts.w2.weight"}));
  const std::string glm = "model.language_model.layers.3.mlp.";
  EXPECT_EQ(names(MoeNaming::kGlm5Next),
            (std::vector<std::string>{glm + "gate.weight", glm + "experts.17.gate_proj.weight",
                                      glm + "experts.17.up_proj.weight", glm + "experts.17.down_proj.weight",
                                      glm + "shared_experts.gate_proj.weight",
                                      glm + "shared_experts.down_proj.weight"}));
}

TEST(MoeLoad, AnUnknownNamingListsTheKnownOnes) {
  const Written file({{{"model.layers.0.mlp.up_proj.weight", StoredType::kU8, {1}}, {std::byte{1}}}});
  const Status status = detect(*file.checkpoint).status();
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(status.message.find("deepseek_v4 (layers.0.ffn.experts.0.w2.weight)"), std::string::npos)
      << status.message;
}

// A device with little memory.
class SmallDevice final : public Device {
 public:
  SmallDevice(Device& inner, int64_t free, int64_t limit) : inner_(inner), free_(free), limit_(limit) {}
  const DeviceInfo& info() const override { return inner_.info(); }
  const Catalog& catalog() const override { return inner_.catalog(); }
  Result<void*> allocate(size_t bytes) override {
    if (static_cast<int64_t>(bytes) > limit_) return out_of_memory("small: no more");
    limit_ -= static_cast<int64_t>(bytes);
    ++held;
    return inner_.allocate(bytes);
  }
  void release(void* memory) override {
    --held;
    inner_.release(memory);
  }
  bool shares_host_memory() const override { return inner_.shares_host_memory(); }
  Result<void*> allocate_host(size_t bytes) override { return inner_.allocate_host(bytes); }
  void release_host(void* memory) override { inner_.release_host(memory); }
  int64_t free_bytes() const override { return free_; }
  Stream stream() override { return inner_.stream(); }
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return inner_.copy(to, from, bytes, stream);
  }
  Status wait(Stream stream) override { return inner_.wait(stream); }
  Result<std::unique_ptr<Recording>> record(Stream stream, const std::function<Status()>& f) override {
    return inner_.record(stream, f);
  }
  Status replay(const Recording& recording, Stream stream) override {
    return inner_.replay(recording, stream);
  }
  int held = 0;

 private:
  Device& inner_;
  int64_t free_;
  int64_t limit_;
};

TEST(MoeLoad, TooLittleMemoryIsAnErrorWithNumbers) {
  const auto d = device();
  EXPECT_GT(d->free_bytes(), 1 << 20);
  const RandomMoe moe(small_config(MoeNaming::kGptOss), 5);
  const Written file(moe.tensors(MoeNaming::kGptOss, 0));
  SmallDevice full(*d, 1000, 0);
  const Status early = load_moe(full, *file.checkpoint, moe.config, {}).status();
  EXPECT_EQ(early.code, Code::kOutOfMemory);
  EXPECT_NE(early.message.find("layer 0: its weights: wanted "), std::string::npos) << early.message;
  EXPECT_NE(early.message.find(" bytes, 1000 are free"), std::string::npos) << early.message;
  SmallDevice silent(*d, INT64_MAX, 150000);  // enough for only the first tensors
  const Status late = load_moe(silent, *file.checkpoint, moe.config, {}).status();
  EXPECT_EQ(late.code, Code::kOutOfMemory);
  EXPECT_NE(late.message.find("layer 0: experts.down: wanted "), std::string::npos) << late.message;
  EXPECT_EQ(silent.held, 0) << "earlier allocations are released";
}

TEST(MoeLoad, ATruncatedFileIsAnErrorWithNumbers) {
  const auto d = device();
  const RandomMoe moe(small_config(MoeNaming::kGptOss), 5);
  const Written file(moe.tensors(MoeNaming::kGptOss, 0));
  auto loaded = load_moe(*d, *file.checkpoint, moe.config, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message;
  const auto path = file.at.file("model.safetensors");
  const auto bytes = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, bytes / 2);
  const std::string wanted = path + ": wanted " + std::to_string(bytes) +
                             " bytes, as when it was opened, found " + std::to_string(bytes / 2);
  const Status again = load_moe(*d, *file.checkpoint, moe.config, {}).status();
  EXPECT_EQ(again.code, Code::kIo);
  EXPECT_EQ(again.message, wanted);
  const Status replaced = loaded.value()->replace_expert(*file.checkpoint, 0);
  EXPECT_EQ(replaced.code, Code::kIo);
  EXPECT_EQ(replaced.message, wanted);
}

}  // namespace
}  // namespace sluice::test
