// The reduction kernels against memcpy, 4 KiB to 64 MiB a buffer. bytes_per_second counts every byte
// read and every byte written, so the figures compare with memcpy's.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/kernel/reduce.h"

namespace {

using lockstep::DType;
using lockstep::ReduceOp;
namespace kernel = lockstep::kernel;

constexpr std::int64_t kSmallest = 4 << 10;
constexpr std::int64_t kLargest = 64 << 20;

struct Free {
  void operator()(void* p) const { std::free(p); }
};

// Page-aligned arrays of zeros, touched.
class Arrays {
 public:
  Arrays(std::size_t n, std::size_t bytes) {
    for (std::size_t k = 0; k < n; ++k) {
      owned_.emplace_back(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096));
      std::memset(owned_.back().get(), 0, bytes);
      ins_.push_back(owned_.back().get());
      outs_.push_back(owned_.back().get());
    }
  }
  void* operator[](std::size_t k) const { return outs_[k]; }
  std::span<const void* const> ins() const { return ins_; }
  std::span<void* const> outs() const { return outs_; }

 private:
  std::vector<std::unique_ptr<void, Free>> owned_;
  std::vector<const void*> ins_;
  std::vector<void*> outs_;
};

void count_bytes(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes) * state.iterations());
}

void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Arrays arrays(2, bytes);
  for (auto _ : state) {
    std::memcpy(arrays[0], arrays[1], bytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * bytes);
}

// n buffers into one more.
void reduce_to_one(benchmark::State& state, std::size_t n, kernel::Reduction reduction) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Arrays arrays(n + 1, bytes);
  for (auto _ : state) {
    kernel::reduce_tree(arrays.outs().last(1), arrays.ins().first(n), bytes / size_of(reduction.dtype),
                        reduction);
    benchmark::ClobberMemory();
  }
  count_bytes(state, (n + 1) * bytes);
}

// n buffers into themselves: what each rank does to its slice in the direct all-reduce.
void reduce_to_all(benchmark::State& state, std::size_t n, kernel::Reduction reduction) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const Arrays arrays(n, bytes);
  for (auto _ : state) {
    kernel::reduce_tree(arrays.outs(), arrays.ins(), bytes / size_of(reduction.dtype), reduction);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * n * bytes);
}

void combine(benchmark::State& state, DType dtype) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t count = bytes / size_of(dtype);
  const Arrays arrays(2, bytes);
  for (auto _ : state) {
    kernel::combine(arrays[0], arrays[0], arrays[1], count, {.dtype = dtype});
    benchmark::ClobberMemory();
  }
  count_bytes(state, 3 * bytes);
}

// f16 or bf16 to f32, or back. range(0): bytes of the narrow side.
void convert(benchmark::State& state, DType dtype, decltype(kernel::widen)* conversion) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t count = bytes / size_of(dtype);
  const Arrays arrays(2, count * size_of(DType::f32));
  for (auto _ : state) {
    conversion(arrays[0], arrays[1], count, dtype);
    benchmark::ClobberMemory();
  }
  count_bytes(state, bytes + count * size_of(DType::f32));
}

void finish(benchmark::State& state, kernel::Reduction reduction) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  const std::size_t count = bytes / size_of(reduction.dtype);
  const Arrays arrays(2, bytes);
  for (auto _ : state) {
    kernel::finish(arrays[0], arrays[1], count, reduction);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * bytes);
}

template <class F, class... Args>
void add(const std::string& name, F* f, Args... args) {
  benchmark::RegisterBenchmark(name.c_str(), f, args...)
      ->RangeMultiplier(16)
      ->Range(kSmallest, kLargest)
      ->UseRealTime();
}

}  // namespace

int main(int argc, char** argv) {
  add("memcpy", copy);
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    std::string suffix = "/";
    suffix += to_string(dtype);
    for (std::size_t n : {2, 4, 8}) {
      const int divisor = static_cast<int>(n);
      std::string inputs = "/";
      inputs += std::to_string(n) + suffix;
      add("reduce_to_one" + inputs, reduce_to_one, n, kernel::Reduction{.dtype = dtype});
      add("reduce_to_all" + inputs, reduce_to_all, n, kernel::Reduction{.dtype = dtype});
      add("average_to_all" + inputs, reduce_to_all, n,
          kernel::Reduction{.dtype = dtype, .op = ReduceOp::avg, .divisor = static_cast<double>(divisor)});
    }
    add("combine" + suffix, combine, dtype);
    if (dtype != DType::f32) {
      add("widen" + suffix, convert, dtype, kernel::widen);
      add("narrow" + suffix, convert, dtype, kernel::narrow);
    }
    add("finish_average_of_3" + suffix, finish,
        kernel::Reduction{.dtype = dtype, .op = ReduceOp::avg, .divisor = 3});
  }
  benchmark::AddCustomContext("kernels", kernel::target_name());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
