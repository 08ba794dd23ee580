#include "grammar/schema/document.h"

#include <algorithm>
#include <utility>

#include "base/printable.h"
#include "base/utf8.h"
#include "grammar/regex.h"

namespace sluice {
namespace {

constexpr size_t kShownMax = 120;

std::string shown(const std::string& text) {
  const std::string clean = printable(valid_utf8(text.substr(0, kShownMax)));
  return "'" + clean + (text.size() > kShownMax ? "...'" : "'");
}

// Follows a JSON parser through the parsed value and records the order of members.
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

const std::string* string_at(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get_ptr<const std::string*>() : nullptr;
}

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

std::string last_part(const std::string& name) { return name.substr(name.rfind('/') + 1); }

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
    return invalid("JSON schema: wanted an object, true or false, found " +
                   std::string(json.value().type_name()));
  auto out = std::make_shared<SchemaDocument>();
  out->root_ = std::move(json).value();
  OrderReader reader(out->root_, &out->order_);
  (void)Json::sax_parse(text, &reader);
  out->note_resources(out->root_, &out->root_);
  if (const std::string* dialect = string_at(out->root_, "$schema")) {
    constexpr std::pair<const char*, int> kDrafts[] = {
        {"draft-03", 4}, {"draft-04", 4}, {"draft-06", 6}, {"draft-07", 7}, {"draft/2019-09", 2019}};
    for (const auto& [name, draft] : kDrafts)
      if (dialect->find("json-schema.org/" + std::string(name)) != std::string::npos) out->draft_ = draft;
  }
  return out;
}

void SchemaDocument::note_resources(const Json& at, const Json* resource) {
  if (at.is_array())
    for (const Json& inside : at) note_resources(inside, resource);
  if (!at.is_object()) return;
  for (const char* key : {"$id", "id"}) {
    const std::string* id = string_at(at, key);
    if (id == nullptr || id->empty()) continue;
    const size_t hash = id->find('#');
    if (hash == 0) {
      anchors_[{resource, id->substr(1)}] = &at;
    } else {
      if (&at != &root_) resource = &at;
      const std::string name = id->substr(0, hash);
      named_[name] = &at;
      by_last_part_[last_part(name)].insert(name);
    }
  }
  for (const char* key : {"$anchor", "$dynamicAnchor"})
    if (const std::string* name = string_at(at, key)) anchors_[{resource, *name}] = &at;
  if (resource != &root_) resource_of_[&at] = resource;
  for (const auto& [key, value] : at.items())
    if (key != "enum" && key != "const" && key != "default" && key != "examples" && key != "example")
      note_resources(value, resource);
}

std::vector<std::string> SchemaDocument::keys(const Json& object) const {
  if (const auto found = order_.find(&object); found != order_.end()) return found->second;
  std::vector<std::string> out;
  for (const auto& [key, value] : object.items()) out.push_back(key);
  return out;
}

Result<const Json*> SchemaDocument::target(const Json& schema, const std::string& reference) const {
  const auto own = resource_of_.find(&schema);
  const Json* resource = own != resource_of_.end() ? own->second : &root_;
  const size_t hash = std::min(reference.find('#'), reference.size());
  const std::string document = reference.substr(0, hash);
  const std::string fragment = hash < reference.size() ? percent_decoded(reference.substr(hash + 1)) : "";
  if (!document.empty()) {
    auto found = named_.find(document);
    // Relative to an "$id": compares the last parts.
    const auto alike = by_last_part_.find(last_part(document));
    if (found == named_.end() && alike != by_last_part_.end() && document.find(':') == std::string::npos)
      for (const std::string& name : alike->second)
        if (name.ends_with("/" + document)) {
          found = named_.find(name);
          break;
        }
    if (found == named_.end())
      return invalid("$ref " + shown(reference) +
                     ": wanted a reference within the same schema, found a URI of another document");
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
    return invalid("$ref " + shown(reference) + ": wanted a schema at this place, found nothing");
  if (!at->is_object() && !at->is_boolean())
    return invalid("$ref " + shown(reference) + ": wanted a schema at this place, found another value");
  return at;
}

const Json* SchemaDocument::only(const Json& schema, const std::vector<std::string>& keywords) {
  // References of a copy resolve from the root.
  if (resource_of_.contains(&schema)) return &schema;
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

const Json* SchemaDocument::keep(Json schema) { return &kept_.emplace_back(std::move(schema)); }

const Json* SchemaDocument::keep(Json schema, const Json& like) {
  const Json* out = keep(std::move(schema));
  if (const auto own = resource_of_.find(&like); own != resource_of_.end()) note_copy(*out, own->second);
  return out;
}

void SchemaDocument::note_copy(const Json& at, const Json* resource) {
  if (const std::string* id = string_at(at, "$id"))
    if (const auto own = named_.find(id->substr(0, id->find('#'))); own != named_.end())
      resource = own->second;
  if (at.is_object()) resource_of_[&at] = resource;
  if (at.is_structured())
    for (const auto& inside : at) note_copy(inside, resource);
}

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
