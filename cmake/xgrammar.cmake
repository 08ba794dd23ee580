# xgrammar (Apache-2.0): the core of its source package from PyPI, for structured output. Fetched once, into build/xgrammar, where
# every preset finds it; where it cannot be had, SLUICE_HAS_XGRAMMAR is OFF and src/grammar says so to who asks for a grammar.
set(SLUICE_HAS_XGRAMMAR OFF)
if(NOT SLUICE_XGRAMMAR)
  return()
endif()
find_package(Python3 COMPONENTS Interpreter)
set(version 0.2.8)
set(archive xgrammar-${version}.tar.gz)
set(sha256 8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80)
set(fetched ${CMAKE_SOURCE_DIR}/build/xgrammar)
set(source ${fetched}/xgrammar-${version})

# As CMake's file(SHA256), of a file that may be absent.
function(hash_of file to)
  set(hash "no file")
  if(EXISTS ${file})
    file(SHA256 ${file} hash)
  endif()
  set(${to} ${hash} PARENT_SCOPE)
endfunction()

if(NOT EXISTS ${source}/unpacked)
  hash_of(${fetched}/${archive} found)
  if(NOT "${found}" STREQUAL "${sha256}")
    file(REMOVE ${fetched}/${archive})
    message(STATUS "fetching xgrammar ${version} (2.7 MB) into build/xgrammar")
    # pip knows where its index is. It asks the package's own build tool for its name, which takes some seconds.
    execute_process(COMMAND ${Python3_EXECUTABLE} -m pip download --quiet --disable-pip-version-check --no-deps --no-binary=xgrammar
                            --dest ${fetched} xgrammar==${version} OUTPUT_QUIET ERROR_VARIABLE said)
    hash_of(${fetched}/${archive} found)
  endif()
  if(NOT "${found}" STREQUAL "${sha256}")
    file(REMOVE ${fetched}/${archive})
    message(WARNING "structured output is left out: wanted ${archive} by pip with sha256 ${sha256}, found ${found}: ${said}"
                    "Put the file into build/xgrammar by hand, or say -DSLUICE_XGRAMMAR=OFF.")
    return()
  endif()
  file(ARCHIVE_EXTRACT INPUT ${fetched}/${archive} DESTINATION ${fetched}
       PATTERNS xgrammar-${version}/LICENSE xgrammar-${version}/NOTICE xgrammar-${version}/cpp/* xgrammar-${version}/include/*
                xgrammar-${version}/3rdparty/picojson/* xgrammar-${version}/3rdparty/dlpack/include/*)
  file(TOUCH ${source}/unpacked)
endif()

# Without the bindings to Python. In few pieces: most of a compilation is headers that all files share, and this takes half the
# time. -O1: at -O2 grammars and masks take the same time (201,000 tokens: a schema of three properties 3.3 and 3.5 s on one slow
# core, a mask 0.8 and 0.7 ms).
file(GLOB sources ${source}/cpp/*.cc ${source}/cpp/converter_ext/*.cc ${source}/cpp/support/*.cc)
add_library(sluice_xgrammar STATIC ${sources} ${CMAKE_CURRENT_LIST_DIR}/xgrammar_log.cc)
set_target_properties(sluice_xgrammar PROPERTIES CXX_STANDARD 17 UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 14)
target_compile_options(sluice_xgrammar PRIVATE -w)
if(SLUICE_SANITIZE STREQUAL "undefined")
  target_compile_options(sluice_xgrammar PRIVATE -fno-sanitize=undefined)  # not ours to mend
endif()
sluice_cold(sluice_xgrammar)
target_compile_definitions(sluice_xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                           XGRAMMAR_LOG_CUSTOMIZE=1)
target_include_directories(sluice_xgrammar SYSTEM PUBLIC ${source}/include ${source}/3rdparty/dlpack/include
                           PRIVATE ${source}/cpp ${source}/3rdparty/picojson)
set(SLUICE_HAS_XGRAMMAR ON)
set(SLUICE_XGRAMMAR_SOURCE ${source})
