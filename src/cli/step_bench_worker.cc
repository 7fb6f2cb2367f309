#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "cli/step_bench.h"
#include "launch/worker_events.h"
#include "lockstep/comm/init.h"
#include "lockstep/train/step_bench.h"
#include "recipe/task/train_task.h"
#include "report/progress.h"
#include "train/device.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

Json row_of(const StepBenchResult& result, const TrainOptions& options, const Group& world,
            const Model& model) {
  std::int64_t params = 0;
  for (const auto& p : model.parameters()) params += p.numel();
  const auto known = [](const std::optional<double>& value) { return value ? Json(*value) : Json(); };
  return {{"model", options.model},
          {"workers", world.size()},
          {"lane_batch", options.lane_batch},
          {"params", params},
          {"bucket_cap_mb", result.bucket_cap_mb},
          {"steps", options.steps},
          {"step_ms", result.step_ms},
          {"alone_ms", result.alone_ms},
          {"efficiency", result.efficiency()},
          {"samples_per_s", static_cast<double>(options.lane_batch * world.size()) / result.step_ms * 1e3},
          {"step_ms_p95", result.step_ms_p95},
          {"alone_ms_p95", result.alone_ms_p95},
          {"in_phase_ms", result.in_phase_ms},
          {"comm_fraction", result.comm_fraction},
          {"predicted_step_ms", known(result.predicted_step_ms)},
          {"predicted_comm_fraction", known(result.predicted_comm_fraction)},
          {"engine", world.engine()}};
}

}  // namespace

int run_step_bench_worker(const Json& request) {
  TrainOptions options;
  merge_json(options, request.at("options"), "the request");
  check_options(options);
  at::set_num_threads(static_cast<int>(options.threads));
  const Group world = init({.device = device_kind(options.device)});
  options.data = "synthetic";
  options.examples = options.lane_batch * world.size();
  options.eval_examples = 1;
  check_attention(options);
  const TrainData data = make_data(options);
  const std::shared_ptr<Model> model = make_model(options, *data.train);
  std::vector<std::int64_t> indices(static_cast<std::size_t>(options.lane_batch));
  std::iota(indices.begin(), indices.end(), world.rank() * options.lane_batch);
  const std::string report_to = request.value("report_to", "");
  Progress progress;
  std::optional<EventReporter> reporter;
  if (world.rank() == 0 && !report_to.empty()) reporter.emplace(report_to);
  if (world.rank() == 0 && report_to.empty())
    reporter.emplace([&](const Json& event) {
      if (event.at("event") == "progress" && is_terminal(2))
        progress.show(event.at("text").get<std::string>());
      if (event.at("event") != "row") return;
      progress.clear();
      print_step_row(event.at("row"), request.value("json", false));
    });
  const StepBenchResult result =
      bench_steps(model, make_task(model, data), data.train->get(indices, nullptr), trainer_options(options),
                  world, [&](std::int64_t done) {
                    if (reporter)
                      reporter->offer({{"event", "progress"},
                                       {"text", fmt::format("step {} of {}", done, options.steps)}});
                  });
  if (reporter) reporter->post({{"event", "row"}, {"row", row_of(result, options, world, *model)}});
  world.barrier();
  if (reporter) reporter->flush();
  return 0;
}

}  // namespace lockstep::cli
