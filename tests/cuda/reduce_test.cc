// The kernels of the GPU against the processor's and the plain reference, bit by bit.
#include "comm/cuda/reduce.h"

#include <algorithm>
#include <random>

#include "comm/kernel/reduce.h"
#include "comm/kernel_reference.h"
#include "cuda/gpu.h"

namespace lockstep {
namespace {

using testing::Bytes;
using testing::download;
using testing::first_difference;
using testing::kGpu;
using testing::upload;

// Every bit pattern may come: infinities, NaN, subnormals among them, beside ordinary numbers.
Bytes any_elements(DType dtype, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(count * size_of(dtype));
  testing::with_element(dtype, [&](auto element) {
    using T = decltype(element);
    for (std::size_t i = 0; i < count; ++i) {
      const std::uint64_t bits = random();
      T value;
      if (random() % 4 == 0 || std::is_integral_v<T>) {
        std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
      } else {
        const double x = static_cast<double>(static_cast<std::int64_t>(bits)) * 0x1p-60;
        if constexpr (std::is_same_v<T, Half>)
          value = to_half(static_cast<float>(x));
        else if constexpr (std::is_same_v<T, BFloat16>)
          value = to_bfloat16(static_cast<float>(x));
        else
          value = static_cast<T>(x);
      }
      std::memcpy(bytes.data() + i * sizeof value, &value, sizeof value);
    }
  });
  return bytes;
}

class OnGpu {
 public:
  explicit OnGpu(std::size_t bytes) : memory_(runtime_of(kGpu).allocate(bytes, 0)) {}
  std::byte* at(std::size_t byte = 0) const { return static_cast<std::byte*>(memory_.get()) + byte; }

 private:
  std::shared_ptr<void> memory_;
};

struct Case {
  DType dtype;
  ReduceOp op;
  std::size_t inputs;
  std::size_t count;
  int divisor = 1;
  bool in_place = false;
  std::size_t shift = 0;  // elements that the first begins behind an aligned place
};

void expect_same(const Case& c) {
  SCOPED_TRACE(std::string(to_string(c.op)) + " of " + std::to_string(c.inputs) + " × " +
               std::to_string(c.count) + " " + to_string(c.dtype) + " / " + std::to_string(c.divisor) +
               (c.in_place ? ", in place" : "") + ", shifted " + std::to_string(c.shift));
  const std::size_t size = size_of(c.dtype);
  const std::size_t bytes = c.count * size;
  std::vector<Bytes> inputs;
  std::vector<const void*> host_ins;
  std::vector<OnGpu> places;
  std::vector<const void*> ins;
  std::vector<void*> outs;
  for (std::size_t k = 0; k < c.inputs; ++k) {
    inputs.push_back(any_elements(c.dtype, c.count, 100 * c.count + k));
    places.emplace_back(bytes + 64);
    upload(places.back().at(c.shift * size), inputs.back().data(), bytes);
    ins.push_back(places.back().at(c.shift * size));
    if (c.in_place) outs.push_back(places.back().at(c.shift * size));
  }
  for (const Bytes& input : inputs) host_ins.push_back(input.data());
  const OnGpu other(bytes + 64);
  if (!c.in_place) outs.push_back(other.at(c.shift * size));
  const kernel::Reduction reduction{.dtype = c.dtype, .op = c.op, .divisor = static_cast<double>(c.divisor)};
  cuda::reduce_tree(outs, ins, c.count, reduction, runtime_of(kGpu).current_stream(0));
  Bytes reference(bytes);
  testing::reference_reduce(reference.data(), host_ins, c.count, c.dtype, c.op, c.divisor);
  Bytes processors(bytes);
  void* const processors_out = processors.data();
  kernel::reduce_tree({&processors_out, 1}, host_ins, c.count, reduction);
  for (void* const out : outs) {
    const Bytes got = download(out, bytes);
    ASSERT_EQ(first_difference(got.data(), reference.data(), c.count, c.dtype), -1);
    ASSERT_EQ(first_difference(got.data(), processors.data(), c.count, c.dtype), -1);
  }
}

template <class F>
void for_each_reduction(F&& f) {
  for (const DType dtype : kAllDTypes)
    for (const ReduceOp op : kAllReduceOps)
      if (supports(op, dtype)) f(dtype, op);
}

TEST(GpuReduce, AnyNumberOfInputs) {
  LOCKSTEP_NEEDS_GPU();
  for_each_reduction([](DType dtype, ReduceOp op) {
    for (const std::size_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 64})
      expect_same({.dtype = dtype, .op = op, .inputs = n, .count = 1003, .divisor = static_cast<int>(n)});
  });
}

TEST(GpuReduce, AnyCountAlignedOrNotInPlaceOrNot) {
  LOCKSTEP_NEEDS_GPU();
  for_each_reduction([](DType dtype, ReduceOp op) {
    for (const std::size_t count : {0, 1, 2, 7, 15, 16, 17, 255, 4099})
      for (const std::size_t shift : {0, 1})
        expect_same({.dtype = dtype,
                     .op = op,
                     .inputs = 3,
                     .count = count,
                     .divisor = 3,
                     .in_place = count % 2 == 1,
                     .shift = shift});
  });
}

TEST(GpuReduce, Large) {
  LOCKSTEP_NEEDS_GPU();
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::i8})
    for (const std::size_t n : {2, 8})
      expect_same({.dtype = dtype,
                   .op = ReduceOp::avg,
                   .inputs = n,
                   .count = (std::size_t{1} << 19) + 3,
                   .divisor = static_cast<int>(n),
                   .in_place = true});
}

TEST(GpuReduce, AveragesByAnyDivisor) {
  LOCKSTEP_NEEDS_GPU();
  for (const DType dtype : kAllDTypes)
    for (const int divisor : {1, 2, 3, 7, 10, 64, 1000, 1 << 20})
      for (const std::size_t n : {1, 2, 9})
        expect_same({.dtype = dtype, .op = ReduceOp::avg, .inputs = n, .count = 513, .divisor = divisor});
}

TEST(GpuConvert, EveryHalfAndRoundsToNearestEven) {
  LOCKSTEP_NEEDS_GPU();
  const DeviceStream stream = runtime_of(kGpu).current_stream(0);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    std::vector<std::uint16_t> halves(65536);
    for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
    const OnGpu half(halves.size() * 2 + 2);
    const OnGpu wide(halves.size() * 4 + 4);
    for (const std::size_t shift : {0, 1}) {
      upload(half.at(shift * 2), halves.data(), halves.size() * 2);
      cuda::widen(wide.at(shift * 4), half.at(shift * 2), halves.size(), dtype, stream);
      const Bytes got = download(wide.at(shift * 4), halves.size() * 4);
      Bytes want(got.size());
      kernel::widen(want.data(), halves.data(), halves.size(), dtype);
      EXPECT_EQ(first_difference(got.data(), want.data(), halves.size(), DType::f32), -1);
    }
    const std::size_t count = 100'003;
    const Bytes floats = any_elements(DType::f32, count, 7);
    const OnGpu from(floats.size());
    const OnGpu to(count * 2);
    upload(from.at(), floats.data(), floats.size());
    cuda::narrow(to.at(), from.at(), count, dtype, stream);
    const Bytes got = download(to.at(), count * 2);
    Bytes want(got.size());
    kernel::narrow(want.data(), floats.data(), count, dtype);
    EXPECT_EQ(first_difference(got.data(), want.data(), count, dtype), -1);
  }
}

TEST(GpuReduce, RefusesWhatHasNoMeaning) {
  const DeviceStream stream{kGpu, nullptr};
  void* out = nullptr;
  const void* in = nullptr;
  EXPECT_THROW(cuda::reduce_tree({&out, 1}, {&in, 1}, 1, {.op = ReduceOp::bit_or}, stream), UsageError);
  EXPECT_THROW(cuda::reduce_tree({&out, 1}, {&in, 1}, 1, {.op = ReduceOp::avg, .divisor = 0}, stream),
               UsageError);
  const std::vector<const void*> many(cuda::kMostInputs + 1);
  EXPECT_THROW(cuda::reduce_tree({&out, 1}, many, 1, {}, stream), UsageError);
  EXPECT_THROW(cuda::widen(nullptr, nullptr, 1, DType::f32, stream), UsageError);
}

}  // namespace
}  // namespace lockstep
