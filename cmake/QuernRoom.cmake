# Flags and helpers shared by every room (top-level folder) of the project.

add_library(quern_flags INTERFACE)

# What users of the libraries need too: the headers.
add_library(quern_headers INTERFACE)
target_include_directories(quern_headers INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                   $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}>)
target_compile_features(quern_headers INTERFACE cxx_std_20)
target_link_libraries(quern_flags INTERFACE quern_headers)

target_compile_options(quern_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
# g++ 12 sees an overlap in `"text" + std::string` that is not there (GCC bug 105651).
target_compile_options(quern_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
# g++ collects its garbage less often: a tenth of the time to compile, for up to 600 MB of memory a compiler.
target_compile_options(quern_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=600000>)
if(QUERN_WERROR)
  target_compile_options(quern_flags INTERFACE -Werror)
endif()
# No contraction of a*b+c behind our back: results must not depend on where the compiler saw a chance.
target_compile_options(quern_flags INTERFACE -ffp-contract=off)
if(QUERN_SANITIZE)
  target_compile_options(quern_flags INTERFACE -fsanitize=address,undefined -fno-omit-frame-pointer
                                               -fno-sanitize-recover=undefined)
  target_link_options(quern_flags INTERFACE -fsanitize=address,undefined)
endif()

if(QUERN_FUZZ)
  target_compile_options(quern_flags INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-omit-frame-pointer
                                               -fno-sanitize-recover=undefined)
  target_link_options(quern_flags INTERFACE -fsanitize=address,undefined)
endif()

# quern_objects(name [LINK lib...]): an object library of all *.cpp of the current folder (not of sub-folders).
function(quern_objects name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cpp)
  add_library(${name} OBJECT ${sources})
  target_link_libraries(${name} PUBLIC quern_flags ${ARG_LINK})
endfunction()

# quern_library(target OUTPUT name ROOMS object-library... [LINK lib...]): one shared library of the given rooms, with
# what they link; rooms that do not exist are left out.
function(quern_library target)
  cmake_parse_arguments(ARG "" "OUTPUT" "ROOMS;LINK" ${ARGN})
  set(rooms)
  foreach(room ${ARG_ROOMS})
    if(TARGET ${room})
      list(APPEND rooms ${room})
    endif()
  endforeach()
  if(NOT rooms)
    add_library(${target} INTERFACE)
    return()
  endif()
  add_library(${target} SHARED)
  target_link_libraries(${target} PRIVATE quern_flags ${rooms} PUBLIC quern_headers ${ARG_LINK})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${ARG_OUTPUT} VERSION ${PROJECT_VERSION}
                                             SOVERSION ${PROJECT_VERSION_MAJOR})
endfunction()
