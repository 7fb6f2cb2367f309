# `lockstep bench`: a library beside the program, so that its parts can be tested.
add_library(lockstep_bench STATIC
  bench.cc
  bench_check.cc
  bench_floor.cc
  bench_op.cc
  bench_plan.cc
  bench_report.cc
  bench_row.cc
  bench_variant.cc
  bench_worker.cc
  sampling.cc
  tune.cc
  tune_worker.cc)
lockstep_few_units(lockstep_bench)
# The subcommand itself needs the trainer's too; who links the parts alone does not.
set_source_files_properties(bench.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(lockstep_bench PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(lockstep_bench
  PUBLIC lockstep_comm lockstep_parts
  PRIVATE lockstep_options)
foreach(engine lockstep_mpi lockstep_gloo)
  if(TARGET ${engine})
    target_link_libraries(lockstep_bench PUBLIC ${engine})
  endif()
endforeach()
