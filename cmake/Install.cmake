# cmake --install: the binary, both libraries, headers, a CMake package and a pkg-config file.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quern)
set_target_properties(libquern_runtime PROPERTIES EXPORT_NAME runtime)
set_target_properties(libquern PROPERTIES EXPORT_NAME quern)
target_include_directories(quern_headers INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/quern>)

install(TARGETS quern RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS libquern libquern_runtime quern_headers EXPORT quernTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT quernTargets NAMESPACE quern:: DESTINATION ${package_dir})
foreach(room ir formats runtime calibrate passes)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/quern
          FILES_MATCHING PATTERN "*.h")
endforeach()

configure_package_config_file(cmake/quernConfig.cmake.in quernConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(quernConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/quernConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/quernConfigVersion.cmake
        DESTINATION ${package_dir})
# Relative, so that --prefix at install time is as good as at configure time.
file(RELATIVE_PATH PREFIX_FROM_PKGCONFIG /p/${CMAKE_INSTALL_LIBDIR}/pkgconfig /p)
configure_file(cmake/quern.pc.in quern.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/quern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
