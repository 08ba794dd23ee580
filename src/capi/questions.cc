#include "backends/backends.h"
#include "capi/handles.h"
#include "dispatch/explain.h"

using namespace sluice;        // NOLINT: the C boundary names every type of the library
using namespace sluice::capi;  // NOLINT

static_assert(static_cast<int>(Code::kDevice) == SLUICE_DEVICE &&
              static_cast<int>(Code::kUnsupported) == SLUICE_UNSUPPORTED &&
              static_cast<int>(Code::kInvalidArgument) == SLUICE_INVALID_ARGUMENT &&
              static_cast<int>(Code::kOutOfMemory) == SLUICE_OUT_OF_MEMORY &&
              static_cast<int>(Code::kIo) == SLUICE_IO && static_cast<int>(Code::kCorrupt) == SLUICE_CORRUPT);
static_assert(static_cast<int>(Role::kIn) == SLUICE_IN && static_cast<int>(Role::kOut) == SLUICE_OUT &&
              static_cast<int>(Role::kInOut) == SLUICE_IN_OUT);

namespace sluice::capi {

Result<std::unique_ptr<AnyProblem>> problem_of(const char* op, const char* problem) {
  if (Status status = need_pointer(op, "op"); !status.ok()) return status;
  auto made = make_problem(op);
  if (!made.ok() || !problem) return made;
  if (Status status = made.value()->parse(problem); !status.ok()) {
    status.message = std::string(op) + ": " + status.message;
    return status;
  }
  return made;
}

void visit_field(const Field& f, sluice_field_visitor visit, void* context) {
  const std::string name(f.name), doc(f.doc), value = f.value_text();
  const std::vector<std::string> words(f.words.begin(), f.words.end());
  std::vector<const char*> pointers;
  for (const std::string& w : words) pointers.push_back(w.c_str());
  const sluice_field field{name.c_str(), doc.c_str(), value.c_str(),
                           pointers.empty() ? nullptr : pointers.data(), pointers.size()};
  visit(context, &field);
}

void visit_slot(const SlotSpec& spec, sluice_slot_visitor visit, void* context) {
  const std::string name(spec.name);
  sluice_slot slot{};
  slot.name = name.c_str();
  slot.role = static_cast<sluice_role>(spec.role);
  slot.used = spec.used;
  slot.rows_may_be_strided = spec.rows == Rows::kMayBeStrided;
  slot.dtype = static_cast<sluice_dtype>(spec.dtype);
  slot.rank = spec.rank;
  for (int i = 0; i < spec.rank; ++i) slot.shape[i] = spec.shape[static_cast<size_t>(i)];
  visit(context, &slot);
}

Status callback_status(const char* what, int32_t returned) {
  if (returned == SLUICE_OK) return {};
  const std::string said = std::string(what) + ": the callback returned ";
  if (returned < SLUICE_OK || returned > SLUICE_DEVICE)
    return invalid(said + std::to_string(returned) + ", which is not a sluice_status");
  return {static_cast<Code>(returned), said + "'" + sluice_status_text(returned) + "'"};
}

Result<DeviceInfo> asked_device(const sluice_device* device, const char* device_name) {
  if ((device == nullptr) == (device_name == nullptr))
    return invalid(std::string("question: wanted either device or device_name, found ") +
                   (device ? "both" : "neither"));
  if (device) return device->device->info();
  return known_device(device_name);
}

}  // namespace sluice::capi

extern "C" {

const char* sluice_version(void) { return SLUICE_VERSION; }

const char* sluice_status_text(int32_t status) {
  return status < SLUICE_OK || status > SLUICE_DEVICE ? "unknown" : text(static_cast<Code>(status));
}

sluice_status sluice_explain(const sluice_question* question, sluice_text* out, sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(question, "question"));
    SLUICE_TRY(need_pointer(out, "out"));
    const auto problem = problem_of(question->op, question->problem);
    if (!problem.ok()) return problem.status();
    const Result<DeviceInfo> device = asked_device(question->device, question->device_name);
    if (!device.ok()) return device.status();
    const Decision decision =
        problem.value()->decide(device.value(), all_candidates(), policy_of(question->policy));
    SLUICE_TRY(
        write_whole(explain_text(question->op, problem.value()->text(), device.value(), decision), out));
    return decision.status();
  });
}

size_t sluice_op_count(void) {
  size_t count = 0;
  for_each_op([&]<class Op>() { ++count; });
  return count;
}

const char* sluice_op_name(size_t index) {
  const char* found = nullptr;
  size_t at = 0;
  for_each_op([&]<class Op>() {
    if (at++ == index) found = Op::kName.data();  // kName is a view of a literal, which ends in a NUL
  });
  return found;
}

sluice_status sluice_op_fields(const char* op, sluice_field_visitor visit, void* context,
                               sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(reinterpret_cast<const void*>(visit), "visit"));
    const auto problem = problem_of(op, nullptr);
    if (!problem.ok()) return problem.status();
    for (const Field& f : problem.value()->fields()) visit_field(f, visit, context);
    return {};
  });
}

sluice_status sluice_op_tensors(const char* op, const char* problem, sluice_slot_visitor visit, void* context,
                                sluice_text* error) {
  return guarded(error, [&]() -> Status {
    SLUICE_TRY(need_pointer(reinterpret_cast<const void*>(visit), "visit"));
    const auto parsed = problem_of(op, problem);
    if (!parsed.ok()) return parsed.status();
    if (const Refusal against = parsed.value()->validate(); !against.accepted())
      return invalid(std::string(op) + ": " + against.line());
    for (const SlotSpec& spec : parsed.value()->slots()) visit_slot(spec, visit, context);
    return {};
  });
}

}  // extern "C"
