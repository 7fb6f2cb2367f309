#include <fmt/format.h>

#include <cstdio>

#include "cli/infer.h"
#include "cli/train_plan.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/checkpoint/store.h"
#include "lockstep/train/infer.h"
#include "models/generate.h"
#include "recipe/task/train_task.h"
#include "report/printable.h"
#include "report/table.h"
#include "train/checkpoint.h"
#include "train/device.h"
#include "train/precision.h"
#include "train/read_state.h"
#include "train/threads.h"

namespace lockstep::cli {

int run_infer(const nlohmann::ordered_json& request) {
  InferOptions options;
  visit_infer_options(options, [&](const char* name, auto& field) { request.at(name).get_to(field); });
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
  const bool its_own = options.data.empty() && options.data_dir.empty();
  const DataRecord record =
      read_data_record(state.value("data", nlohmann::ordered_json()), checkpoint.string());
  if (its_own) run = locate_data(run, record);
  pin_threads(options.threads);
  run.device = options.device;
  check_attention(run);
  const TrainData data = make_data(run);
  if (its_own)
    check_same_data(record, record_of(*data.train, data.test.get(), ""), run.data, checkpoint.string(),
                    "--data for examples that the run has not seen");
  if (!options.precision.empty()) run.precision = options.precision;
  const torch::Device device = find_device(run.device, 0);
  const auto model = make_model(run, *data.train);
  const Precision precision = parse_precision(run.precision);
  apply_precision(precision, *model);
  move_model(*model, device, run.channels_last);
  load_converted(*model, weights, weights_file(checkpoint).string());
  model->eval();

  const Task task = in_precision(make_task(model, data), precision, device);
  const InferResult found = infer(task, options.batch, options.examples, [&](const Batch& batch) {
    return moved(batch, device, run.channels_last);
  });
  const std::optional<double> floor = data.test->loss_floor();
  const std::string text = writes ? printable(generate(*model, {.prompt = options.prompt,
                                                                .bytes = options.generate,
                                                                .temperature = options.temperature,
                                                                .seed = options.seed,
                                                                .context = run.context}))
                                  : "";
  if (options.json) {
    nlohmann::ordered_json row = {
        {"model", run.model},     {"checkpoint", checkpoint.string()}, {"examples", found.examples},
        {"batch", options.batch}, {"latency_ms_p50", found.ms_p50},    {"latency_ms_p95", found.ms_p95}};
    row[writes ? "sequences_per_s" : "images_per_s"] = 1000 / found.ms_mean;
    if (writes) row["tokens_per_s"] = 1000 / found.ms_mean * static_cast<double>(run.context);
    row["accuracy"] = found.accuracy;
    row["loss"] = found.loss;
    if (floor) row["loss_floor"] = *floor;
    if (writes) row.update({{"prompt", printable(options.prompt)}, {"text", text}});
    std::printf("%s\n", row.dump().c_str());
    return 0;
  }
  std::string out = fmt::format("{}\n{} on {}, {}, {} at once\n", checkpoint.string(), run.model, run.data,
                                counted(found.examples, "example"), options.batch);
  out +=
      fmt::format("latency   p50 {:.3f} ms, p95 {:.3f} ms {}\n", found.ms_p50, found.ms_p95,
                  writes ? fmt::format("a sequence of {} ({:.3f} ms a token)", counted(run.context, "token"),
                                       found.ms_p50 / static_cast<double>(run.context))
                         : "an image");
  out += fmt::format("accuracy  {:.1f} %\nloss      {:.4f}{}\n", 100 * found.accuracy, found.loss,
                     floor ? fmt::format("  (floor {:.4f}, the text's entropy)", *floor) : "");
  if (!text.empty())
    out += fmt::format("text      temperature {}, seed {}\n\n{}{}\n", options.temperature, options.seed,
                       options.prompt == InferOptions().prompt ? "" : printable(options.prompt), text);
  std::fputs(out.c_str(), stdout);
  return 0;
}

}  // namespace lockstep::cli
