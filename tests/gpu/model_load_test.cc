// Loads whole models into GPU memory, from files and from a seed, compares every byte, and measures the rate.
#include <chrono>
#include <filesystem>

#include "gpu/gpu.h"
#include "harness/model_bytes.h"
#include "harness/small_gpt_oss.h"

namespace sluice::test {
namespace {

class ModelLoadGpu : public OnGpu {
 protected:
  std::unique_ptr<LoadedModel> load(const std::string& directory, const LoadOptions& options,
                                    const char* what) {
    const auto begin = std::chrono::steady_clock::now();
    auto loaded = LoadedModel::load(gpu(), directory, options);
    const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_TRUE(loaded.ok()) << loaded.status().message;
    if (!loaded.ok()) return nullptr;
    const double gb = 1e-9 * static_cast<double>(loaded.value()->weight_bytes());
    std::printf("[   note   ] %s: %.2f GB in %.2f s, %.1f GB/s\n", what, gb, s, gb / s);
    return std::move(loaded).value();
  }
  void expect_bytes(const LoadedModel& model, const std::string& directory) {
    const auto checkpoint = Checkpoint::open(directory);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message;
    expect_dense_bytes(gpu(), model, *checkpoint.value());
    expect_expert_bytes(gpu(), model, *checkpoint.value());
  }
  TemporaryDirectory directory_;
};

// The folder where `./dev gpu` puts the shipped model for `sluice run`, or the model in this build's source
// tree.
std::string shipped_model() {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* root : {"../share/sluice", "../../.."}) {
    const auto at = program / root / "models/sluice-16e-tiny";
    if (std::filesystem::exists(at)) return at.string();
  }
  return "";
}

TEST_F(ModelLoadGpu, TheShippedModelInGpuMemoryEqualsItsFile) {
  const std::string directory = shipped_model();
  if (directory.empty()) GTEST_SKIP() << "the shipped model is not installed with this program";
  const auto model = load(directory, {}, "shipped model");
  ASSERT_NE(model, nullptr);
  expect_bytes(*model, directory);
}

// gpt-oss-20b's shapes. SLUICE_LOAD_LAYERS=24 makes the whole model, 13.8 GB on disk and in GPU memory.
TEST_F(ModelLoadGpu, AFullSizeModelIsTheSameFromAFileAndFromASeed) {
  Json config = parse_json(kSmallGptOss, "config").value();
  const std::pair<const char*, int64_t> sizes[] = {
      {"vocab_size", 201088},
      {"hidden_size", 2880},
      {"intermediate_size", 2880},
      {"num_attention_heads", 64},
      {"num_key_value_heads", 8},
      {"num_local_experts", 32},
      {"num_experts_per_tok", 4},
      {"sliding_window", 128},
      {"max_position_embeddings", 131072},
      {"num_hidden_layers", count_from("SLUICE_LOAD_LAYERS", 1)}};
  for (const auto& [key, value] : sizes) config[key] = value;
  std::ofstream(directory_.file("config.json")) << config.dump();
  const auto read = read_model_config(directory_.path());
  ASSERT_TRUE(read.ok()) << read.status().message;
  write_small_weights(directory_.path(), families().front()->tensors(read.value(), MoeNaming::kGptOss), 0,
                      int64_t{64} << 20);
  for (const char* what : {"from a file, first", "from a file, second"}) {
    const auto model = load(directory_.path(), {}, what);
    ASSERT_NE(model, nullptr);
    if (std::string(what).ends_with("second")) expect_bytes(*model, directory_.path());
  }
  load(directory_.path(), {.canary = LoadOptions::Canary::kSkip}, "from a file, unchecked");
  load(directory_.path(), {.canary = LoadOptions::Canary::kSkip, .format = LoadFormat::kDummy},
       "from a seed, unchecked");
  const auto model = load(directory_.path(), {.format = LoadFormat::kDummy}, "from a seed");
  ASSERT_NE(model, nullptr);
  expect_bytes(*model, directory_.path());
}

}  // namespace
}  // namespace sluice::test
