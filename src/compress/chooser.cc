#include "compress/chooser.h"

#include <fmt/format.h>

#include <cmath>

#include "compress/arithmetic.h"
#include "compress/methods.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/log.h"

namespace lockstep::compress {

const std::vector<std::string>& Chooser::candidates() {
  static const std::vector<std::string> texts = {"fp8", "int8", "onebit", "powersgd:rank=4", "topk:0.01"};
  return texts;
}

void Chooser::choose(int choice, std::string reason) {
  choice_ = choice;
  reason_ = std::move(reason);
  log().info("--compress auto: {}: {}",
             choice == kDense ? "none" : candidates()[static_cast<std::size_t>(choice)], reason_);
}

void Chooser::bind(const Group& group, const Group& alone, int chosen) {
  alone_ = alone;
  found_.assign(candidates().size(), {});
  if (chosen != kUndecided) {
    if (chosen != choice_) choose(chosen, "as the others do");
    return;
  }
  choice_ = kUndecided;
  reason_.clear();
  if (group.size() == 1)
    choose(kDense, "one worker sends nothing");
  else if (group.shares_memory())
    choose(kDense, "the workers share their memory");
}

void Chooser::probe(const Flight& flight, std::size_t tensor, const torch::Tensor& parameter) {
  const BucketTensor& place = flight.bucket.tensors[tensor];
  const Carriage carriage(alone_, {.lanes = 1, .count = 1});
  for (std::size_t c = 0; c < candidates().size(); ++c) {
    const std::unique_ptr<Method> method = make_method(parse_rules(candidates()[c]).front().method);
    if (!method->why_dense(parameter.sizes().vec(), sizeof(float)).empty()) continue;
    MemoryBook book(carriage.subtrees(), carriage.own());
    Savings savings;
    method->bind({.carriage = &carriage, .book = &book, .lines = {alone_, alone_}, .savings = &savings},
                 {{place.name, parameter}});
    const std::vector<float> meant(flight.sums[0] + place.offset,
                                   flight.sums[0] + place.offset + place.count);
    std::vector<float> values = meant;
    const BucketTensor own{.name = place.name, .count = place.count};
    const auto trial = std::make_shared<Flight>();
    trial->bucket = {
        .data = {values.data(), values.size(), DType::f32}, .tensors = {&own, 1}, .group = alone_};
    trial->step = 1;  // of which nobody measures the error
    trial->subtrees = {0};
    trial->sums = {values.data()};
    trial->there = {{Presence::there}};
    trial->result = values.data();
    const std::int64_t begin = now_ns();
    method->run(trial, {0}).wait();
    found_[c].seconds += static_cast<double>(now_ns() - begin) * 1e-9;
    found_[c].elements += static_cast<double>(place.count);
    found_[c].meant += squares(meant);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= meant[i];
    found_[c].error += squares(values);
  }
}

void Chooser::ask(const Group& group, double dense_s, const std::vector<double>& wire_s) {
  sums_ = std::make_shared<std::vector<double>>();
  for (const Found& f : found_) sums_->insert(sums_->end(), {f.seconds, f.elements, f.error, f.meant});
  const double counts = group.rank() == 0 ? 1 : 0;
  sums_->push_back(counts * dense_s);
  for (const double seconds : wire_s) sums_->push_back(counts * seconds);
  asked_ =
      group.all_reduce_async(buffer(*sums_), {.purpose = "what compression would cost"}).then([held = sums_] {
      });
}

void Chooser::decide(double elements) {
  asked_.wait();
  const std::vector<double>& sums = *sums_;
  const double dense_s = sums[4 * found_.size()];
  const double* const wire_s = &sums[4 * found_.size() + 1];
  int best = kDense;
  double least = dense_s;
  std::string seen = fmt::format("as it is {:.2f} ms", dense_s * 1e3);
  for (std::size_t c = 0; c < found_.size(); ++c) {
    const Found all{sums[4 * c], sums[4 * c + 1], sums[4 * c + 2], sums[4 * c + 3]};
    if (!(all.elements > 0) || !(wire_s[c] > 0)) continue;
    const double error = all.meant > 0 ? std::sqrt(all.error / all.meant) : 0;
    const double expected = wire_s[c] + elements * all.seconds / all.elements;
    seen += fmt::format(", {} {:.2f} ms (error {:.3f})", candidates()[c], expected * 1e3, error);
    if (!(error <= max_error_) || !(expected < least)) continue;
    best = static_cast<int>(c);
    least = expected;
  }
  choose(dense_s > 0 ? best : kDense,
         dense_s > 0
             ? fmt::format("expected of a step: {}; accepted: an error of {} at most", seen, max_error_)
             : "the group has no table of costs");
}

}  // namespace lockstep::compress
