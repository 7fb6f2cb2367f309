#include "compress/trial.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "compress/arithmetic.h"
#include "compress/methods.h"
#include "lockstep/base/clock.h"

namespace lockstep::compress {

Found& Found::operator+=(const Found& other) {
  seconds += other.seconds;
  elements += other.elements;
  error += other.error;
  meant += other.meant;
  return *this;
}

void Found::again(const Found& other) {
  if (other.elements == 0) return;
  if (elements == 0 || other.seconds * elements < seconds * other.elements) {
    seconds = other.seconds;
    elements = other.elements;
  }
  error += other.error;
  meant += other.meant;
}

double Found::relative_error() const { return meant > 0 ? std::sqrt(error / meant) : 0; }

Found try_method(const std::string& text, const Group& alone, const std::vector<std::int64_t>& sizes,
                 std::span<const float> values) {
  std::vector<std::int64_t> tried = sizes;
  if (values.size() > kMostTried && !sizes.empty()) {
    const std::size_t row = values.size() / static_cast<std::size_t>(sizes[0]);
    tried[0] = static_cast<std::int64_t>(std::max<std::size_t>(kMostTried / row, 1));
    values = values.first(static_cast<std::size_t>(tried[0]) * row);
  }
  const std::unique_ptr<Method> method = make_method(parse_rules(text).front().method);
  if (!method->why_dense(tried, sizeof(float)).empty()) return {};

  const Carriage carriage(alone, {.lanes = 1, .count = 1});
  MemoryBook book(carriage.subtrees(), carriage.own());
  Savings savings;
  const BucketTensor own{.name = "tried", .count = values.size()};
  method->bind({.carriage = &carriage, .book = &book, .lines = {alone, alone}, .savings = &savings},
               {{own.name, torch::empty(tried)}});
  std::vector<float> result(values.begin(), values.end());
  const auto trial = std::make_shared<Flight>();
  trial->bucket = {.data = {result.data(), result.size(), DType::f32}, .tensors = {&own, 1}, .group = alone};
  trial->step = 1;  // of which nobody measures the error
  trial->subtrees = {0};
  trial->sums = {result.data()};
  trial->there = {{Presence::there}};
  trial->result = result.data();
  const std::int64_t begin = now_ns();
  method->run(trial, {0}).wait();
  Found found{.seconds = static_cast<double>(now_ns() - begin) * 1e-9,
              .elements = static_cast<double>(values.size()),
              .meant = squares(values)};
  for (std::size_t i = 0; i < result.size(); ++i) result[i] -= values[i];
  found.error = squares(result);
  return found;
}

}  // namespace lockstep::compress
