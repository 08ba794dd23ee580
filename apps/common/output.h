// Standard output. A command fails unless all its output was written.
#pragma once

namespace sluice::apps {

// Opens descriptors 0, 1 and 2 if the parent process closed them, so that no file opened later gets their numbers. Standard input and output
// are opened such that using them fails. Call it first in main().
void open_standard_streams();

// Whether all output so far has been written without an error.
bool output_arrives();

// Flushes standard output. If output was lost, prints one error on standard error and returns kExitWrongUse instead of `status`.
int finish_output(int status);

}  // namespace sluice::apps
