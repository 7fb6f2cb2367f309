// What an engine can do, as data: asked before a call, and printed by `lockstep tune --engines`.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "comm/call/call.h"

namespace lockstep {

// Some of an enumeration's values, of which there are at most 32.
template <class E>
class SetOf {
 public:
  constexpr SetOf() = default;
  constexpr SetOf(std::initializer_list<E> some) {
    for (const E one : some) add(one);
  }
  constexpr void add(E one) { bits_ |= bit(one); }
  constexpr void add(SetOf others) { bits_ |= others.bits_; }
  constexpr bool has(E one) const { return (bits_ & bit(one)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const SetOf&) const = default;

 private:
  static constexpr std::uint32_t bit(E one) { return std::uint32_t{1} << static_cast<unsigned>(one); }
  std::uint32_t bits_ = 0;
};

// Reductions that an algorithm does not have. `why` goes before them: "gloo has no" product of bf16.
struct Lack {
  SetOf<ReduceOp> ops;
  SetOf<DType> dtypes;
  std::string why;
  bool has(const Call& call) const {
    return reduces(call.what) && ops.has(call.op) && dtypes.has(call.dtype);
  }
};

// An algorithm as an engine offers it, under the name by which calls ask for it.
struct Offer {
  std::string name;
  SetOf<Collective> collectives;
  bool canonical = true;  // its sums follow the canonical order
  std::vector<Lack> lacks = {};
  std::size_t at_most_bytes = ~std::size_t{0};  // of one rank's input
  std::size_t at_most_count = ~std::size_t{0};  // Call::count
  bool learns_divisor = true;                   // a rank may leave the divisor of avg to the others
  std::string not_here = {};                    // why it can't run on this machine; empty: it can
  // What the call's own buffers tell: why not, or empty. Null: nothing.
  std::function<std::string(const Call& call)> looks_at = {};

  std::string lack_of(const Call& call) const;  // "gloo has no product of bf16", or empty
};

struct Capabilities {
  SetOf<Device::Kind> devices = {Device::Kind::cpu};
  bool reachable_memory = false;  // allocate() gives memory that peers reach
  bool stream_barrier = false;    // a barrier on a device is one of streams
  std::vector<Offer> offers = {};

  // Empty when the engine works on memory there, else why not.
  std::string refuses(const char* engine, Device device) const;
  // The names that a call of this collective may ask for, in the order of `offers`.
  std::vector<std::string> algorithms(Collective what) const;
  // Empty when such a call can be made in a group of so many ranks, by `algorithm` (empty: by any), else why
  // not.
  std::string refuses(const char* engine, const Call& call, int ranks, const std::string& algorithm) const;
};

inline constexpr SetOf<ReduceOp> kEveryOp = {ReduceOp::sum,   ReduceOp::avg,     ReduceOp::min,
                                             ReduceOp::max,   ReduceOp::product, ReduceOp::bit_and,
                                             ReduceOp::bit_or};
inline constexpr SetOf<DType> kEveryDType = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                             DType::i64, DType::i32, DType::i8,  DType::u8};

}  // namespace lockstep
