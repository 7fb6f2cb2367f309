# `lockstep train`, `infer`, `sweep` and `bench step`. Their parents are in the program itself; what needs libtorch,
# which takes a second to load, is a second program beside it.
add_library(lockstep_trainer STATIC
  infer.cc
  plan.cc
  step_bench.cc
  sweep.cc
  sweep_batch.cc
  sweep_compress.cc
  sweep_folder.cc
  sweep_run.cc
  train.cc
  train_flags.cc
  train_program.cc)
lockstep_few_units(lockstep_trainer)
target_link_libraries(lockstep_trainer PUBLIC lockstep_recipe lockstep_plan lockstep_report CLI11::CLI11 PRIVATE lockstep_options)

if(LOCKSTEP_HAVE_TORCH AND LOCKSTEP_SANITIZE STREQUAL "")
  add_executable(lockstep_train
    infer_worker.cc
    step_bench_worker.cc
    train_main.cc
    train_plan.cc)
  set_target_properties(lockstep_train PROPERTIES OUTPUT_NAME lockstep-train)
  lockstep_few_units(lockstep_train 6)
  target_link_libraries(lockstep_train PRIVATE lockstep_trainer lockstep_task lockstep lockstep_options)
  lockstep_torch_headers(lockstep_train)
  foreach(engine lockstep_mpi lockstep_gloo lockstep_cuda lockstep_nccl)
    if(TARGET ${engine})
      target_link_libraries(lockstep_train PRIVATE ${engine})
    endif()
  endforeach()
endif()
