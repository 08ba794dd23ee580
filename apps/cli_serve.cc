// The subcommand serve. Flags are spelled as vLLM spells them; limits have names of their own.
#include <memory>

#include "apps/cli.h"
#include "apps/commands.h"
#include "apps/serve/serve_command.h"

namespace sluice::apps {
namespace {

constexpr double kSecondsMax = 1e6;

void add_server_flags(CLI::App* app, ServeOptions* o) {
  const char* group = "Server";
  app->add_option("--host", o->http.host, "the address to listen on; 0.0.0.0: every one of IPv4")
      ->capture_default_str()
      ->group(group);
  app->add_option("--port", o->http.port, "0: any that is free")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, 65535));
  app->add_option("--api-key", o->api.api_keys,
                  "wanted of every client; may stand several times, or in SLUICE_API_KEY")
      ->allow_extra_args(false)
      ->envname("SLUICE_API_KEY")
      ->group(group);
  app->add_option("--served-model-name,--alias", o->served_names,
                  "names of the model; none: that of its directory, and as it was typed")
      ->group(group);
}

void add_limit_flags(CLI::App* app, ServeOptions* o) {
  const char* group = "Limits";
  app->add_option("--max-queue", o->api.max_queue, "sequences that wait; more get 429")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, 1 << 20));
  app->add_option("--max-body-bytes", o->http.max_body_bytes, "of a request; more get 413")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1, int64_t{1} << 32));
  app->add_option("--max-output-bytes", o->http.max_output_bytes,
                  "of a stream that its client leaves unread; more close it")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1024, int64_t{1} << 32));
  app->add_option("--max-connections", o->http.max_connections, "open at once; more are closed")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1, 1 << 20));
  app->add_option("--request-timeout", o->api.request_timeout, "seconds of an answer; 0: no bound")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, kSecondsMax));
  app->add_option("--read-timeout", o->http.read_timeout, "seconds in which all of a request must come")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.1, kSecondsMax));
  app->add_option("--write-timeout", o->http.write_timeout, "seconds in which a client must read something")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.1, kSecondsMax));
  app->add_option("--drain-seconds", o->api.drain_seconds,
                  "for requests that run when SIGTERM or SIGINT asks it to end")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, kSecondsMax));
}

}  // namespace

Command add_serve(CLI::App& root) {
  CLI::App* app = root.add_subcommand("serve", "the OpenAI API over a model");
  const auto options = std::make_shared<ServeOptions>();
  add_model_flags(app, &options->model);
  add_chat_flags(app, &options->chat);
  add_server_flags(app, options.get());
  add_limit_flags(app, options.get());
  app->allow_extras();
  return {app, [app, options] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            options->api.quiet = options->model.quiet;
            return serve_model(*options);
          }};
}

}  // namespace sluice::apps
