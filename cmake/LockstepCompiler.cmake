# Warnings, sanitizers and ccache for the project's own targets.
find_program(LOCKSTEP_CCACHE ccache)
if(LOCKSTEP_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # What it has to be told before it caches precompiled headers and what is compiled with them; this replaces the
  # list of a user's own configuration, so it has the other usual ones too. It learns what a file depends on from the
  # compiler, and does not preprocess it first: a tenth of the time of what is not cached.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime,locale ${LOCKSTEP_CCACHE})
endif()

# A linker that is quicker than the default where one is there: a program with libtorch takes a fifth of two seconds
# instead of two. Debian's binutils have gold, and nothing has to be installed. -DLOCKSTEP_LINKER= takes the default.
include(CheckLinkerFlag)
if(NOT DEFINED LOCKSTEP_LINKER)
  foreach(linker mold lld gold)
    check_linker_flag(CXX -fuse-ld=${linker} LOCKSTEP_LINKS_WITH_${linker})
    if(LOCKSTEP_LINKS_WITH_${linker})
      set(LOCKSTEP_LINKER ${linker} CACHE STRING "What links: mold, lld, gold or empty (the compiler's default)")
      break()
    endif()
  endforeach()
endif()
if(LOCKSTEP_LINKER)
  add_link_options("$<$<LINK_LANGUAGE:CXX>:-fuse-ld=${LOCKSTEP_LINKER}>")
else()
  message(STATUS "Linker: the compiler's default (neither mold, lld nor gold is there, or LOCKSTEP_LINKER is empty); linking takes longer")
endif()

add_library(lockstep_options INTERFACE)
target_compile_options(lockstep_options INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>")
# GCC looks for memory to free from 128 MB on, which a unit with libtorch has before its first line: a tenth of the time
# for a tenth of the memory.
target_compile_options(lockstep_options INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>")

if(LOCKSTEP_SANITIZE STREQUAL "address")
  # Without vptr: it makes a sixth of the code, and an object of another type is one that was freed, mostly.
  set(undefined -fsanitize=undefined -fno-sanitize=vptr -fno-sanitize-recover=all)
  set(sanitizer -fsanitize=address -fno-omit-frame-pointer)
  # What is compiled for tests only does without undefined's checks (LOCKSTEP_TEST_CODE): a third of its time. A flag of its
  # own could not take them back: these come behind it.
  target_compile_options(lockstep_options INTERFACE
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<BOOL:$<TARGET_PROPERTY:LOCKSTEP_TEST_CODE>>>>:${undefined}>")
  target_link_options(lockstep_options INTERFACE ${undefined})
elseif(LOCKSTEP_SANITIZE STREQUAL "thread")
  set(sanitizer -fsanitize=thread -fno-omit-frame-pointer)
elseif(NOT LOCKSTEP_SANITIZE STREQUAL "")
  message(FATAL_ERROR "LOCKSTEP_SANITIZE='${LOCKSTEP_SANITIZE}'; accepted: address, thread or empty")
endif()
if(sanitizer)
  target_compile_options(lockstep_options INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${sanitizer}>")
  target_link_options(lockstep_options INTERFACE ${sanitizer})
endif()

# lockstep_few_units(<target> [<files>]): compiles the target's sources several at a time (eight unless told, three
# times as many under a sanitizer, where nobody changes one file and compiles again). Most of a file's time goes to the
# headers it reads and the templates of theirs that it instantiates, so eight together take little longer than two
# alone. Names in anonymous namespaces must then differ within a target; where two files have to have the same one: set_source_files_properties(FILE PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON).
# -DLOCKSTEP_FEW_UNITS=OFF compiles one by one: more in all, less after each change of one file.
option(LOCKSTEP_FEW_UNITS "Compile sources several at a time" ON)
function(lockstep_few_units target)
  set(files 8)
  if(NOT LOCKSTEP_SANITIZE STREQUAL "")
    set(files 24)
  endif()
  if(ARGC GREATER 1)
    set(files ${ARGV1})
  endif()
  if(LOCKSTEP_FEW_UNITS)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
  endif()
endfunction()

# lockstep_inner_loops(<target>): code whose loops tests run for long. The preset of the address sanitizer compiles the
# rest without optimization, which takes a third less.
function(lockstep_inner_loops target)
  if(LOCKSTEP_SANITIZE STREQUAL "address")
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()

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
  target_compile_features(${target} PUBLIC cxx_std_20)  # the headers need it, in the programs of users too
endfunction()

# lockstep_kernels(<target>): a library of Highway's kernels, each source compiled once per instruction set and chosen
# at run time.
function(lockstep_kernels target)
  lockstep_inner_loops(${target})
  if(LOCKSTEP_SANITIZE STREQUAL "")
    target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O3>)  # the rest of the release preset has -O2
  endif()
  # Fused multiply-add is where the rules say so and nowhere else: the same bits from every instruction set.
  target_compile_options(${target} PRIVATE -ffp-contract=off)
  # Nothing gains from SSSE3 over the fallback; leaving it out saves a fifth of the code.
  target_compile_definitions(${target} PRIVATE HWY_DISABLED_TARGETS=HWY_SSSE3)
  # A sanitizer looks at the loops and their bounds, which are the same for every instruction set: one is enough.
  if(NOT LOCKSTEP_SANITIZE STREQUAL "")
    target_compile_definitions(${target} PRIVATE HWY_COMPILE_ONLY_STATIC)
  endif()
  # AddressSanitizer's scope checks take minutes on Highway's thousands of inlined locals; the others stay on.
  if(LOCKSTEP_SANITIZE STREQUAL "address")
    target_compile_options(${target} PRIVATE -fno-sanitize-address-use-after-scope)
  endif()
endfunction()

# lockstep_torch_headers(<target>): reads libtorch's headers precompiled. The library `lockstep` has them made, with its
# own flags; who takes them is compiled with the same (a program as position-independent as a library).
# Making them costs as much as four units save, and 400 MB, so the preset of the thread sanitizer, which has few units
# with libtorch, does without: CMAKE_DISABLE_PRECOMPILE_HEADERS.
function(lockstep_torch_headers target)
  if(target STREQUAL "lockstep")
    target_precompile_headers(lockstep PRIVATE <torch/nn/module.h> <torch/types.h>)
  else()
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM lockstep)
  endif()
endfunction()
