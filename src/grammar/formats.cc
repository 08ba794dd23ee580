// JSON Schema's formats as regular expressions. Each format has two: `inner` matches only strings that every checker accepts, and `outer`
// matches every string that some checker accepts.
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "grammar/leaf.h"
#include "grammar/regex.h"

namespace sluice {
namespace {

// February always has 28 days here, because a leap day would require arithmetic on the year.
#define SLUICE_DATE \
  R"((\d{3}[1-9]|\d{2}[1-9]0|\d[1-9]00|[1-9]000)-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|(0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8])))"
#define SLUICE_TIME R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))"
#define SLUICE_LABEL R"([A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?)"
#define SLUICE_HOST SLUICE_LABEL R"((\.)" SLUICE_LABEL R"(){0,3})"
#define SLUICE_BYTE R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"
#define SLUICE_IPV4 SLUICE_BYTE R"((\.)" SLUICE_BYTE R"(){3})"
#define SLUICE_H16 R"([0-9A-Fa-f]{1,4})"
#define SLUICE_URL_CHARS R"(([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}))"
#define SLUICE_PATH "(/" SLUICE_URL_CHARS "*)*"
#define SLUICE_TAIL R"((\?()" SLUICE_URL_CHARS R"(|[/?])*)?(#()" SLUICE_URL_CHARS R"(|[/?])*)?)"
#define SLUICE_URI                                                                            \
  "[A-Za-z][A-Za-z0-9+.-]*:(//" SLUICE_HOST R"((:\d{1,4})?)" SLUICE_PATH "|" SLUICE_URL_CHARS \
  "+(/" SLUICE_URL_CHARS "*)*)" SLUICE_TAIL
#define SLUICE_REFERENCE "(" SLUICE_URI "|/?[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]*)*" SLUICE_TAIL ")"

#define SLUICE_SCALAR R"x((null|true|false|-?(0|[1-9]\d{0,9})(\.\d{1,9})?|"[ !#-\[\]-~]*"))x"
#define SLUICE_MEMBER R"x("[ !#-\[\]-~]*":)x" SLUICE_SCALAR

struct Format {
  std::string_view name, inner;
  std::string_view outer = {};  // empty: any text
};
constexpr Format kFormats[] = {
    {"date", SLUICE_DATE, R"x([0-9W-]*)x"},
    {"time", SLUICE_TIME, R"x([0-9 ]*:[0-9:., ]*[Zz]?[0-9:., +-]*)x"},
    {"date-time", SLUICE_DATE "T" SLUICE_TIME, R"x([0-9W-]*[Tt _][0-9]*:[0-9:., ]*[Zz]?[0-9:., +-]*)x"},
    {"duration",
     R"(P(\d{1,5}W|\d{1,5}D(T\d{1,5}H)?|\d{1,5}Y(\d{1,5}M(\d{1,5}D)?)?|\d{1,5}M(\d{1,5}D)?|T(\d{1,5}H(\d{1,5}M(\d{1,5}S)?)?|\d{1,5}M(\d{1,5}S)?|\d{1,5}S)))",
     R"x([+-]?[Pp][0-9YyMmWwDdTtHhSs.,+-]*)x"},
    {"email", R"([A-Za-z0-9_+-]{1,20}(\.[A-Za-z0-9_+-]{1,20}){0,2}@)" SLUICE_HOST, R"x((.|\n)*@(.|\n)*)x"},
    {"idn-email", R"([A-Za-z0-9_+-]{1,20}(\.[A-Za-z0-9_+-]{1,20}){0,2}@)" SLUICE_HOST,
     R"x((.|\n)*@(.|\n)*)x"},
    {"hostname", SLUICE_HOST, R"x(([A-Za-z0-9._-]|[^\u0000-\u007f])*)x"},
    {"idn-hostname",
     "[A-Za-z0-9]{1,30}"
     R"((\.[A-Za-z0-9]{1,30}){0,3})",
     R"x(([A-Za-z0-9._-]|[^\u0000-\u007f])*)x"},
    {"ipv4", SLUICE_IPV4, R"x([0-9A-Fa-fXx.]*)x"},
    {"ipv6",
     "(" SLUICE_H16 ":){7}" SLUICE_H16 "|(" SLUICE_H16 ":){1,6}:|:(:" SLUICE_H16 "){1,7}|(" SLUICE_H16
     ":){1,3}(:" SLUICE_H16 "){1,3}|::",
     R"x([0-9A-Fa-f.]*:[0-9A-Za-z:.%_-]*)x"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
     R"x([0-9A-Fa-f{}:UuRrNnIiDd-]{32,})x"},
    {"uri", SLUICE_URI, R"x((.|\n)*:(.|\n)*)x"},
    {"iri", SLUICE_URI, R"x((.|\n)*:(.|\n)*)x"},
    {"uri-reference", SLUICE_REFERENCE},
    {"iri-reference", SLUICE_REFERENCE},
    {"json-pointer", R"((/([ !-.0-}]|~[01])*)*)", R"x((/(.|\n)*)?)x"},
    // The Python package jsonschema rejects a digit after a 0, such as in "101".
    {"relative-json-pointer", R"((0|[1-9]{1,5}0?)(#|(/([ !-.0-}]|~[01])*)*))", R"x([0-9+-](.|\n)*)x"},
    {"regex", R"(\^?([A-Za-z0-9 _:;,/"'@=-]|\\[dws.])+\$?)"},
    // Texts of "contentEncoding" and "contentMediaType", and not of a "format".
    {"content base64", R"(([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?)"},
    {"content base32", R"(([A-Z2-7]{8})*)"},
    {"content application/json",
     SLUICE_SCALAR R"x(|\[()x" SLUICE_SCALAR "(," SLUICE_SCALAR R"x()*)?\]|\{()x" SLUICE_MEMBER
                   "(," SLUICE_MEMBER R"x()*)?\})x"},
    {"uri-template", R"(([A-Za-z0-9._~:/?#@!$&()*+,;=-]|\{[A-Za-z0-9_]+\})*)"},
};

}  // namespace

const Dfa* format_values(const std::string& format, Bound bound) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, Bound>, Dfa> known;
  const std::lock_guard lock(mutex);
  const std::pair key(format, bound);
  if (const auto found = known.find(key); found != known.end()) return &found->second;
  for (const Format& f : kFormats) {
    const std::string_view pattern = bound == Bound::kInner ? f.inner : f.outer;
    if (f.name != format || pattern.empty()) continue;
    Work plenty(int64_t{1} << 28);
    auto regex = Regex::parse(pattern);
    if (!regex.ok()) return nullptr;
    auto dfa = regex.value().dfa(RegexMatch::kWhole, bound, &plenty);
    if (!dfa.ok()) return nullptr;
    return &known.emplace(key, std::move(dfa).value()).first->second;
  }
  return nullptr;
}

}  // namespace sluice
