// The fused optimizers against the machine's memory bandwidth and against libtorch's optimizers.
//
//   optim_bench [rounds = 15] [threads = 1]
//
// Method. Everything runs in turn, round after round, and the medians are compared, so that what else the
// machine does falls on all alike; beside them stand the fastest rounds, which what else it does touches
// least. Bytes are those that one pass must move: SGD with momentum reads 3 arrays and writes 2 (20 bytes an
// f32 element), Adam and AdamW read 4 and write 3 (28). The bandwidth is measured as STREAM does, by a plain
// loop that reads and writes as many arrays, in place, with one addition for each write, over arrays as long
// as the model's parameters; together they are larger than the last cache. memcpy (1 read, 1 write) is shown
// beside it. libtorch moves more bytes than that, which is the point.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/optimizer.h"
#include "optim/crew.h"
#include "optim/update.h"

namespace {

using lockstep::NamedTensor;
using Shapes = std::vector<std::vector<std::int64_t>>;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LOCKSTEP_BENCH_CLONES __attribute__((target_clones("arch=skylake-avx512", "avx2", "default")))
#else
#define LOCKSTEP_BENCH_CLONES
#endif

LOCKSTEP_BENCH_CLONES void stream_3_2(float* __restrict a, float* __restrict b, const float* __restrict in,
                                      std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    a[i] += in[i];
    b[i] += in[i];
  }
}

LOCKSTEP_BENCH_CLONES void stream_4_3(float* __restrict a, float* __restrict b, float* __restrict c,
                                      const float* __restrict in, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    a[i] += in[i];
    b[i] += in[i];
    c[i] += in[i];
  }
}

// The 62 parameters of ResNet-18 with the stem for small images and ten classes.
Shapes resnet18() {
  Shapes shapes;
  const auto conv = [&](std::int64_t out, std::int64_t in, std::int64_t side) {
    shapes.push_back({out, in, side, side});
    shapes.push_back({out});  // batch norm
    shapes.push_back({out});
  };
  conv(64, 3, 3);
  std::int64_t in = 64;
  for (const std::int64_t out : {64, 128, 256, 512}) {
    conv(out, in, 3);
    conv(out, out, 3);
    if (in != out) conv(out, in, 1);
    conv(out, out, 3);
    conv(out, out, 3);
    in = out;
  }
  shapes.push_back({10, 512});
  shapes.push_back({10});
  return shapes;
}

// Eight layers of 1024 and an output of ten.
Shapes mlp() {
  Shapes shapes;
  for (const std::int64_t out : {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024, 10}) {
    shapes.push_back({out, 1024});
    shapes.push_back({out});
  }
  return shapes;
}

std::vector<NamedTensor> make(const Shapes& shapes) {
  std::vector<NamedTensor> made;
  for (std::size_t k = 0; k < shapes.size(); ++k) {
    made.push_back({fmt::format("p{}", k), torch::randn(shapes[k]).set_requires_grad(true)});
    made.back().tensor.mutable_grad() = torch::randn(shapes[k]) * 1e-3;
  }
  return made;
}

std::vector<torch::Tensor> tensors(const std::vector<NamedTensor>& named) {
  std::vector<torch::Tensor> result;
  for (const auto& [name, tensor] : named) result.push_back(tensor);
  return result;
}

struct Entry {
  std::string name;
  double bytes;  // an element
  std::function<void()> run;
  std::vector<double> seconds = {};

  double median() const { return seconds[seconds.size() / 2]; }  // sorted
  double fastest() const { return seconds.front(); }
};

void bench(const std::string& model, const Shapes& shapes, int rounds, int threads) {
  std::size_t count = 0;
  for (const auto& shape : shapes) {
    std::size_t size = 1;
    for (const auto side : shape) size *= static_cast<std::size_t>(side);
    count += size;
  }
  // Staggered: arrays that begin at the same place of a page would hold each other up.
  const std::size_t stride = (count + 1023) / 1024 * 1024 + 208;
  const torch::Tensor memory = torch::ones({static_cast<std::int64_t>(4 * stride)});
  const auto array = [&](std::size_t k) { return memory.data_ptr<float>() + k * stride; };
  lockstep::Crew crew;
  const auto shared_out = [&](const std::function<void(std::size_t, std::size_t)>& work) {
    const auto parts = static_cast<std::size_t>(threads);
    crew.run(parts, parts, [&](std::size_t k) {
      const std::size_t begin = count * k / parts;
      work(begin, count * (k + 1) / parts - begin);
    });
  };

  const std::vector<std::vector<NamedTensor>> models = {make(shapes), make(shapes), make(shapes),
                                                        make(shapes), make(shapes), make(shapes)};
  lockstep::SGD sgd(models[0], {.lr = 1e-3, .momentum = 0.9, .weight_decay = 1e-4});
  lockstep::Adam adam(models[1], {});
  lockstep::AdamW adamw(models[2], {});
  torch::optim::SGD torch_sgd(tensors(models[3]),
                              torch::optim::SGDOptions(1e-3).momentum(0.9).weight_decay(1e-4));
  torch::optim::Adam torch_adam(tensors(models[4]), torch::optim::AdamOptions(1e-3));
  torch::optim::AdamW torch_adamw(tensors(models[5]), torch::optim::AdamWOptions(1e-3));

  enum : std::size_t { kCopy, kStream32, kStream43, kSgd };
  std::vector<Entry> entries = {
      {"memcpy", 8,
       [&] {
         shared_out([&](std::size_t begin, std::size_t length) {
           std::memcpy(array(0) + begin, array(1) + begin, length * sizeof(float));
         });
       }},
      {"stream 3 read 2 write", 20,
       [&] {
         shared_out([&](std::size_t begin, std::size_t length) {
           stream_3_2(array(0) + begin, array(1) + begin, array(2) + begin, length);
         });
       }},
      {"stream 4 read 3 write", 28,
       [&] {
         shared_out([&](std::size_t begin, std::size_t length) {
           stream_4_3(array(0) + begin, array(1) + begin, array(2) + begin, array(3) + begin, length);
         });
       }},
      {"SGD, momentum", 20, [&] { sgd.step(); }},
      {"torch SGD, momentum", 20, [&] { torch_sgd.step(); }},
      {"Adam", 28, [&] { adam.step(); }},
      {"torch Adam", 28, [&] { torch_adam.step(); }},
      {"AdamW", 28, [&] { adamw.step(); }},
      {"torch AdamW", 28, [&] { torch_adamw.step(); }},
  };
  for (int round = -2; round < rounds; ++round)  // two rounds to touch memory and start momentum
    for (Entry& entry : entries) {
      const auto start = std::chrono::steady_clock::now();
      entry.run();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (round >= 0) entry.seconds.push_back(taken.count());
    }

  fmt::print("{}: {:.1f} M parameters in {} tensors, {} thread{}, {}\n", model,
             static_cast<double>(count) / 1e6, shapes.size(), threads, threads == 1 ? "" : "s",
             lockstep::kernel::update_target_name());
  for (Entry& entry : entries) std::sort(entry.seconds.begin(), entry.seconds.end());
  const auto rate = [&](const Entry& entry, double seconds) {
    return entry.bytes * static_cast<double>(count) / seconds / 1e9;
  };
  const auto row = [&](const Entry& entry) {
    return fmt::format("  {:<22} {:7.2f} ms {:5.1f} GB/s   fastest {:7.2f} ms {:5.1f} GB/s", entry.name,
                       entry.median() * 1e3, rate(entry, entry.median()), entry.fastest() * 1e3,
                       rate(entry, entry.fastest()));
  };
  for (std::size_t k = 0; k < kSgd; ++k) fmt::print("{}\n", row(entries[k]));
  for (std::size_t k = kSgd; k < entries.size(); k += 2) {
    const Entry& ours = entries[k];
    const Entry& theirs = entries[k + 1];
    const Entry& stream = entries[ours.bytes < 28 ? kStream32 : kStream43];
    fmt::print(
        "{}   {:3.0f} % of bandwidth (fastest {:3.0f} %)   {:.2f} x libtorch ({:.2f} ms, fastest {:.2f} x)\n",
        row(ours), 100 * stream.median() / ours.median(), 100 * stream.fastest() / ours.fastest(),
        theirs.median() / ours.median(), theirs.median() * 1e3, theirs.fastest() / ours.fastest());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  if (rounds < 1 || threads < 1 || argc > 3) {
    fmt::print(stderr, "usage: optim_bench [rounds = 15] [threads = 1]; both 1 or more\n");
    return 2;
  }
  at::set_num_threads(threads);
  bench("ResNet-18", resnet18(), rounds, threads);
  bench("MLP", mlp(), rounds, threads);
}
