# The target lockstep_torch, when libtorch is found. Its include folders are taken as system ones, so that our
# warnings stay ours, and its flags (the C++ ABI) only where it is used.
find_package(Torch QUIET)
if(Torch_FOUND AND NOT TARGET lockstep_torch)
  add_library(lockstep_torch INTERFACE IMPORTED GLOBAL)
  separate_arguments(lockstep_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  set_target_properties(lockstep_torch PROPERTIES
    INTERFACE_LINK_LIBRARIES "${TORCH_LIBRARIES}"
    INTERFACE_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TORCH_INCLUDE_DIRS}"
    INTERFACE_COMPILE_OPTIONS "${lockstep_torch_flags}")
endif()
