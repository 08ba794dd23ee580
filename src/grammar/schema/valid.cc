// Validates a value against a schema, for conditions that a grammar cannot express.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <string>
#include <type_traits>

#include "base/utf8.h"
#include "grammar/leaf.h"
#include "grammar/schema/document.h"

namespace sluice {
namespace {

constexpr int kDepthMax = 64;
constexpr int64_t kLookSteps = 8;      // per schema visited
constexpr int64_t kDecimalSteps = 48;  // to read a number in exact form

int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

bool is_integer(const Json& value) {
  if (value.is_number_integer()) return true;
  return value.is_number_float() && value.get<double>() == std::floor(value.get<double>());
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number() && is_integer(value);
  if (type == "number") return value.is_number();
  return type == value.type_name();
}

// Replaces February 29 at the start of a text by February 28, because the automata of dates have no leap days.
std::string without_leap_day(std::string text) {
  const auto digit = [&](size_t i) { return std::isdigit(static_cast<unsigned char>(text[i])) != 0; };
  if (text.size() < 10 || text.compare(4, 6, "-02-29") != 0 || !digit(0) || !digit(1) || !digit(2) ||
      !digit(3))
    return text;
  const int year = std::stoi(text.substr(0, 4));
  if (year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)) text[9] = '8';
  return text;
}

class Validator {
 public:
  Validator(const SchemaDocument& document, Bound bound, Work* work)
      : document_(document), bound_(bound), work_(work) {}

  bool operator()(const Json& value, const Json& schema, int depth) const {
    if (schema.is_boolean()) return schema.get<bool>();
    // Undecided: kInner gives false, kOuter true.
    if (depth > kDepthMax || !work_->spend(kLookSteps)) return bound_ == Bound::kOuter;
    if (!schema.is_object()) return false;
    return whole(value, schema, depth) && (!value.is_number() || number(value, schema)) &&
           (!value.is_string() || string(value.get_ref<const std::string&>(), schema)) &&
           (!value.is_array() || array(value, schema, depth)) &&
           (!value.is_object() || object(value, schema, depth)) && combined(value, schema, depth);
  }

 private:
  bool surely(const Json& value, const Json& schema, int depth) const {
    return Validator(document_, Bound::kInner, work_)(value, schema, depth + 1);
  }
  bool perhaps(const Json& value, const Json& schema, int depth) const {
    return Validator(document_, Bound::kOuter, work_)(value, schema, depth + 1);
  }
  bool inside(const Json& value, const Json& schema, int depth) const {
    return (*this)(value, schema, depth + 1);
  }
  // Whether the value fails the schema. kInner: for every checker; kOuter: for some checker.
  bool fails(const Json& value, const Json& schema, int depth) const {
    return bound_ == Bound::kInner ? !perhaps(value, schema, depth) : !surely(value, schema, depth);
  }

  bool whole(const Json& value, const Json& schema, int depth) const {
    if (const Json* type = member(schema, "type")) {
      const auto fits = [&](const Json& one) {
        // In draft 4, 1.0 is not an integer.
        const bool written = document_.draft() > 4 || bound_ == Bound::kOuter || !value.is_number_float();
        return one.is_string() && has_type(value, one.get<std::string>()) &&
               (written || one != Json("integer"));
      };
      if (type->is_array() ? std::none_of(type->begin(), type->end(), fits) : !fits(*type)) return false;
    }
    if (const Json* constant = member(schema, "const"))
      if (!same_value(*constant, value)) return false;
    if (const Json* list = member(schema, "enum"); list != nullptr && list->is_array())
      if (!document_.lists(values_in(*list), value, work_) && !(work_->over() && bound_ == Bound::kOuter))
        return false;
    for (const char* key : {"$ref", "$dynamicRef", "$recursiveRef"})
      if (const Json* name = member(schema, key)) {
        const auto target = document_.target(name->get<std::string>());
        if (!target.ok() || !inside(value, *target.value(), depth)) return false;
      }
    return true;
  }

  bool number(const Json& value, const Json& schema) const {
    const auto v = Decimal::of(value);
    if (!v) return false;
    (void)work_->spend(kDecimalSteps);
    const auto order = [&](const char* key) -> std::optional<int> {
      const Json* bound = member(schema, key);
      if (bound != nullptr) (void)work_->spend(kDecimalSteps);
      const auto b = bound != nullptr ? Decimal::of(*bound) : std::nullopt;
      return b ? std::optional(compare(*v, *b)) : std::nullopt;
    };
    const auto strict = [&](const char* key) {
      return member(schema, key) != nullptr && *member(schema, key) == Json(true);
    };
    if (const auto o = order("minimum"); o && (*o < 0 || (*o == 0 && strict("exclusiveMinimum"))))
      return false;
    if (const auto o = order("maximum"); o && (*o > 0 || (*o == 0 && strict("exclusiveMaximum"))))
      return false;
    if (const auto o = order("exclusiveMinimum"); o && *o <= 0) return false;
    if (const auto o = order("exclusiveMaximum"); o && *o >= 0) return false;
    const Json* multiple = member(schema, "multipleOf");
    const auto m = multiple != nullptr ? Decimal::of(*multiple) : std::nullopt;
    if (!m) return true;
    (void)work_->spend(4 * kDecimalSteps);
    // Some checkers divide doubles, and others compute exactly.
    const double quotient = value.get<double>() / multiple->get<double>();
    const bool by_doubles = quotient == std::floor(quotient), exact = is_multiple(*v, *m);
    return bound_ == Bound::kInner ? exact && by_doubles : exact || by_doubles;
  }

  static bool in_bounds(int64_t size, const Json& schema, const char* least, const char* most) {
    const Json *low = member(schema, least), *high = member(schema, most);
    return (low == nullptr || size >= low->get<double>()) && (high == nullptr || size <= high->get<double>());
  }

  bool string(const std::string& value, const Json& schema) const {
    if (!in_bounds(characters(value), schema, "minLength", "maxLength")) return false;
    if (const Json* pattern = member(schema, "pattern")) {
      const Dfa* dfa = document_.known_pattern(pattern->get<std::string>(), bound_);
      if (dfa == nullptr ? bound_ == Bound::kInner : !dfa->matches(value)) return false;
    }
    const Json* format = member(schema, "format");
    if (format == nullptr || !format->is_string()) return true;
    const Dfa* values = format_values(format->get<std::string>(), bound_);
    return values == nullptr || values->matches(value) || values->matches(without_leap_day(value));
  }

  bool array(const Json& value, const Json& schema, int depth) const {
    if (!in_bounds(std::ssize(value), schema, "minItems", "maxItems")) return false;
    const Json *items = member(schema, "items"), *prefix = member(schema, "prefixItems"), *rest = items;
    if (items != nullptr && items->is_array()) prefix = items, rest = member(schema, "additionalItems");
    for (size_t i = 0; i < value.size(); ++i) {
      const Json* one = prefix != nullptr && i < prefix->size() ? &(*prefix)[i] : rest;
      if (one == nullptr && member(schema, "unevaluatedItems") != nullptr &&
          !evaluates(value, schema, i, depth))
        one = member(schema, "unevaluatedItems");
      if (one != nullptr && !inside(value[i], *one, depth)) return false;
    }
    if (const Json* contains = member(schema, "contains")) {
      const Json *least = member(schema, "minContains"), *most = member(schema, "maxContains");
      const auto sure = std::count_if(value.begin(), value.end(),
                                      [&](const Json& v) { return surely(v, *contains, depth); });
      const auto may = std::count_if(value.begin(), value.end(),
                                     [&](const Json& v) { return perhaps(v, *contains, depth); });
      const bool inner = bound_ == Bound::kInner;
      if (static_cast<double>(inner ? sure : may) < (least != nullptr ? least->get<double>() : 1.0))
        return false;
      if (most != nullptr && static_cast<double>(inner ? may : sure) > most->get<double>()) return false;
    }
    if (const Json* unique = member(schema, "uniqueItems"); unique != nullptr && *unique == Json(true))
      for (size_t i = 0; i < value.size(); ++i)
        for (size_t j = 0; j < i; ++j)
          if (!work_->spend(kLookSteps) || same_value(value[i], value[j])) return false;
    return true;
  }

  bool object(const Json& value, const Json& schema, int depth) const {
    if (!in_bounds(std::ssize(value), schema, "minProperties", "maxProperties")) return false;
    if (const Json* required = member(schema, "required"); required != nullptr && required->is_array())
      for (const Json& name : *required)
        if (name.is_string() && !value.contains(name.get<std::string>())) return false;
    if (const Json* some = member(schema, kSomeMember)) {
      const auto& members = value.items();
      if (std::none_of(members.begin(), members.end(), [&](const auto& one) {
            return inside(Json(one.key()), some->at("names"), depth) &&
                   inside(one.value(), some->at("value"), depth);
          }))
        return false;
    }
    const Json *names = member(schema, "propertyNames"), *properties = member(schema, "properties");
    const Json *patterns = member(schema, "patternProperties"),
               *others = member(schema, "additionalProperties"),
               *unevaluated = member(schema, "unevaluatedProperties");
    for (const auto& [key, member] : value.items()) {
      if (names != nullptr && !inside(Json(key), *names, depth)) return false;
      bool known = false;
      if (properties != nullptr && properties->contains(key)) {
        known = true;
        if (!inside(member, properties->at(key), depth)) return false;
      }
      if (patterns != nullptr)
        for (const auto& [pattern, inner] : patterns->items()) {
          const Dfa* low = document_.known_pattern(pattern, Bound::kInner);
          const Dfa* high = document_.known_pattern(pattern, Bound::kOuter);
          if (low == nullptr || high == nullptr) return false;
          known |= low->matches(key);
          if ((bound_ == Bound::kInner ? high : low)->matches(key) && !inside(member, inner, depth))
            return false;
        }
      if (known) continue;
      if (others != nullptr) {
        if (!inside(member, *others, depth)) return false;
      } else if (unevaluated != nullptr && !evaluates(value, schema, key, depth)) {
        if (!inside(member, *unevaluated, depth)) return false;
      }
    }
    return dependent(value, schema, depth);
  }

  // Whether a keyword of `schema` itself, other than "unevaluatedItems", evaluates this element.
  bool evaluates_here(const Json& array, const Json& schema, size_t index, int depth) const {
    const Json *items = member(schema, "items"), *prefix = member(schema, "prefixItems");
    const bool list = items != nullptr && items->is_array();  // drafts up to 2019
    if (items != nullptr && !list) return true;
    if (list) prefix = items;
    if (prefix != nullptr && index < prefix->size()) return true;
    if (list && member(schema, "additionalItems") != nullptr) return true;
    // 2019-09 says that "contains" evaluates no element, and validators of it say that it does.
    const Json* contains =
        document_.draft() >= 2020 || bound_ == Bound::kOuter ? member(schema, "contains") : nullptr;
    return contains != nullptr && inside(array[index], *contains, depth);
  }

  // Whether a keyword of `schema` itself, other than "unevaluatedProperties", evaluates this member.
  bool evaluates_here(const Json&, const Json& schema, const std::string& name, int) const {
    const Json *properties = member(schema, "properties"), *patterns = member(schema, "patternProperties");
    if (member(schema, "additionalProperties") != nullptr) return true;
    if (properties != nullptr && properties->contains(name)) return true;
    if (patterns == nullptr) return false;
    const auto& all = patterns->items();
    return std::any_of(all.begin(), all.end(), [&](const auto& one) {
      const Dfa* dfa = document_.known_pattern(one.key(), bound_);
      return dfa == nullptr ? bound_ == Bound::kOuter : dfa->matches(name);
    });
  }

  // Whether a part of `schema` that holds for the value evaluates this element (`at` is its index) or member (its name). kInner: surely;
  // kOuter: perhaps.
  template <class At>
  bool evaluates(const Json& value, const Json& schema, const At& at, int depth) const {
    if (schema.is_boolean()) return false;
    if (depth > kDepthMax || !work_->spend(kLookSteps)) return bound_ == Bound::kOuter;
    if (evaluates_here(value, schema, at, depth)) return true;
    constexpr bool kElement = std::is_same_v<At, size_t>;
    // If a part of the schema holds and has the "unevaluated..." keyword itself, that keyword has evaluated everything.
    const auto part = [&](const Json& one) {
      return (one.is_object() &&
              member(one, kElement ? "unevaluatedItems" : "unevaluatedProperties") != nullptr) ||
             evaluates(value, one, at, depth + 1);
    };
    for (const char* key : {"$ref", "$dynamicRef", "$recursiveRef"})
      if (const Json* name = member(schema, key)) {
        const auto target = document_.target(name->get<std::string>());
        if (target.ok() && part(*target.value())) return true;
      }
    for (const char* key : {"allOf", "anyOf", "oneOf"})
      if (const Json* list = member(schema, key))
        for (const Json& one : *list)
          if (inside(value, one, depth) && part(one)) return true;
    if (const Json* condition = member(schema, "if")) {
      const Json *then = member(schema, "then"), *otherwise = member(schema, "else");
      if (inside(value, *condition, depth) && (part(*condition) || (then != nullptr && part(*then))))
        return true;
      if (otherwise != nullptr && fails(value, *condition, depth) && part(*otherwise)) return true;
    }
    if (!kElement)
      for (const char* key : {"dependentSchemas", "dependencies"})
        if (const Json* all = member(schema, key); all != nullptr && all->is_object())
          for (const auto& [name, one] : all->items())
            if (value.contains(name) && !one.is_array() && part(one)) return true;
    return false;
  }

  bool dependent(const Json& value, const Json& schema, int depth) const {
    for (const char* keyword : {"dependentRequired", "dependencies", "dependentSchemas"}) {
      const Json* all = member(schema, keyword);
      if (all == nullptr || !all->is_object()) continue;
      if (keyword == std::string_view("dependencies") && bound_ == Bound::kOuter &&
          !document_.has_dependencies())
        continue;
      for (const auto& [key, wanted] : all->items()) {
        if (!value.contains(key)) continue;
        if (wanted.is_array()) {
          for (const Json& name : wanted)
            if (name.is_string() && !value.contains(name.get<std::string>())) return false;
        } else if (!inside(value, wanted, depth)) {
          return false;
        }
      }
    }
    return true;
  }

  bool combined(const Json& value, const Json& schema, int depth) const {
    if (const Json* all = member(schema, "allOf"))
      if (!std::all_of(all->begin(), all->end(), [&](const Json& s) { return inside(value, s, depth); }))
        return false;
    if (const Json* any = member(schema, "anyOf"))
      if (!std::any_of(any->begin(), any->end(), [&](const Json& s) { return inside(value, s, depth); }))
        return false;
    if (const Json* one = member(schema, "oneOf")) {
      const auto sure =
          std::count_if(one->begin(), one->end(), [&](const Json& s) { return surely(value, s, depth); });
      const auto may =
          std::count_if(one->begin(), one->end(), [&](const Json& s) { return perhaps(value, s, depth); });
      if (bound_ == Bound::kInner ? sure != 1 || may != 1 : sure > 1 || may < 1) return false;
    }
    if (const Json* never = member(schema, "not"))
      if (!fails(value, *never, depth)) return false;
    if (const Json* condition = member(schema, "if")) {
      const Json *then = member(schema, "then"), *otherwise = member(schema, "else");
      const bool sure = surely(value, *condition, depth), may = perhaps(value, *condition, depth);
      const bool as_then = then == nullptr || inside(value, *then, depth);
      const bool as_else = otherwise == nullptr || inside(value, *otherwise, depth);
      if (sure) return as_then;
      if (!may) return as_else;
      return bound_ == Bound::kInner ? as_then && as_else : as_then || as_else;
    }
    return true;
  }

  const SchemaDocument& document_;
  Bound bound_;
  Work* work_;
};

}  // namespace

bool is_valid(const SchemaDocument& document, const Json& value, const Json& schema, Bound bound,
              Work* work) {
  return Validator(document, bound, work)(value, schema, 0);
}

namespace {

Status prepare(SchemaDocument& document, const Json& schema, Work* work, std::set<const Json*>* seen) {
  if (!schema.is_structured() || !seen->insert(&schema).second) return {};
  if (!work->spend(4)) return invalid("JSON schema: takes too long to compile");
  const auto both = [&](const std::string& pattern) -> Status {
    for (const Bound bound : {Bound::kInner, Bound::kOuter})
      if (const auto dfa = document.pattern(pattern, bound, work); !dfa.ok()) return dfa.status();
    return {};
  };
  if (schema.is_object()) {
    if (const auto p = schema.find("pattern"); p != schema.end() && p->is_string())
      SLUICE_TRY(both(p->get<std::string>()));
    if (const auto p = schema.find("patternProperties"); p != schema.end() && p->is_object())
      for (const auto& [pattern, inside] : p->items()) SLUICE_TRY(both(pattern));
    if (const auto r = schema.find("$ref"); r != schema.end() && r->is_string()) {
      const auto target = document.target(r->get<std::string>());
      if (!target.ok()) return target.status();
      SLUICE_TRY(prepare(document, *target.value(), work, seen));
    }
  }
  for (const auto& [key, inside] : schema.items()) {
    if (schema.is_object() && (key == "enum" || key == "const" || key == "default" || key == "examples")) {
      if (key == "enum" && inside.is_array()) (void)document.lists(values_in(inside), Json(), work);
      continue;
    }
    SLUICE_TRY(prepare(document, inside, work, seen));
  }
  return {};
}

}  // namespace

Status prepare_validation(SchemaDocument& document, const Json& schema, Work* work) {
  std::set<const Json*> seen;
  return prepare(document, schema, work, &seen);
}

}  // namespace sluice
