// Tests of GPUs run where there is one; elsewhere they are skipped, and say so.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "comm/cuda/check.h"

namespace lockstep::testing {

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (cuda::device_count(&why) == 0) GTEST_SKIP() << "no GPU found: " << why;
  }
  static torch::Device gpu() { return {torch::kCUDA, 0}; }
};

}  // namespace lockstep::testing
