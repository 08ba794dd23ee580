// Errors are values: code below apps/ never throws, aborts or prints.
#pragma once
#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace sluice {

enum class Code : uint8_t {
  kOk,
  kInvalidArgument,  // an argument is not allowed: shape, dtype, stride, value out of range, null pointer
  kUnsupported,      // the request is valid, but this build or device does not support it
  kOutOfMemory,
  kIo,
  kCorrupt,  // input data is malformed or inconsistent
  kDevice,   // a device reported a fault
};

const char* text(Code code);

// The message says what was wanted, what was found, and where.
struct [[nodiscard]] Status {
  Code code = Code::kOk;
  std::string message;
  bool ok() const { return code == Code::kOk; }
};

inline Status invalid(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
inline Status unsupported(std::string message) { return {Code::kUnsupported, std::move(message)}; }
inline Status out_of_memory(std::string message) { return {Code::kOutOfMemory, std::move(message)}; }

// Either a T or the error that explains its absence: a Status, or a more detailed type.
template <class T, class E = Status>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: a value is a result
  Result(E error) : error_(std::move(error)) {}  // NOLINT: an error is a result too
  bool ok() const { return value_.has_value(); }
  const E& error() const { return error_; }
  const Status& status() const requires std::same_as<E, Status> { return error_; }
  // Allowed only if ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  E error_;
};

#define SLUICE_TRY(expression)                                                           \
  do {                                                                                   \
    if (::sluice::Status try_status = (expression); !try_status.ok()) return try_status; \
  } while (0)

}  // namespace sluice
