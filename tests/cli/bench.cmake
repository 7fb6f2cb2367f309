# The benchmark: its flags, and the program itself.
lockstep_test(bench_commands_test
  SOURCES bench_plan_test.cc
  LINK lockstep_bench_commands)

# It times what it does, for minutes under the thread sanitizer.
if(LOCKSTEP_SANITIZE STREQUAL "thread")
  return()
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME bench.program
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/bench_program_test.py $<TARGET_FILE:lockstep_cli>)
# MPI's libraries keep memory until the process ends, which is no leak of ours.
set_tests_properties(bench.program PROPERTIES LABELS fast TIMEOUT 300 PROCESSORS 3 COST 100
  ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0;BUILT_ENGINES=${built_engines}")
fails_without_tests(bench.program)

# The same program with an algorithm more.
add_executable(lockstep_with_star $<TARGET_OBJECTS:lockstep_cli> ${PROJECT_SOURCE_DIR}/tests/comm/star_algorithm.cc)
target_include_directories(lockstep_with_star PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(lockstep_with_star PRIVATE lockstep_bench_commands lockstep_trainer lockstep_recipe lockstep_inspect lockstep_report lockstep_launch lockstep_net
  CLI11::CLI11 lockstep_options)
add_test(NAME bench.added_algorithm
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/added_algorithm_test.py $<TARGET_FILE:lockstep_with_star>)
set_tests_properties(bench.added_algorithm PROPERTIES LABELS fast TIMEOUT 300 PROCESSORS 2
  ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
fails_without_tests(bench.added_algorithm)
