// How far apart are two files of tensors? compare A B: prints the largest difference, relative to the largest
// element of A's tensor; 0: the same bits. Exit status 1 where their forms differ.
#include <torch/serialize.h>

#include <cstdio>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::vector<torch::Tensor> a, b;
  torch::load(a, argv[1]);
  torch::load(b, argv[2]);
  if (a.empty() || a.size() != b.size()) return 1;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].sizes() != b[i].sizes() || a[i].scalar_type() != b[i].scalar_type()) return 1;
    if (torch::equal(a[i], b[i])) continue;
    largest = std::max(largest, ((a[i] - b[i]).abs().max() / a[i].abs().max()).item<double>());
  }
  std::printf("%s %.3g\n", torch::toString(a[0].scalar_type()), largest);
}
