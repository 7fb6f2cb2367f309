# cmake --install: the program, the headers, and what find_package(lockstep) needs.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(targets lockstep_base lockstep_observe lockstep_net lockstep_kernel lockstep_comm lockstep_launch)
if(LOCKSTEP_HAVE_TORCH)
  list(APPEND targets lockstep lockstep_optim_kernel)
endif()
if(TARGET lockstep_train)
  install(TARGETS lockstep_train RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(TARGETS lockstep_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS ${targets} EXPORT lockstepTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/lockstep DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/lockstep)
install(EXPORT lockstepTargets NAMESPACE lockstep:: DESTINATION ${package})
configure_package_config_file(cmake/lockstepConfig.cmake.in ${CMAKE_BINARY_DIR}/lockstepConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/lockstepConfig.cmake ${CMAKE_BINARY_DIR}/lockstepConfigVersion.cmake
  cmake/LockstepHighway.cmake cmake/LockstepTorch.cmake DESTINATION ${package})
