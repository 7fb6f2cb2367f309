#include "cli/train_evaluate.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "cli/train_task.h"

namespace lockstep::cli {

Evaluation evaluate(Model& model, const Dataset& data, std::int64_t batch, const Group& world) {
  const c10::NoGradGuard no_grad;
  model.eval();
  const std::int64_t batches = (data.size() + batch - 1) / batch;
  // Per batch: summed loss, correct, targets. Others' stay zero, and adding zeros changes no bit.
  std::vector<double> sums(static_cast<std::size_t>(3 * batches));
  for (std::int64_t b = world.rank(); b < batches; b += world.size()) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(batch, data.size() - b * batch)));
    std::iota(indices.begin(), indices.end(), b * batch);
    const Batch examples = data.get(indices, nullptr);
    const torch::Tensor logits = model.forward(examples.data);
    const auto [correct, count] = count_correct(logits, examples.target);
    double* const at = &sums[static_cast<std::size_t>(3 * b)];
    at[0] = loss_of(logits, examples.target).item<double>() * static_cast<double>(count);
    at[1] = static_cast<double>(correct);
    at[2] = static_cast<double>(count);
  }
  model.train();
  world.all_reduce(buffer(sums));
  double loss = 0, correct = 0, count = 0;
  for (std::size_t i = 0; i < sums.size(); i += 3) {
    loss += sums[i];
    correct += sums[i + 1];
    count += sums[i + 2];
  }
  return {loss / count, correct / count};
}

}  // namespace lockstep::cli
