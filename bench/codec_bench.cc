// The codecs on one core against memcpy, 64 KiB to 64 MiB of gradients. bytes_per_second counts every byte
// read and every byte written, so that the figures compare with memcpy's; `input` is gradient bytes a second.
//
//   build/release/bin/codec_bench --benchmark_filter='copy|/int8|/topk'
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "compress/codec/codec.h"

namespace {

constexpr std::int64_t kSmallest = 64 << 10;
constexpr std::int64_t kLargest = 64 << 20;

std::vector<float> gradient(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.01F);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

void count_bytes(benchmark::State& state, std::size_t moved, std::size_t input) {
  state.SetBytesProcessed(static_cast<std::int64_t>(moved) * state.iterations());
  state.counters["input"] =
      benchmark::Counter(static_cast<double>(input) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate, benchmark::Counter::kIs1000);
}

void copy(benchmark::State& state) {
  const auto bytes = static_cast<std::size_t>(state.range(0));
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), bytes);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * bytes, bytes);
}

struct Case {
  explicit Case(const std::string& method, std::int64_t bytes)
      : codec(lockstep::make_codec(method)),
        values(gradient(static_cast<std::size_t>(bytes) / sizeof(float))),
        payload(codec->payload_bytes(values.size())) {
    codec->encode(values, {.seed = 1}, payload);
  }
  std::size_t bytes() const { return values.size() * sizeof(float); }

  std::unique_ptr<lockstep::Codec> codec;
  std::vector<float> values;
  std::vector<std::byte> payload;
};

void encode(benchmark::State& state, const std::string& method) {
  Case with(method, state.range(0));
  for (auto _ : state) {
    with.codec->encode(with.values, {.seed = 1}, with.payload);
    benchmark::ClobberMemory();
  }
  count_bytes(state, with.bytes() + with.payload.size(), with.bytes());
}

void decode(benchmark::State& state, const std::string& method) {
  Case with(method, state.range(0));
  for (auto _ : state) {
    with.codec->decode(with.payload, with.values);
    benchmark::ClobberMemory();
  }
  count_bytes(state, with.bytes() + with.payload.size(), with.bytes());
}

void decode_add(benchmark::State& state, const std::string& method) {
  Case with(method, state.range(0));
  for (auto _ : state) {
    with.codec->decode_add(with.payload, with.values);
    benchmark::ClobberMemory();
  }
  count_bytes(state, 2 * with.bytes() + with.payload.size(), with.bytes());
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("copy", copy)->RangeMultiplier(32)->Range(kSmallest, kLargest);
  for (const std::string& method : lockstep::codec_examples()) {
    const auto add = [&](const char* what, void (*run)(benchmark::State&, const std::string&)) {
      benchmark::RegisterBenchmark((std::string(what) + "/" + method).c_str(),
                                   [run, method](benchmark::State& state) { run(state, method); })
          ->RangeMultiplier(32)
          ->Range(kSmallest, kLargest);
    };
    add("encode", encode);
    add("decode", decode);
    add("decode_add", decode_add);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
