// The kernels' own files, compiled for the emulator.
#include "cuda/emulated/emulator.h"
// clang-format off: after it
#include "models/cuda/add_norm_backward.cu"
#include "models/cuda/add_norm_forward.cu"
#include "models/cuda/batch_norm_backward.cu"
#include "models/cuda/batch_norm_forward.cu"
#include "models/cuda/cross_entropy.cu"
#include "models/cuda/linear.cu"
#include "models/cuda/max_pool.cu"
