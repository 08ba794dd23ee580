// A Problem lists its fields once. Printing, parsing, JSON, the C ABI and the fuzzer all read that list.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace sluice {

// Words of an enum: specialize with `static constexpr std::string_view words[]`, indexed by the enum's value.
template <class E>
struct EnumWords;

template <>
struct EnumWords<bool> {
  static constexpr std::string_view words[] = {"0", "1"};
};
template <>
struct EnumWords<DType> {
  static constexpr std::string_view words[] = {"f32", "bf16", "e2m1", "e8m0", "i32",
                                               "i64", "i16",  "u8",   "e4m3"};
};

template <class E>
std::string_view word(E value) {
  return EnumWords<E>::words[static_cast<size_t>(value)];
}

// A reference to one field, whose type is erased to one of three kinds.
struct Field {
  enum class Kind : uint8_t { kInt, kReal, kWord };
  std::string_view name;
  std::string_view doc;
  Kind kind;
  int64_t* integer = nullptr;
  double* real = nullptr;
  uint8_t* choice = nullptr;                     // kWord: the enum's storage
  std::span<const std::string_view> words = {};  // kWord: the accepted words

  std::string value_text() const;
  // kInvalidArgument lists the values that the field accepts.
  Status set(std::string_view value) const;
};

// Whether the field is a bool, which is a flag on a command line.
inline bool is_switch(const Field& field) { return field.words.data() == EnumWords<bool>::words; }

// Passed to Problem::fields() to collect Field values. Enums and bools must be one byte wide.
template <class Visit>
class FieldVisitor {
 public:
  explicit FieldVisitor(Visit visit) : visit_(visit) {}
  template <class T>
  void operator()(std::string_view name, T& value, std::string_view doc) {
    Field field{.name = name, .doc = doc, .kind = Field::Kind::kInt};
    if constexpr (std::is_same_v<T, int64_t>) {
      field.integer = &value;
    } else if constexpr (std::is_same_v<T, double>) {
      field.kind = Field::Kind::kReal;
      field.real = &value;
    } else {
      static_assert(sizeof(T) == 1);
      field.kind = Field::Kind::kWord;
      field.choice = reinterpret_cast<uint8_t*>(&value);
      field.words = EnumWords<T>::words;
    }
    visit_(field);
  }

 private:
  Visit visit_;
};

// Calls visit(const Field&) for each field of `problem`, in order.
template <class Problem, class Visit>
void for_each_field(Problem& problem, Visit visit) {
  FieldVisitor<Visit> visitor(visit);
  Problem::fields(visitor, problem);
}

// "tokens=1 experts=128 ...": every field, in order.
template <class Problem>
std::string fields_text(const Problem& problem) {
  Problem copy = problem;
  std::string out;
  for_each_field(copy, [&](const Field& f) {
    out += (out.empty() ? "" : " ") + std::string(f.name) + "=" + f.value_text();
  });
  return out;
}

// The name nearest to `word` by edit distance; empty if none is near.
std::string nearest(std::string_view word, std::span<const std::string> names);

// Sets one field by name. For an unknown name the error suggests the nearest field.
template <class Problem>
Status set_field(Problem& problem, std::string_view name, std::string_view value);

// Reads "name=value name=value"; fields that are not named keep their values.
template <class Problem>
Status parse_fields(std::string_view line, Problem* problem);

// kInvalidArgument: "unknown <what> '<name>'" with the nearest of `known`, or with all of `known` if none is near.
Status unknown_name(std::string_view what, std::string_view name, std::span<const std::string> known);
// Splits off the next name and value; words are separated by spaces. `rest` advances. Returns false at the end of the line.
bool next_assignment(std::string_view* rest, std::string_view* name, std::string_view* value);

template <class Problem>
Status set_field(Problem& problem, std::string_view name, std::string_view value) {
  Status status;
  bool found = false;
  for_each_field(problem, [&](const Field& f) {
    if (f.name != name) return;
    found = true;
    status = f.set(value);
  });
  if (found) return status;
  std::vector<std::string> known;
  for_each_field(problem, [&](const Field& f) { known.emplace_back(f.name); });
  return unknown_name("field", name, known);
}

template <class Problem>
Status parse_fields(std::string_view line, Problem* problem) {
  std::string_view name, value;
  while (next_assignment(&line, &name, &value)) SLUICE_TRY(set_field(*problem, name, value));
  return {};
}

}  // namespace sluice
