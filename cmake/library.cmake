# libflashjit: all rooms in one library, static or shared, and its installation. find_package(flashjit) gives flashjit::flashjit.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(flashjit_rooms templates generator cache runtime emulator autotune api)
list(TRANSFORM flashjit_rooms REPLACE "(.+)" "$<TARGET_OBJECTS:flashjit_\\1>" OUTPUT_VARIABLE flashjit_objects)
add_library(flashjit ${flashjit_objects} ${flashjit_fmt_objects})
add_library(flashjit::flashjit ALIAS flashjit)
target_compile_features(flashjit PUBLIC cxx_std_20)
target_include_directories(flashjit PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(flashjit PUBLIC Threads::Threads ${CMAKE_DL_LIBS})
# Before 1.0 a minor version may change the API, so no other minor version may be loaded instead.
set_target_properties(flashjit PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                                          LINKER_LANGUAGE CXX)
if(FLASHJIT_SANITIZE)
  target_link_options(flashjit PUBLIC -fsanitize=${FLASHJIT_SANITIZE})
elseif(BUILD_SHARED_LIBS)
  # A shared library exports only the API, and a missing symbol must fail here, not in the user's program.
  set(flashjit_exports ${CMAKE_CURRENT_LIST_DIR}/exports.map)
  target_link_options(flashjit PRIVATE -Wl,--no-undefined -Wl,--version-script=${flashjit_exports})
  set_target_properties(flashjit PROPERTIES LINK_DEPENDS ${flashjit_exports})
endif()

if(FLASHJIT_INSTALL)
  set(flashjit_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/flashjit)
  install(TARGETS flashjit EXPORT flashjit-targets COMPONENT flashjit
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT flashjit
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT flashjit)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/flashjit DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT flashjit)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/THIRD_PARTY.md DESTINATION ${CMAKE_INSTALL_DOCDIR}
          COMPONENT flashjit)
  install(EXPORT flashjit-targets NAMESPACE flashjit:: DESTINATION ${flashjit_cmake_dir} COMPONENT flashjit)
  configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/flashjit-config.cmake.in
                                ${PROJECT_BINARY_DIR}/flashjit-config.cmake INSTALL_DESTINATION ${flashjit_cmake_dir})
  # Before 1.0 a minor version may change the API.
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/flashjit-config-version.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/flashjit-config.cmake ${PROJECT_BINARY_DIR}/flashjit-config-version.cmake
          DESTINATION ${flashjit_cmake_dir} COMPONENT flashjit)
  # Libs also names what a static library needs, so that users need not know which kind is installed.
  file(RELATIVE_PATH flashjit_pc_include ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
  set(flashjit_pc_libs)
  if(NOT BUILD_SHARED_LIBS)
    set(flashjit_pc_libs "-lstdc++ -lm -pthread -ldl")
  endif()
  configure_file(${CMAKE_CURRENT_LIST_DIR}/flashjit.pc.in ${PROJECT_BINARY_DIR}/flashjit.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/flashjit.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT flashjit)
endif()
