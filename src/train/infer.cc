#include "lockstep/train/infer.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/clock.h"
#include "lockstep/observe/histogram.h"

namespace lockstep {

InferResult infer(const Task& task, std::int64_t batch, std::int64_t examples,
                  const std::function<Batch(const Batch&)>& place) {
  const c10::NoGradGuard no_grad;
  InferResult result{.examples = examples == 0 ? task.test->size() : std::min(examples, task.test->size())};
  const auto batch_at = [&](std::int64_t first) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(batch, result.examples - first)));
    std::iota(indices.begin(), indices.end(), first);
    return task.test->get(indices, nullptr);
  };
  for (int i = 0; i < 3; ++i) task.forward(place(batch_at(0)));  // memory is touched, kernels are chosen
  std::vector<double> ms;
  double targets = 0;
  for (std::int64_t first = 0; first < result.examples; first += batch) {
    const Batch made = batch_at(first);
    const std::int64_t begin = now_ns();
    const Batch own = place(made);
    const torch::Tensor output = task.forward(own);
    const auto [right, count] = count_correct(output, own);
    ms.push_back(static_cast<double>(now_ns() - begin) / 1e6 / static_cast<double>(own.data.size(0)));
    result.loss += task.loss(output, own).item<double>() * count;
    result.accuracy += right;
    targets += count;
  }
  result.loss /= targets;
  result.accuracy /= targets;
  result.ms_mean = std::accumulate(ms.begin(), ms.end(), 0.0) / static_cast<double>(ms.size());
  std::ranges::sort(ms);
  result.ms_p50 = quantile_of_sorted(ms, 0.5);
  result.ms_p95 = quantile_of_sorted(ms, 0.95);
  return result;
}

}  // namespace lockstep
