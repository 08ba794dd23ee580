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
  std::vector<std::string> api_keys = {};       // a request must send one of these keys; empty: no key is
                                                // needed
  std::string host = {};                        // the host that the server listens on
  std::vector<std::string> allowed_hosts = {};  // further host names of the server; "*": any
  // Origins whose pages may send requests, such as "https://chat.example"; "*": any; empty: only the server's own origin.
  std::vector<std::string> allowed_origins = {};
};

// Reads names separated by commas, or, as in vLLM, a JSON array such as ["a", "b"]. kInvalidArgument: the
// text is neither, or contains a name that no "Host" or "Origin" header can have.
Result<std::vector<std::string>> read_hosts(std::string_view text);
Result<std::vector<std::string>> read_origins(std::string_view text);

class Access {
 public:
  Access(AccessOptions options, const SettingNames& names);
  bool authorized(const HttpRequest& request) const;
  // DNS rebinding: the owner of a web page can let the page's host name resolve to this server's address. Browsers then let the page read
  // the server's answers. So a server without API keys accepts only known host names and addresses.
  std::optional<ApiError> check_host(const HttpRequest& request) const;
  // The cross-origin (CORS) headers of the answer.
  HttpHeaders headers_for(const HttpRequest& request) const;
  // The answer if `request` is a browser's preflight request; nullopt if it is not, or if no other origin is allowed.
  std::optional<HttpResponse> preflight(const HttpRequest& request) const;

 private:
  bool allows_origin(const std::string& origin) const;
  AccessOptions options_;
  SettingNames names_;
};

}  // namespace sluice
