// sluice serve: the OpenAI API over one model.
#pragma once
#include <string>
#include <vector>

#include "apps/common/chat.h"
#include "server/api_server.h"
#include "server/http/http.h"

namespace sluice::apps {

struct ServeOptions {
  ModelFlags model;
  ChatFlags chat;
  HttpOptions http;
  ApiOptions api;
  std::vector<std::string> notes;         // for the log, before anything else
  std::vector<std::string> served_names;  // none: the directory's, and the one that was typed
};
// Until it is asked to end. Prints its URL to standard output once it can serve.
int serve_model(const ServeOptions& options);

}  // namespace sluice::apps
