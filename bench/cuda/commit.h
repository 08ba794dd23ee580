// The version of Sluice's own rows: the commit that was built, "-dirty" behind it where files differed, or "unknown".
#pragma once

namespace sluice::bench {

const char* commit();  // bench/cuda/commit.cmake writes its source in every build

}  // namespace sluice::bench
