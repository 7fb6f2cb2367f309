// Who repeats an attempt because the machine may have been busy says so: a defect that shows in half of the
// attempts would pass for that. tools/test_report counts these lines and lists them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <string>

namespace lockstep::testing {

// `seen`: what it was that the repeated attempt is not judged by.
inline void say_repeated(std::string seen) {
  std::ranges::replace(seen, '\n', ' ');
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name =
      test == nullptr ? "a test" : std::string(test->test_suite_name()) + "." + test->name();
  std::cout << "[ REPEATED ] " << name << ": " << seen << std::endl;
}

}  // namespace lockstep::testing
