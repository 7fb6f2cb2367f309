// A method of compression as one worker runs it, with neither groups nor error feedback: what is measured.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep {

class Coder {
 public:
  virtual ~Coder() = default;
  virtual std::string name() const = 0;
  virtual std::size_t payload_bytes() const = 0;
  // What a worker decodes in a step of two: both payloads, or the one that they were added up to on the way.
  virtual int decodes() const = 0;
  virtual void encode(std::span<const float> gradient) = 0;
  virtual void decode_add(std::span<float> sum) = 0;
};

// As --compress names it: a codec (make_codec), intsgd or powersgd[:rank=R], for gradients of `count`
// elements. PowerSGD's are a matrix as near to a square as there is. UsageError lists what is accepted.
std::unique_ptr<Coder> make_coder(const std::string& method, std::size_t count);

// One of each.
std::vector<std::string> coder_examples();

}  // namespace lockstep
