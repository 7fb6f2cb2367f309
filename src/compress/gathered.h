// Codecs: every subtree's sum is encoded once, all payloads go to everybody (all-gather), who decodes them
// and adds them up along the lanes' tree.
//
// Bytes a rank receives: (subtrees - its own) payloads; between W workers with one subtree each W - 1
// payloads, where a dense all-reduce brings 2 (W - 1) / W of the tensor. The payloads of one subtree's
// tensors of a bucket are a frame: a byte of Presence each, then the payloads, all of it at multiples of 8
// bytes. A rank that keeps only its part (zero1, zero2) receives all payloads too: a payload of whole tensors
// has no parts. It decodes the tensors that it has a part of.
//
// Two-sided (1-bit): what was added up is encoded once more, with an error of its own, as the server of 1-bit
// SGD and 1-bit Adam does (Tang et al. 2021), and its decoding is the mean. All ranks do so with the same
// bits; no bytes travel for it. State: "server" by parameter.
#pragma once

#include <functional>
#include <optional>

#include "compress/codec/codec.h"
#include "compress/method.h"
#include "compress/recall.h"

namespace lockstep::compress {

struct GatheredParts {
  // Of a step: the same for all that have the same bytes. Most have one.
  std::function<std::shared_ptr<const Codec>(std::int64_t step)> codec;
  std::shared_ptr<const Recall> recall;
  bool two_sided = false;
  std::optional<double> beta1 = {};  // Method::beta1
};

std::unique_ptr<Method> gathered_method(std::string name, GatheredParts parts);

}  // namespace lockstep::compress
