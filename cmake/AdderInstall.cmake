# Installs the library with its public headers and a CMake package, so that another project says
# find_package(adder) and links adder::adder. Contract headers of operations are installed by
# adder_add_op. The bundled model goes along, for the command line tool to find.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/adder)
install(TARGETS adder EXPORT adderTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET adder_cli)
  install(TARGETS adder_cli)
endif()
# include/adder/ops is a link to src/ops, which holds more than contract headers.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/adder DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
       
        FILES_MATCHING PATTERN "*.h" PATTERN ops EXCLUDE)
install(EXPORT adderTargets NAMESPACE adder:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/adderConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/adderConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/adderConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/adderConfig.cmake ${PROJECT_BINARY_DIR}/adderConfigVersion.cmake
        DESTINATION ${package_dir})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/books-11m
        DESTINATION ${CMAKE_INSTALL_DATADIR}/adder/models)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
