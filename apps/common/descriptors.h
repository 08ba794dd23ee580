// This process's limit of open files and connections.
#pragma once

namespace sluice::apps {

// Raises the soft limit of open descriptors to the hard limit, because every connection needs one.
void allow_many_descriptors();

}  // namespace sluice::apps
