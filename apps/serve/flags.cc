// The flags of sluice serve. They have vLLM's names, except for limits that vLLM does not have.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/commands.h"
#include "apps/common/flags.h"
#include "apps/serve/serve_command.h"
#include "apps/subcommands.h"

namespace sluice::apps {
namespace {

constexpr double kServerSecondsMax = 1e6;

// The names of the flags, which the server's messages use.
constexpr SettingNames kFlags{.allowed_hosts = "--allowed-hosts",
                              .api_keys = "--api-key",
                              .max_queue = "--max-queue",
                              .request_timeout = "--request-timeout",
                              .max_answer_bytes = "--max-pending-bytes",
                              .max_body_bytes = "--max-body-bytes",
                              .max_pending_bytes = "--max-pending-bytes",
                              .max_model_len = "--max-model-len",
                              .max_num_seqs = "--max-num-seqs"};

// Validates an API key. Errors do not show the key.
CLI::Validator usable_key() {
  const auto check = [](const std::string& word) -> std::string {
    const auto plain = [](char c) { return c >= ' ' && c < 127; };
    if (word.empty()) return "wanted a key, found none";
    // HTTP strips blanks around a header's value.
    const bool fits =
        std::all_of(word.begin(), word.end(), plain) && word.front() != ' ' && word.back() != ' ';
    return fits ? "" : "wanted printable ASCII without blanks around it, found another character in a key";
  };
  return CLI::Validator(check, "");
}

// Removes the brackets that an IPv6 address has in URLs.
void drop_brackets(std::string* host) {
  if (host->starts_with('[') && host->ends_with(']') && host->find(':') != std::string::npos)
    *host = host->substr(1, host->size() - 2);
}

using ReadNames = Result<std::vector<std::string>> (*)(std::string_view text);

void add_name_list(CLI::App* app, const char* flag, ReadNames read_names, std::vector<std::string>* names,
                   const char* what) {
  const auto check = [read_names](const std::string& word) {
    const auto read = read_names(word);
    return read.ok() ? std::string() : read.status().message;
  };
  const auto add = [read_names, names](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      const auto read = read_names(word);  // checked above
      names->insert(names->end(), read.value().begin(), read.value().end());
    }
  };
  app->add_option_function<std::vector<std::string>>(flag, add, what)
      ->allow_extra_args(false)
      ->group("Server")
      ->check(CLI::Validator(check, ""));
}

void add_server_flags(CLI::App* app, ServeOptions* o) {
  const char* group = "Server";
  app->add_option("--host", o->http.host, "address to listen on; 0.0.0.0: all IPv4 addresses")
      ->capture_default_str()
      ->group(group)
      ->check(some_text());
  app->add_option("--port", o->http.port, "port to listen on; 0: any free port")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, 65535));
  app->add_option("--api-key", o->api.access.api_keys,
                  "API key that clients must send; may be repeated, or set in SLUICE_API_KEY")
      ->allow_extra_args(false)
      ->envname("SLUICE_API_KEY")
      ->group(group)
      ->check(usable_key());
  add_name_list(
      app, "--allowed-hosts", read_hosts, &o->api.access.allowed_hosts,
      "host names that clients may use if no API key is set, besides addresses and names without a dot; "
      "*: any");
  add_name_list(app, "--allowed-origins", read_origins, &o->api.access.allowed_origins,
                "origins whose pages may send requests (CORS), such as https://chat.example; *: any; "
                "default: only the server's own page");
  app->add_option_function<std::string>(
         "--log-format",
         [o](const std::string& word) { o->api.log = word == "json" ? LogFormat::kJson : LogFormat::kText; },
         "text: readable lines; json: one object per line, with request_id, counts and times")
      ->check(CLI::IsMember({"text", "json"}))
      ->default_str("text")
      ->group(group);
}

// For --served-model-name: a list of names before the model's directory also takes the directory as a name. take_model() corrects this.
struct ServedNames {
  std::optional<size_t> last_of_list;  // index into ServeOptions::served_names
};

void add_served_names(CLI::App* app, ServeOptions* o, ServedNames* names) {
  app->add_option_function<std::vector<std::string>>(
         "--served-model-name,--alias",
         [o, names](const std::vector<std::string>& words) {
           o->served_names.insert(o->served_names.end(), words.begin(), words.end());
           if (words.size() > 1) names->last_of_list = o->served_names.size() - 1;
         },
         "names of the model for clients; default: its directory's name and the name as typed. If no model "
         "is "
         "given, the last of several names is the model")
      ->trigger_on_parse()
      ->group("Server")
      ->check(some_text());
}

Status take_model(const ServedNames& names, ServeOptions* o) {
  if (!o->model.model.empty()) return {};
  if (names.last_of_list) {
    const auto at = o->served_names.begin() + static_cast<std::ptrdiff_t>(*names.last_of_list);
    o->model.model = *at;
    o->served_names.erase(at);
    return {};
  }
  std::error_code error;
  for (const std::string& name : o->served_names)
    if (std::filesystem::exists(std::filesystem::path(name) / "config.json", error))
      return invalid("--served-model-name: wanted a name, found the model's directory '" + name +
                     "'; use serve DIR --served-model-name NAME");
  return {};
}

void add_limit_flags(CLI::App* app, ServeOptions* o) {
  const char* group = "Limits";
  app->add_option("--max-queue,--max-queued-requests", o->api.max_queue,
                  "maximum waiting sequences; further requests get 429")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(0, 1 << 20));
  app->add_option("--max-body-bytes", o->http.max_body_bytes,
                  "maximum bytes of a request; larger ones get 413")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1, int64_t{1} << 32));
  app->add_option(
         "--max-pending-bytes", o->http.max_pending_bytes,
         "maximum total bytes of request bodies (further requests get 503); the same limit holds for "
         "kept log probabilities and for unsent answers")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1024, int64_t{1} << 40));
  app->add_option(
         "--max-output-bytes", o->http.max_output_bytes,
         "maximum unread bytes of a stream, in addition to the bytes of one step; a connection with more "
         "for a second is closed")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1024, int64_t{1} << 32));
  app->add_option("--max-connections", o->http.max_connections,
                  "maximum open connections; further ones are closed")
      ->capture_default_str()
      ->group(group)
      ->check(integer_between(1, 1 << 20));
  app->add_option("--request-timeout", o->api.request_timeout,
                  "seconds until an answer must be complete; 0: no limit")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, kServerSecondsMax));
  app->add_option("--read-timeout", o->http.read_timeout, "seconds to receive a whole request")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.1, kServerSecondsMax));
  app->add_option("--write-timeout", o->http.write_timeout,
                  "seconds without progress until a client that does not read is disconnected")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0.1, kServerSecondsMax));
  app->add_option("--drain-seconds", o->api.drain_seconds,
                  "grace period in seconds for running requests at shutdown (SIGTERM or SIGINT)")
      ->capture_default_str()
      ->group(group)
      ->check(number_between(0, kServerSecondsMax));
}

// Flags of other servers that Sluice accepts and ignores, because their accepted values ask only for what Sluice does anyway.
struct ForeignFlag {
  const char* names;
  std::vector<std::string> values;  // the accepted values; empty: the flag takes no value
  const char* meaning;
};

const std::vector<ForeignFlag>& foreign_flags() {
  static const char* const divided = "Sluice splits a model only by --tensor-parallel-size";
  static const char* const calls = "the chat format defines tool calls";
  static const std::vector<ForeignFlag> flags{
      {"--reasoning-format", {"auto", "deepseek"}, "reasoning is always reported separately"},
      {"--enable-auto-tool-choice", {}, calls},
      {"--jinja", {}, "prompts use the built-in chat format, not a template"},
      {"--trust-remote-code", {}, "Sluice never runs code of a model"},
      {"--pipeline-parallel-size,--pp-size,--pp", {"1"}, divided},
      {"--data-parallel-size,--dp-size,--dp", {"1"}, divided},
      {"--n-gpu-layers,--gpu-layers,--ngl",
       {"all", "auto", "99", "999"},
       "a whole model runs on one device: --device"},
      {"--enable-chunked-prefill", {}, "prefill is always chunked: --max-num-batched-tokens"},
      {"--async-scheduling", {}, "use --steps-ahead instead"},
      {"--disable-log-requests,--no-enable-log-requests", {}, "every request is logged; use -q for no log"},
      {"--metrics,--enable-metrics", {}, "/metrics is always available"}};
  return flags;
}

CLI::Validator what_it_is_here(const ForeignFlag& flag) {
  const std::string wanted = CLI::detail::join(flag.values, ", ") + " (" + flag.meaning + ")";
  const auto check = [values = flag.values, wanted](const std::string& word) {
    const bool known = std::find(values.begin(), values.end(), word) != values.end();
    return known ? std::string() : "wanted " + wanted + ", found '" + word + "'";
  };
  return CLI::Validator(check, "{" + CLI::detail::join(flag.values) + "}");
}

constexpr const char* kForeignGroup = "Known from other servers";

// Adds flags of other servers whose values can be checked only once the model is known.
void add_flags_of_the_model(CLI::App* app, OtherServersFlags* o) {
  struct Flag {
    const char* name;
    std::string* value;
    const char* meaning;
  };
  for (const Flag& f : {Flag{"--reasoning-parser", &o->reasoning_parser,
                             "auto, or vLLM's or SGLang's name of the chat format, which defines reasoning"},
                        Flag{"--tool-call-parser", &o->tool_call_parser,
                             "auto, or vLLM's or SGLang's name of the chat format, which defines tool calls"},
                        Flag{"--quantization", &o->quantization,
                             "auto, mxfp4, fp8, mxfp8 or nvfp4; must match the checkpoint"}})
    app->add_option(f.name, *f.value, f.meaning)->group(kForeignGroup)->check(some_text());
}

void add_foreign_flags(CLI::App* app, ServeOptions* o) {
  for (const ForeignFlag& f : foreign_flags()) {
    const std::string names = f.names;
    const std::string note = names.substr(0, names.find(',')) + ": " + f.meaning;
    CLI::Option* option =
        f.values.empty()
            ? app->add_flag_callback(
                  names, [o, note] { o->notes.push_back(note); }, f.meaning)
            : app->add_option_function<std::string>(
                     names, [o, note](const std::string&) { o->notes.push_back(note); }, f.meaning)
                  ->check(what_it_is_here(f));
    option->group(kForeignGroup);
  }
}

}  // namespace

Command add_serve(CLI::App& root) {
  CLI::App* app = root.add_subcommand("serve", "serve a model over the OpenAI API");
  const auto options = std::make_shared<ServeOptions>();
  options->http.names = options->api.names = kFlags;
  add_model_flags(app, &options->model);
  add_chat_flags(app, &options->chat);
  add_server_flags(app, options.get());
  const auto names = std::make_shared<ServedNames>();
  add_served_names(app, options.get(), names.get());
  add_limit_flags(app, options.get());
  add_flags_of_the_model(app, &options->other_servers);
  add_foreign_flags(app, options.get());
  app->allow_extras();
  return {app, [app, options, names] {
            if (const Status status = unknown_flag(*app); !status.ok()) return wrong_use(status.message);
            if (const Status status = take_model(*names, options.get()); !status.ok())
              return wrong_use(status.message);
            // CLI11 treats an empty environment variable as if it were not set, so this is checked here.
            const char* key = std::getenv("SLUICE_API_KEY");
            if (options->api.access.api_keys.empty() && key != nullptr && *key == '\0')
              return wrong_use("SLUICE_API_KEY: wanted a key, found none; unset it to serve without a key");
            if (options->model.quiet) options->api.log = LogFormat::kNone;
            drop_brackets(&options->http.host);
            options->api.access.host = options->http.host;
            return serve_model(*options);
          }};
}

}  // namespace sluice::apps
