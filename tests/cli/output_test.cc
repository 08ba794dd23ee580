// A command whose output is lost fails.
#include <gtest/gtest.h>

#include <string>

#include "harness/process.h"

namespace sluice::test {
namespace {

Outcome shell(const std::string& line) { return run_process({"sh", "-c", line, "sh", SLUICE_COMMAND}); }

const char* const kCommands[] = {
    "--help",
    "--version",
    "explain",
    "explain router_gemm --device h200",
    "explain router_gemm --contract",
    "inspect",
    "inspect --json",
    "collect-env",
    "devices",
    "devices --json",
    "run -q -p 'What is 1 + 1?'",
    "run -q --json -p 'What is 1 + 1?'",
    "eval -q --json --limit 1",
    "eval -q --limit 1",
};

void expect_lost(const Outcome& o, const std::string& command, const std::string& reason) {
  EXPECT_EQ(o.status, 2) << command;
  EXPECT_EQ(o.err, "sluice: standard output: cannot be written: " + reason + "\n") << command;
}

}  // namespace

TEST(Output, AFullDiskIsAnError) {
  for (const std::string command : kCommands)
    expect_lost(shell("\"$1\" " + command + " > /dev/full"), command, "No space left on device");
}

TEST(Output, AClosedStandardOutputIsAnError) {
  for (const std::string command : kCommands)
    expect_lost(shell("\"$1\" " + command + " >&-"), command, "Bad file descriptor");
}

// Whoever started a server waits for its URL.
TEST(Output, AServerWhoseUrlIsLostEnds) {
  expect_lost(shell("\"$1\" serve -q --port 0 > /dev/full"), "serve", "No space left on device");
  expect_lost(shell("\"$1\" serve -q --port 0 >&-"), "serve", "Bad file descriptor");
}

// A chat ends at the first answer that cannot be written.
TEST(Output, AConversationEndsAtTheFirstLostAnswer) {
  expect_lost(shell("printf 'What is 1 + 1?\\nWhat is 2 + 2?\\n' | \"$1\" run -q > /dev/full"), "run",
              "No space left on device");
}

}  // namespace sluice::test
