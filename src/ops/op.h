// The parts of an operation. An operation is a struct with
//
//   kName                      the operation's name, the same everywhere
//   kSummary                   its purpose in one line, for lists of operations
//   Problem                    everything that selects a kernel, without pointers; lists its fields once (base/fields.h)
//   Args                       tensors; `slots` says which of them a Problem uses, and how
//   validate(problem)          checks the limits that the operation's comment states for all backends; returns every reason
//   bytes(problem), flops(problem)   the traffic and arithmetic that no kernel can avoid, for costs and rooflines
//   at_tokens(problem, n)      the same problem for n tokens (or n rows or sequences, if these are its size)
//   tokens_of(problem)
//
// and a free function `reference(problem, args)` for tests: slow, in double precision, never chosen by dispatch.
//
// Some outputs are exact only as a function of another output, which itself is known within a bound, such as the experts chosen from
// rounded logits. For these, a second free function reference_given(problem, args) runs after a kernel and reads from args what the kernel
// wrote.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fields.h"
#include "base/refusal.h"
#include "base/status.h"
#include "base/tensor.h"

namespace sluice {

enum class Role : uint8_t { kIn, kOut, kInOut };

// Whether the rows of a 2-D tensor may be strided: stride[0] >= shape[1].
enum class Rows : uint8_t { kPacked, kMayBeStrided };

// The requirements of a Problem on one tensor.
struct SlotSpec {
  std::string_view name;
  Role role = Role::kIn;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  bool used = true;  // an unused slot must be absent
  Rows rows = Rows::kPacked;
  int row_align = 1;  // the first element of every row must begin at a multiple of this many bytes
};

// For use in Op::slots: builds a spec from a list of sizes.
constexpr SlotSpec slot(std::string_view name, Role role, DType dtype, std::initializer_list<int64_t> shape,
                        bool used = true, Rows rows = Rows::kPacked) {
  SlotSpec spec{
      .name = name, .role = role, .dtype = dtype, .rank = 0, .shape = {}, .used = used, .rows = rows};
  for (int64_t size : shape) spec.shape[spec.rank++] = size;
  return spec;
}

// Checks one tensor against its spec; kInvalidArgument names the tensor, what was wanted and what was
// found. Allocates only on failure.
Status check_slot(const SlotSpec& spec, const Tensor& tensor, Backend where, int alignment_bytes);

// Checks all Args of an operation. Op::slots(problem, visit) calls visit(SlotSpec, Tensor Args::*).
template <class Op>
Status check_args(const typename Op::Problem& problem, const typename Op::Args& args, Backend where,
                  int alignment_bytes = 1) {
  Status status;
  Op::slots(problem, [&](const SlotSpec& spec, Tensor Op::Args::*member) {
    if (status.ok()) status = check_slot(spec, args.*member, where, alignment_bytes);
  });
  if (!status.ok()) status.message = std::string(Op::kName) + ": " + status.message;
  return status;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The reference's values of one output tensor, in contiguous row-major order.
struct Expected {
  std::string_view slot;
  std::vector<double> value;            // NaN: the output must be NaN
  std::vector<double> bound;            // |got - value| <= bound; 0: exact. Empty: exact everywhere
  std::vector<uint8_t> untouched = {};  // empty, or 1 for elements that the operation must not write
  // If several results are right (a sampled token at the border of two intervals), this decides instead of the bound.
  std::function<bool(size_t index, double got)> accept = {};
};
using Expectations = std::vector<Expected>;

// The result of reference_given() after a run whose outputs are in `args`; empty for operations without reference_given().
template <class Problem, class Args>
Expectations expected_given(const Problem& problem, const Args& args) {
  if constexpr (requires { reference_given(problem, args); }) {
    return reference_given(problem, args);
  } else {
    return {};
  }
}

// The element-by-element comparison of one output with its reference.
struct Comparison {
  int64_t wrong = 0;  // elements outside their bound
  // The largest error divided by its bound; infinity if an element that must be exact is not exact.
  double worst_share = 0;
  std::string text = {};  // the number of wrong elements; index, value and reference of the worst element
};
// Elements marked untouched must still hold the byte `poison`; without `poison` they are not checked.
Comparison compare(const Expected& want, const Tensor& got, std::optional<uint8_t> poison = {});

// Reads an input element of any type for the reference.
double load(const Tensor& tensor, int64_t flat_index);            // contiguous index
double load2(const Tensor& tensor, int64_t row, int64_t column);  // uses stride[0]

// Half a unit in the last place of `value` in a floating type; 0 for integer types.
double half_ulp(DType dtype, double value);

// Unit roundoff of f32 arithmetic.
constexpr double kF32Eps = 0x1p-24;
// Some vector units treat numbers below the smallest normal as zero. All operations allow this, and their
// error bounds include this amount for each such number.
constexpr double kFlush = 0x1p-126;

// Bound of a sum of `terms` products accumulated in f32 in any order: each of up to `terms` roundings may
// lose kF32Eps of the running sum, whose magnitude is at most `magnitude` = sum |a_i||b_i|.
inline double sum_bound(int64_t terms, double magnitude) {
  return static_cast<double>(terms + 2) * kF32Eps * magnitude;
}

}  // namespace sluice
