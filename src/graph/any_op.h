// Type-erased operations, for the C ABI and the command line, which look operations up by name.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "dispatch/decide.h"
#include "dispatch/device.h"

namespace sluice {

// One tensor of an operation, by the name of its slot.
struct NamedTensor {
  std::string_view name;
  Tensor tensor;
};

// A Plan or a RunPlan of any operation.
class AnyPlan {
 public:
  virtual ~AnyPlan() = default;
  virtual std::string_view kernel() const = 0;
  virtual size_t workspace_bytes() const = 0;
  // Like Plan::run. In addition, kInvalidArgument names a tensor that the operation does not know, that is
  // given twice, or that is missing. Allocates only on failure.
  virtual Status run(std::span<const NamedTensor> args, Workspace workspace, Stream stream) const = 0;
};

// One range of a table: all token counts from first to last run the same launches.
struct TableStep {
  int64_t first = 0, last = 0;
  std::string kernel;       // for a fused operation that runs stage by stage: "A:CONFIG+B:CONFIG"
  std::string config = {};  // empty if the kernel has a single configuration
  size_t workspace_bytes = 0;
  double first_us = 0, last_us = 0;  // estimated cost at both ends
  bool planned = false;
  // "NAME" or "NAME:CONFIG".
  std::string choice() const { return kernel + (config.empty() ? "" : ":" + config); }
};

// A PlanTable of any operation, or a Step of a fused operation's stages.
class AnyTable {
 public:
  virtual ~AnyTable() = default;
  virtual int64_t tokens_max() const = 0;
  virtual size_t workspace_bytes() const = 0;
  virtual const std::vector<TableStep>& steps() const = 0;
  // Like AnyPlan::run. In addition, kInvalidArgument if tokens is outside [0, tokens_max()].
  virtual Status run(int64_t tokens, std::span<const NamedTensor> args, Workspace workspace,
                     Stream stream) const = 0;
};

// A Problem of any operation. Starts with the defaults of its fields.
class AnyProblem {
 public:
  virtual ~AnyProblem() = default;
  virtual std::string_view op() const = 0;
  virtual std::string_view summary() const = 0;
  virtual std::string text() const = 0;  // fields_text()
  // The fields refer into this problem, which must outlive them.
  virtual std::vector<Field> fields() = 0;
  Status set(std::string_view name, std::string_view value);
  Status parse(std::string_view line);   // parse_fields()
  virtual Refusal validate() const = 0;  // the reasons why the operation rejects it on every backend
  virtual std::vector<SlotSpec> slots() const = 0;
  virtual int64_t tokens() const = 0;
  // Bytes and arithmetic that no kernel can avoid (ops/op.h).
  virtual double bytes() const = 0;
  virtual double flops() const = 0;

  virtual Decision decide(const DeviceInfo& device, const Catalog& catalog, const Policy& policy) const = 0;
  virtual Result<std::unique_ptr<AnyPlan>> plan(const Device& device, const Policy& policy) const = 0;
  virtual Result<std::unique_ptr<AnyTable>> table(const DeviceInfo& device, const Catalog& catalog,
                                                  int64_t tokens_max, const Policy& policy,
                                                  int64_t tokens_min = 0) const = 0;
};

// Names of all operations, in the order of ops/all.h.
std::vector<std::string> op_names();
// kInvalidArgument for an unknown name; the message suggests the most similar name.
Result<std::unique_ptr<AnyProblem>> make_problem(std::string_view op);

// Erases the type of a known problem, by printing it and parsing the text, which cannot fail.
template <class Op>
std::unique_ptr<AnyProblem> any_problem(const typename Op::Problem& problem) {
  std::unique_ptr<AnyProblem> erased = std::move(make_problem(Op::kName)).value();
  const Status parsed = erased->parse(fields_text(problem));
  return parsed.ok() ? std::move(erased) : nullptr;
}

// One stage of a layer or model, and its problem.
struct StageProblem {
  std::string stage;
  std::unique_ptr<AnyProblem> problem;
};

}  // namespace sluice
