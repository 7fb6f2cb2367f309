// libtorch's name for the test device of a rank (comm/test_device.h). Linking its source makes tensors there
// work, with autograd, and optimizers update them.
#pragma once

#include <torch/types.h>

#include "lockstep/comm/group.h"

namespace lockstep::testing {

torch::Device torch_test_device(const Group& group);

}  // namespace lockstep::testing
