# The trainer: its parts, and the program itself where libtorch is.
lockstep_test(trainer_test
  SOURCES train_options_test.cc train_prediction_test.cc train_report_test.cc
  LINK lockstep_trainer)

if(TARGET lockstep_train)
  foreach(part Bits Resume Folder Terminal Usage Tools)
    string(TOLOWER ${part} name)
    add_test(NAME train.${name}
      COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/train_program_test.py $<TARGET_FILE:lockstep_cli> ${part})
    # libtorch keeps memory until the process ends, which is no leak of ours.
    set_tests_properties(train.${name} PROPERTIES LABELS fast TIMEOUT 600 PROCESSORS 2
      ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
    fails_without_tests(train.${name})
  endforeach()
  add_test(NAME train.stop
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/train_stop_test.py $<TARGET_FILE:lockstep_cli>)
  set_tests_properties(train.stop PROPERTIES LABELS fast TIMEOUT 300 PROCESSORS 2
    ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
  fails_without_tests(train.stop)
  # The same bits for every number of workers, model by model. Many runs, none of them for a sanitizer.
  if(LOCKSTEP_SANITIZE STREQUAL "")
    foreach(model Mlp Gpt Resnet18)
      string(TOLOWER ${model} name)
      add_test(NAME train.same_bits.${name}
        COMMAND ${Python3_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/same_bits_test.py $<TARGET_FILE:lockstep_cli> ${model})
      set_tests_properties(train.same_bits.${name} PROPERTIES LABELS slow TIMEOUT 600 RUN_SERIAL ON)
      fails_without_tests(train.same_bits.${name})
    endforeach()
  endif()
endif()
