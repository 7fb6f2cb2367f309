// What it costs that sums of f16 and bf16 are rounded at every node of the tree (comm/kernel/reduce.h): how
// far a mean is off, as a share of the mean, both as root mean squares over many elements.
//
//   rounding_error [elements = 16384]
//
// Gradients are normal random numbers, rounded to the type, one a lane; what they were rounded by does not
// count. Beside the tree as it is: sums that are kept in f32 and rounded once, and sums that are rounded lane
// by lane in a row, as by a ring.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "comm/kernel/reduce.h"

namespace {

using lockstep::DType;
using lockstep::ReduceOp;
namespace kernel = lockstep::kernel;

using Halves = std::vector<std::uint16_t>;
using Floats = std::vector<float>;

template <class T>
void reduce(std::vector<T>& out, const std::vector<std::vector<T>>& lanes, DType dtype) {
  std::vector<const void*> ins;
  for (const auto& lane : lanes) ins.push_back(lane.data());
  void* const to = out.data();
  kernel::reduce_tree({&to, 1}, ins, out.size(),
                      {.dtype = dtype, .op = ReduceOp::avg, .divisor = static_cast<double>(lanes.size())});
}

double error_of(const Halves& got, const std::vector<double>& mean, DType dtype) {
  Floats wide(got.size());
  kernel::widen(wide.data(), got.data(), got.size(), dtype);
  double off = 0;
  double all = 0;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    off += (wide[i] - mean[i]) * (wide[i] - mean[i]);
    all += mean[i] * mean[i];
  }
  return std::sqrt(off / all);
}

void print_row(DType dtype, std::size_t lanes, std::size_t elements) {
  std::mt19937_64 random(lanes);
  std::normal_distribution<float> normal;
  std::vector<Halves> halves(lanes, Halves(elements));
  std::vector<Floats> floats(lanes, Floats(elements));
  std::vector<double> mean(elements);
  for (std::size_t lane = 0; lane < lanes; ++lane) {
    for (float& value : floats[lane]) value = normal(random);
    kernel::narrow(halves[lane].data(), floats[lane].data(), elements, dtype);
    kernel::widen(floats[lane].data(), halves[lane].data(), elements, dtype);
    for (std::size_t i = 0; i < elements; ++i) mean[i] += floats[lane][i] / static_cast<double>(lanes);
  }
  Halves tree(elements);
  reduce(tree, halves, dtype);
  Floats wide(elements);
  reduce(wide, floats, DType::f32);
  Halves once(elements);
  kernel::narrow(once.data(), wide.data(), elements, dtype);
  Halves row = halves[0];
  const kernel::Reduction average{.dtype = dtype, .op = ReduceOp::avg, .divisor = static_cast<double>(lanes)};
  for (std::size_t lane = 1; lane < lanes; ++lane)
    kernel::combine(row.data(), row.data(), halves[lane].data(), elements, average);
  kernel::finish(row.data(), row.data(), elements, average);
  std::printf("| %s | %zu | %.3f %% | %.3f %% | %.3f %% |\n", to_string(dtype), lanes,
              100 * error_of(once, mean, dtype), 100 * error_of(tree, mean, dtype),
              100 * error_of(row, mean, dtype));
}

}  // namespace

int main(int argc, char** argv) {
  const int elements = argc > 1 ? std::atoi(argv[1]) : 16384;
  if (argc > 2 || elements < 1) {
    std::fprintf(stderr, "usage: rounding_error [elements = 16384]; 1 or more\n");
    return 2;
  }
  std::printf("| type | lanes | in f32, rounded once | rounded at every node | rounded in a row |\n");
  std::printf("|---|---|---|---|---|\n");
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const std::size_t lanes : {8, 64, 1024}) print_row(dtype, lanes, static_cast<std::size_t>(elements));
  return 0;
}
