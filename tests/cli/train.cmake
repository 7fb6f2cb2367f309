# The trainer as a program, where libtorch is.
if(TARGET lockstep_train)
  add_library(disk_shim MODULE disk_shim.cc)
  target_link_libraries(disk_shim PRIVATE lockstep_options ${CMAKE_DL_LIBS})
  # libtorch keeps memory until the process ends, which is no leak of ours. What the machine measured is shared.
  set(train_environment "ASAN_OPTIONS=detect_leaks=0;DISK_SHIM=$<TARGET_FILE:disk_shim>;MEASURED_FOLDER=${CMAKE_BINARY_DIR}/measured;BUILT_ENGINES=${built_engines}")
  # <file> <class of tests> …
  function(lockstep_train_tests file)
    foreach(part ${ARGN})
      string(TOLOWER ${part} name)
      add_test(NAME train.${name}
        COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/${file} $<TARGET_FILE:lockstep_cli> ${part})
      set_tests_properties(train.${name} PROPERTIES LABELS fast TIMEOUT 600 PROCESSORS 2 COST 40
        ENVIRONMENT "${train_environment}")
      fails_without_tests(train.${name})
    endforeach()
  endfunction()
  lockstep_train_tests(train_program_test.py Bits BitsMore Folder Usage)
  lockstep_train_tests(train_resume_test.py Resume ResumedOtherwise ResumeMore)
  lockstep_train_tests(train_terminal_test.py Terminal)
  lockstep_train_tests(train_tools_test.py Tools)
  lockstep_train_tests(train_start_test.py Data Init Threads Flags)
  lockstep_train_tests(train_text_test.py Text)
  lockstep_train_tests(train_engine_test.py Engines)
  lockstep_train_tests(train_strategy_test.py Strategies Compressed)
  lockstep_train_tests(train_precision_test.py Precision)
  lockstep_train_tests(plan_memory_test.py PlanMemory)
  lockstep_train_tests(train_disk_test.py Disk)
  lockstep_train_tests(train_offload_test.py Offload OffloadLimits)
  lockstep_train_tests(train_folder_test.py Folders Finite)
  lockstep_train_tests(train_messages_test.py Messages)
  lockstep_train_tests(train_checkpoint_test.py Checkpoints)
  add_test(NAME train.stop
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/train_stop_test.py $<TARGET_FILE:lockstep_cli>)
  set_tests_properties(train.stop PROPERTIES LABELS fast TIMEOUT 300 PROCESSORS 2 COST 40
    ENVIRONMENT "${train_environment}")
  fails_without_tests(train.stop)
  # What rarer cases there are of what the fast ones show; of bits train.same_bits.* has more still.
  set_tests_properties(train.bitsmore train.resumemore PROPERTIES LABELS slow)
  # The same bits for every number of workers, model by model. Many runs, none of them for a sanitizer.
  if(LOCKSTEP_SANITIZE STREQUAL "")
    lockstep_train_tests(train_memory_test.py Memory)
    set_tests_properties(train.memory PROPERTIES LABELS slow TIMEOUT 900)
    lockstep_train_tests(train_precision_test.py PrecisionLoss)
    set_tests_properties(train.precisionloss PROPERTIES LABELS slow TIMEOUT 900)
    foreach(precision Bf16 Fp16)
      string(TOLOWER ${precision} name)
      add_test(NAME train.narrow_bits.${name}
        COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/narrow_bits_test.py $<TARGET_FILE:lockstep_cli> ${precision})
      set_tests_properties(train.narrow_bits.${name} PROPERTIES LABELS slow TIMEOUT 1800 PROCESSORS 2 SKIP_RETURN_CODE 77)
      fails_without_tests(train.narrow_bits.${name})
    endforeach()
    add_test(NAME train.compress_bits
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/compress_bits_test.py $<TARGET_FILE:lockstep_cli>
        $<$<TARGET_EXISTS:lockstep_mpi>:${MPIEXEC_EXECUTABLE}>)
    set_tests_properties(train.compress_bits PROPERTIES LABELS slow TIMEOUT 1800 PROCESSORS 2)
    fails_without_tests(train.compress_bits)
    # train.WHAT.MODEL: a class of WHAT_test.py each.
    function(bits_of_models what timeout)
      foreach(model ${ARGN})
        string(TOLOWER ${model} name)
        add_test(NAME train.${what}.${name}
          COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/${what}_test.py $<TARGET_FILE:lockstep_cli> ${model})
        set_tests_properties(train.${what}.${name} PROPERTIES LABELS slow TIMEOUT ${timeout} PROCESSORS 2)
        fails_without_tests(train.${what}.${name})
      endforeach()
    endfunction()
    bits_of_models(same_bits 600 Mlp Gpt Resnet18)
    bits_of_models(shard_bits 1800 Gpt Gptbf16 Resnet Resnetbf16)
  endif()
endif()
