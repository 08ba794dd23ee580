#include "grammar/schema/compiler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/printable.h"
#include "grammar/schema/merge.h"
#include "grammar/schema/rules.h"
#include "grammar/schema/values.h"

namespace sluice {
namespace {

// Checks a finished value against schemas.
class SchemaCheck final : public ValueCheck {
 public:
  SchemaCheck(std::shared_ptr<const SchemaDocument> document, Schemas schemas)
      : document_(std::move(document)), schemas_(std::move(schemas)) {}
  bool holds(const std::string& text, Work* work) const override {
    const Json value = Json::parse(text, nullptr, false);
    return !value.is_discarded() && std::all_of(schemas_.begin(), schemas_.end(), [&](const Json* schema) {
      return is_valid(*document_, value, *schema, Bound::kInner, work);
    });
  }

 private:
  std::shared_ptr<const SchemaDocument> document_;
  Schemas schemas_;
};

// Turns floats with integer values into integers (100.0 into 100), because programs that read integers reject 100.0.
Json with_integers(Json value) {
  constexpr double kExactMax = 9007199254740992.0;  // 2^53
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::fabs(number) <= kExactMax && number == std::floor(number)) value = static_cast<int64_t>(number);
  }
  if (value.is_structured())
    for (Json& inside : value) inside = with_integers(std::move(inside));
  return value;
}

Leaf either(const Leaf& a, const Leaf& b) {
  Work plenty(int64_t{1} << 26);
  return {.dfa = *combine(a.dfa, b.dfa, SetOp::kEither, &plenty)};
}

Leaf between_blanks(const std::string& mark) {
  Work plenty(int64_t{1} << 26);
  const Leaf before = blanks_and_mark(mark);
  Leaf out = either(before, {.dfa = *concatenate(before.dfa, blanks().dfa, &plenty)});
  out.spaced = mark + " ", out.compact = mark;
  return out;
}

}  // namespace

const CommonLeaves& CommonLeaves::get() {
  static const CommonLeaves all = [] {
    const auto shared = [](Leaf leaf) { return std::make_shared<const Leaf>(std::move(leaf)); };
    Work plenty(int64_t{1} << 26);
    const Leaf string = any_json_string(), number{.dfa = std::move(json_numbers({}, &plenty)).value()};
    const Leaf words = texts_leaf({"true", "false", "null"});
    return CommonLeaves{
        .any_string = shared(string),
        .any_scalar = shared(either(either(string, number), words)),
        .number = shared(number),
        .integer = shared({.dfa = std::move(json_numbers({.integer = true}, &plenty)).value()}),
        .boolean = shared(texts_leaf({"true", "false"})),
        .null = shared(texts_leaf({"null"})),
        .blanks = shared(sluice::blanks()),
        .open_object = shared(texts_leaf({"{"})),
        .close_object = shared(blanks_and_mark("}")),
        .open_array = shared(texts_leaf({"["})),
        .close_array = shared(blanks_and_mark("]")),
        .comma = shared(mark_and_blanks(",")),
        .comma_in_blanks = shared(between_blanks(",")),
        .colon = shared(mark_and_blanks(":"))};
  }();
  return all;
}

SchemaCompiler::SchemaCompiler(std::shared_ptr<SchemaDocument> document, Work* work, Negations negations)
    : document_(std::move(document)), work_(work), merger_(document_.get(), work, negations) {}

Result<Program> SchemaCompiler::whole(bool object) {
  Schemas schemas{&document_->root()};
  if (object) schemas.push_back(document_->keep(Json{{"type", "object"}}));
  auto value = callee(schemas);
  if (!value.ok()) return value.status();
  // Compiles one value at a time instead of recursively, so that nesting is limited only by memory.
  while (!todo_.empty()) {
    const auto [schemas, rule] = std::move(todo_.back());
    todo_.pop_back();
    SLUICE_TRY(rule_of(schemas, rule));
  }
  const int32_t root = program_.add_rule();
  const int32_t end = program_.add_state(root);
  program_.states[static_cast<size_t>(end)].final = true;
  program_.add_call(program_.start(root), value.value(), end);
  program_.root = root;
  const bool matches = !work_->over() && program_.finish(work_);
  if (work_->over()) return schema_too_long();
  matches_nothing_ = !matches;
  if (!matches) {
    const std::string& format = merger_.without_opposite();
    return invalid(
        "JSON schema: wanted a schema that allows some " + std::string(object ? "object" : "value") +
        ", found a schema that nothing matches" +
        (inferred_ ? "; a schema without \"type\" allows only the types that its keywords constrain" : "") +
        (format.empty() ? "" : "; no string is known that is certainly not of the format " + format));
  }
  return std::move(program_);
}

Callee SchemaCompiler::common(const LeafPointer& leaf) {
  const auto [found, is_new] = common_.try_emplace(leaf.get(), 0);
  if (is_new) {
    found->second = program_.add_leaf(leaf);
    kept_leaves_.push_back(leaf);
  }
  return found->second;
}
Callee SchemaCompiler::checked(Callee value, Schemas checks) {
  const int32_t rule = program_.add_rule(), end = program_.add_state(rule);
  program_.states[static_cast<size_t>(end)].final = true;
  program_.rules[static_cast<size_t>(rule)].check =
      std::make_shared<SchemaCheck>(document_, std::move(checks));
  program_.add_call(program_.start(rule), value, end);
  return rule;
}
Callee SchemaCompiler::never() { return program_.add_leaf(std::make_shared<const Leaf>()); }

// Returns a rule or leaf whose values satisfy all of `schemas`. Each set of schemas is compiled once.
Result<Callee> SchemaCompiler::callee(Schemas schemas) {
  if (!work_->spend(64)) return schema_too_long();
  std::erase_if(schemas, [](const Json* s) { return *s == Json(true) || *s == Json::object(); });
  std::sort(schemas.begin(), schemas.end());
  schemas.erase(std::unique(schemas.begin(), schemas.end()), schemas.end());
  if (const auto found = rules_.find(schemas); found != rules_.end()) return found->second;
  // Leaves are built immediately, so that the returned Callee is a leaf where possible; rules are compiled later.
  std::vector<Merged> ways;
  SLUICE_TRY(merger_.ways(schemas, &ways));
  if (ways.empty()) return rules_[schemas] = never();
  if (ways.size() == 1 && ways[0].checks.empty()) {
    Merged& m = ways[0];
    infer_types(&m);
    if (!m.values.empty() || (m.types & (kArray | kObject)) == 0) {
      const auto leaves = scalars(m, schemas);
      if (!leaves.ok()) return leaves.status();
      const bool has_excluded = m.values.empty() && !m.excluded.empty();
      if (leaves.value().size() == 1 && !has_excluded) return rules_[schemas] = common(leaves.value()[0]);
    }
  }
  const int32_t rule = program_.add_rule();
  rules_[schemas] = rule;
  ways_[rule] = std::move(ways);
  todo_.emplace_back(schemas, rule);
  return rule;
}

Result<std::vector<Callee>> SchemaCompiler::callees(const Schemas& schemas) {
  const auto whole = callee(schemas);
  if (!whole.ok()) return whole.status();
  if (is_leaf(whole.value())) return std::vector<Callee>{whole.value()};
  if (const auto found = kinds_.find(schemas); found != kinds_.end()) return found->second;
  std::vector<Merged> ways;
  SLUICE_TRY(merger_.ways(schemas, &ways));
  std::vector<Callee> out;
  for (Merged& m : ways) {
    infer_types(&m);
    const auto checks = checks_of(m);
    if (!checks.ok()) return checks.status();
    if (!checks.value().empty() && m.values.empty()) {
      if ((m.types & (kArray | kObject)) != 0) return kinds_[schemas] = {whole.value()};
      const auto leaves = scalars(m, schemas);
      if (!leaves.ok()) return leaves.status();
      for (const LeafPointer& leaf : leaves.value()) {
        const auto few = texts_that_hold(*leaf, checks.value());
        if (!few) return kinds_[schemas] = {whole.value()};
        out.push_back(common(std::make_shared<const Leaf>(texts_leaf(*few))));
      }
      continue;
    }
    if (!m.values.empty())
      m.types = kNull;  // one iteration of the loop below, because listed values share one leaf
    for (const uint8_t type : {kNull, kBoolean, kNumber, kString, kArray, kObject}) {
      if ((m.types & type) == 0) continue;
      Merged one = m;
      one.types = m.values.empty() ? type : uint8_t{kAnyType};
      if (type == kArray || type == kObject) {
        const int32_t rule = program_.add_rule();
        ways_[rule].push_back(std::move(one));
        todo_.emplace_back(schemas, rule);
        out.push_back(rule);
        continue;
      }
      const auto leaves = scalars(one, schemas);
      if (!leaves.ok()) return leaves.status();
      for (const LeafPointer& leaf : leaves.value()) out.push_back(common(leaf));
    }
  }
  return kinds_[schemas] = std::move(out);
}

// A schema without "type" is restricted to the types that its keywords constrain.
void SchemaCompiler::infer_types(Merged* m) {
  if (m->typed || m->about == 0 || !m->values.empty()) return;
  inferred_ |= (m->types & ~m->about) != 0;
  m->types &= m->about;
}

Status SchemaCompiler::rule_of(const Schemas& schemas, int32_t rule) {
  const std::vector<Merged> ways = std::move(ways_.at(rule));
  ways_.erase(rule);
  const int32_t end = program_.add_state(rule);
  program_.states[static_cast<size_t>(end)].final = true;
  for (Merged m : ways) {
    if (!work_->spend(64)) return schema_too_long();
    infer_types(&m);
    SLUICE_TRY(way(m, schemas, program_.start(rule), end));
  }
  return {};
}

// For a leaf with few texts, returns the texts that satisfy `checks`; with these alone, no value fails at its end.
std::optional<std::vector<std::string>> SchemaCompiler::texts_that_hold(const Leaf& leaf,
                                                                        const Schemas& checks) {
  constexpr size_t kFew = 256;
  if (leaf.counted() || !work_->spend(leaf.dfa.states())) return {};
  auto texts = leaf.dfa.texts(kFew);
  if (!texts) return {};
  const SchemaCheck check(document_, checks);
  std::erase_if(*texts, [&](const std::string& text) { return !check.holds(text, work_); });
  return texts;
}

// The schemas that must be checked on the whole value.
Result<Schemas> SchemaCompiler::checks_of(const Merged& m) {
  Schemas checks = m.checks;
  // The automata of numbers, arrays and objects cannot exclude single values, so a check does.
  for (const Json* excluded : m.excluded) {
    const auto has_other = [](const Json& v) { return v.is_number() || v.is_structured(); };
    const bool other = (excluded->contains("const") && has_other(excluded->at("const"))) ||
                       (excluded->contains("enum") &&
                        std::any_of(excluded->at("enum").begin(), excluded->at("enum").end(), has_other));
    if (!other) continue;
    checks.push_back(document_->keep(Json{{"not", *excluded}}));
    SLUICE_TRY(prepare_validation(*document_, *checks.back(), work_));
  }
  return checks;
}

// Adds a call for each type of value that `m` allows.
Status SchemaCompiler::way(const Merged& m, const Schemas& schemas, int32_t from, int32_t to) {
  const auto checks_or = checks_of(m);
  if (!checks_or.ok()) return checks_or.status();
  const Schemas& checks = checks_or.value();
  const auto leaves = scalars(m, schemas);
  if (!leaves.ok()) return leaves.status();
  const bool checked = !checks.empty() && m.values.empty();
  std::vector<LeafPointer> unasked;
  for (const LeafPointer& leaf : leaves.value()) {
    const auto few = checked ? texts_that_hold(*leaf, checks) : std::nullopt;
    if (checked && !few) {
      unasked.push_back(leaf);
    } else {
      const auto held = few ? std::make_shared<const Leaf>(texts_leaf(*few)) : leaf;
      program_.add_call(from, common(held), to);
    }
  }
  if (checked) {
    const int32_t rule = program_.add_rule();
    const int32_t end = program_.add_state(rule);
    program_.states[static_cast<size_t>(end)].final = true;
    program_.rules[static_cast<size_t>(rule)].check = std::make_shared<SchemaCheck>(document_, checks);
    program_.add_call(from, rule, to);
    from = program_.start(rule);
    to = end;
  }
  for (const LeafPointer& leaf : unasked) program_.add_call(from, common(leaf), to);
  if (!m.values.empty()) return {};
  if ((m.types & kArray) != 0) {
    const auto array = ArrayRules(this).rule(m);
    if (!array.ok()) return array.status();
    program_.add_call(from, array.value(), to);
  }
  if ((m.types & kObject) != 0) {
    const auto object = ObjectRules(this).rule(m);
    if (!object.ok()) return object.status();
    program_.add_call(from, object.value(), to);
  }
  return {};
}

// Leaves for the scalars that `m` allows, as few as possible; leaves that count characters stay separate. If "enum" or "const" lists the
// values, they may also be arrays and objects.
Result<std::vector<LeafPointer>> SchemaCompiler::scalars(const Merged& m, const Schemas& schemas) {
  if (!m.values.empty()) {
    for (const Json* s : schemas) SLUICE_TRY(prepare_validation(*document_, *s, work_));
    std::vector<std::string> texts;
    for (const Json* value : listed_values(m, schemas, *document_, work_)) {
      const uint8_t type = value->is_number()    ? kNumber
                           : value->is_string()  ? kString
                           : value->is_boolean() ? kBoolean
                           : value->is_null()    ? kNull
                           : value->is_array()   ? kArray
                                                 : kObject;
      const bool as_written = document_->draft() <= 4;  // in these drafts 1.0 is not an integer
      if ((m.types & type) != 0) texts.push_back(json_text(as_written ? *value : with_integers(*value)));
      if (!texts.empty() && !work_->spend(kTextByteSteps * std::ssize(texts.back())))
        return schema_too_long();
    }
    return std::vector<LeafPointer>{std::make_shared<const Leaf>(texts_leaf(texts))};
  }
  const CommonLeaves& leaves = CommonLeaves::get();
  std::vector<LeafPointer> parts;
  const bool plain_string =
      m.patterns.empty() && m.formats.empty() && m.excluded.empty() && m.min_length == 0 && m.max_length < 0;
  const bool plain_number = m.number.none();
  constexpr uint8_t kScalars = kNull | kBoolean | kNumber | kString;
  if ((m.types & kScalars) == kScalars && plain_string && plain_number)
    return std::vector<LeafPointer>{leaves.any_scalar};
  if ((m.types & kNull) != 0 && !merger_.excludes(m, Json())) parts.push_back(leaves.null);
  if ((m.types & kBoolean) != 0) {
    const bool no = !merger_.excludes(m, false), yes = !merger_.excludes(m, true);
    if (no && yes) parts.push_back(leaves.boolean);
    if (no != yes) parts.push_back(std::make_shared<const Leaf>(texts_leaf({yes ? "true" : "false"})));
  }
  if ((m.types & kNumber) != 0) {
    auto number = number_leaf(m, work_);
    if (!number.ok()) return number.status();
    parts.push_back(std::move(number).value());
  }
  if ((m.types & kString) != 0) {
    auto text = string(m);
    if (!text.ok()) return text.status();
    parts.push_back(std::move(text).value());
  }
  std::vector<LeafPointer> out;
  LeafPointer joined;
  for (const LeafPointer& part : parts) {
    if (part->counted() || part->dfa.empty()) {
      out.push_back(part);
    } else if (joined == nullptr) {
      joined = part;
    } else {
      auto both = combine(joined->dfa, part->dfa, SetOp::kEither, work_);
      if (!both) return schema_too_long();
      Leaf leaf{.dfa = std::move(*both)};
      if (!joined->texts.empty() && !part->texts.empty()) {
        leaf.texts = joined->texts;
        leaf.texts.insert(leaf.texts.end(), part->texts.begin(), part->texts.end());
      }
      joined = std::make_shared<const Leaf>(std::move(leaf));
    }
  }
  if (joined != nullptr) out.push_back(joined);
  return out;
}

Result<LeafPointer> SchemaCompiler::string(const Merged& m) {
  Json key = {m.patterns, m.formats, m.min_length, m.max_length};
  for (const Json* excluded : m.excluded) key.push_back(*excluded);
  const std::string text = json_text(key);
  if (!work_->spend(std::ssize(text))) return schema_too_long();
  if (const auto found = strings_.find(text); found != strings_.end()) return found->second;
  auto leaf = string_leaf(m, document_.get(), work_);
  if (leaf.ok()) strings_[text] = leaf.value();
  return leaf;
}

Callee SchemaCompiler::name(const std::string& name) {
  const auto [found, is_new] = names_.try_emplace(name, 0);
  if (is_new)
    found->second = program_.add_leaf(std::make_shared<const Leaf>(texts_leaf({json_text(name) + ":"})));
  (void)work_->spend(1000);
  return found->second;
}

const std::set<const Json*>& SchemaCompiler::parts_of(const Json* schema) {
  const auto [found, is_new] = parts_.try_emplace(schema);
  if (!is_new) return found->second;
  std::set<const Json*>& out = found->second;
  Schemas todo{schema};
  while (!todo.empty() && work_->spend(8)) {
    const Json* at = todo.back();
    todo.pop_back();
    if (!at->is_object() || !out.insert(at).second) continue;
    for (const auto& [key, value] : at->items()) {
      if (key == "allOf" || key == "anyOf" || key == "oneOf" || key == "dependentSchemas" ||
          key == "dependencies") {
        for (const Json& one : value) todo.push_back(&one);
      } else if (key == "if" || key == "then" || key == "else") {
        todo.push_back(&value);
      } else if ((key == "$ref" || key == "$dynamicRef" || key == "$recursiveRef") && value.is_string()) {
        if (const auto target = document_->target(value.get<std::string>()); target.ok())
          todo.push_back(target.value());
      }
    }
  }
  return out;
}

// Tries a simpler form of negations if the schema is too large with the more exact one. Only the exact forms can tell that nothing matches.
Result<Program> compile_schema(const std::string& text, bool object, Work* work) {
  for (const Negations negations : {Negations::kCounted, Negations::kChecked, Negations::kNarrow}) {
    const bool last = negations == Negations::kNarrow;
    Work some = work->part(last ? 1 : 4);
    const int64_t before = some.left();
    auto document = SchemaDocument::parse(text);
    if (!document.ok()) return document.status();
    const Status settled = settle(document.value().get(), &some);
    SchemaCompiler compiler(document.value(), &some, negations);
    auto program = settled.ok() ? compiler.whole(object) : Result<Program>(settled);
    (void)work->spend(before - some.left());
    if (last && compiler.matches_nothing()) break;
    const bool final = last || compiler.matches_nothing() || work->over();
    if (program.ok() || final || (!some.over() && !compiler.has_simpler_form())) return program;
  }
  return schema_too_long();
}

}  // namespace sluice
