# Writes TO, a source file that names the commit of the checkout SOURCE: "e50779f", with "-dirty" appended if tracked files differ from
# the commit, or "unknown" if SOURCE is not a checkout or git is missing. Runs in every build; touches TO only if it changes.
find_package(Git QUIET)
set(commit unknown)
if(GIT_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} rev-parse --show-prefix WORKING_DIRECTORY ${SOURCE}
                  OUTPUT_VARIABLE inside RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed AND inside STREQUAL "")  # SOURCE is the root of a checkout, not a folder in another project's checkout
    execute_process(COMMAND ${GIT_EXECUTABLE} describe --always --dirty --abbrev=7 --exclude=* WORKING_DIRECTORY ${SOURCE}
                    OUTPUT_VARIABLE described RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(NOT failed)
      set(commit ${described})
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${TO} @ONLY CONTENT [[
#include "cuda/commit.h"

namespace sluice::bench {
const char* commit() { return "@commit@"; }
}  // namespace sluice::bench
]])
