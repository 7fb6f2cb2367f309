# Warnings, sanitizers and ccache for the project's own targets.
find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${LOCKSTEP_CCACHE})
endif()

add_library(lockstep_options INTERFACE)
target_compile_options(lockstep_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)

if(LOCKSTEP_SANITIZE STREQUAL "address")
  set(sanitizer -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
  set(sanitizer -fsanitize=thread -fno-omit-frame-pointer)
elseif(NOT LOCKSTEP_SANITIZE STREQUAL "")
  message(FATAL_ERROR "LOCKSTEP_SANITIZE='${LOCKSTEP_SANITIZE}'; accepted: address, thread or empty")
endif()
if(sanitizer)
  target_compile_options(lockstep_options INTERFACE ${sanitizer})
  target_link_options(lockstep_options INTERFACE ${sanitizer})
endif()

# lockstep_library(<target> SOURCES … [LINK …]): a static library of one room, with the project's
# warnings for itself only.
function(lockstep_library target)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  add_library(${target} STATIC ${arg_SOURCES})
  add_library(lockstep::${target} ALIAS ${target})
  target_include_directories(${target}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PUBLIC ${arg_LINK} PRIVATE ${arg_PRIVATE_LINK} $<BUILD_INTERFACE:lockstep_options>)
endfunction()

# lockstep_few_units(<target>): libtorch's headers take ten seconds to read, so sources that include them are compiled
# several at a time. -DLOCKSTEP_FEW_UNITS=OFF for one by one.
option(LOCKSTEP_FEW_UNITS "Compile sources that include libtorch several at a time" ON)
function(lockstep_few_units target)
  if(LOCKSTEP_FEW_UNITS)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  endif()
endfunction()
