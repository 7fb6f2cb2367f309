# The target hwy::hwy: Highway's own CMake config where it has one, else the plain library.
find_package(hwy CONFIG QUIET)
if(NOT TARGET hwy::hwy)
  find_path(LOCKSTEP_HWY_INCLUDE hwy/highway.h)
  find_library(LOCKSTEP_HWY_LIBRARY hwy)
  if(NOT LOCKSTEP_HWY_INCLUDE OR NOT LOCKSTEP_HWY_LIBRARY)
    message(FATAL_ERROR "Highway (libhwy-dev) not found; run tools/setup, or set CMAKE_PREFIX_PATH to where it is")
  endif()
  add_library(hwy::hwy UNKNOWN IMPORTED)
  set_target_properties(hwy::hwy PROPERTIES IMPORTED_LOCATION ${LOCKSTEP_HWY_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${LOCKSTEP_HWY_INCLUDE})
endif()

