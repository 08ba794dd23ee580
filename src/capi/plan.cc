#include "capi/handles.h"
#include "capi/launch_args.h"

using namespace sluice;        // NOLINT: the C boundary names every type of the library
using namespace sluice::capi;  // NOLINT

namespace sluice::capi {

Status read_tensor(const char* name, const sluice_tensor& t, Tensor* to) {
  const auto bad = [&](const char* what, int64_t found) {
    return invalid(std::string(name) + ": " + what + ", found " + std::to_string(found));
  };
  if (t.dtype < SLUICE_F32 || t.dtype > SLUICE_E4M3) return bad("dtype: wanted a sluice_dtype", t.dtype);
  if (t.where != SLUICE_CPU && t.where != SLUICE_CUDA) return bad("where: wanted a sluice_backend", t.where);
  if (t.rank < 0 || t.rank > SLUICE_RANK_MAX) return bad("rank: wanted 0 to 4", t.rank);
  *to = {.data = t.data,
         .dtype = static_cast<DType>(t.dtype),
         .where = static_cast<Backend>(t.where),
         .rank = static_cast<int8_t>(t.rank)};
  for (size_t i = 0; i < static_cast<size_t>(t.rank); ++i) {
    to->shape[i] = t.shape[i];
    to->stride[i] = t.stride[i];
  }
  return {};
}

}  // namespace sluice::capi

namespace {

static_assert(static_cast<int>(DType::kF32) == SLUICE_F32 && static_cast<int>(DType::kBF16) == SLUICE_BF16 &&
              static_cast<int>(DType::kE2M1) == SLUICE_E2M1 &&
              static_cast<int>(DType::kE8M0) == SLUICE_E8M0 && static_cast<int>(DType::kI32) == SLUICE_I32 &&
              static_cast<int>(DType::kI64) == SLUICE_I64 && static_cast<int>(DType::kI16) == SLUICE_I16 &&
              static_cast<int>(DType::kU8) == SLUICE_U8 && static_cast<int>(DType::kE4M3) == SLUICE_E4M3);
static_assert(kMaxRank == SLUICE_RANK_MAX);

}  // namespace

extern "C" {

sluice_tensor sluice_contiguous(void* data, sluice_dtype dtype, int32_t rank, const int64_t* shape) {
  sluice_tensor out{};
  out.data = data;
  out.dtype = dtype;
  out.where = SLUICE_CPU;
  out.rank = rank < 0 || !shape ? 0 : (rank < SLUICE_RANK_MAX ? rank : SLUICE_RANK_MAX);
  int64_t stride = 1;
  for (int32_t i = out.rank - 1; i >= 0; --i) {
    out.shape[i] = shape[i];
    out.stride[i] = stride;
    // every launch rejects this stride
    if (__builtin_mul_overflow(stride, shape[i], &stride)) stride = INT64_MAX;
  }
  return out;
}

sluice_status sluice_plan_create(const sluice_device* device, const char* op, const char* problem,
                                 const sluice_policy* policy, sluice_plan** out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    SLUICE_TRY(need_pointer(out, "out"));
    const auto parsed = problem_of(op, problem);
    if (!parsed.ok()) return parsed.status();
    auto made = parsed.value()->plan(*device->device, policy_of(policy));
    if (!made.ok()) return made.status();
    auto handle = std::make_unique<sluice_plan>();
    handle->plan = std::move(made).value();
    handle->kernel = handle->plan->kernel();
    *out = handle.release();
    return {};
  });
}

void sluice_plan_destroy(sluice_plan* plan) { delete plan; }

size_t sluice_plan_workspace_bytes(const sluice_plan* plan) {
  return plan ? plan->plan->workspace_bytes() : 0;
}

const char* sluice_plan_kernel(const sluice_plan* plan) { return plan ? plan->kernel.c_str() : ""; }

sluice_status sluice_plan_run(const sluice_plan* plan, const sluice_launch* launch, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(plan, "plan"));
    LaunchArgs with;
    SLUICE_TRY(with.read(launch));
    return plan->plan->run(with.args(), with.workspace(), with.stream());
  });
}

sluice_status sluice_table_create(const sluice_device* device, const char* op, const char* problem,
                                  int64_t tokens_max, const sluice_policy* policy, sluice_table** out,
                                  sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(device, "device"));
    SLUICE_TRY(need_pointer(out, "out"));
    const auto parsed = problem_of(op, problem);
    if (!parsed.ok()) return parsed.status();
    const Device& on = *device->device;
    auto made = parsed.value()->table(on.info(), on.catalog(), tokens_max, policy_of(policy));
    if (!made.ok()) return made.status();
    auto handle = std::make_unique<sluice_table>();
    handle->table = std::move(made).value();
    for (const TableStep& step : handle->table->steps()) handle->kernels.emplace_back(step.kernel);
    *out = handle.release();
    return {};
  });
}

void sluice_table_destroy(sluice_table* table) { delete table; }

size_t sluice_table_workspace_bytes(const sluice_table* table) {
  return table ? table->table->workspace_bytes() : 0;
}

size_t sluice_table_step_count(const sluice_table* table) { return table ? table->kernels.size() : 0; }

sluice_status sluice_table_step(const sluice_table* table, size_t index, sluice_step* out,
                                sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(table, "table"));
    SLUICE_TRY(need_pointer(out, "out"));
    if (index >= table->kernels.size())
      return invalid("index: wanted less than " + std::to_string(table->kernels.size()) +
                     " (the steps), found " + std::to_string(index));
    const TableStep& step = table->table->steps()[index];
    *out = {step.first, step.last, table->kernels[index].c_str(), step.workspace_bytes};
    return {};
  });
}

sluice_status sluice_table_run(const sluice_table* table, int64_t tokens, const sluice_launch* launch,
                               sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(table, "table"));
    LaunchArgs with;
    SLUICE_TRY(with.read(launch));
    return table->table->run(tokens, with.args(), with.workspace(), with.stream());
  });
}

}  // extern "C"
