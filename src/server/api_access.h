// Access control: API keys, the host names that clients may use, and the origins whose pages may send requests.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/http.h"
#include "server/requests/request.h"
#include "server/setting_names.h"

namespace sluice {

struct AccessOptions {
  std::vector<std::string> api_keys = {};       // a request must send one of these; empty: requests need no
                                                // key
  std::string host = {};                        // the host that the server listens on
  std::vector<std::string> allowed_hosts = {};  // further host names of the server; "*": any
  // Origins whose pages may send requests, such as "https://chat.example"; "*": any; empty: only the server's own origin.
  std::vector<std::string> allowed_origins = {};
};

// Reads a list: names separated by commas, or JSON such as ["a", "b"], as in vLLM. kInvalidArgument: the
// text is no list, or contains a name that no "Host" or "Origin" header can have.
Result<std::vector<std::string>> read_hosts(std::string_view text);
Result<std::vector<std::string>> read_origins(std::string_view text);

class Access {
 public:
  Access(AccessOptions options, const SettingNames& names);
  bool authorized(const HttpRequest& request) const;
  // The owner of any page can point the page's host name at this server; browsers then treat both as one origin (DNS rebinding). So a
  // server without API keys accepts only known host names and addresses.
  std::optional<ApiError> check_host(const HttpRequest& request) const;
  // Headers of the answer to a page of an allowed origin.
  HttpHeaders headers_for(const HttpRequest& request) const;
  // The answer to a browser's preflight request. None: no other origin is allowed.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;

 private:
  bool allows_origin(const std::string& origin) const;
  AccessOptions options_;
  SettingNames names_;
};

}  // namespace sluice
