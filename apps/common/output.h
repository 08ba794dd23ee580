// Standard output: a command fails unless all its output has been written.
#pragma once

namespace sluice::apps {

// If the caller closed descriptor 0, 1 or 2, opens it such that reads and writes fail; otherwise a file opened later could become
// standard output. Call it first in main().
void open_standard_streams();

// Whether all output so far has been written without an error.
bool output_arrives();

// Flushes standard output. If output was lost, prints one error on standard error and returns kExitWrongUse instead of `status`.
int finish_output(int status);

}  // namespace sluice::apps
