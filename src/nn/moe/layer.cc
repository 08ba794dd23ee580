#include "nn/moe/layer.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/constants.h"
#include "nn/moe/graph.h"
#include "nn/moe/problems.h"

namespace sluice {
namespace {

// More than the tensors of any call, and more than the weights of any layer.
constexpr size_t kTensorsMax = 40;

}  // namespace

// The tensors of a call, in the order of its graph's values.
struct Moe::Bound {
  std::array<Tensor, kTensorsMax> call = {}, held = {};
  Given given;
};

Result<Step> plan_moe(const DeviceInfo& device, const Catalog& catalog, const MoeConfig& config,
                      int64_t tokens_max, const Policy& policy, const MoeBackend& backend, Gaps gaps) {
  if (Status status = check_moe(config); !status.ok()) return status;
  if (const Status status = check_fp8_activations(config, device, catalog); !status.ok())
    return invalid("fp8_activations: " + status.message);
  auto phases = phases_of(backend, device, catalog, tokens_max, policy);
  if (!phases.ok()) return phases.status();
  for (const StepPhase& phase : phases.value())
    if (const auto kernels = forced_kernels(phase.kernel);
        config.per_expert && !kernels.empty() && kernels[0].op() != ExpertGemm::kName)
      return unsupported("moe: per_expert: wanted a kernel of expert_gemm, found " + phase.kernel + ": " +
                         std::string(kernels[0].op()) + " has one activation for all experts");
  return Step::plan("moe", device, catalog, std::move(moe_graph(config).graph), tokens_max,
                    {.policy = policy, .phases = std::move(phases).value()}, gaps);
}

Moe::Moe(Device& device, const MoeConfig& config, int64_t tokens_max)
    : device_(device), config_(config), tokens_max_(tokens_max) {}

Moe::~Moe() = default;

Result<std::unique_ptr<Moe>> Moe::plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                       const Policy& policy, const MoeBackend& backend) {
  auto step = plan_moe(device.info(), device.catalog(), config, tokens_max, policy, backend);
  if (!step.ok()) return step.status();
  std::unique_ptr<Moe> moe(new Moe(device, config, tokens_max));
  moe->step_ = std::make_unique<const Step>(std::move(step).value());
  moe->between_ = moe_graph(config).between;
  moe->weights_at_ = weights_at(config);
  if (has_dense_layers(config)) {
    auto zeros = make_zeros(device, tokens_max);
    if (!zeros.ok()) return zeros.status();
    moe->zeros_ = std::move(zeros).value();
  }
  return moe;
}

MoeChoice Moe::choice(int64_t tokens, Workspace workspace) const {
  const int64_t slots = slots_of(config_);
  return {.logits = step_->between(between_.logits, config_.logits, {tokens, config_.experts}, workspace),
          .ids = chooses_in_captured(config_)
                     ? Tensor{}
                     : step_->between(between_.ids, DType::kI32, {tokens, slots}, workspace),
          .weights = step_->between(between_.weights, DType::kF32, {tokens, slots}, workspace)};
}

Status Moe::check_call(const MoeIo& io) const {
  const int64_t tokens = io.x.shape[0];
  Status status;
  for_each_io(config_, tokens, [&](const SlotSpec& spec, Tensor MoeIo::*member) {
    if (status.ok()) status = check_slot(spec, io.*member, device_.info().backend, 1);
  });
  if (!status.ok()) status.message = "moe: " + status.message;
  return status;
}

// Whether kernels can write ids directly to MoeIo::captured: they may require the alignment of workspace
// values, which a caller's tensor may lack.
bool Moe::ids_stand_in(const Tensor& captured) const {
  return chooses_in_captured(config_) && reinterpret_cast<uintptr_t>(captured.data) % Arena::kAlignment == 0;
}

Status Moe::copy_captured(const MoeIo& io, Workspace workspace, Stream stream) const {
  if (!chooses_in_captured(config_) || ids_stand_in(io.captured)) return {};
  const auto bytes = static_cast<size_t>(bytes_of(DType::kI32, io.x.shape[0] * config_.top_k));
  if (bytes == 0) return {};
  const Tensor ids = step_->between(between_.ids, DType::kI32, {io.x.shape[0], config_.top_k}, workspace);
  return device_.copy(io.captured.data, ids.data, bytes, stream);
}

void Moe::bind(const MoeIo& io, const MoeWeights& weights, Bound* out) const {
  const int64_t tokens = io.x.shape[0];
  size_t count = 0;
  for_each_io(config_, tokens,
              [&](const SlotSpec&, Tensor MoeIo::*member) { out->call[count++] = io.*member; });
  out->call[count++] = first_rows(zeros_.view(), tokens);
  for (size_t i = 0; i < weights_at_.size(); ++i) out->held[i] = weight_at(weights, weights_at_[i]);
  out->given = {.call = std::span(out->call).first(count),
                .held = std::span(out->held).first(weights_at_.size())};
  if (ids_stand_in(io.captured)) out->given.instead = between_.ids, out->given.stand_in = io.captured;
}

Status Moe::forward(const MoeIo& io, const MoeWeights& weights, Workspace workspace, Stream stream,
                    KernelRuns* runs) const {
  SLUICE_TRY(check_call(io));
  Bound bound;
  bind(io, weights, &bound);
  SLUICE_TRY(step_->run(io.x.shape[0], bound.given, workspace, stream, runs));
  return copy_captured(io, workspace, stream);
}

Result<std::vector<StageCheck>> Moe::check(const MoeIo& io, const MoeWeights& weights, Workspace workspace,
                                           Stream stream) const {
  SLUICE_TRY(check_call(io));
  Bound bound;
  bind(io, weights, &bound);
  auto out = step_->check(io.x.shape[0], bound.given, workspace, device_, stream);
  if (out.ok()) SLUICE_TRY(copy_captured(io, workspace, stream));
  return out;
}

std::vector<std::pair<std::string, std::string>> Moe::kernels(int64_t tokens) const {
  std::vector<std::pair<std::string, std::string>> out;
  for (StageKernel& one : step_->kernels(tokens))
    out.emplace_back(std::move(one.stage), std::move(one.kernel));
  return out;
}

}  // namespace sluice
