#include "base/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

namespace sluice {
namespace {

constexpr size_t kDepthMax = 64;

Status corrupt(std::string message) { return {Code::kCorrupt, std::move(message)}; }

// A value as an error shows it: short, whatever it holds.
std::string shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

constexpr int kNumberTooLarge = 406;  // the library's id of that error

// Builds the document from the library's events. Its own builder looks at every earlier member of an array after each
// object in it, which is quadratic; and neither nesting without end nor a key that stands twice troubles it.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(size_t text_bytes) : text_bytes_(text_bytes) {}
  Json root;
  std::string trouble;

  bool null() override { return add(nullptr) != nullptr; }
  bool boolean(bool value) override { return add(value) != nullptr; }
  bool number_integer(int64_t value) override { return add(value) != nullptr; }
  bool number_unsigned(uint64_t value) override { return add(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return add(value) != nullptr; }
  bool string(std::string& value) override { return add(std::move(value)) != nullptr; }
  bool binary(Json::binary_t&) override { return false; }  // JSON has none
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(std::string& name) override {
    const auto [member, is_new] = open_.back()->get_ref<Json::object_t&>().try_emplace(std::move(name));
    slot_ = &member->second;
    if (!is_new)
      trouble = "wanted each key once, found " + shown(Json(member->first)) + " twice in one object";
    return is_new;
  }
  bool parse_error(size_t byte, const std::string&, const Json::exception& e) override {
    trouble = e.id == kNumberTooLarge ? "wanted JSON, found a number that no double can hold"
                                      : "wanted JSON, found an error at byte " + std::to_string(byte) +
                                            " of " + std::to_string(text_bytes_);
    return false;
  }

 private:
  // A container is the last member of the one around it for as long as it is open, so its address stays.
  Json* add(Json value) {
    if (open_.empty()) return &(root = std::move(value));
    Json& parent = *open_.back();
    if (parent.is_object()) return &(*slot_ = std::move(value));
    return &parent.get_ref<Json::array_t&>().emplace_back(std::move(value));
  }
  bool open(Json empty) {
    if (open_.size() == kDepthMax) {
      trouble = "wanted at most " + std::to_string(kDepthMax) + " levels of nesting, found more";
      return false;
    }
    open_.push_back(add(std::move(empty)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  size_t text_bytes_;
  std::vector<Json*> open_;
  Json* slot_ = nullptr;  // of the key read last
};

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  try {
    Builder builder(text.size());
    if (Json::sax_parse(text.begin(), text.end(), &builder)) return std::move(builder.root);
    return corrupt(std::string(what) + ": " + builder.trouble);
  } catch (const std::bad_alloc&) {
    return out_of_memory(std::string(what) + ": no memory for " + std::to_string(text.size()) +
                         " bytes of JSON");
  }
}

Result<std::string> read_file(const std::string& path, int64_t bytes_max) {
  // Not blocking: opening a pipe must not wait for a writer.
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
                                 (S_ISDIR(status.st_mode) ? "a directory" : "something else")};
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
  // A document's own place ends in no key: "config.json: hidden_size"; below it: "config.json: a.b".
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

Result<int64_t> JsonAt::integer(int64_t least, int64_t most) const {
  const std::string wanted = "an integer from " + std::to_string(least) + " to " + std::to_string(most);
  if (!value_->is_number_integer()) return wrong(wanted);
  if (value_->is_number_unsigned() && value_->get<uint64_t>() > INT64_MAX) return wrong(wanted);
  const int64_t v = value_->get<int64_t>();
  if (v < least || v > most) return wrong(wanted);
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

Result<int64_t> JsonAt::integer(const std::string& key, int64_t least, int64_t most) const {
  const auto member = at(key);
  return member.ok() ? member.value().integer(least, most) : Result<int64_t>(member.status());
}
Result<int64_t> JsonAt::integer(const std::string& key, int64_t least, int64_t most,
                                int64_t otherwise) const {
  return has(key) ? integer(key, least, most) : Result<int64_t>(otherwise);
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
