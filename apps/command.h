// The sluice command, with all its subcommands.
#pragma once

namespace sluice::apps {

// main() of the command. Returns its exit status.
int command_main(int argc, char** argv);

}  // namespace sluice::apps
