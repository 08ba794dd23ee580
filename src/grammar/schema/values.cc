#include "grammar/schema/values.h"

#include <algorithm>
#include <utility>

#include "grammar/regex.h"

namespace sluice {
namespace {

// If an automaton that includes the length limits has at most this many states, it is used; otherwise a separate counter
// counts the characters (Leaf::counts).
constexpr int64_t kStatesWithLengthMax = 8000;
constexpr int32_t kStatesOfAnyMax = 16;

bool is_free(const Merged& m) {
  return m.patterns.empty() && m.formats.empty() &&
         std::none_of(m.excluded.begin(), m.excluded.end(), [](const Json* e) {
           return e->contains("pattern") || e->contains("format") ||
                  (e->contains("const") && e->at("const").is_string()) || e->contains("enum");
         });
}

Dfa repeated(const CharSet& chars, Work* work) {
  Nfa nfa;
  nfa.begin = nfa.end = nfa.add_state();
  nfa.add_chars(nfa.begin, chars, nfa.begin);
  auto out = determinize(nfa, work);
  return out ? std::move(*out) : Dfa();
}

}  // namespace

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Dfa> string_values(const Merged& m, SchemaDocument* document, Work* work) {
  MaybeDfa all = Dfa::any_text();
  for (const std::string& pattern : m.patterns) {
    const auto dfa = document->pattern(pattern, Bound::kInner, work);
    if (!dfa.ok()) return Status{dfa.status().code, "JSON schema: " + dfa.status().message};
    all = all ? combine(*all, *dfa.value(), SetOp::kBoth, work) : all;
  }
  for (const std::string& format : m.formats)
    all = all ? combine(*all, *format_values(format), SetOp::kBoth, work) : all;
  for (const Json* excluded : m.excluded) {
    std::vector<std::string> texts;
    if (excluded->contains("pattern")) {
      const auto dfa = document->pattern(excluded->at("pattern").get<std::string>(), Bound::kOuter, work);
      if (!dfa.ok()) return Status{dfa.status().code, "JSON schema: " + dfa.status().message};
      all = all ? combine(*all, *dfa.value(), SetOp::kFirstOnly, work) : all;
    }
    if (excluded->contains("format") && all)
      all = combine(*all, *format_values(excluded->at("format").get<std::string>(), Bound::kOuter),
                    SetOp::kFirstOnly, work);
    const auto note = [&](const Json& value) {
      if (value.is_string()) texts.push_back(value.get<std::string>());
    };
    if (excluded->contains("const")) note(excluded->at("const"));
    if (excluded->contains("enum"))
      for (const Json& value : excluded->at("enum")) note(value);
    for (const std::string& text : texts) (void)work->spend(kTextByteSteps * std::ssize(text));
    if (!texts.empty() && all) all = combine(*all, Dfa::of_texts(texts), SetOp::kFirstOnly, work);
  }
  if (!all || work->over()) return schema_too_long();
  return std::move(*all);
}

Result<LeafPointer> string_leaf(const Merged& m, SchemaDocument* document, Work* work) {
  int64_t least = m.min_length, most = m.max_length;
  if (is_free(m)) {
    if (least == 0 && most < 0) return CommonLeaves::get().any_string;
    if (least == 0 && most == 0) return std::make_shared<const Leaf>(texts_leaf({"\"\""}));
    return std::make_shared<const Leaf>(most >= 0 && least > most ? Leaf{} : any_json_string(least, most));
  }
  std::optional<Dfa> values;
  if (m.patterns.size() == 1 && m.formats.empty() && m.excluded.empty()) {
    const auto regex = Regex::parse(m.patterns[0]);
    const auto repeat = regex.ok() ? regex.value().repeated_class(Bound::kInner) : std::nullopt;
    if (repeat && (repeat->most > 64 || repeat->least > 64)) {
      values = repeated(repeat->chars, work);
      least = std::max(least, repeat->least);
      if (repeat->most >= 0) most = most < 0 ? repeat->most : std::min(most, repeat->most);
    }
  }
  if (!values) {
    auto dfa = string_values(m, document, work);
    if (!dfa.ok()) return dfa.status();
    values = std::move(dfa).value();
    // Many patterns, such as ".*" or "[a-z]*", match every string, because a pattern may match any part of the string, even an empty one.
    if (values->states() <= kStatesOfAnyMax) {
      const auto others = complement(*values, work);
      if (others && others->empty())
        return std::make_shared<const Leaf>(most >= 0 && least > most ? Leaf{}
                                                                      : any_json_string(least, most));
    }
    const int64_t lengths = most >= 0 ? most + 1 : least;
    if ((least > 0 || most >= 0) && values->states() * lengths <= kStatesWithLengthMax) {
      values = with_length(*values, least, most, work);
      if (!values) return schema_too_long();
      least = 0, most = -1;
    }
  }
  auto leaf = json_strings(*values, least, most, work);
  if (!leaf) return schema_too_long();
  if (least == 0 && most < 0)
    if (const auto texts = values->texts(Leaf::kTextsMax)) {
      std::vector<std::string> listed;
      for (const std::string& text : *texts) listed.push_back(json_text(text));
      return std::make_shared<const Leaf>(texts_leaf(listed));
    }
  return std::make_shared<const Leaf>(std::move(*leaf));
}

Result<LeafPointer> number_leaf(const Merged& m, Work* work) {
  const NumberBounds& b = m.number;
  NumberBounds others = b;
  others.integer = false;
  if (others.none()) return b.integer ? CommonLeaves::get().integer : CommonLeaves::get().number;
  auto dfa = json_numbers(b, work);
  if (!dfa.ok()) return Status{dfa.status().code, "JSON schema: " + dfa.status().message};
  Leaf leaf{.dfa = std::move(dfa).value()};
  if (auto texts = leaf.dfa.texts(Leaf::kTextsMax)) leaf.texts = std::move(*texts);
  return std::make_shared<const Leaf>(std::move(leaf));
}

std::vector<const Json*> listed_values(const Merged& m, const Schemas& schemas,
                                       const SchemaDocument& document, Work* work) {
  std::vector<const Json*> out;
  ValueSet seen;
  for (const Json& value : m.values[0]) {
    const bool valid = std::all_of(schemas.begin(), schemas.end(), [&](const Json* s) {
      return is_valid(document, value, *s, Bound::kInner, work);
    });
    if (work->over()) break;
    if (valid && seen.insert(value, work)) out.push_back(&value);
  }
  return out;
}

}  // namespace sluice
