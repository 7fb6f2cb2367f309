#include "plan/memory_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/machine_memory.h"
#include "base/suggest.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/lanes.h"
#include "offload/pager.h"
#include "offload/scratch_file.h"
#include "plan/memory_plan.h"
#include "plan/parameter_count.h"
#include "report/table.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kMostPlannedWorkers = 1 << 20;  // of all machines: as many as lanes

template <class Request, class Visit>
void visit_texts(Request& request, Visit&& visit) {
  visit("params", request.params);
  visit("unit_params", request.unit_params);
  visit("memory", request.memory);
  visit("stage", request.stage);
}

bool is_narrow(const std::string& precision) { return precision == "bf16" || precision == "fp16"; }

// With --params there is no model to have options.
void check_one_size(const MemoryRequest& request, const Given& given) {
  if (request.params.empty() && !given.contains("model"))
    throw UsageError("what is to fit is not said; accepted: --params 7.5B, or --model gpt");
  if (request.params.empty()) return;
  visit_options(request.options, [&](const OptionInfo& info, const auto&) {
    const std::string name = info.name;
    const bool of_model = std::string_view(info.group) == kModelGroup || name == "data" || name == "data_dir";
    if (of_model && given.contains(name))
      throw UsageError(
          fmt::format("{} says what the model is, and --params how large it is; accepted: one of "
                      "them",
                      flag_of(name)));
  });
}

double memory_of(const std::string& text) try {
  const auto bytes = static_cast<double>(parse_bytes(text));
  if (bytes == 0) throw UsageError("0 bytes; accepted: more");
  return bytes;
} catch (const UsageError& error) {
  throw UsageError(std::string("--memory: ") + error.what());
}

int most_lanes_of_a_worker(int workers, int lanes) {
  int most = 1;
  for (int worker = 0; worker < workers; ++worker)
    most = std::max(most, lanes_of(worker, workers, lanes).count);
  return most;
}

// What a run refuses too, in the words of this command's flags.
void check_offload(const MemoryRequest& request) {
  const TrainOptions& o = request.options;
  if (offloads_params(o) && request.gpu)
    throw UsageError(fmt::format("--gpu: --offload-what {} is of the processor's memory; accepted: state",
                                 o.offload_what));
  if (offloads_params(o) && o.offload == kHostOffload)
    throw UsageError(fmt::format(
        "--offload host: --offload-what {} is of the processor's memory; accepted: a folder on a local disk",
        o.offload_what));
  if (offloads_params(o) && !request.stage.empty() && request.stage != "3")
    throw UsageError(fmt::format(
        "--offload-what {} is of parameters in shards, and --stage is {}; accepted: 3, or --offload-what "
        "state",
        o.offload_what, request.stage));
  if (o.offload == kHostOffload && !request.gpu)
    throw UsageError(
        "--offload host: without --gpu the optimizer's state is in the host's memory; accepted: a folder on "
        "a local disk (./host for one of that name), or --gpu");
  if (offloads(o) && o.offload != kHostOffload && !o.offload.empty())
    expect_folder("--offload " + o.offload, o.offload);  // which is measured here
}

// A worker's, where it was not given.
double memory_here(const MemoryRequest& request, int machine_workers) {
  if (!request.gpu) return machine_memory() / machine_workers;
  if (request.gpus.count == 0)
    throw UsageError(
        "--gpu: there is no GPU here whose memory could be asked for; accepted: --memory, what a worker has "
        "of its GPU's (80G)");
  const int used = request.one_gpu ? 1 : request.gpus.count;
  return request.gpus.bytes / ((machine_workers + used - 1) / used);
}

}  // namespace

const Given kMemoryOptions = {
    "model",         "cifar_stem", "norm",      "channels",        "layers",    "blocks",
    "width",         "heads",      "context",   "tied_embeddings", "data",      "data_dir",
    "workers",       "lanes",      "optimizer", "momentum",        "precision", "reduce_precision",
    "bucket_cap_mb", "strategy",   "offload",   "offload_what"};

void settle(MemoryRequest& request, const Given& given) {
  check_one_size(request, given);
  request.gpu = request.gpu || request.one_gpu;
  TrainOptions& o = request.options;
  const std::int64_t workers = std::max<std::int64_t>(1, o.workers);
  if (o.workers < 0 || workers > kMostPlannedWorkers)
    throw UsageError(fmt::format("-n (--workers) '{}' is out of range; accepted: 1 to {}", o.workers,
                                 kMostPlannedWorkers));
  o.workers = 0;  // more than one launcher starts can be planned for
  check_values(o);
  if (!request.stage.empty()) expect_one_of("--stage", request.stage, {"0", "1", "2", "3"});
  const bool named = given.contains("strategy");
  if (named && !request.stage.empty())
    throw UsageError(
        fmt::format("--stage {} and --strategy {} both say what is planned; accepted: one of them",
                    request.stage, o.strategy));
  check_offload(request);
  if (offloads_params(o) && !named) o.strategy = "zero3";  // of all stages it is the one that has them there
  // In the host's memory: on GPUs alone, of which the machine that plans may have none.
  const std::string offload = o.offload;
  if (offload == kHostOffload) o.offload = "none";
  check_options(o);
  check_of_use(o, given);
  check_lanes(o, workers);
  if (offload == kHostOffload) o.offload = offload;
  if (named) request.stage = std::to_string(stage_of(o.strategy));
  o.workers = workers;
  if (o.lanes == 0) o.lanes = workers;
  if (request.machines < 1 || workers % request.machines != 0)
    throw UsageError(
        fmt::format("--machines {}: {} can't be as many on each; accepted: 1, or a number that divides them",
                    request.machines, counted(workers, "worker")));
  if (request.one_gpu && request.machines > 1)
    throw UsageError(fmt::format("--one-gpu: one GPU is in one machine, and --machines is {}; accepted: 1",
                                 request.machines));
  if (!request.memory.empty()) (void)memory_of(request.memory);
  if (request.unit_params.empty()) return;
  const double unit = parse_parameter_count("--unit-params", request.unit_params);
  if (!request.params.empty() && unit > parse_parameter_count("--params", request.params))
    throw UsageError(fmt::format("--unit-params {} is more than --params {}; accepted: a part of the model",
                                 request.unit_params, request.params));
}

Json to_json(const MemoryRequest& request) {
  Json json = {{"options", to_json(request.options)},
               {"json", request.json},
               {"gpu", request.gpu},
               {"one_gpu", request.one_gpu},
               {"machines", request.machines}};
  visit_texts(request, [&](const char* name, const std::string& text) { json[name] = text; });
  return json;
}

MemoryRequest memory_request(const Json& json) {
  MemoryRequest request{.machines = json.at("machines").get<std::int64_t>(),
                        .gpu = json.value("gpu", false),
                        .one_gpu = json.value("one_gpu", false),
                        .json = json.value("json", false)};
  merge_json(request.options, json.at("options"), "the request");
  visit_texts(request, [&](const char* name, std::string& text) { text = json.value(name, ""); });
  return request;
}

ModelSize size_in_params(const MemoryRequest& request) {
  return {.parameters = {{.count = parse_parameter_count("--params", request.params),
                          .element_bytes = is_narrow(request.options.precision) ? 2 : 4}}};
}

std::string answer(const MemoryRequest& request, ModelSize size, bool colours) {
  const TrainOptions& o = request.options;
  const bool narrow = is_narrow(o.precision);
  if (!request.unit_params.empty())
    size.largest_unit_bytes = parse_parameter_count("--unit-params", request.unit_params) * (narrow ? 2 : 4);
  const int workers = static_cast<int>(o.workers);
  const int lanes = static_cast<int>(o.lanes);
  const int machine_workers = workers / static_cast<int>(request.machines);
  const bool memory_given = !request.memory.empty();
  MemoryQuestion question{
      .model = request.params.empty() ? o.model : "",
      .size = std::move(size),
      .precision = o.precision,
      .optimizer = o.optimizer,
      .lanes = lanes,
      .form = {.workers = workers,
               .machine_workers = machine_workers,
               .lanes = most_lanes_of_a_worker(workers, lanes),
               .moments = moments_of(o.optimizer, o.momentum),
               .master_bytes = narrow ? 4 : 0,
               .least_gradient_bytes = o.reduce_precision == "fp32" ? 4 : 0,
               .on_gpus = request.gpu,
               .one_gpu = request.one_gpu},
      .memory_bytes = memory_given ? memory_of(request.memory) : memory_here(request, machine_workers),
      .memory_given = memory_given};
  if (o.strategy == kHybridShard) {
    question.in_nodes = true;
    question.form.sharers = machine_workers;
  }
  if (o.offload == kHostOffload) {
    question.form.staging_bytes = static_cast<double>(Offload().staging_bytes);
  } else if (offloads(o)) {
    const Offload offload{.folder = o.offload};
    question.offload = o.offload;
    const DiskRates rates = rates_of(offload);
    const StepNorms norms = o.optimizer == "lamb"   ? StepNorms::of_moments
                            : o.optimizer == "lars" ? StepNorms::of_parameters
                                                    : StepNorms::none;
    const StepPasses passes = passes_of_step(norms, narrow ? StepMasters::on_disk : StepMasters::none);
    question.disk_rate = rates.both;
    question.disk_passes = passes.updates + passes.reads * rates.both / rates.read;
    question.disk_path = rates.path;
    if (offloads_state(o)) question.form.staging_bytes = static_cast<double>(offload.staging_bytes);
    question.form.params_on_disk = question.form.gathers = offloads_params(o);
    const int reads = 2 * question.form.lanes + (norms == StepNorms::none ? 0 : 1);
    question.params_passes = 1 + reads * rates.both / rates.read;
  }
  if (o.bucket_cap_mb != 0) question.form.bucket_bytes = o.bucket_cap_mb * 0x1p20;
  if (!request.stage.empty()) question.stages = {request.stage.front() - '0'};
  const MemoryPlan plan = plan_memory(question);
  return request.json ? to_json(plan).dump() + "\n" : describe(plan, colours);
}

}  // namespace lockstep
