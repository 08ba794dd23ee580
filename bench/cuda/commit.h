// The version in Sluice's rows: the commit of the build, with "-dirty" appended if files differed, or "unknown".
#pragma once

namespace sluice::bench {

const char* commit();  // bench/cuda/commit.cmake writes its definition in every build

}  // namespace sluice::bench
