# flashjit_room(NAME SOURCES …): an object library flashjit_NAME with this project's flags.
# flashjit_test(NAME ROOMS … SOURCES … [LABEL unit|emulated|gpu]): a doctest program and its ctest entry.

add_library(flashjit_flags INTERFACE)
target_compile_features(flashjit_flags INTERFACE cxx_std_20)
target_compile_options(flashjit_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers)
target_include_directories(flashjit_flags INTERFACE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_include_directories(flashjit_flags SYSTEM INTERFACE ${FLASHJIT_XXHASH_INCLUDE} ${FLASHJIT_MUSTACHE_INCLUDE}
                           ${FLASHJIT_CUDA_INCLUDE} ${FLASHJIT_NVRTC_INCLUDE})
target_link_libraries(flashjit_flags INTERFACE fmt::fmt-header-only nlohmann_json::nlohmann_json Threads::Threads ${CMAKE_DL_LIBS})
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
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;ROOMS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/main.cpp)
  list(TRANSFORM ARG_ROOMS PREPEND flashjit_)
  target_link_libraries(${name} PRIVATE flashjit_flags ${ARG_ROOMS})
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS ${ARG_LABEL} SKIP_RETURN_CODE 77)
endfunction()
