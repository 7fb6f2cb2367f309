# cmake --install: the program, the headers, and what find_package(lockstep) needs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# What each component of the package adds to those before it; what it needs is found for it alone.
set(targets_of_comm lockstep_base lockstep_observe lockstep_net lockstep_kernel lockstep_comm lockstep_launch)
set(targets_of_mpi lockstep_mpi)
set(targets_of_gloo lockstep_gloo)
set(targets_of_training lockstep lockstep_optim_kernel lockstep_report lockstep_memory)
set(LOCKSTEP_COMPONENTS comm)
foreach(component mpi gloo training)
  list(GET targets_of_${component} 0 first)
  if(TARGET ${first})
    list(APPEND LOCKSTEP_COMPONENTS ${component})
  endif()
endforeach()
if(TARGET lockstep_train)
  install(TARGETS lockstep_train RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(TARGETS lockstep_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
foreach(component ${LOCKSTEP_COMPONENTS})
  install(TARGETS ${targets_of_${component}} EXPORT lockstep-${component} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT lockstep-${component} NAMESPACE lockstep:: DESTINATION ${package})
endforeach()
configure_package_config_file(cmake/lockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/lockstepConfig.cmake ${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake
  cmake/LockstepHighway.cmake cmake/LockstepTorch.cmake DESTINATION ${package})
