# CUDA and NCCL, where they are wanted. Sets LOCKSTEP_HAVE_CUDA and LOCKSTEP_NCCL, and has
#   lockstep_cuda_library(<target> SOURCES … [LINK …] [PRIVATE_LINK …])   a library with kernels (.cu)
#   lockstep_cuda_sources(<target>)                                       the same settings for another target
# LOCKSTEP_CUDA=AUTO is on where the libtorch that was found has CUDA, so that a machine without a GPU builds what it
# always built; ON asks for the collectives' part without such a libtorch, too.
set(LOCKSTEP_CUDA AUTO CACHE STRING "CUDA: AUTO (where libtorch has it), ON or OFF")
set_property(CACHE LOCKSTEP_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LOCKSTEP_HAVE_CUDA OFF)
set(LOCKSTEP_NCCL OFF)
if(NOT LOCKSTEP_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "LOCKSTEP_CUDA='${LOCKSTEP_CUDA}'; accepted: AUTO, ON, OFF")
endif()

set(cuda_wanted OFF)
if(LOCKSTEP_CUDA STREQUAL "ON" OR (LOCKSTEP_CUDA STREQUAL "AUTO" AND TARGET torch_cuda))
  set(cuda_wanted ON)
elseif(LOCKSTEP_CUDA STREQUAL "AUTO")
  message(STATUS "CUDA: off (no libtorch with CUDA found; LOCKSTEP_CUDA=ON builds the collectives' part without)")
endif()
if(cuda_wanted)
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND)
    if(LOCKSTEP_CUDA STREQUAL "ON")
      message(FATAL_ERROR "LOCKSTEP_CUDA=ON, but no CUDA toolkit is found; set CUDAToolkit_ROOT to where it is")
    endif()
    message(STATUS "CUDA: off (libtorch has it, but no CUDA toolkit is found; set CUDAToolkit_ROOT to where it is)")
    set(cuda_wanted OFF)
  endif()
endif()
if(cuda_wanted)
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX} AND CUDAToolkit_NVCC_EXECUTABLE)
    set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
  endif()
  # libtorch's own file sets CMAKE_CUDA_ARCHITECTURES to OFF and chooses by flags; our targets say theirs.
  set(LOCKSTEP_CUDA_ARCHITECTURES "" CACHE STRING "GPU architectures to compile for; empty: CMAKE_CUDA_ARCHITECTURES, or 90")
  set(lockstep_cuda_architectures ${LOCKSTEP_CUDA_ARCHITECTURES})
  if(lockstep_cuda_architectures STREQUAL "")
    set(lockstep_cuda_architectures ${CMAKE_CUDA_ARCHITECTURES})
  endif()
  if(NOT lockstep_cuda_architectures)
    set(lockstep_cuda_architectures 90)
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${lockstep_cuda_architectures})
  endif()
  # One CUDA runtime in a program: libtorch links the shared one.
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  set(LOCKSTEP_HAVE_CUDA ON)
  message(STATUS "CUDA: ${CUDAToolkit_VERSION}, for architectures ${lockstep_cuda_architectures}")

  find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV NCCL_ROOT PATH_SUFFIXES include)
  find_library(LOCKSTEP_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${CUDAToolkit_LIBRARY_DIR} ENV NCCL_ROOT
    PATH_SUFFIXES lib lib64)
  if(LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_NCCL_LIBRARY)
    set(LOCKSTEP_NCCL ON)
  elseif(NOT LOCKSTEP_NCCL_INCLUDE)
    message(STATUS "NCCL engine: off (no nccl.h found; NVIDIA's package is libnccl-dev, or set LOCKSTEP_NCCL_INCLUDE)")
  else()
    message(STATUS "NCCL engine: off (no libnccl found; NVIDIA's package is libnccl2, or set LOCKSTEP_NCCL_LIBRARY)")
  endif()
endif()

# Training on GPUs needs both.
set(LOCKSTEP_HAVE_TORCH_CUDA OFF)
if(LOCKSTEP_HAVE_CUDA AND LOCKSTEP_HAVE_TORCH AND TARGET torch_cuda)
  set(LOCKSTEP_HAVE_TORCH_CUDA ON)
endif()

function(lockstep_cuda_sources target)
  set_target_properties(${target} PROPERTIES
    CUDA_ARCHITECTURES "${lockstep_cuda_architectures}"
    CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
    CUDA_SEPARABLE_COMPILATION OFF)
  # Bits as on the processor: no multiplication is fused with an addition unless the code says so, and division and
  # square root are rounded right (nvcc's defaults, said so that nobody's flags change them).
  target_compile_options(${target} PRIVATE
    "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;--prec-div=true;--prec-sqrt=true;--ftz=false;-Xcompiler=-Wall>")
endfunction()

function(lockstep_cuda_library target)
  lockstep_library(${target} ${ARGN})
  target_link_libraries(${target} PUBLIC CUDA::cudart)
  lockstep_cuda_sources(${target})
endfunction()
