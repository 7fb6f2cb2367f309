# The target lockstep_torch, when libtorch is found. Its include folders are taken as system ones, so that our
# warnings stay ours, and its flags (the C++ ABI) only where it is used.
find_package(Torch QUIET)
if(Torch_FOUND AND NOT TARGET lockstep_torch)
  # Some builds of libtorch carry a copy of fmt's headers, which would hide those of the fmt that we link. A folder
  # that holds the right ones only goes first.
  set(lockstep_torch_include ${TORCH_INCLUDE_DIRS})
  find_path(LOCKSTEP_FMT_INCLUDE fmt/format.h)
  foreach(folder ${TORCH_INCLUDE_DIRS})
    if(EXISTS ${folder}/fmt AND LOCKSTEP_FMT_INCLUDE AND NOT folder STREQUAL LOCKSTEP_FMT_INCLUDE)
      file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/fmt_first)
      file(CREATE_LINK ${LOCKSTEP_FMT_INCLUDE}/fmt ${CMAKE_BINARY_DIR}/fmt_first/fmt SYMBOLIC)
      list(PREPEND lockstep_torch_include ${CMAKE_BINARY_DIR}/fmt_first)
      break()
    endif()
  endforeach()
  # libstdc++ goes before libtorch: some builds of libtorch export an older std::filesystem, which would be taken
  # instead of ours and crash.
  add_library(lockstep_torch INTERFACE IMPORTED GLOBAL)
  separate_arguments(lockstep_torch_flags UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  set_target_properties(lockstep_torch PROPERTIES
    INTERFACE_LINK_LIBRARIES "stdc++;${TORCH_LIBRARIES}"
    INTERFACE_INCLUDE_DIRECTORIES "${lockstep_torch_include}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${lockstep_torch_include}"
    INTERFACE_COMPILE_OPTIONS "${lockstep_torch_flags}")
endif()
