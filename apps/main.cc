// The sluice command.
#include "apps/command.h"

int main(int argc, char** argv) { return sluice::apps::command_main(argc, argv); }
