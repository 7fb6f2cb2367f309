# The benchmark: its flags, and the program itself.
lockstep_test(bench_commands_test
  SOURCES bench_plan_test.cc bench_report_test.cc
  LINK lockstep_bench_commands)

find_package(Python3 REQUIRED COMPONENTS Interpreter)
add_test(NAME bench.program
  COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/bench_program_test.py $<TARGET_FILE:lockstep_cli>)
# MPI's libraries keep memory until the process ends, which is no leak of ours.
set_tests_properties(bench.program PROPERTIES LABELS fast TIMEOUT 300 RUN_SERIAL ON
  ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
fails_without_tests(bench.program)
