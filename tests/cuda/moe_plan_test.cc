// Which MoE layers the kernels that are built can run on an H200; no GPU is asked.
#include <gtest/gtest.h>

#include "backends/cpu/device.h"
#include "backends/cuda/device.h"
#include "dispatch/explain.h"
#include "nn/moe.h"

namespace sluice::test {
namespace {

// An H200 on paper: its kernels, and nothing that could run them.
class PaperDevice final : public Device {
 public:
  explicit PaperDevice(DeviceInfo info = known_device("h200").value())
      : info_(std::move(info)), memory_(cpu::open_device({.threads = 1}).value()) {
    for_each_op([&]<class Op>() {
      for (const Candidate<Op>* c : cuda::catalog().table<Op>())
        if (!c->planned) built_.add(*c);
    });
  }
  const DeviceInfo& info() const override { return info_; }
  const Catalog& catalog() const override { return built_; }
  Result<void*> allocate(size_t bytes) override { return memory_->allocate(bytes); }
  void release(void* memory) override { memory_->release(memory); }
  bool shares_host_memory() const override { return false; }
  Result<void*> allocate_host(size_t bytes) override { return memory_->allocate(bytes); }
  void release_host(void* memory) override { memory_->release(memory); }
  int64_t free_bytes() const override { return memory_->free_bytes(); }
  Stream stream() override { return memory_->stream(); }
  Status copy(void* to, const void* from, size_t bytes, Stream stream) override {
    return memory_->copy(to, from, bytes, stream);
  }
  Status wait(Stream) override { return {}; }
  Result<std::unique_ptr<Recording>> record(Stream, const std::function<Status()>&) override {
    return unsupported("a device on paper");
  }
  Status replay(const Recording&, Stream) override { return unsupported("a device on paper"); }

 private:
  DeviceInfo info_;
  Catalog built_;
  std::unique_ptr<Device> memory_;
};

}  // namespace

TEST(MoePlanOnCuda, KnownLayersPlanAtEveryCount) {
  PaperDevice device;
  for (const char* model : {"gpt-oss-20b", "gpt-oss-120b", "deepseek-v4-flash", "deepseek-v4-pro",
                            "deepseek-v3", "qwen3-30b-a3b", "nemotron-3-nano"}) {
    auto known = known_moe(model);
    ASSERT_TRUE(known.ok()) << known.status().message;
    MoeConfig config = known.value();
    config.layout = layout_for(Backend::kCuda);
    for (int64_t intermediate : {config.intermediate, config.intermediate / 8 / 32 * 32}) {
      config.intermediate = intermediate;  // a rank of eight, too
      if (config.shared_as_slots) config.shared_intermediate = intermediate;
      const auto moe = Moe::plan(device, config, 1024);
      ASSERT_TRUE(moe.ok()) << model << ": " << moe.status().message;
      for (int64_t tokens : {0, 1, 64, 1024})
        for (const auto& [stage, kernel] : moe.value()->kernels(tokens))
          EXPECT_TRUE(kernel.starts_with("cuda.")) << model << " " << stage << ": " << kernel;
    }
  }
}

TEST(MoePlanOnCuda, AnOlderGpuIsRefusedWithTheReason) {
  DeviceInfo ampere = known_device("h200").value();
  ampere.sm = 80;
  PaperDevice device(ampere);
  MoeConfig config = known_moe("gpt-oss-20b").value();
  config.layout = layout_for(Backend::kCuda);
  const Status status = Moe::plan(device, config, 4).status();
  EXPECT_EQ(status.code, Code::kUnsupported);
  EXPECT_NE(status.message.find("sm90"), std::string::npos) << status.message;
}

}  // namespace sluice::test
