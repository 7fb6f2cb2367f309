# `lockstep bench` and `lockstep tune`: flags and printing, around what src/bench measures.
add_library(lockstep_bench_commands STATIC bench.cc bench_plan.cc compress_bench.cc tune.cc tune_engines.cc)
lockstep_few_units(lockstep_bench_commands)
# The subcommand itself needs the trainer's too; who links the parts alone does not.
set_source_files_properties(bench.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_link_libraries(lockstep_bench_commands PUBLIC lockstep_bench lockstep_recipe CLI11::CLI11 PRIVATE lockstep_options)
