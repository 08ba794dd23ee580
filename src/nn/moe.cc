#include "nn/moe.h"

#include <algorithm>

#include "base/arena.h"
#include "nn/host_copy.h"
#include "nn/moe_path.h"

namespace sluice {
namespace {

constexpr size_t kNowhere = ~size_t{0};

size_t index(MoeBuffer buffer) { return static_cast<size_t>(buffer); }

// The plans of all phases, in order.
Result<std::vector<MoePlans>> make_plans(const DeviceInfo& device, const Catalog& catalog,
                                         const MoeConfig& config, int64_t tokens_max, const Policy& policy,
                                         const MoeBackend& backend) {
  if (tokens_max < 1 || tokens_max > kTableTokensMax)
    return invalid("moe: tokens_max: wanted 1 to " + std::to_string(kTableTokensMax) + ", found " +
                   std::to_string(tokens_max));
  if (Status status = check_moe(config); !status.ok()) return status;
  std::vector<std::string_view> ops;
  for_each_stage([&]<class Op>(const MoeStage<Op>&, auto) {
    if (std::find(ops.begin(), ops.end(), Op::kName) == ops.end()) ops.push_back(Op::kName);
  });
  if (Status status = check_force(policy, ops); !status.ok()) return status;
  const auto phases = phases_of(backend, device, catalog, tokens_max, policy);
  if (!phases.ok()) return phases.status();
  std::vector<MoePlans> out;
  for (const MoePhase& phase : phases.value()) {
    auto plans = MoePlans::make(device, catalog, config, phase, policy);
    if (!plans.ok()) return plans.status();
    out.push_back(std::move(plans).value());
  }
  return out;
}

const MoePlans& serving(const std::vector<MoePlans>& phases, int64_t tokens) {
  size_t i = 0;
  while (i + 1 < phases.size() && phases[i].last() < tokens) ++i;
  return phases[i];
}

// Calls visit(stage, its plan) for each stage that runs for `tokens` tokens, in order.
template <class Visit>
void each_plan(const std::vector<MoePlans>& phases, const MoeConfig& config, int64_t tokens, Visit visit) {
  const MoePlans& plans = serving(phases, tokens);
  const MoePath path = plans.at(tokens);
  for_each_stage([&]<class Op, size_t kAt>(const MoeStage<Op>& stage, std::integral_constant<size_t, kAt>) {
    if (stage.runs(config, path)) visit(stage, plans.table<kAt>()->at(tokens * stage.rows(config)));
  });
}

MoeRun run_of(const std::vector<MoePlans>& phases, const MoeConfig& config, int64_t tokens) {
  MoeRun out{serving(phases, tokens).at(tokens), {}};
  each_plan(phases, config, tokens, [&](const auto& stage, const auto& plan) {
    out.kernels.emplace_back(stage.name, plan.choice());
  });
  return out;
}

}  // namespace

struct Moe::Plans {
  std::vector<MoePlans> phases;
  std::array<size_t, static_cast<size_t>(MoeBuffer::kCount)> at = {};  // of each buffer in the workspace

  const MoePlans& serving(int64_t tokens) const { return sluice::serving(phases, tokens); }
};

Result<std::vector<MoeRun>> moe_runs(const DeviceInfo& device, const Catalog& catalog,
                                     const MoeConfig& config, int64_t tokens_max,
                                     std::span<const int64_t> tokens, const Policy& policy,
                                     const MoeBackend& backend) {
  const auto phases = make_plans(device, catalog, config, tokens_max, policy, backend);
  if (!phases.ok()) return phases.status();
  std::vector<MoeRun> out;
  for (const int64_t count : tokens) out.push_back(run_of(phases.value(), config, count));
  return out;
}

Moe::Moe(Device& device, const MoeConfig& config, int64_t tokens_max)
    : device_(device), config_(config), tokens_max_(tokens_max), plans_(std::make_unique<Plans>()) {}

Moe::~Moe() {
  if (zeros_) device_.release(zeros_);
}

Result<std::unique_ptr<Moe>> Moe::plan(Device& device, const MoeConfig& config, int64_t tokens_max,
                                       const Policy& policy, const MoeBackend& backend) {
  auto phases = make_plans(device.info(), device.catalog(), config, tokens_max, policy, backend);
  if (!phases.ok()) return phases.status();
  std::unique_ptr<Moe> moe(new Moe(device, config, tokens_max));
  moe->plans_->phases = std::move(phases).value();
  if (shared_apart(config) || config.latent > 0) SLUICE_TRY(moe->make_zeros());
  moe->lay_out();
  return moe;
}

Status Moe::make_zeros() {
  const size_t bytes = static_cast<size_t>(tokens_max_) * sizeof(int32_t);
  Result<void*> zeros = device_.allocate(bytes);
  if (!zeros.ok()) return zeros.status();
  zeros_ = zeros.value();
  const std::vector<int32_t> host(static_cast<size_t>(tokens_max_), 0);
  SLUICE_TRY(device_.copy(zeros_, host.data(), bytes, device_.stream()));
  return device_.wait(device_.stream());
}

// Each buffer is as large as what any stage writes into it, scratch as large as any stage's: stages run one after the other.
void Moe::lay_out() {
  std::array<int64_t, static_cast<size_t>(MoeBuffer::kCount)> bytes;
  bytes.fill(-1);
  size_t scratch = 0;
  for (const MoePlans& phase : plans_->phases) {
    for_each_stage([&]<class Op, size_t kAt>(const MoeStage<Op>& stage, std::integral_constant<size_t, kAt>) {
      const auto& table = phase.table<kAt>();
      if (!table) return;
      scratch = std::max(scratch, table->workspace_bytes());
      const typename Op::Problem most = Op::at_tokens(stage.problem(config_), table->tokens_max());
      Op::slots(most, [&](const SlotSpec& spec, Tensor Op::Args::*slot) {
        const MoeTensor* to = tensor_of(stage, slot);
        const MoeBuffer buffer = to ? to->buffer_of(config_) : MoeBuffer::kNone;
        if (buffer == MoeBuffer::kNone || !spec.used || spec.role == Role::kIn) return;
        int64_t elements = 1;
        for (int i = 0; i < spec.rank; ++i) elements *= spec.shape[static_cast<size_t>(i)];
        int64_t& size = bytes[index(buffer)];
        size = std::max(size, bytes_of(spec.dtype, elements));
      });
    });
  }
  size_t used = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    plans_->at[i] = bytes[i] < 0 ? kNowhere : used;
    if (bytes[i] >= 0) used += Arena::footprint(static_cast<size_t>(bytes[i]));
  }
  scratch_at_ = used;
  workspace_bytes_ = used + scratch;
}

MoePath Moe::path(int64_t tokens) const { return plans_->serving(tokens).at(tokens); }

MoeChoice Moe::choice(int64_t tokens, Workspace workspace) const {
  const auto view = [&](MoeBuffer buffer, DType dtype, int64_t columns) {
    const size_t at = plans_->at[index(buffer)];
    return at == kNowhere
               ? Tensor{}
               : make_tensor(workspace.data + at, dtype, {tokens, columns}, device_.info().backend);
  };
  return {
      .logits = view(MoeBuffer::kLogits, config_.logits, config_.experts),
      .ids = chooses_in_captured(config_) ? Tensor{} : view(MoeBuffer::kIds, DType::kI32, slots_of(config_)),
      .weights = view(MoeBuffer::kWeights, DType::kF32, slots_of(config_))};
}

Status Moe::check_call(const MoeIo& io, Workspace workspace) const {
  const int64_t tokens = io.x.shape[0];
  Status status;
  for_each_io(config_, tokens, [&](const SlotSpec& spec, Tensor MoeIo::*member) {
    if (status.ok()) status = check_slot(spec, io.*member, device_.info().backend, 1);
  });
  if (!status.ok()) return status.message = "moe: " + status.message, status;
  if (tokens < 0 || tokens > tokens_max_)
    return invalid("moe: wanted 0 to " + std::to_string(tokens_max_) + " tokens (the plan's bound), found " +
                   std::to_string(tokens));
  if (workspace.data && workspace.bytes >= workspace_bytes_) return {};
  return invalid("moe: workspace: wanted " + std::to_string(workspace_bytes_) + " bytes, found " +
                 std::to_string(workspace.data ? workspace.bytes : 0));
}

// A caller's tensor may begin where no buffer does, and a kernel may want its ids as aligned as buffers are.
bool Moe::ids_stand_in(const Tensor& captured) const {
  return chooses_in_captured(config_) && reinterpret_cast<uintptr_t>(captured.data) % Arena::kAlignment == 0;
}

Status Moe::copy_captured(const MoeIo& io, Workspace workspace, Stream stream) const {
  if (!chooses_in_captured(config_) || ids_stand_in(io.captured)) return {};
  const auto bytes = static_cast<size_t>(bytes_of(DType::kI32, io.x.shape[0] * config_.top_k));
  if (bytes == 0) return {};
  return device_.copy(io.captured.data, workspace.data + plans_->at[index(MoeBuffer::kIds)], bytes, stream);
}

template <class Visit>
Status Moe::stages(const MoeIo& io, const MoeWeights& weights, std::byte* base, Visit visit) const {
  const int64_t tokens = io.x.shape[0];
  const MoePlans& plans = plans_->serving(tokens);
  const MoePath path = plans.at(tokens);
  MoeBuffers buffers = {};
  for (size_t i = 0; i < buffers.size(); ++i)
    if (plans_->at[i] != kNowhere) buffers[i] = base + plans_->at[i];
  buffers[index(MoeBuffer::kZeros)] = zeros_;
  MoeIo call = io;
  if (ids_stand_in(io.captured)) buffers[index(MoeBuffer::kIds)] = io.captured.data;
  if (chooses_in_captured(config_)) call.captured = {};  // no stage's own
  return try_each_stage([&]<class Op, size_t kAt>(const MoeStage<Op>& stage,
                                                  std::integral_constant<size_t, kAt>) -> Status {
    if (!stage.runs(config_, path)) return {};
    const PlanTable<Op>& table = *plans.table<kAt>();
    const int64_t rows = tokens * stage.rows(config_);
    const typename Op::Problem problem = Op::at_tokens(table.at(rows).problem(), rows);
    Status status = visit(stage, table, rows,
                          args_of(stage, problem, config_, call, weights, buffers, device_.info().backend));
    if (!status.ok()) status.message = "moe " + std::string(stage.name) + ": " + status.message;
    return status;
  });
}

Status Moe::forward(const MoeIo& io, const MoeWeights& weights, Workspace workspace, Stream stream) const {
  SLUICE_TRY(check_call(io, workspace));
  const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
  SLUICE_TRY(stages(
      io, weights, workspace.data,
      [&]<class Op>(const MoeStage<Op>&, const PlanTable<Op>& table, int64_t rows,
                    const typename Op::Args& args) { return table.run(rows, args, scratch, stream); }));
  return copy_captured(io, workspace, stream);
}

Result<std::vector<StageCheck>> Moe::check(const MoeIo& io, const MoeWeights& weights, Workspace workspace,
                                           Stream stream) const {
  SLUICE_TRY(check_call(io, workspace));
  const Workspace scratch{workspace.data + scratch_at_, workspace.bytes - scratch_at_};
  std::vector<StageCheck> out;
  const auto hold_to_reference = [&]<class Op>(const MoeStage<Op>& stage, const PlanTable<Op>& table,
                                               int64_t rows, const typename Op::Args& args) -> Status {
    // Before the run: an output may be one of the inputs.
    const typename Op::Problem problem = Op::at_tokens(table.at(rows).problem(), rows);
    Result<HostCopy<Op>> host = HostCopy<Op>::make(device_, problem, args, stream);
    if (!host.ok()) return host.status();
    Expectations wanted = reference(problem, host.value().args());
    SLUICE_TRY(table.run(rows, args, scratch, stream));
    SLUICE_TRY(host.value().fetch(stream));
    for (Expected& given : expected_given(problem, host.value().args())) wanted.push_back(std::move(given));
    StageCheck result{.stage = std::string(stage.name), .kernel = std::string(table.at(rows).kernel())};
    Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
      for (const Expected& want : wanted) {
        if (want.slot != spec.name) continue;
        const Comparison c = compare(want, host.value().args().*member);
        if (c.worst_share <= result.worst) continue;
        result.worst = c.worst_share;
        result.detail = c.text;
      }
    });
    out.push_back(std::move(result));
    return {};
  };
  SLUICE_TRY(stages(io, weights, workspace.data, hold_to_reference));
  SLUICE_TRY(copy_captured(io, workspace, stream));
  return out;
}

std::vector<std::pair<std::string, std::string>> Moe::kernels(int64_t tokens) const {
  return run_of(plans_->phases, config_, tokens).kernels;
}

void Moe::count_kernels(int64_t tokens, int64_t layers, KernelRuns* runs) const {
  each_plan(plans_->phases, config_, tokens,
            [&](const auto&, const auto& plan) { runs->add(plan.kernel(), layers); });
}

}  // namespace sluice
