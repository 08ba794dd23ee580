#include "grammar/schema/document.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "base/utf8.h"
#include "grammar/regex.h"
#include "grammar/schema/uri.h"

namespace sluice {
namespace {

constexpr size_t kShownMax = 120;
// The base URI of a schema that has none. Its many path segments keep ".." in a relative reference from
// resolving to the URI of another "$id".
const std::string kUnknownBase = "schema:/1/2/3/4/5/6/7/8/", kUnknown = "schema:/";

// Parses the text of `root` again, walks through `root` in parallel, and records the order of its members.
class OrderReader final : public nlohmann::json_sax<Json> {
 public:
  OrderReader(const Json& root, std::unordered_map<const Json*, std::vector<std::string>>* order)
      : order_(order) {
    next_ = &root;
  }
  bool null() override { return value(); }
  bool boolean(bool) override { return value(); }
  bool number_integer(number_integer_t) override { return value(); }
  bool number_unsigned(number_unsigned_t) override { return value(); }
  bool number_float(number_float_t, const string_t&) override { return value(); }
  bool string(string_t&) override { return value(); }
  bool binary(binary_t&) override { return value(); }
  bool start_object(size_t) override { return open(); }
  bool key(string_t& name) override {
    next_ = &open_.back().first->at(name);
    (*order_)[open_.back().first].push_back(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(); }
  bool end_array() override { return close(); }
  bool parse_error(size_t, const std::string&, const Json::exception&) override { return false; }

 private:
  const Json* here() {
    if (open_.empty() || !open_.back().first->is_array()) return next_;
    return &(*open_.back().first)[open_.back().second++];
  }
  bool value() {
    (void)here();
    return true;
  }
  bool open() {
    open_.emplace_back(here(), 0);
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
  std::unordered_map<const Json*, std::vector<std::string>>* order_;
  std::vector<std::pair<const Json*, size_t>> open_;
  const Json* next_ = nullptr;
};

std::string percent_decoded(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto hex = [&](size_t at) {
      return at < text.size() && std::isxdigit(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] == '%' && hex(i + 1) && hex(i + 2)) {
      out += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

std::string without_fragment(const std::string& text) { return text.substr(0, text.find('#')); }

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

const Json* by_pointer(const Json* at, const std::string& pointer) {
  for (size_t from = 0; from < pointer.size();) {
    const size_t end = std::min(pointer.find('/', from + 1), pointer.size());
    std::string name;
    for (size_t i = from + 1; i < end; ++i) {
      const bool escaped = pointer[i] == '~' && i + 1 < end;
      name += !escaped ? pointer[i] : pointer[++i] == '0' ? '~' : '/';
    }
    from = end;
    if (at->is_object()) {
      const auto found = at->find(name);
      if (found == at->end()) return nullptr;
      at = &*found;
    } else if (at->is_array()) {
      if (name.empty() || name.size() > 6 || name.find_first_not_of("0123456789") != std::string::npos)
        return nullptr;
      const auto index = static_cast<size_t>(std::stoul(name));
      if (index >= at->size()) return nullptr;
      at = &(*at)[index];
    } else {
      return nullptr;
    }
  }
  return at;
}

}  // namespace

std::string shown(const std::string& text) {
  const std::string clean = printable(valid_utf8(text.substr(0, kShownMax)));
  return "'" + clean + (text.size() > kShownMax ? "...'" : "'");
}

std::string described(const Json& value) {
  const std::string text = shown(value.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (value.is_null() || value.is_boolean()) return value.dump();
  return std::string(value.is_number()   ? "the number "
                     : value.is_string() ? "the string "
                     : value.is_array()  ? "an array, "
                                         : "an object, ") +
         text;
}

std::string shown_reference(const std::string& text) {
  if (text.starts_with(kUnknownBase)) return shown(text.substr(kUnknownBase.size()));
  return shown(text.starts_with(kUnknown) ? text.substr(kUnknown.size() - 1) : text);
}

std::span<const Json> values_in(const Json& array) {
  const auto& all = array.get_ref<const Json::array_t&>();
  return {all.data(), all.size()};
}

Result<std::shared_ptr<SchemaDocument>> SchemaDocument::parse(const std::string& text) {
  auto json = parse_json(text, "JSON schema");
  if (!json.ok()) return invalid(json.status().message);
  if (const auto wide = wide_integer(text))
    return invalid("JSON schema: " + shown(wide->place) + ": wanted an integer of at most 64 bits, found " +
                   shown(wide->text));
  if (!json.value().is_object() && !json.value().is_boolean())
    return invalid("JSON schema: wanted an object, true or false, found " + described(json.value()));
  auto out = std::make_shared<SchemaDocument>();
  out->root_ = std::move(json).value();
  OrderReader reader(out->root_, &out->order_);
  (void)Json::sax_parse(text, &reader);
  if (const std::string* dialect = string_at(out->root_, "$schema")) {
    constexpr std::pair<const char*, int> kDrafts[] = {
        {"draft-03", 4}, {"draft-04", 4}, {"draft-06", 6}, {"draft-07", 7}, {"draft/2019-09", 2019}};
    for (const auto& [name, draft] : kDrafts)
      if (dialect->find("json-schema.org/" + std::string(name)) != std::string::npos) out->draft_ = draft;
  }
  out->root_uri_ = kUnknownBase;
  out->note_resources(out->root_, {&out->root_, kUnknownBase}, Place::kSchema);
  for (const auto& [uri, again] : out->named_again_)
    if (*again != *out->named_.at(uri)) out->ambiguous_.insert(uri);
  return out;
}

// "$id" is read only where the draft's keywords expect a schema. References are rewritten everywhere, because the JSON pointer
// of a reference may use any part of the document as a schema.
void SchemaDocument::note_resources(Json& at, Resource resource, Place place) {
  if (at.is_array())
    for (Json& inside : at) note_resources(inside, resource, place);
  if (!at.is_object()) return;
  if (place == Place::kSchema) note_schema(at, &resource);
  const bool named = place == Place::kNamedSchemas;
  // References below an embedded "$id" become absolute URIs, so that they keep their targets when only() copies a part of the schema.
  if (!named && resource.schema != &root_)
    for (const char* key : {"$ref", "$dynamicRef", "$recursiveRef"})
      if (const std::string* text = string_at(at, key)) {
        const std::string document = without_fragment(*text);
        at[key] = resolved_uri(resource.uri, document) + text->substr(document.size());
      }
  for (auto& [key, value] : at.items()) {
    if (!named && is_one_of(key, {"enum", "const", "default", "examples", "example"})) continue;
    Place inside = named ? Place::kSchema : Place::kUnknown;
    if (place == Place::kSchema) {
      if (is_one_of(key, {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
                          "dependencies"}))
        inside = Place::kNamedSchemas;
      if (is_one_of(key, {"items", "prefixItems", "additionalItems", "unevaluatedItems", "contains",
                          "additionalProperties", "unevaluatedProperties", "propertyNames", "allOf", "anyOf",
                          "oneOf", "not", "if", "then", "else", "contentSchema"}))
        inside = Place::kSchema;
    }
    note_resources(value, resource, inside);
  }
}

void SchemaDocument::note_schema(Json& at, Resource* resource) {
  const std::string* id = string_at(at, draft_ == 4 ? "id" : "$id");
  const bool ignored = draft_ < 2019 && at.contains("$ref");  // keywords next to "$ref" have no effect
  if (id != nullptr && !ignored) {
    if (id->starts_with('#')) {
      anchors_[{resource->schema, id->substr(1)}] = &at;
    } else if (!id->empty()) {
      *resource = {&at, resolved_uri(resource->uri, without_fragment(*id))};
      if (&at == &root_) root_uri_ = resource->uri;
      const bool plain =
          !id->starts_with('/') && !id->starts_with('.') && id->find("/.") == std::string::npos;
      const bool in_folder = &at == &root_ && id->find('/') != std::string::npos;
      disputed_ |= resource->uri.starts_with(kUnknown) && (!plain || in_folder);
      if (!named_.try_emplace(resource->uri, &at).second) named_again_.emplace_back(resource->uri, &at);
    }
  }
  for (const char* key : {"$anchor", "$dynamicAnchor"})
    if (const std::string* name = string_at(at, key)) anchors_[{resource->schema, *name}] = &at;
}

std::vector<std::string> SchemaDocument::keys(const Json& object) const {
  if (const auto found = order_.find(&object); found != order_.end()) return found->second;
  std::vector<std::string> out;
  for (const auto& [key, value] : object.items()) out.push_back(key);
  return out;
}

bool SchemaDocument::is_ambiguous(const std::string& uri) const {
  if (ambiguous_.contains(uri)) return true;
  if (!disputed_ || !uri.starts_with(kUnknown)) return false;
  const std::string last = uri.substr(uri.rfind('/'));
  return std::count_if(named_.begin(), named_.end(), [&](const auto& one) {
           return one.first.starts_with(kUnknown) && one.first.ends_with(last);
         }) > 1;
}

Result<const Json*> SchemaDocument::target(const std::string& reference) const {
  const Json* resource = &root_;
  const std::string document = without_fragment(reference);
  const std::string fragment =
      document.size() < reference.size() ? percent_decoded(reference.substr(document.size() + 1)) : "";
  if (!document.empty()) {
    const std::string uri = resolved_uri(root_uri_, document);
    const auto found = named_.find(uri);
    if (found == named_.end())
      return invalid("$ref " + shown_reference(reference) +
                     ": wanted a reference within the same schema, found a URI of another document");
    if (is_ambiguous(uri))
      return invalid("$ref " + shown_reference(reference) +
                     ": wanted one schema with this $id, found several that differ");
    resource = found->second;
  }
  const Json* at = resource;
  if (!fragment.empty() && fragment[0] != '/') {
    const auto found = anchors_.find({resource, fragment});
    at = found != anchors_.end() ? found->second : nullptr;
  } else {
    at = by_pointer(resource, fragment);
  }
  if (at == nullptr)
    return invalid("$ref " + shown_reference(reference) + ": wanted a schema at this place, found nothing");
  if (!at->is_object() && !at->is_boolean())
    return invalid("$ref " + shown_reference(reference) +
                   ": wanted a schema at this place, found another value");
  return at;
}

const Json* SchemaDocument::only(const Json& schema, const std::vector<std::string>& keywords) {
  const auto [found, is_new] = parts_.try_emplace({&schema, keywords.front()}, nullptr);
  if (is_new) {
    Json part = Json::object();
    for (const std::string& keyword : keywords)
      if (const auto value = schema.find(keyword); value != schema.end()) part[keyword] = *value;
    found->second = keep(std::move(part));
  }
  return found->second;
}

int64_t SchemaDocument::anchors(const std::string& name) const {
  return std::count_if(anchors_.begin(), anchors_.end(),
                       [&](const auto& one) { return one.first.second == name; });
}

const Json* SchemaDocument::keep_once(Json schema) {
  const Json*& out = kept_once_[schema.dump(-1, ' ', false, Json::error_handler_t::replace)];
  if (out == nullptr) out = keep(std::move(schema));
  return out;
}
const Json* SchemaDocument::keep(Json schema) { return &kept_.emplace_back(std::move(schema)); }

Result<const Dfa*> SchemaDocument::pattern(const std::string& pattern, Bound bound, Work* work) {
  const std::lock_guard lock(mutex_);
  if (const auto found = patterns_.find({pattern, bound}); found != patterns_.end()) return &found->second;
  const auto regex = Regex::parse(pattern);
  if (!regex.ok()) return invalid("pattern " + shown(pattern) + ": " + regex.status().message);
  auto dfa = regex.value().dfa(RegexMatch::kSearch, bound, work);
  if (!dfa.ok()) return invalid("pattern " + shown(pattern) + ": " + dfa.status().message);
  return &patterns_.emplace(std::pair{pattern, bound}, std::move(dfa).value()).first->second;
}

const Dfa* SchemaDocument::known_pattern(const std::string& pattern, Bound bound) const {
  const std::lock_guard lock(mutex_);
  const auto found = patterns_.find({pattern, bound});
  return found != patterns_.end() ? &found->second : nullptr;
}

bool SchemaDocument::lists(std::span<const Json> list, const Json& value, Work* work) const {
  constexpr size_t kFew = 8;
  if (list.size() <= kFew) {
    if (!work->spend(std::ssize(list))) return false;
    return std::any_of(list.begin(), list.end(), [&](const Json& one) { return same_value(one, value); });
  }
  const std::lock_guard lock(mutex_);
  auto found = value_sets_.find(list.data());
  if (found == value_sets_.end()) {
    ValueSet set(list, work);
    if (work->over()) return false;
    found = value_sets_.emplace(list.data(), std::move(set)).first;
  }
  return work->spend(8) && found->second.contains(value);
}

}  // namespace sluice
