#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "cli/generate.h"
#include "cli/infer.h"
#include "cli/train_checkpoint.h"
#include "cli/train_task.h"
#include "cli/train_threads.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/observe/histogram.h"
#include "report/printable.h"
#include "report/table.h"

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
  const bool writes = run.model == "gpt";
  if (!writes && !options.text_flag.empty())
    throw UsageError(fmt::format("{}: the {} of {} writes no text; accepted for a gpt", options.text_flag,
                                 run.model, checkpoint.string()));
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
  double loss = 0;
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
    loss += loss_of(logits, batch.target).item<double>() * static_cast<double>(count);
    correct += right;
    targets += count;
  }
  const double total_ms = std::accumulate(ms.begin(), ms.end(), 0.0);
  std::ranges::sort(ms);
  const double p50 = quantile_of_sorted(ms, 0.5), p95 = quantile_of_sorted(ms, 0.95);
  const double accuracy = static_cast<double>(correct) / static_cast<double>(targets);
  const double mean = total_ms / static_cast<double>(ms.size());
  loss /= static_cast<double>(targets);
  const std::optional<double> floor = data.test->loss_floor();
  const std::string text = writes ? printable(generate(*model, {.prompt = options.prompt,
                                                                .bytes = options.generate,
                                                                .temperature = options.temperature,
                                                                .seed = options.seed,
                                                                .context = run.context}))
                                  : "";
  if (options.json) {
    nlohmann::ordered_json row = {{"model", run.model},    {"checkpoint", checkpoint.string()},
                                  {"examples", examples},  {"batch", options.batch},
                                  {"latency_ms_p50", p50}, {"latency_ms_p95", p95}};
    row[writes ? "sequences_per_s" : "images_per_s"] = 1000 / mean;
    if (writes) row["tokens_per_s"] = 1000 / mean * static_cast<double>(run.context);
    row["accuracy"] = accuracy;
    row["loss"] = loss;
    if (floor) row["loss_floor"] = *floor;
    if (writes) row.update({{"prompt", printable(options.prompt)}, {"text", text}});
    std::printf("%s\n", row.dump().c_str());
    return 0;
  }
  std::string out = fmt::format("{}\n{} on {}, {}, {} at once\n", checkpoint.string(), run.model, run.data,
                                counted(examples, "example"), options.batch);
  out +=
      fmt::format("latency   p50 {:.3f} ms, p95 {:.3f} ms {}\n", p50, p95,
                  writes ? fmt::format("a sequence of {} ({:.3f} ms a token)", counted(run.context, "token"),
                                       p50 / static_cast<double>(run.context))
                         : "an image");
  out += fmt::format("accuracy  {:.1f} %\nloss      {:.4f}{}\n", 100 * accuracy, loss,
                     floor ? fmt::format("  (floor {:.4f}, the text's entropy)", *floor) : "");
  if (!text.empty())
    out += fmt::format("text      temperature {}, seed {}\n\n{}{}\n", options.temperature, options.seed,
                       options.prompt == InferOptions().prompt ? "" : printable(options.prompt), text);
  std::fputs(out.c_str(), stdout);
  return 0;
}

}  // namespace lockstep::cli
