// Numbers for tests of norms, and how they are compared.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace lockstep::testing {

// Fixed numbers, apart from 0 and different in every channel.
inline torch::Tensor numbers(const std::vector<std::int64_t>& shape, double phase, torch::ScalarType type) {
  const std::int64_t count =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  const auto x = torch::sin(torch::arange(count).to(torch::kFloat64) * 1.7 + phase) * 2 + phase;
  return x.view(shape).to(type);
}

// Every number within `tolerance` of what is expected, relative where that is above 1.
inline void expect_close(const torch::Tensor& found, const torch::Tensor& expected, double tolerance,
                         const std::string& what) {
  ASSERT_EQ(found.defined(), expected.defined()) << what;
  if (!found.defined()) return;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  const torch::Tensor apart = (found - expected).abs();
  EXPECT_TRUE((apart <= tolerance * expected.abs().clamp_min(1)).all().item<bool>())
      << what << " is " << apart.max().item<double>() << " apart";
}

}  // namespace lockstep::testing
