# What the subcommands share.
add_library(lockstep_parts STATIC engine_flag.cc)
target_include_directories(lockstep_parts PUBLIC ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(lockstep_parts
  PUBLIC lockstep_launch lockstep_report CLI11::CLI11 nlohmann_json::nlohmann_json
  PRIVATE lockstep_options)
# Which engines there are is said without having them.
foreach(engine mpi gloo)
  if(TARGET lockstep_${engine})
    string(TOUPPER LOCKSTEP_HAS_${engine} has)
    target_compile_definitions(lockstep_parts PRIVATE ${has}=1)
  endif()
endforeach()
