# cmake --install BUILD --component library --prefix PREFIX installs the header, the C ABI as a shared and as a static library, a CMake
# package and a pkg-config file. Without --component it also installs the sluice command.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
set_target_properties(sluice_capi PROPERTIES EXPORT_NAME sluice)
set_target_properties(sluice_capi_static PROPERTIES EXPORT_NAME static)
install(FILES include/sluice/sluice.h include/sluice/group.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice COMPONENT library)
# Two exports, so that users of the shared library do not need the dependencies of the static one.
foreach(kind shared static)
  if(kind STREQUAL "shared")
    set(target sluice_capi)
  else()
    set(target sluice_capi_static)
  endif()
  install(TARGETS ${target} EXPORT sluice_${kind} COMPONENT library INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT sluice_${kind} NAMESPACE sluice:: FILE sluice-${kind}.cmake DESTINATION ${package} COMPONENT library)
endforeach()

set(SLUICE_STATIC_NEEDS_CUDART 0)
set(private_libraries "-lstdc++ -lm -lpthread")
if(SLUICE_CUDA STREQUAL "ON")
  set(SLUICE_STATIC_NEEDS_CUDART 1)
  string(APPEND private_libraries " -lcudart_static -ldl -lrt")
endif()
configure_package_config_file(cmake/sluice-config.cmake.in ${CMAKE_BINARY_DIR}/sluice-config.cmake INSTALL_DESTINATION ${package})
# Before 1.0 a minor version may be incompatible with the previous one.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/sluice-config-version.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH up_from_pkgconfig /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/sluice.pc.in ${CMAKE_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/sluice-config.cmake ${CMAKE_BINARY_DIR}/sluice-config-version.cmake DESTINATION ${package}
        COMPONENT library)
install(FILES ${CMAKE_BINARY_DIR}/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
