// sluice serve: serves one model over the OpenAI API.
#pragma once
#include <string>
#include <vector>

#include "apps/common/chat.h"
#include "apps/serve/other_servers.h"
#include "server/api_server.h"
#include "server/http/http.h"

namespace sluice::apps {

struct ServeOptions {
  ModelFlags model;
  ChatFlags chat;
  HttpOptions http;
  ApiOptions api;
  OtherServersFlags other_servers;
  std::vector<std::string> notes;         // logged at the start
  std::vector<std::string> served_names;  // empty: the directory's name and the name as typed
};
// Returns after shutdown. Prints the server's URL to standard output once the server accepts requests.
int serve_model(const ServeOptions& options);

}  // namespace sluice::apps
