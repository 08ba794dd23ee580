# The library of the Python package. It contains the C ABI and the sluice command, sluice_command(argc, argv), so that the package holds
# the kernels once. It also runs on systems older than the build machine: the C++ library is linked statically, and only functions of the
# C library that manylinux_2_34 has are used. `cmake --install BUILD --component python` installs it as _lib/libsluice.so.
# find_package() is repeated, because its result in apps/ is not visible here.
find_package(CLI11 REQUIRED)
add_library(sluice_python SHARED ${CMAKE_SOURCE_DIR}/apps/main.cc ${CMAKE_SOURCE_DIR}/python/command.cc
            ${CMAKE_SOURCE_DIR}/python/older_libc.c $<TARGET_OBJECTS:sluice_capi_objects>)
set_source_files_properties(${CMAKE_SOURCE_DIR}/apps/main.cc PROPERTIES COMPILE_DEFINITIONS main=sluice_main)
set_source_files_properties(${CMAKE_SOURCE_DIR}/python/older_libc.c PROPERTIES COMPILE_OPTIONS -fvisibility=hidden)
target_link_libraries(sluice_python PRIVATE sluice_apps sluice_flags sluice_nn)
sluice_cold(sluice_python)
target_link_options(sluice_python PRIVATE -static-libstdc++ -Wl,--gc-sections
                    -Wl,--version-script=${CMAKE_SOURCE_DIR}/src/capi/sluice.map)
set_target_properties(sluice_python PROPERTIES OUTPUT_NAME sluice LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python
                      LINKER_LANGUAGE CXX LINK_DEPENDS ${CMAKE_SOURCE_DIR}/src/capi/sluice.map)
install(TARGETS sluice_python LIBRARY DESTINATION _lib COMPONENT python EXCLUDE_FROM_ALL)
