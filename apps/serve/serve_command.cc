#include "apps/serve/serve_command.h"

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "apps/common/commands.h"
#include "apps/common/descriptors.h"
#include "apps/common/output.h"
#include "apps/common/session_lines.h"

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

static int serve(const ServeOptions& options, ServerLog& log) {
  const auto chat_flags = chat_options(options.chat);
  if (!chat_flags.ok()) return wrong_use(chat_flags.status().message);
  const auto format = load_chat_format(options.model, options.chat.format);
  if (!format.ok()) return wrong_use(format.status().message);
  const Status chats = format.value()->usable();
  if (chats.ok())
    if (const Status said = check_chat_flags(*format.value(), options.chat); !said.ok())
      return wrong_use(said.message);
  const auto notes = check_other_servers(options.other_servers, options.model, *format.value());
  if (!notes.ok()) return wrong_use(notes.status().message);
  if (const Status address = HttpServer::check(options.http); !address.ok())
    return wrong_use(address.message);
  ModelFlags flags = options.model;
  flags.count_experts = true;                         // for /metrics
  flags.quiet = options.api.log != LogFormat::kText;  // because open_session() prints its lines as plain text
  auto session = open_session(flags);
  if (!session.ok()) return wrong_use(session.status().message);
  if (options.api.log == LogFormat::kJson)
    for (const SessionLine& line : lines_about(session.value())) log.write("", line.text, line.fields);
  log.flush();  // so that the log precedes errors that are printed below
  const ModelConfig& config = session.value().model->config();
  if (const Status fits =
          check_vocabulary(session.value().directory, format.value()->tokenizer(), config.decoder.vocab);
      !fits.ok())
    return wrong_use(fits.message);
  const ServedModel model(config, session.value().engine->max_model_len(), *format.value(),
                          chat_flags.value(), names_of(options, session.value().directory),
                          options.api.names);
  allow_many_descriptors();
  std::unique_ptr<HttpServer>
      http;  // declared first, because it must outlive the ApiServer, whose threads post work to it
  ApiOptions api = options.api;
  api.max_answer_bytes = options.http.max_pending_bytes;
  ApiServer server(*session.value().engine, model, api, log);
  auto listening = HttpServer::listen(options.http, server);
  if (!listening.ok()) return wrong_use(listening.status().message);
  http = std::move(listening).value();
  server.attach(*http);
  for (const auto& some : {options.notes, notes.value()})
    for (const std::string& note : some) server.log("", note);
  if (!chats.ok()) server.log("", "chats are disabled, only completions are served: " + chats.message);
  server.log("", "serving " + model.names().front() + " at " + http->url());
  log.flush();
  std::printf("%s\n", http->url().c_str());
  if (!output_arrives()) return kExitWrongUse;  // main() prints the error
  http->run();
  return kExitOk;
}

int serve_model(const ServeOptions& options) {
  try {
    ServerLog log(options.api.log);
    return serve(options, log);
  } catch (const std::system_error& error) {
    return wrong_use("cannot start the server's threads: " + error.code().message());
  }
}

}  // namespace sluice::apps
