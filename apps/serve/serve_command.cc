#include "apps/serve/serve_command.h"

#include <cstdio>

#include "apps/commands.h"
#include "apps/descriptors.h"
#include "apps/session_lines.h"

namespace sluice::apps {
namespace {

std::vector<std::string> names_of(const ServeOptions& options, const std::string& directory) {
  if (!options.served_names.empty()) return options.served_names;
  std::vector<std::string> names{model_name(directory)};
  if (!options.model.model.empty() && options.model.model != names.front())
    names.push_back(options.model.model);
  return names;
}

}  // namespace

int serve_model(const ServeOptions& options) {
  const auto chat_flags = chat_options(options.chat);
  if (!chat_flags.ok()) return wrong_use(chat_flags.status().message);
  const auto harmony = load_harmony(options.model);
  if (!harmony.ok()) return wrong_use(harmony.status().message);
  ModelFlags flags = options.model;
  flags.count_experts = true;                         // for /metrics
  flags.quiet = options.api.log != LogFormat::kText;  // what it says is text
  auto session = open_session(flags);
  if (!session.ok()) return wrong_use(session.status().message);
  if (options.api.log == LogFormat::kJson)
    for (const SessionLine& line : lines_about(session.value()))
      ServerLog(LogFormat::kJson).write("", line.text, line.fields);
  const auto chat = Chat::open(session.value(), harmony.value());
  if (!chat.ok()) return wrong_use(chat.status().message);
  const ServedModel model(session.value(), chat.value(), chat_flags.value(),
                          names_of(options, session.value().directory));
  allow_many_descriptors();
  std::unique_ptr<HttpServer> http;  // outlives the threads that post to it
  ApiServer server(*session.value().engine, model, options.api);
  auto listening = HttpServer::listen(options.http, server);
  if (!listening.ok()) return wrong_use(listening.status().message);
  http = std::move(listening).value();
  server.attach(*http);
  for (const std::string& note : options.notes) server.log("", note);
  server.log("", "serving " + model.names().front() + " at " + http->url());
  std::printf("%s\n", http->url().c_str());
  std::fflush(stdout);
  http->run();
  return kExitOk;
}

}  // namespace sluice::apps
