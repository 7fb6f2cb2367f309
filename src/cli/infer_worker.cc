#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "cli/infer.h"
#include "cli/train_checkpoint.h"
#include "cli/train_task.h"
#include "cli/train_threads.h"
#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/observe/histogram.h"

namespace lockstep::cli {

int run_infer(const InferOptions& options) {
  std::filesystem::path checkpoint;
  nlohmann::ordered_json state;
  TensorMap weights;
  use_checkpoint(options.resume, [&](const std::filesystem::path& found) {  // the run may go on meanwhile
    checkpoint = found;
    state = read_state(found);
    weights = read_weights(found);
  });
  TrainOptions run = options_of_state(state, checkpoint);
  check_options(run);
  if (!options.data.empty()) run.data = options.data;
  if (!options.data_dir.empty()) run.data_dir = options.data_dir;
  if (options.data.empty() && options.data_dir.empty())
    run = locate_data(run,
                      read_data_record(state.value("data", nlohmann::ordered_json()), checkpoint.string()));
  pin_threads(options.threads);
  const TrainData data = make_data(run);
  const auto model = make_model(run, *data.train);
  load_model_state(*model, weights, weights_file(checkpoint).string());
  model->eval();

  const c10::NoGradGuard no_grad;
  const std::int64_t examples =
      options.examples == 0 ? data.test->size() : std::min(options.examples, data.test->size());
  std::vector<double> ms;
  std::int64_t correct = 0, targets = 0;
  const auto batch_at = [&](std::int64_t first) {
    std::vector<std::int64_t> indices(static_cast<std::size_t>(std::min(options.batch, examples - first)));
    std::iota(indices.begin(), indices.end(), first);
    return data.test->get(indices, nullptr);
  };
  for (int i = 0; i < 3; ++i) model->forward(batch_at(0).data);  // memory is touched, kernels are chosen
  for (std::int64_t first = 0; first < examples; first += options.batch) {
    const Batch batch = batch_at(first);
    const std::int64_t begin = now_ns();
    const torch::Tensor logits = model->forward(batch.data);
    const auto [right, count] = count_correct(logits, batch.target);
    ms.push_back(static_cast<double>(now_ns() - begin) / 1e6 / static_cast<double>(batch.data.size(0)));
    correct += right;
    targets += count;
  }
  const double total_ms = std::accumulate(ms.begin(), ms.end(), 0.0);
  std::ranges::sort(ms);
  const double p50 = quantile_of_sorted(ms, 0.5), p95 = quantile_of_sorted(ms, 0.95);
  const double accuracy = static_cast<double>(correct) / static_cast<double>(targets);
  const double mean = total_ms / static_cast<double>(ms.size());
  if (options.json) {
    const nlohmann::ordered_json row = {{"model", run.model},          {"checkpoint", checkpoint.string()},
                                        {"examples", examples},        {"batch", options.batch},
                                        {"latency_ms_p50", p50},       {"latency_ms_p95", p95},
                                        {"images_per_s", 1000 / mean}, {"accuracy", accuracy}};
    std::printf("%s\n", row.dump().c_str());
  } else {
    std::printf(
        "%s\n%s on %s, %lld examples, %lld at once\nlatency   p50 %.3f ms, p95 %.3f ms an image\naccuracy  "
        "%.1f %%\n",
        checkpoint.c_str(), run.model.c_str(), run.data.c_str(), static_cast<long long>(examples),
        static_cast<long long>(options.batch), p50, p95, 100 * accuracy);
  }
  return 0;
}

}  // namespace lockstep::cli
