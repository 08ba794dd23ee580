// How many files and connections this process may have open.
#pragma once

namespace sluice::apps {

// A connection is a descriptor, and systems lend few of them until they are asked: asks for all that this process may have.
void allow_many_descriptors();

}  // namespace sluice::apps
