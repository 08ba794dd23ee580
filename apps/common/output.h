// Standard output: what was written must have arrived, or the command has failed.
#pragma once

namespace sluice::apps {

// Opens what the caller closed of descriptors 0, 1 and 2, such that reads and writes fail: a file opened later must not become
// standard output. First thing in main().
void open_standard_streams();

// Whether standard output has taken everything so far.
bool output_arrives();

// Flushes standard output. If something did not arrive: one error on standard error, and kExitWrongUse in place of `status`.
int finish_output(int status);

}  // namespace sluice::apps
