#include "base/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/file_kind.h"
#include "base/utf8.h"

namespace sluice {
namespace {

constexpr size_t kDepthMax = 64;

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

constexpr size_t kShownMax = 60;  // bytes of a value in an error message

// Formats a value for an error message; always short.
std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  // Parsing rounds an integer of this size, so its digits are not known here.
  const double size = value.is_number_float() ? std::abs(value.get<double>()) : 0;
  if (size >= 0x1p63 && size < 1e21) return "a number beyond 64 bits";
  const bool is_long = value.is_string() && value.get_ref<const std::string&>().size() > kShownMax;
  const Json head = is_long ? Json(value.get_ref<const std::string&>().substr(0, kShownMax)) : Json();
  std::string text = (is_long ? head : value).dump(-1, ' ', true, Json::error_handler_t::replace);
  if (is_long || text.size() > kShownMax) text = text.substr(0, kShownMax - 3) + "...";
  return text;
}

constexpr int kNumberTooLarge = 406;  // the library's number for this error

std::string syntax_error(size_t byte, std::string_view text) {
  const size_t text_bytes = text.size();
  if (text_bytes == 0) return "wanted JSON, found an empty text";
  // The library counts the end of the text as a byte.
  if (byte > text_bytes)
    return "wanted JSON, found text that ends too early, after " + std::to_string(text_bytes) +
           (text_bytes == 1 ? " byte" : " bytes");
  // Python reads and writes these words, which JSON does not have.
  for (const std::string_view word : {"Infinity", "NaN"})
    if (byte > 0 && text.substr(byte - 1).starts_with(word))
      return "wanted JSON, found " + std::string(word) + " at byte " + std::to_string(byte) +
             ", which is not a JSON number";
  if (const std::string_view kind = file_kind(text); !kind.empty())
    return "wanted JSON, found " + std::string(kind);
  std::string why =
      "wanted JSON, found an error at byte " + std::to_string(byte) + " of " + std::to_string(text_bytes);
  if (valid_utf8_bytes(text) < byte) why += ", where it is not UTF-8";
  return why;
}

// Returns a key that appears twice, or null. The members may be in any order.
const std::string* twice_in(const OrderedJson::object_t& object) {
  std::vector<const std::string*> keys;
  keys.reserve(object.size());
  for (const auto& member : object) keys.push_back(&member.first);
  const auto less = [](const std::string* a, const std::string* b) { return *a < *b; };
  const auto same = [](const std::string* a, const std::string* b) { return *a == *b; };
  std::sort(keys.begin(), keys.end(), less);
  const auto twice = std::adjacent_find(keys.begin(), keys.end(), same);
  return twice == keys.end() ? nullptr : *twice;
}

// Builds the document from the library's events. The library's own builders take quadratic time, because they
// visit every earlier member of an array after each object in the array, or every earlier key of an ordered
// object. They also accept unlimited nesting and duplicate keys.
template <class AnyJson>
class Builder final : public nlohmann::json_sax<AnyJson> {
 public:
  explicit Builder(std::string_view text, std::optional<std::string_view> only = {})
      : text_(text), only_(only) {}
  AnyJson root;
  std::string trouble;

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return add(value) != nullptr; }
  bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
  bool binary(typename AnyJson::binary_t&) override { return false; }  // JSON has no binary values
  bool start_object(size_t) override { return open(AnyJson::object()); }
  bool start_array(size_t) override { return open(AnyJson::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    if (skipped_ > 0) return true;
    skips_ = only_ && open_.size() == 1 && name != *only_;
    return skips_ || add_key(std::move(name));
  }
  bool parse_error(size_t byte, const std::string&, const Json::exception& e) override {
    trouble = e.id == kNumberTooLarge ? "wanted JSON, found a number that is too large for a double"
                                      : syntax_error(byte, text_);
    return false;
  }

 private:
  static constexpr bool kOrdered = std::is_same_v<AnyJson, OrderedJson>;

  bool add_key(std::string name) {
    auto& object = open_.back()->template get_ref<typename AnyJson::object_t&>();
    if constexpr (kOrdered) {  // appended unchecked; close() looks for duplicate keys
      using Members = typename AnyJson::object_t::Container;
      slot_ = &static_cast<Members&>(object).emplace_back(std::move(name), nullptr).second;
      return true;
    } else {
      const auto [member, is_new] = object.try_emplace(std::move(name));
      slot_ = &member->second;
      return is_new || says_twice(member->first);
    }
  }
  bool says_twice(const std::string& name) {
    trouble = "wanted unique keys, found " + shown(Json(name)) + " twice in one object";
    return false;
  }
  // An open container is the last member of its parent, so its address does not change.
  AnyJson* add(AnyJson value) {
    if (skips_) return &skipped_value_;
    if (open_.empty()) return &(root = std::move(value));
    AnyJson& parent = *open_.back();
    if (parent.is_object()) return &(*slot_ = std::move(value));
    return &parent.template get_ref<typename AnyJson::array_t&>().emplace_back(std::move(value));
  }
  bool open(AnyJson empty) {
    if (open_.size() + skipped_ == kDepthMax) {
      trouble = "wanted at most " + std::to_string(kDepthMax) + " levels of nesting, found more";
      return false;
    }
    if (skips_)
      ++skipped_;
    else
      open_.push_back(add(std::move(empty)));
    return true;
  }
  bool close() {
    if (skipped_ > 0) return --skipped_, true;
    const AnyJson& closed = *open_.back();
    open_.pop_back();
    skips_ = false;
    if constexpr (kOrdered)
      if (closed.is_object())
        if (const auto* name = twice_in(closed.template get_ref<const OrderedJson::object_t&>()))
          return says_twice(*name);
    return true;
  }

  std::string_view text_;
  std::optional<std::string_view> only_;
  std::vector<AnyJson*> open_;
  AnyJson* slot_ = nullptr;  // slot of the key read last
  bool skips_ = false;       // inside an unwanted member of the outermost object
  size_t skipped_ = 0;       // open containers inside that member
  AnyJson skipped_value_;
};

template <class AnyJson>
Result<AnyJson> parse(std::string_view text, std::string_view what, Builder<AnyJson> builder) {
  try {
    // The library takes a NUL after the document for the end of the text. JSON has no NUL anywhere.
    if (AnyJson::sax_parse(text.begin(), text.end(), &builder)) {
      const size_t nul = text.find('\0');
      if (nul == text.npos) return std::move(builder.root);
      builder.trouble = "wanted JSON, found a NUL byte at byte " + std::to_string(nul + 1) + " of " +
                        std::to_string(text.size());
    }
    return corrupt(std::string(what) + ": " + builder.trouble);
  } catch (const std::bad_alloc&) {
    return out_of_memory(std::string(what) + ": no memory for " + std::to_string(text.size()) +
                         " bytes of JSON");
  }
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  return parse(text, what, Builder<Json>(text));
}

Result<OrderedJson> parse_ordered_json(std::string_view text, std::string_view what,
                                       std::optional<std::string_view> only) {
  auto whole = parse(text, what, Builder<OrderedJson>(text, only));
  if (!whole.ok() || !only) return whole;
  OrderedJson& object = whole.value();
  return object.is_object() && !object.empty() ? std::move(object.begin().value()) : OrderedJson();
}

Result<std::string> read_file(const std::string& path, int64_t bytes_max) {
  // Non-blocking, because opening a pipe must not wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return Status{Code::kIo, path + ": cannot be opened: " + std::strerror(errno)};
  const auto close = [](std::FILE* f) { std::fclose(f); };
  std::unique_ptr<std::FILE, decltype(close)> file(::fdopen(descriptor, "rb"), close);
  if (!file) {
    ::close(descriptor);
    return Status{Code::kIo, path + ": cannot be opened: " + std::strerror(errno)};
  }
  struct stat status {};
  if (::fstat(descriptor, &status) != 0)
    return Status{Code::kIo, path + ": cannot be examined: " + std::strerror(errno)};
  if (!S_ISREG(status.st_mode))
    return Status{Code::kIo, path + ": wanted a regular file, found " +
                                 (S_ISDIR(status.st_mode) ? "a directory" : "a device, pipe or socket")};
  std::string text;
  char chunk[1 << 16];
  while (const size_t n = std::fread(chunk, 1, sizeof chunk, file.get())) {
    text.append(chunk, n);
    if (static_cast<int64_t>(text.size()) > bytes_max)
      return corrupt(path + ": wanted at most " + std::to_string(bytes_max) + " bytes, found more");
  }
  if (std::ferror(file.get())) return Status{Code::kIo, path + ": cannot be read: " + std::strerror(errno)};
  return text;
}

Result<Json> read_json(const std::string& path, int64_t bytes_max) {
  auto text = read_file(path, bytes_max);
  if (!text.ok()) return text.status();
  return parse_json(text.value(), path);
}

Status JsonAt::wrong(std::string_view wanted) const {
  return corrupt(where_ + ": wanted " + std::string(wanted) + ", found " + shown(*value_));
}

bool JsonAt::has(const std::string& key) const {
  return value_->is_object() && value_->contains(key) && !(*value_)[key].is_null();
}

Result<JsonAt> JsonAt::at(const std::string& key) const {
  SLUICE_TRY(need_object());
  const auto found = value_->find(key);
  // A key of the document itself follows ": ", as in "config.json: a"; a deeper key follows ".", as in
  // "config.json: a.b".
  const std::string place = where_ + (where_.find(": ") == std::string::npos ? ": " : ".") + key;
  if (found == value_->end()) return corrupt(place + ": wanted a value, found no such key");
  return JsonAt(*found, place);
}

Result<std::vector<JsonAt>> JsonAt::items() const {
  if (!value_->is_array()) return wrong("an array");
  std::vector<JsonAt> out;
  out.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i)
    out.emplace_back((*value_)[i], where_ + "[" + std::to_string(i) + "]");
  return out;
}

Status JsonAt::need_object() const {
  if (!value_->is_object()) return wrong("an object");
  return {};
}

Result<int64_t> JsonAt::integer(int64_t minimum, int64_t maximum) const {
  const std::string wanted = "an integer from " + std::to_string(minimum) + " to " + std::to_string(maximum);
  if (!value_->is_number_integer()) return wrong(wanted);
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX) return wrong(wanted);
  const int64_t v = value_->get<int64_t>();
  if (v < minimum || v > maximum) return wrong(wanted);
  return v;
}

Result<double> JsonAt::number() const {
  if (!value_->is_number()) return wrong("a number");
  const double v = value_->get<double>();
  if (!std::isfinite(v)) return wrong("a finite number");
  return v;
}

Result<bool> JsonAt::boolean() const {
  if (!value_->is_boolean()) return wrong("true or false");
  return value_->get<bool>();
}

Result<std::string> JsonAt::string() const {
  if (!value_->is_string()) return wrong("a string");
  return value_->get<std::string>();
}

Result<int64_t> JsonAt::integer(const std::string& key, int64_t minimum, int64_t maximum) const {
  const auto member = at(key);
  return member.ok() ? member.value().integer(minimum, maximum) : Result<int64_t>(member.status());
}
Result<int64_t> JsonAt::integer(const std::string& key, int64_t minimum, int64_t maximum,
                                int64_t otherwise) const {
  return has(key) ? integer(key, minimum, maximum) : Result<int64_t>(otherwise);
}
Result<double> JsonAt::number(const std::string& key) const {
  const auto member = at(key);
  return member.ok() ? member.value().number() : Result<double>(member.status());
}
Result<double> JsonAt::number(const std::string& key, double otherwise) const {
  return has(key) ? number(key) : Result<double>(otherwise);
}
Result<bool> JsonAt::boolean(const std::string& key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const auto member = at(key);
  return member.ok() ? member.value().boolean() : Result<bool>(member.status());
}
Result<std::string> JsonAt::string(const std::string& key) const {
  const auto member = at(key);
  return member.ok() ? member.value().string() : Result<std::string>(member.status());
}
Result<std::string> JsonAt::string(const std::string& key, const std::string& otherwise) const {
  return has(key) ? string(key) : Result<std::string>(otherwise);
}

}  // namespace sluice
