# flashjit_room(NAME SOURCES …): an object library flashjit_NAME with this project's flags.
# flashjit_test(NAME [NVRTC] ROOMS … SOURCES … [LABEL unit|emulated|gpu]): a doctest program and its ctest entry. With NVRTC it compiles kernels, and
# is skipped where it cannot.

if(NOT PROJECT_IS_TOP_LEVEL)
  # A surrounding project may be strict with its own code, but warnings of compilers that we have not seen must not break its build.
  set(CMAKE_COMPILE_WARNING_AS_ERROR OFF)
endif()

# A surrounding project, or whoever builds this one, may set it for all files, but names in ours are local to each file.
set(CMAKE_UNITY_BUILD OFF)

add_library(flashjit_flags INTERFACE)
target_compile_features(flashjit_flags INTERFACE cxx_std_20)
target_compile_options(flashjit_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers)
# The headers in templates/params include each other as templates do.
target_include_directories(flashjit_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include
                           ${PROJECT_SOURCE_DIR}/templates)
target_include_directories(flashjit_flags SYSTEM INTERFACE ${FLASHJIT_XXHASH_INCLUDE} ${FLASHJIT_MUSTACHE_INCLUDE}
                           ${FLASHJIT_CUDA_INCLUDE} ${FLASHJIT_NVRTC_INCLUDE})
target_compile_definitions(flashjit_flags INTERFACE FLASHJIT_VERSION="${PROJECT_VERSION}")
target_link_libraries(flashjit_flags INTERFACE nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
get_target_property(flashjit_fmt_include fmt::fmt-header-only INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(flashjit_flags SYSTEM INTERFACE ${flashjit_fmt_include})
if(fmt_VERSION AND fmt_VERSION VERSION_LESS 10)  # a parent that builds fmt itself may not set this
  # Compiles fmt's non-header half once, instead of in every source file that includes it.
  add_library(flashjit_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt_once.cpp)
  target_compile_features(flashjit_fmt PRIVATE cxx_std_20)
  target_include_directories(flashjit_fmt SYSTEM PRIVATE ${flashjit_fmt_include})
  set_target_properties(flashjit_fmt PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
  target_link_libraries(flashjit_flags INTERFACE flashjit_fmt)
  set(flashjit_fmt_objects $<TARGET_OBJECTS:flashjit_fmt>)
else()
  target_compile_definitions(flashjit_flags INTERFACE FMT_HEADER_ONLY)
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  # By default ccache does not cache what was compiled with a precompiled header.
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
endif()
if(FLASHJIT_SANITIZE)
  target_compile_options(flashjit_flags INTERFACE -fsanitize=${FLASHJIT_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(flashjit_flags INTERFACE -fsanitize=${FLASHJIT_SANITIZE})
endif()

function(flashjit_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  add_library(flashjit_${name} OBJECT ${ARG_SOURCES})
  target_link_libraries(flashjit_${name} PRIVATE flashjit_flags)
  set_target_properties(flashjit_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON
                        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
endfunction()

function(flashjit_test name)
  cmake_parse_arguments(ARG "NVRTC" "LABEL" "SOURCES;ROOMS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  list(TRANSFORM ARG_ROOMS PREPEND flashjit_)
  set(main flashjit_test_main)
  if(ARG_NVRTC)
    set(main flashjit_test_main_nvrtc)
  endif()
  target_link_libraries(${name} PRIVATE flashjit_flags ${main} ${ARG_ROOMS})
  target_precompile_headers(${name} REUSE_FROM flashjit_test_main)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} SKIP_RETURN_CODE 77
                       ENVIRONMENT "TSAN_OPTIONS=halt_on_error=1:suppressions=${PROJECT_SOURCE_DIR}/tests/tsan.supp")
endfunction()
