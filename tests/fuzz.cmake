# lockstep_fuzz(<test> ROUNDS <n> SOURCES … LINK …): a parser of hostile bytes under tests/base/fuzz_driver.h. Its
# program, named after the first source, is a fast test with always the same mutations; in the preset `fuzz` (clang) a
# libFuzzer target, which tools/fuzz runs for as long as one likes. The sources under test are compiled once more, so
# that libFuzzer can instrument them.
option(LOCKSTEP_FUZZ "Build the parsers' fuzz targets with libFuzzer (clang only)" OFF)
if(LOCKSTEP_FUZZ AND NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
  message(FATAL_ERROR "LOCKSTEP_FUZZ needs clang, which has libFuzzer; the compiler is ${CMAKE_CXX_COMPILER_ID}")
endif()

function(lockstep_fuzz test)
  cmake_parse_arguments(arg "" "ROUNDS" "SOURCES;LINK" ${ARGN})
  list(GET arg_SOURCES 0 first)
  cmake_path(GET first STEM name)
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${arg_LINK} lockstep_options)
  set(rounds ${arg_ROUNDS})
  if(LOCKSTEP_FUZZ)
    target_compile_definitions(${name} PRIVATE LOCKSTEP_LIBFUZZER)
    target_compile_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer,address,undefined)
    set(rounds -runs=${arg_ROUNDS})
  endif()
  add_test(NAME ${test} COMMAND ${name} ${rounds})
  set_tests_properties(${test} PROPERTIES LABELS fast TIMEOUT 120)
endfunction()
