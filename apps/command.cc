#include "apps/command.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>

#include "apps/common/commands.h"
#include "apps/common/examples.h"
#include "apps/common/output.h"
#include "apps/subcommands.h"
#include "base/printable.h"
#include "graph/any_op.h"

namespace sluice::apps {

int wrong_use(std::string_view message) {
  std::fprintf(stderr, "sluice: %s\n", printable(message).c_str());
  return kExitWrongUse;
}

namespace {

constexpr const char* kCommandExamples = R"(Examples:
  sluice run -p "What is 417 + 268?"          asks the model that ships with Sluice
  sluice run DIR                              a conversation with the model in DIR
  sluice serve                                the OpenAI API over that model
  sluice eval                                 accuracy of each task
  sluice explain --model DIR --tokens 64 --device h200
  sluice explain                              lists the operations
  sluice explain router_gemm --contract       its fields and tensors
  sluice explain router_gemm --tokens 1 --experts 128 --hidden 2880 --bias --device h200
  sluice explain expert_gemm --rows 256 --experts 128 --sweep tokens --tokens-max 4096 --json
  sluice moe gpt-oss-120b --tokens 1,8,64     a layer on this machine, checked and timed
  sluice devices
  sluice collect-env

Details: sluice COMMAND --help. Exit status: 0: success; 1: no kernel supports the problem; 2: wrong usage or an
error, also if the answer could not be written.)";

// Returns an error if the first word is neither a flag nor a subcommand.
Status unknown_command(const CLI::App& root, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return {};
  std::vector<std::string> known;
  for (const CLI::App* command : root.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == argv[1]) return {};
    known.push_back(command->get_name());
  }
  return unknown_name("command", argv[1], known);
}

// vLLM, SGLang and llama.cpp have long names with one dash, such as -tp. CLI11 would read "-tp 1" as "-t p", so this turns it into "--tp 1".
std::vector<std::string> with_two_dashes(const CLI::App& root, std::vector<std::string> words) {
  const CLI::App* app = &root;
  for (std::string& word : words) {
    const auto named = app->get_subcommands([&](const CLI::App* a) { return a->get_name() == word; });
    if (!named.empty()) app = named.front();
    if (word.size() < 3 || word[0] != '-' || word[1] == '-') continue;
    if (app->get_option_no_throw('-' + word.substr(0, word.find('=')))) word.insert(0, "-");
  }
  return words;
}

// The command whose flags were read last, such as "sluice bench serve".
std::string name_of_parsed(const CLI::App& root) {
  std::string name = root.get_name();
  for (const CLI::App* app = &root; !app->get_subcommands().empty();) {
    app = app->get_subcommands().front();
    name += " " + app->get_name();
  }
  return name;
}

int parse_and_run(int argc, char** argv) {
  CLI::App root("Sluice: fast Mixture-of-Experts layers that explain their choice of kernels.", "sluice");
  root.set_version_flag("--version", std::string("sluice ") + SLUICE_VERSION);
  root.footer(kCommandExamples);
  root.require_subcommand(0, 1);
  const std::vector<std::string> words(argv + std::min(argc, 2), argv + argc);
  const Command commands[] = {add_run(root),
                              add_serve(root),
                              add_eval(root),
                              add_explain(root, words),
                              add_bench(root),
                              add_inspect(root),
                              add_make_checkpoint(root),
                              add_moe(root),
                              add_devices(root),
                              add_collect_env(root)};
  const std::string program = argc > 0 ? argv[0] : "sluice";
  for (const Command& command : commands) {
    const std::string examples = examples_of(command.app->get_name(), program);
    command.app->footer(examples);
    for (CLI::App* part : command.app->get_subcommands([](const CLI::App*) { return true; })) {
      const std::string own = examples_of(command.app->get_name() + " " + part->get_name(), program);
      part->footer(own.empty() ? examples : own);
    }
  }
  try {
    std::vector<std::string> all = with_two_dashes(root, {argv + std::min(argc, 1), argv + argc});
    if (const Status status = set_apart_values(root, &all); !status.ok()) return wrong_use(status.message);
    std::reverse(all.begin(), all.end());  // CLI11 expects this order
    root.parse(std::move(all));
  } catch (const CLI::Success& success) {  // --help or --version
    return root.exit(success), kExitOk;
  } catch (const CLI::ParseError& error) {
    if (const Status status = unknown_command(root, argc, argv); !status.ok())
      return wrong_use(status.message);
    return wrong_use(wanted_and_found(error) + " (see " + name_of_parsed(root) + " --help)");
  }
  for (const Command& command : commands)
    if (command.app->parsed()) return command.run();
  std::fputs(root.help().c_str(), stderr);
  return kExitWrongUse;
}

}  // namespace

int command_main(int argc, char** argv) {
  open_standard_streams();
  try {
    return finish_output(parse_and_run(argc, argv));
  } catch (const std::bad_alloc&) {
    return wrong_use("out of memory: the system refused a small allocation");
  } catch (const std::exception& error) {
    return wrong_use(error.what());
  }
}

}  // namespace sluice::apps
