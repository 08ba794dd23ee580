#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/printable.h"
#include "grammar/schema/rules.h"
#include "grammar/schema/values.h"

namespace sluice {
namespace {

constexpr size_t kNamesListedMax = 256, kKindsMax = 32;

}  // namespace

// The values of "unevaluatedProperties" that apply to a member. The keyword of a schema applies unless a part of that schema evaluates the
// member. `evaluated`: the schemas that evaluate the member.
Schemas ObjectRules::unevaluated_by(const Merged& m, const std::set<const Json*>& evaluated) {
  Schemas out;
  for (const Json* schema : m.objects) {
    const Json* unevaluated = member(*schema, "unevaluatedProperties");
    if (unevaluated == nullptr || !c_.work_->spend(4 * std::ssize(m.objects))) continue;
    const auto& parts = c_.parts_of(schema);
    const auto says = [&](const Json* other) {
      return parts.contains(other) &&
             (evaluated.contains(other) || (other != schema && other->contains("unevaluatedProperties")));
    };
    if (std::none_of(m.objects.begin(), m.objects.end(), says)) out.push_back(unevaluated);
  }
  return out;
}

// All schemas that apply to the member `name`.
Result<Schemas> ObjectRules::of_name(const Merged& m, const std::string& name) {
  if (!c_.work_->spend(8 * std::ssize(m.objects))) return schema_too_long();
  Schemas out;
  std::set<const Json*> evaluated;  // the schemas that evaluate the member
  for (const Json* schema : m.objects) {
    bool here = false;
    if (const Json* properties = member(*schema, "properties");
        properties != nullptr && properties->contains(name)) {
      out.push_back(&properties->at(name));
      here = true;
    }
    if (const Json* patterns = member(*schema, "patternProperties"))
      for (const auto& [pattern, inside] : patterns->items()) {
        const auto low = c_.document_->pattern(pattern, Bound::kInner, c_.work_);
        const auto high = c_.document_->pattern(pattern, Bound::kOuter, c_.work_);
        if (!low.ok() || !high.ok())
          return Status{Code::kInvalidArgument, "JSON schema: " + (low.ok() ? high : low).status().message};
        if (high.value()->matches(name)) out.push_back(&inside);
        here |= low.value()->matches(name);
      }
    if (here || schema->contains("additionalProperties")) evaluated.insert(schema);
    const Json* others = member(*schema, "additionalProperties");
    if (!here && others != nullptr) out.push_back(others);
  }
  for (const Json* schema : unevaluated_by(m, evaluated)) out.push_back(schema);
  return out;
}

Result<bool> ObjectRules::is_named_well(const Merged& m, const std::string& name) {
  for (const Json* schema : m.objects)
    if (const Json* names = member(*schema, "propertyNames")) {
      SLUICE_TRY(prepare_validation(*c_.document_, *names, c_.work_));
      if (!is_valid(*c_.document_, Json(name), *names, Bound::kInner, c_.work_)) return false;
    }
  return true;
}

Status ObjectRules::add_member(const Merged& m, const std::string& name, bool required) {
  const auto well = is_named_well(m, name);
  if (!well.ok()) return well.status();
  auto schemas = of_name(m, name);
  if (!schemas.ok()) return schemas.status();
  bool closed = std::any_of(schemas.value().begin(), schemas.value().end(),
                            [](const Json* s) { return *s == Json(false); });
  // A member for which no value is valid does not count towards "minProperties".
  closed |= m.min_members > 0 && c_.merger_.impossible(schemas.value());
  if (!well.value() || closed) {
    never_ |= required;
    return {};
  }
  const auto value = c_.callee(schemas.value());
  if (!value.ok()) return value.status();
  members_.push_back({name, value.value(), std::move(schemas).value(), required});
  return {};
}

Status ObjectRules::list_members(const Merged& m) {
  std::set<std::string> listed;
  const std::unordered_set<std::string> required(m.required.begin(), m.required.end());
  for (const Json* schema : m.objects)
    if (const Json* properties = member(*schema, "properties"))
      for (const std::string& name : c_.document_->keys(*properties))
        if (listed.insert(name).second) SLUICE_TRY(add_member(m, name, required.contains(name)));
  for (const std::string& name : m.required)
    if (listed.insert(name).second) SLUICE_TRY(add_member(m, name, true));
  return m.needs.empty() ? Status{} : list_needed(m, &listed);
}

// Intersects `all` with the names that "propertyNames" allows.
Status ObjectRules::add_names(const Json& names, Dfa* all, Schemas* checks) {
  std::vector<Merged> ways;
  SLUICE_TRY(c_.merger_.ways({&names}, &ways));
  MaybeDfa allowed = Dfa();
  for (const Merged& way : ways) {
    if ((way.types & kString) == 0) continue;
    if (!way.checks.empty()) {
      SLUICE_TRY(prepare_validation(*c_.document_, names, c_.work_));
      checks->push_back(&names);
    }
    MaybeDfa one;
    if (!way.values.empty()) {
      std::vector<std::string> texts;
      SLUICE_TRY(prepare_validation(*c_.document_, names, c_.work_));
      for (const Json* value : listed_values(way, {&names}, *c_.document_, c_.work_)) {
        if (!value->is_string()) continue;
        texts.push_back(value->get<std::string>());
        if (!c_.work_->spend(kTextByteSteps * std::ssize(texts.back()))) return schema_too_long();
      }
      one = Dfa::of_texts(texts);
    } else {
      auto values = string_values(way, c_.document_.get(), c_.work_);
      if (!values.ok()) return values.status();
      one = std::move(values).value();
      if (way.min_length > 0 || way.max_length >= 0)
        one = with_length(*one, way.min_length, way.max_length, c_.work_);
    }
    allowed = one && allowed ? combine(*allowed, *one, SetOp::kEither, c_.work_) : std::nullopt;
    if (!allowed) return schema_too_long();
  }
  allowed = combine(*all, *allowed, SetOp::kBoth, c_.work_);
  if (!allowed) return schema_too_long();
  *all = std::move(*allowed);
  return {};
}

// Groups unlisted names by the patterns that they match. The groups are cached, because the alternatives of an object often need the same.
Result<const OtherNames*> ObjectRules::other_names(const Merged& m, const std::set<std::string>& listed) {
  Schemas about_names;
  for (const Json* schema : m.objects)
    if (schema->contains("patternProperties") || schema->contains("propertyNames"))
      about_names.push_back(schema);
  const auto key = std::pair(listed, about_names);
  if (const auto known = c_.other_names_.find(key); known != c_.other_names_.end()) return &known->second;
  OtherNames out;
  const std::vector<std::string> texts(listed.begin(), listed.end());
  auto free = combine(Dfa::any_text(), Dfa::of_texts(texts), SetOp::kFirstOnly, c_.work_);
  if (!free) return schema_too_long();
  for (const Json* schema : about_names)
    if (const Json* names = member(*schema, "propertyNames"))
      SLUICE_TRY(add_names(*names, &*free, &out.checks));
  struct Split {
    Dfa names;
    OtherNames::Kind kind;
  };
  std::vector<Split> splits;
  splits.push_back({std::move(*free), {}});
  for (const Json* schema : about_names) {
    const Json* patterns = member(*schema, "patternProperties");
    if (patterns == nullptr) continue;
    for (const auto& [pattern, inside] : patterns->items()) {
      const auto low = c_.document_->pattern(pattern, Bound::kInner, c_.work_);
      const auto high = c_.document_->pattern(pattern, Bound::kOuter, c_.work_);
      if (!low.ok() || !high.ok())
        return Status{Code::kInvalidArgument, "JSON schema: " + (low.ok() ? high : low).status().message};
      std::vector<Split> next;
      for (Split& split : splits) {
        auto in = combine(split.names, *low.value(), SetOp::kBoth, c_.work_);
        auto out_of = combine(split.names, *high.value(), SetOp::kFirstOnly, c_.work_);
        if (!in || !out_of) return schema_too_long();
        if (!in->empty()) {
          next.push_back({std::move(*in), split.kind});
          next.back().kind.schemas.push_back(&inside);
          next.back().kind.matched.insert(schema);
        }
        if (!out_of->empty()) next.push_back({std::move(*out_of), split.kind});
      }
      splits = std::move(next);
      if (splits.size() > kKindsMax)
        return invalid("JSON schema: patternProperties: wanted at most " + std::to_string(kKindsMax) +
                       " kinds of names, found more");
    }
  }
  for (Split& split : splits) {
    if (auto few = split.names.texts(kNamesListedMax)) {
      split.kind.few = std::move(*few);
    } else {
      auto leaf = json_strings(split.names, 0, -1, c_.work_);
      if (!leaf) return schema_too_long();
      split.kind.names = std::make_shared<const Dfa>(std::move(split.names));
      split.kind.leaf = std::make_shared<const Leaf>(std::move(*leaf));
      c_.kept_leaves_.push_back(split.kind.leaf);
    }
    out.kinds.push_back(std::move(split.kind));
  }
  return &c_.other_names_.emplace(key, std::move(out)).first->second;
}

Status ObjectRules::list_others(const Merged& m) {
  const bool declares = declares_members(m);
  const auto lacks = lacks_some(m);
  if (!lacks.ok()) return lacks.status();
  if (!takes_others(m) || m.max_members == 0) {
    if (m.min_members <= std::ssize(members_) && !lacks.value()) return {};
  }
  std::set<std::string> listed(m.required.begin(), m.required.end());
  for (const Json* schema : m.objects)
    if (const Json* properties = member(*schema, "properties"))
      for (const auto& [name, value] : properties->items()) listed.insert(name);
  for (const Need* need : m.needs) {
    listed.insert(need->trigger);
    listed.insert(need->wanted.begin(), need->wanted.end());
  }
  const auto all = other_names(m, listed);
  if (!all.ok()) return all.status();
  name_checks_ = all.value()->checks;
  const auto few = [&] { return m.min_members > std::ssize(members_); };
  std::vector<std::pair<const OtherNames::Kind*, Schemas>> left_out;
  for (const OtherNames::Kind& kind : all.value()->kinds) {
    Schemas schemas = kind.schemas;
    bool asked = !kind.matched.empty() || !declares, closed = false, matches_none = false;
    std::set<const Json*> evaluated = kind.matched;
    for (const Json* schema : m.objects) {
      if (kind.matched.contains(schema)) continue;
      const Json* others = member(*schema, "additionalProperties");
      if (others != nullptr) {
        asked = true;
        closed |= *others == Json(false);
        schemas.push_back(others);
        evaluated.insert(schema);
      }
      // A schema with "patternProperties" but no schema for other names: names that match no pattern are left out if possible.
      if (others == nullptr && kind.matched.empty() && schema->contains("patternProperties"))
        matches_none = true;
    }
    for (const Json* unevaluated : unevaluated_by(m, evaluated)) {
      asked |= *unevaluated != Json(false);
      closed |= *unevaluated == Json(false);
      schemas.push_back(unevaluated);
    }
    if (closed || (few() && c_.merger_.impossible(schemas))) continue;
    if (matches_none) {
      left_out.emplace_back(&kind, std::move(schemas));
    } else if (asked || few() || lacks.value()) {
      SLUICE_TRY(add_others(m, kind, schemas));
    }
  }
  // Names that match no pattern are added if "minProperties" or a negation needs more members than the names above allow, or if the value is
  // checked.
  for (const auto& [kind, schemas] : left_out)
    if ((others_.empty() && few()) || lacks.value() || !m.checks.empty())
      SLUICE_TRY(add_others(m, *kind, schemas));
  return {};
}

Status ObjectRules::add_others(const Merged& m, const OtherNames::Kind& kind, const Schemas& schemas) {
  // A kind with few names is listed as optional members.
  for (const std::string& name : kind.few) SLUICE_TRY(add_member(m, name, false));
  if (kind.leaf == nullptr) return {};
  const auto value = c_.callee(schemas);
  if (!value.ok()) return value.status();
  others_.push_back({&kind, value.value(), schemas});
  return {};
}

Result<Callee> ObjectRules::rule(const Merged& m) {
  SLUICE_TRY(list_members(m));
  if (never_) return c_.never();
  SLUICE_TRY(list_others(m));
  return build(m);
}

}  // namespace sluice
