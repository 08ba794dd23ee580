// Who may ask: keys, the names that clients may know the server by, and pages of other origins.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http.h"
#include "server/requests/request.h"

namespace sluice {

struct AccessOptions {
  std::vector<std::string> api_keys = {};       // one of them is wanted; none: none is
  std::string host = {};                        // the one that the server listens on
  std::vector<std::string> allowed_hosts = {};  // other names of it; "*": any
  std::vector<std::string> allowed_origins =
      {};  // "https://chat.example": of pages that may ask, "*": any; none: those of the server's own origin
};

// What a flag says that takes a list: names with commas between them, or JSON's ["a", "b"], as vLLM has it. kInvalidArgument: it is no
// list, or a name that no header "Host" or "Origin" of a request can have.
Result<std::vector<std::string>> read_hosts(std::string_view text);
Result<std::vector<std::string>> read_origins(std::string_view text);

class Access {
 public:
  explicit Access(AccessOptions options);
  bool authorized(const HttpRequest& request) const;
  // A page of anybody can have its own name point here, and then is of the same origin as the server for a browser (DNS rebinding).
  // So where no key is asked for, clients must use a name that is known, or an address.
  std::optional<ApiError> check_host(const HttpRequest& request) const;
  // What an answer to a page of an allowed origin has.
  HttpHeaders headers_for(const HttpRequest& request) const;
  // The answer to a browser that asks before a page's request, where pages of other origins are allowed at all.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;

 private:
  bool allows_origin(const std::string& origin) const;
  AccessOptions options_;
};

}  // namespace sluice
