// What becomes of a subtree's sum before it is compressed, and of what is remembered when it was: one wrapper
// over any codec.
//
//   none            nothing is remembered
//   ErrorFeedback   what was not sent is added to the next step's (Seide et al. 2014; Karimireddy et al.
//   2019):
//                   v = g + e, send C(v), e = v - C(v). State: residual with its sign changed ("owed"), by
//                   subtree and parameter
//   DeepGradient    momentum is taken before the selection (Lin et al. 2018, DGC), see deep_gradient.cc
//   Momentum        the momentum is sent in place of the gradient (Tang et al. 2021), see momentum.h
#pragma once

#include <memory>
#include <span>
#include <string>

#include "compress/codec/codec.h"
#include "compress/method.h"

namespace lockstep::compress {

class Recall {
 public:
  virtual ~Recall() = default;
  virtual void declare(MemoryBook& book, const NamedTensor& parameter) const = 0;
  // The sum, times `inverse`, becomes what is to be sent.
  virtual void prepare(MemoryBook& book, int subtree, const BucketTensor& tensor, std::span<float> sum,
                       float inverse) const = 0;
  // This payload was sent, and all have it.
  virtual void settle(MemoryBook& book, int subtree, const BucketTensor& tensor, const Codec& codec,
                      std::span<const std::byte> payload) const = 0;
  // What was prepared is not sent, since another subtree's sum is not finite: the gradient stays in what is
  // remembered, what the next step adds by itself does not.
  virtual void give_up(MemoryBook&, int /*subtree*/, const BucketTensor&) const {}
  // What a subtree adds that had no gradient in a step in which others have one: something that all know.
  // False: nothing.
  virtual bool put_absent(MemoryBook& book, const BucketTensor& tensor, std::span<float> to) const = 0;
  // This is the result, of a step in which some subtree had a gradient. Where it is two-sided, on every rank.
  virtual void keep(MemoryBook& book, const BucketTensor& tensor, std::span<const float> result) const = 0;
};

std::unique_ptr<Recall> recall_nothing();
std::unique_ptr<Recall> error_feedback();

}  // namespace lockstep::compress
