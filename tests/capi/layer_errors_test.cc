// Every wrong use of a layer returns its status and a message that names the error, and runs nothing.
#include <functional>

#include "capi/layer.h"

namespace sluice::test {
namespace {

constexpr auto kBad = SLUICE_INVALID_ARGUMENT;

class CapiLayerErrors : public ::testing::Test {
 protected:
  CapiLayerErrors()
      : moe_(small_config(MoeNaming::kGptOss), 5),
        stored_(moe_.tensors(MoeNaming::kGptOss, 3)),
        layer_(device_, moe_.config) {}

  void expect(sluice_status got, sluice_status want, const std::string& part) {
    EXPECT_EQ(got, want) << part << ": " << error_.str();
    EXPECT_NE(error_.str().find(part), std::string::npos) << "wanted '" << part << "' in: " << error_.str();
    error_.data[0] = '\0';
  }
  void no_layer(sluice_status want, const std::string& part,
                const std::function<void(sluice_layer_options&)>& spoil) {
    sluice_layer_options options = SLUICE_LAYER_OPTIONS_INIT;
    options.fields = layer_.fields.c_str();
    spoil(options);
    sluice_layer* layer = nullptr;
    expect(sluice_layer_create(device_.device, &options, &layer, error_), want, part);
    EXPECT_EQ(layer, nullptr) << part;
  }
  // Loads tensors after `spoil` has made them invalid.
  void no_load(sluice_status want, const std::string& part,
               const std::function<void(CallersTensors&)>& spoil) {
    CallersTensors tensors(stored_);
    spoil(tensors);
    expect(layer_.load(tensors, error_), want, part);
  }
  // Runs the loaded layer after `spoil` has made the call invalid; nothing may be written.
  void no_run(const std::string& part, const std::function<void(CapiLayer&, sluice_launch&)>& spoil) {
    std::fill(layer_.y.begin(), layer_.y.end(), uint16_t{7});
    const auto args = layer_.args;
    sluice_launch launch = layer_.launch();
    spoil(layer_, launch);
    expect(sluice_layer_run(layer_.layer, &launch, error_), kBad, part);
    EXPECT_EQ(layer_.y, std::vector<uint16_t>(layer_.y.size(), 7)) << part;
    layer_.args = args;
  }
  void load() {
    const CallersTensors tensors(stored_);
    ASSERT_EQ(layer_.load(tensors, error_), SLUICE_OK) << error_.str();
  }
  CapiDevice device_;
  RandomMoe moe_;
  std::vector<StoredTensor> stored_;
  CapiLayer layer_;
  Message error_;
};

TEST_F(CapiLayerErrors, OptionsThatCannotBe) {
  no_layer(kBad, "did you mean 'gpt-oss-20b'?", [](auto& o) { o.model = "gpt-oss-21b"; });
  no_layer(kBad, "fields: unknown field 'hiden'; did you mean 'hidden'?",
           [](auto& o) { o.fields = "hiden=1"; });
  no_layer(kBad, "fields: ", [](auto& o) { o.fields = "experts=many"; });
  no_layer(kBad, "tokens_max: wanted 1 to 16777216, found 0", [](auto& o) { o.tokens_max = 0; });
  no_layer(kBad, "tokens_max: wanted 1 to 16777216, found 9223372036854775807",
           [](auto& o) { o.tokens_max = INT64_MAX; });
  no_layer(kBad, "needs tokens from 0 to 16384; tokens=16777216", [](auto& o) { o.tokens_max = 16777216; });
  no_layer(kBad, "slice: tp: wanted a rank from 0 to size - 1, found rank 2 of size 2",
           [](auto& o) { o.tp_rank = 2, o.tp_size = 2; });
  no_layer(kBad, "slice: ep", [](auto& o) { o.ep_size = -1; });
  no_layer(kBad, "slice: tp: wanted a size from 1 to 65536, found 9223372036854775807",
           [](auto& o) { o.tp_size = INT64_MAX; });
  no_layer(kBad, "slice: ep: wanted a size from 1 to 65536, found 9223372036854775807",
           [](auto& o) { o.ep_rank = 1, o.ep_size = INT64_MAX; });
  no_layer(kBad, "ep rank", [](auto& o) { o.ep_rank = 0, o.ep_size = 9; });
  no_layer(kBad, "threads: wanted 0 (all) to 1024, found -3", [](auto& o) { o.threads = -3; });
  no_layer(kBad, "options.size", [](auto& o) { o.size = 8; });
  no_layer(kBad, "options.size", [](auto& o) { o.size = SIZE_MAX; });
  const sluice_policy nobody{"cpu.expert_gemm.none", 0};
  no_layer(kBad, "cpu.expert_gemm.none", [&](auto& o) { o.policy = &nobody; });
  no_layer(kBad, "moe backend: wanted auto or one of cpu.expert_gemm.",
           [](auto& o) { o.backend_decode = "dots"; });
  no_layer(kBad, "found 'dots'; did you mean 'dot'?",
           [](auto& o) { o.backend_prefill = "dots", o.tokens_max = 65; });
  no_layer(kBad, "decode_tokens: wanted 0 or more, found -1", [](auto& o) { o.decode_tokens = -1; });
  no_layer(SLUICE_UNSUPPORTED, "cpu.expert_gemm.dot: needs layout row_major",
           [](auto& o) { o.backend_decode = "cpu.expert_gemm.dot"; });
  // 2^40 experts or columns: rejected before any memory is allocated.
  for (const char* huge : {"experts=1099511627776", "hidden=1099511627776", "intermediate=1099511627776",
                           "hidden=0", "top_k=0", "top_k=-1", "experts=-5"}) {
    sluice_layer_options options = SLUICE_LAYER_OPTIONS_INIT;
    options.fields = huge;
    sluice_layer* layer = nullptr;
    EXPECT_NE(sluice_layer_create(device_.device, &options, &layer, error_), SLUICE_OK) << huge;
    EXPECT_EQ(layer, nullptr);
  }
}

// Every field out of range is named, with the allowed values.
TEST_F(CapiLayerErrors, FieldsOutsideTheirRange) {
  const std::pair<const char*, const char*> kIntegers[] = {
      {"hidden", "1 to 65536"},          {"intermediate", "1 to 65536"},
      {"experts", "1 to 1024"},          {"top_k", "1 to 32"},
      {"lora_rank", "0 to 1024"},        {"lora_adapters", "0 to 1024"},
      {"expert_lora_rank", "0 to 1024"}, {"groups", "1 to 1024"},
      {"topk_groups", "0 to 1024"},      {"hash_vocab", "0 to 2147483647"},
      {"expert_begin", "0 to 1024"},     {"expert_count", "0 to 1024"},
      {"latent", "0 to 65536"},          {"shared_intermediate", "0 to 65536"}};
  const std::pair<const char*, const char*> kReals[] = {{"scale", "above 0 and below 1e30"},
                                                        {"alpha", "between -1e30 and 1e30"},
                                                        {"beta", "between -1e30 and 1e30"},
                                                        {"limit", "0 or more (infinity is no limit)"},
                                                        {"norm_eps", "2^-100 to 1"}};
  const auto refused = [&](const char* field, const std::string& wanted, const std::string& value,
                           const std::string& found) {
    const std::string fields = std::string(field) + "=" + value;
    no_layer(kBad, std::string(field) + ": wanted " + wanted + ", found " + found,
             [&](auto& o) { o.fields = fields.c_str(); });
  };
  for (const auto& [field, wanted] : kIntegers)
    for (const char* value : {"-1", "-9223372036854775808", "9223372036854775807", "4294967296"})
      refused(field, wanted, value, value);
  for (const auto& [field, wanted] : kReals)
    for (const auto& [value, found] :
         {std::pair{"nan", "nan"}, std::pair{"-inf", "-inf"}, std::pair{"-1e300", "-1e+300"}})
      refused(field, "a number " + std::string(wanted), value, found);
  for (const char* field : {"alpha", "beta", "scale", "norm_eps"}) {
    const std::string infinite = std::string(field) + "=1e999";
    no_layer(kBad, std::string(field) + ": wanted a number", [&](auto& o) { o.fields = infinite.c_str(); });
  }
  no_layer(kBad, "top_k: wanted 1 to 3 (experts), found 4", [](auto& o) { o.fields = "experts=3 top_k=4"; });
  const std::pair<const char*, const char*> kTogether[] = {
      {"method=hash", "hash_vocab: wanted 1 or more with method=hash, found 0"},
      {"expert_w=f32", "expert_w and expert_scales: wanted bf16, e2m1 with mx or nv, or e4m3 with mx, "},
      {"expert_w=e4m3 expert_scales=nv", "found e4m3 with scales=nv"},
      {"hidden=120", "hidden: wanted a multiple of 32 (blocks of e2m1), found 120"},
      {"intermediate=97 expert_w=e4m3",
       "intermediate: wanted a multiple of 32 (blocks of e4m3 with scales=mx), found 97"},
      {"latent=40", "latent: wanted a multiple of 32 (blocks of e2m1), found 40"}};
  for (const auto& [fields, wanted] : kTogether)
    no_layer(kBad, wanted, [&, f = fields](auto& o) { o.fields = f; });
  // The lists above contain every numeric field.
  size_t numbers = 0;
  const auto count = [](void* context, const sluice_field* f) {
    *static_cast<size_t*>(context) += f->word_count == 0;
  };
  ASSERT_EQ(sluice_layer_fields(nullptr, count, &numbers, error_), SLUICE_OK);
  EXPECT_EQ(numbers, std::size(kIntegers) + std::size(kReals));
}

TEST_F(CapiLayerErrors, ALayerWithoutWeights) {
  no_run("wanted weights (sluice_layer_load", [](auto&, auto&) {});
  const CallersTensors tensors(stored_);
  expect(sluice_layer_replace_expert(layer_.layer, 0, &tensors.all, error_), kBad, "wanted weights");
  expect(sluice_layer_write_packed(
             layer_.layer, [](void*, const void*, size_t) { return SLUICE_OK; }, nullptr, error_),
         kBad, "wanted weights");
  size_t bytes = 0;
  EXPECT_EQ(sluice_layer_packed_bytes(layer_.layer, &bytes, error_), SLUICE_OK)
      << "packed sizes are known without weights";
  EXPECT_GT(bytes, 1000u);
}

TEST_F(CapiLayerErrors, WeightsThatDoNotFit) {
  no_load(kBad, "weights.tensors", [](CallersTensors& t) { t.all.tensors = nullptr; });
  no_load(SLUICE_UNSUPPORTED, "found none among 0 tensors", [](CallersTensors& t) { t.all.count = 0; });
  no_load(kBad, "].name: wanted a name, found null", [](CallersTensors& t) { t.list[2].name = nullptr; });
  no_load(kBad, "type: wanted a name, found null", [](CallersTensors& t) { t.list[2].type = nullptr; });
  no_load(kBad, "router.weight: type: wanted a type of safetensors",
          [](CallersTensors& t) { t.at("router.weight").type = "bf16"; });
  no_load(kBad, "where: wanted a sluice_backend, found 5",
          [](CallersTensors& t) { t.at("router").where = 5; });
  no_load(kBad, "router.weight: wanted memory of cpu or of the host, found cuda",
          [](CallersTensors& t) { t.at("router.weight").where = SLUICE_CUDA; });
  no_load(kBad, "rank: wanted 0 to 8, found 9", [](CallersTensors& t) { t.at("router").rank = 9; });
  no_load(kBad, "shape: wanted a pointer", [](CallersTensors& t) { t.at("router").shape = nullptr; });
  no_load(kBad, "down_proj_blocks: wanted a pointer to ",
          [](CallersTensors& t) { t.at("down_proj_blocks").data = nullptr; });
  no_load(kBad, "router.weight: wanted 1536 bytes for BF16[8, 96], found 1535",
          [](CallersTensors& t) { --t.at("router.weight").bytes; });
  no_load(kBad, "wanted less than 2^63", [](CallersTensors& t) { t.at("router").bytes = SIZE_MAX; });
  const int64_t negative[] = {-8, 96};
  no_load(kBad, "wanted sizes of 0 or more, found -8",
          [&](CallersTensors& t) { t.at("router.weight").shape = negative; });
  const int64_t turned[] = {96, 8};
  no_load(SLUICE_CORRUPT, "router.weight: wanted BF16[8, 96], found BF16[96, 8]",
          [&](CallersTensors& t) { t.at("router.weight").shape = turned; });
  no_load(kBad, "wanted each tensor once", [](CallersTensors& t) { t.list[0].name = t.list[1].name; });
  no_load(SLUICE_CORRUPT, "wanted tensor 'model.layers.3.mlp.experts.gate_up_proj_scales'",
          [](CallersTensors& t) { t.at("gate_up_proj_scales").name = "else"; });
  no_load(
      kBad,
      "naming: wanted one of gpt_oss, gpt_oss_original, gpt_oss_bf16, deepseek_v4, deepseek_v3, qwen3_moe, "
      "nemotron3, minimax_m2, llama4, minimax_m3, mistral_large_3, glm5_next, plain, found 'gpt-oss'",
      [](CallersTensors& t) { t.all.naming = "gpt-oss"; });
  for (const char* dense : {"dense_mlp", "draft_layer", "draft_midlayer", "draft_model_midlayer"})
    no_load(kBad, "found '" + std::string(dense) + "'", [&](CallersTensors& t) { t.all.naming = dense; });
  no_load(SLUICE_CORRUPT, "wanted tensor 'model.layers.4.", [](CallersTensors& t) { t.all.layer = 4; });
  no_load(kBad, "weights.layer: wanted -1 (the only layer) or more, found -2",
          [](CallersTensors& t) { t.all.layer = -2; });
  no_load(kBad, "weights.layer: wanted a number", [](CallersTensors& t) { t.all.naming = "deepseek_v4"; });
  // Tensors of two layers, and no layer number.
  std::vector<StoredTensor> both = moe_.tensors(MoeNaming::kGptOss, 4);
  for (const StoredTensor& t : stored_)
    if (t.what.name != "odd") both.push_back(t);
  const CallersTensors two(both);
  expect(layer_.load(two, error_), kBad, "found layers 3, 4");
  no_run("wanted weights", [](auto&, auto&) {});
}

TEST_F(CapiLayerErrors, WhatIsRefusedBeforePackingLeavesTheWeights) {
  load();
  const std::vector<uint16_t> y = layer_.run();
  no_load(SLUICE_CORRUPT, "wanted tensor", [](CallersTensors& t) { t.at("router.bias").name = "else"; });
  EXPECT_EQ(layer_.run(), y);
  // If a layer has weights, a NaN scale is found before they are touched; if it has none, during packing. The
  // other tensors differ from the loaded ones, so that a written tensor would show.
  RandomMoe other(moe_.config, 6);
  other.down[0].scales[2] = 255;
  const CallersTensors update(other.tensors(MoeNaming::kGptOss, 3));
  expect(sluice_layer_replace_expert(layer_.layer, 0, &update.all, error_), SLUICE_CORRUPT,
         "expert 0, row 0");
  EXPECT_EQ(layer_.run(), y) << "one expert is checked before it is written";
  expect(layer_.load(update, error_), SLUICE_CORRUPT, "expert 0, row 0");
  EXPECT_EQ(layer_.run(), y) << "all experts are checked before any is written";
  CapiLayer fresh(device_, moe_.config);
  expect(fresh.load(update, error_), SLUICE_CORRUPT, "expert 0, row 0");
  const sluice_launch launch = fresh.launch();
  expect(sluice_layer_run(fresh.layer, &launch, error_), kBad, "wanted weights");
  load();
  EXPECT_EQ(layer_.run(), y);
}

TEST_F(CapiLayerErrors, RunsThatDoNotFit) {
  load();
  no_run("x: missing", [](auto&, sluice_launch& l) { l.arg_count = 1; });
  no_run("y: missing: wanted bf16[5, 96]", [](auto&, sluice_launch& l) { ++l.args, --l.arg_count; });
  no_run("unknown tensor 'z'", [](CapiLayer& l, auto&) { l.args[0].name = "z"; });
  no_run("x: given twice", [](CapiLayer& l, auto&) { l.args[0].name = "x"; });
  no_run("args[1].name", [](CapiLayer& l, auto&) { l.args[1].name = nullptr; });
  no_run("residual", [](CapiLayer& l, sluice_launch& launch) {
    l.args.push_back({"residual", l.args[1].tensor});
    launch.args = l.args.data(), launch.arg_count = 3;
  });
  no_run("y: null pointer", [](CapiLayer& l, auto&) { l.args[0].tensor.data = nullptr; });
  no_run("x: null pointer", [](CapiLayer& l, auto&) { l.args[1].tensor.data = nullptr; });
  no_run("x: rank: wanted 2", [](CapiLayer& l, auto&) { l.args[1].tensor.rank = 1; });
  no_run("x: rank: wanted 0 to 4, found 77", [](CapiLayer& l, auto&) { l.args[1].tensor.rank = 77; });
  no_run("y", [](CapiLayer& l, auto&) { l.args[0].tensor.shape[0] = 4; });
  no_run("x", [](CapiLayer& l, auto&) { l.args[1].tensor.shape[1] = 95; });
  no_run("x: wanted 0 to 5 tokens (the layer's tokens_max), found 6",
         [](CapiLayer& l, auto&) { l.args[1].tensor.shape[0] = 6; });
  no_run("x: wanted 0 to 5 tokens", [](CapiLayer& l, auto&) { l.args[1].tensor.shape[0] = -1; });
  no_run("x: dtype", [](CapiLayer& l, auto&) { l.args[1].tensor.dtype = SLUICE_F32; });
  no_run("x: wanted memory of cpu, found cuda",
         [](CapiLayer& l, auto&) { l.args[1].tensor.where = SLUICE_CUDA; });
  no_run("workspace: wanted", [](auto&, sluice_launch& l) { l.workspace = nullptr; });
  no_run("workspace: wanted", [](auto&, sluice_launch& l) { --l.workspace_bytes; });
  no_run("workspace: wanted memory aligned to 256 bytes, found a pointer 8 bytes past such an address",
         [](auto&, sluice_launch& l) { l.workspace = static_cast<char*>(l.workspace) + 8; });
  no_run("stream", [](auto&, sluice_launch& l) { l.stream.native = nullptr; });
  no_run("stream", [](auto&, sluice_launch& l) { l.stream.backend = SLUICE_CUDA; });
  no_run("arg_count: wanted at most 32", [](auto&, sluice_launch& l) { l.arg_count = 1000; });
  layer_.run();  // the layer still runs
}

TEST_F(CapiLayerErrors, NullsAndBuffersThatAreTooShort) {
  sluice_layer* layer = nullptr;
  sluice_layer_options options = SLUICE_LAYER_OPTIONS_INIT;
  const CallersTensors tensors(stored_);
  const sluice_launch launch = layer_.launch();
  size_t bytes = 0;
  char room[8];
  sluice_text text{room, sizeof room, 0};
  const int64_t tokens[] = {1, 5, 6};
  expect(sluice_layer_create(nullptr, &options, &layer, error_), kBad, "device");
  expect(sluice_layer_create(device_.device, nullptr, &layer, error_), kBad, "options");
  expect(sluice_layer_create(device_.device, &options, nullptr, error_), kBad, "out");
  expect(sluice_layer_load(nullptr, &tensors.all, error_), kBad, "layer");
  expect(sluice_layer_load(layer_.layer, nullptr, error_), kBad, "weights");
  expect(sluice_layer_replace_expert(nullptr, 0, &tensors.all, error_), kBad, "layer");
  expect(sluice_layer_packed_bytes(nullptr, &bytes, error_), kBad, "layer");
  expect(sluice_layer_packed_bytes(layer_.layer, nullptr, error_), kBad, "out");
  expect(sluice_layer_write_packed(layer_.layer, nullptr, nullptr, error_), kBad, "sink");
  expect(sluice_layer_read_packed(layer_.layer, nullptr, 5, error_), kBad, "bytes");
  expect(sluice_layer_read_packed(nullptr, room, 5, error_), kBad, "layer");
  expect(sluice_layer_run(nullptr, &launch, error_), kBad, "layer");
  expect(sluice_layer_explain(nullptr, tokens, 2, &text, error_), kBad, "layer");
  expect(sluice_layer_explain(layer_.layer, nullptr, 2, &text, error_), kBad, "tokens");
  expect(sluice_layer_explain(layer_.layer, tokens, 2, nullptr, error_), kBad, "out");
  expect(sluice_layer_explain(layer_.layer, tokens, 2, &text, error_), kBad, "out: wanted a buffer of");
  expect(sluice_layer_explain(layer_.layer, tokens, 3, &text, error_), kBad, "tokens[2]: wanted 0 to 5");
  expect(sluice_layer_tensors(layer_.layer, 1, nullptr, nullptr, error_), kBad, "visit");
  expect(sluice_layer_fields(
             "gpt", [](void*, const sluice_field*) {}, nullptr, error_),
         kBad, "'gpt'");
  load();
  expect(sluice_layer_run(layer_.layer, nullptr, error_), kBad, "launch");
  expect(sluice_layer_write_packed(
             layer_.layer, [](void*, const void*, size_t) { return SLUICE_OUT_OF_MEMORY; }, nullptr, error_),
         SLUICE_OUT_OF_MEMORY, "sink: the callback returned 'out of memory'");
  expect(sluice_layer_write_packed(
             layer_.layer, [](void*, const void*, size_t) { return static_cast<sluice_status>(99); }, nullptr,
             error_),
         SLUICE_INVALID_ARGUMENT, "sink: the callback returned 99");
  sluice_layer_destroy(nullptr);
  EXPECT_STREQ(sluice_layer_text(nullptr), "");
  EXPECT_EQ(sluice_layer_workspace_bytes(nullptr), 0u);
  EXPECT_EQ(sluice_layer_weight_bytes(nullptr), 0u);
}

TEST_F(CapiLayerErrors, QuestionsAreAnswered) {
  std::vector<char> room(1 << 16);
  sluice_text text{room.data(), room.size(), 0};
  const int64_t tokens[] = {0, 1, 5};
  ASSERT_EQ(sluice_layer_explain(layer_.layer, tokens, 3, &text, error_), SLUICE_OK) << error_.str();
  const std::string said = room.data();
  for (const char* part : {"hidden=96", "tokens   1\n", "tokens   5\n", "experts", "cpu.", "route"})
    EXPECT_NE(said.find(part), std::string::npos) << part << " in " << said;
  EXPECT_NE(std::string(sluice_layer_text(layer_.layer)).find("experts=8"), std::string::npos);
  EXPECT_GT(sluice_layer_weight_bytes(layer_.layer), 100000u);
  std::string names;
  ASSERT_EQ(sluice_layer_tensors(
                layer_.layer, 4,
                [](void* context, const sluice_slot* s) {
                  *static_cast<std::string*>(context) += std::string(s->name) + (s->used ? " " : "- ");
                  EXPECT_TRUE(std::string(s->name) != "x" || s->shape[0] * s->shape[1] == 4 * 96);
                },
                &names, error_),
            SLUICE_OK);
  EXPECT_NE(names.find("x "), std::string::npos) << names;
  EXPECT_NE(names.find("token_ids- "), std::string::npos) << names;
  std::string fields;
  ASSERT_EQ(sluice_layer_fields(
                "gpt-oss-120b",
                [](void* context, const sluice_field* f) {
                  *static_cast<std::string*>(context) += std::string(f->name) + "=" + f->value + " ";
                },
                &fields, error_),
            SLUICE_OK);
  EXPECT_NE(fields.find("experts=128 "), std::string::npos) << fields;
}

}  // namespace
}  // namespace sluice::test
