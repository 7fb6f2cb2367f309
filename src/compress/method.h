// A way to make the mean of some tensors of a bucket from their subtrees' sums: what stands behind a rule of
// --compress. One object serves one model, all buckets and all steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compress/carriage.h"
#include "compress/memory_book.h"
#include "compress/savings.h"
#include "lockstep/grad/exchange.h"

namespace lockstep::compress {

// What this worker's lanes of a subtree have of a tensor in a step. Travels as a byte.
enum class Presence : std::uint8_t {
  absent = 0,  // no lane had a gradient: it adds nothing, and what is remembered stays
  there = 1,
  not_finite = 2,  // the mean becomes NaN, on every rank alike, and what is remembered of it stays
};

// One bucket in one step, in f32. Methods write over the sums; `result` may be the memory of the first.
struct Flight {
  Bucket bucket;
  std::int64_t step = 0;
  float inverse = 1;                              // of the divisor: sums times this add up to the mean
  std::vector<int> subtrees = {};                 // this worker's, in order
  std::vector<float*> sums = {};                  // one a subtree, laid out as the bucket
  std::vector<std::vector<Presence>> there = {};  // by subtree and tensor
  float* result = nullptr;                        // laid out as the bucket
  std::vector<float> wide = {};                   // where the bucket has 16 bits: holds sums and result
  std::shared_ptr<void> owner = {};               // of the methods under way

  std::span<float> sum(std::size_t k, std::size_t tensor) const {
    const BucketTensor& t = bucket.tensors[tensor];
    return {sums[k] + t.offset, t.count};
  }
  std::span<float> out(std::size_t tensor) const {
    const BucketTensor& t = bucket.tensors[tensor];
    return {result + t.offset, t.count};
  }
};

// Calls of one kind in one order: the first group's are begun from one thread only, the one that runs the
// exchange; the second's, which are one method's alone, where that one's first calls end.
struct Lines {
  Group first;
  Group second = {};
};

// What a method is told before the first bucket.
struct Setting {
  const Carriage* carriage = nullptr;
  MemoryBook* book = nullptr;
  Lines lines = {};
  std::uint64_t seed = 0;
  Exchange::Leaves leaves = Exchange::Leaves::everything;
  Savings* savings = nullptr;
};

class Method {
 public:
  virtual ~Method() = default;
  virtual std::string name() const = 0;
  // Why such a tensor, of elements of so many bytes, travels as it is: it would not become smaller. Empty: it
  // does not.
  virtual std::string why_dense(const std::vector<std::int64_t>& sizes, std::size_t element_bytes) const = 0;
  // Once the parameters that are its own, and the workers, are known, and again when those change.
  virtual void bind(const Setting& setting, const std::vector<NamedTensor>& parameters) = 0;
  // Begins: in flight->result the `members` of the bucket's tensors become the mean. Where the exchange
  // leaves own parts, those of this rank's do.
  virtual Work run(const std::shared_ptr<Flight>& flight, std::vector<std::size_t> members) = 0;
  // Does it begin a second call where its first ends (Lines::second)?
  virtual bool has_two_calls(const Carriage&) const { return false; }
  // Of one whose results are momenta in place of means (1-bit Adam): by how much the momentum fades a step.
  virtual std::optional<double> beta1() const { return {}; }
  // Do payloads go to all (all-gather), or are they added up on the way (all-reduce)?
  virtual bool gathers() const = 0;
  // Of one that gathers: do slices of payloads go to who adds those up, and their sums from there to all
  // (scattered.h)?
  virtual bool scatters(const Carriage&) const { return false; }
  // Is that by option (form=), or by Carriage::most_gathered?
  virtual bool has_forms() const { return false; }
  // Bytes that a subtree's sums of a tensor become, without framing.
  virtual std::size_t payload_bytes(const std::vector<std::int64_t>& sizes) const = 0;
};

// Elements of a tensor of these sizes.
std::size_t count_of(const std::vector<std::int64_t>& sizes);

// Does this rank need some of the tensor's mean?
bool is_needed(const Flight& flight, const Setting& setting, std::size_t tensor);

// Of the bucket's `members` as they are.
double dense_bytes(const Flight& flight, const std::vector<std::size_t>& members);

// Memory in which buckets of one method wait for their call: several are under way at a time.
class Staging {
 public:
  // At least so many bytes, for the bucket; as long as it is not asked again for the same index.
  std::byte* of(const Group& group, int bucket, std::size_t bytes);

 private:
  std::vector<CommMemory> memory_;
};

}  // namespace lockstep::compress
