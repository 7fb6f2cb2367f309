#include "recipe/task/train_task.h"

#include <ATen/Context.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/machine_memory.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "lockstep/compress/bf16.h"
#include "lockstep/compress/compress.h"
#include "lockstep/data/open_dataset.h"
#include "lockstep/models/cross_entropy.h"
#include "lockstep/models/precision.h"
#include "lockstep/parallel/construction.h"
#include "lockstep/parallel/units.h"
#include "train/device.h"
#include "train/precision.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

bool is_tokens(const TrainOptions& o) { return o.model == "gpt"; }

bool is_name(const std::string& data) {
  const std::vector<std::string>& names = dataset_names();
  return std::find(names.begin(), names.end(), data) != names.end();
}

// Where the options' data is said to be.
std::string& place_of(TrainOptions& o) { return is_name(o.data) ? o.data_dir : o.data; }

// Which kind of files lie at a path.
std::string kind_of(const TrainOptions& o) {
  const std::vector<std::string>& kinds = dataset_names();
  if (std::find(kinds.begin(), kinds.end(), o.data) != kinds.end()) return o.data;
  const fs::path path = o.data;
  if (fs::is_regular_file(path)) return "text";
  if (!fs::is_directory(path))
    throw UsageError(
        fmt::format("--data '{}': no such file or folder, and no name that is known; accepted: {}, a folder "
                    "with files of CIFAR-10, MNIST or text, or a text file",
                    o.data, fmt::join(kinds, ", ")));
  // By any of its files: which one is missing the reader says.
  for (const char* name : {"test_batch.bin", "data_batch_1.bin", "data_batch_2.bin", "cifar-10-batches-bin"})
    if (fs::exists(path / name)) return "cifar10";
  for (const char* name : {"train-images-idx3-ubyte", "train-images.idx3-ubyte", "t10k-images-idx3-ubyte",
                           "t10k-images.idx3-ubyte", "MNIST"})
    if (fs::exists(path / name)) return "mnist";
  return "text";
}

DataOptions data_options(const TrainOptions& o, const std::string& kind) {
  DataOptions options{.name = kind,
                      .folder = o.data == kind ? o.data_dir : o.data,
                      .context = o.context,
                      .train_size = o.examples,
                      .test_size = o.eval_examples};
  const bool needs_files = kind == "cifar10" || kind == "mnist";
  if (needs_files && options.folder.empty())
    throw UsageError(fmt::format("--data {} needs --data-dir, where its files are", kind));
  if (o.model.starts_with("resnet")) options.shape = {3, 32, 32};
  if (o.model == "mlp" && kind == "synthetic") options.shape = {1024};
  return options;
}

// Refuses a model whose weights alone are more than this machine's memory, before it is made bit by bit.
void check_model_size(const TrainOptions& o, double inputs, double classes) {
  const auto w = static_cast<double>(o.width), layers = static_cast<double>(o.layers);
  double parameters = 0;
  std::string flags = fmt::format("--width {}", o.width);
  if (o.model == "gpt") {
    parameters =
        12 * static_cast<double>(o.blocks) * w * w + (2 * classes + static_cast<double>(o.context)) * w;
    flags += fmt::format(", --blocks {}, --context {}", o.blocks, o.context);
  } else if (o.model == "mlp") {
    parameters = layers == 0 ? inputs * classes : inputs * w + (layers - 1) * w * w + w * classes;
    flags += fmt::format(", --layers {}", o.layers);
  }
  const double memory = machine_memory();
  const double bytes = parameters * sizeof(float);
  if (bytes > memory)
    throw UsageError(
        fmt::format("{}: the weights of such a {} take {:.1f} GiB, and this machine's memory is {:.1f} GiB; "
                    "accepted: smaller ones (lockstep plan memory --params says what larger ones need)",
                    flags, o.model, bytes / 0x1p30, memory / 0x1p30));
}

ResNetNorm norm_of(const TrainOptions& o) {
  return o.norm == "sync" ? ResNetNorm::sync : o.norm == "group" ? ResNetNorm::group : ResNetNorm::batch;
}

}  // namespace

// What the processor lacks is said, not computed in another type.
void check_kernels(const std::string& precision, const std::string& device) {
  const torch::ScalarType type = parameter_type(parse_precision(precision));
  if (type == torch::kFloat32) return;
  const torch::Device there = find_device(device, Identity::from_environment().local_rank);
  if (const std::string missing = missing_kernels(type, there); !missing.empty())
    throw UsageError(
        fmt::format("--precision {}: libtorch {} has no kernels of that type on {} for {}; accepted: "
                    "fp32, bf16, bf16-autocast",
                    precision, TORCH_VERSION, there.is_cpu() ? "the processor" : there.str(), missing));
}

// Else, where the system promises more memory than it has, the worker is killed and can't say why.
void check_attention(const TrainOptions& o) {
  if (o.model != "gpt" || o.device != "cpu") return;
  const auto context = static_cast<double>(o.context);
  const double bytes = static_cast<double>(o.heads) * context * context * sizeof(float);
  const double memory = machine_memory();
  if (bytes > memory)
    throw UsageError(
        fmt::format("--context {}, --heads {}: the attention of one example takes {:.1f} GiB at "
                    "least, and this machine's memory is {:.1f} GiB; accepted: smaller ones",
                    o.context, o.heads, bytes / 0x1p30, memory / 0x1p30));
}

TrainData make_data(const TrainOptions& o) {
  const std::string kind = kind_of(o);
  if (is_tokens(o) != (kind == "text") && kind != "synthetic")
    throw UsageError(is_tokens(o)
                         ? fmt::format("--model gpt reads text, and --data {} is images", o.data)
                         : fmt::format("--model {} reads images, and --data {} is text", o.model, o.data));
  DataOptions options = data_options(o, kind);
  TrainData data;
  data.train = open_dataset(options);
  options.split = Split::test;
  data.test = open_dataset(options);
  return data;
}

std::shared_ptr<Model> make_model(const TrainOptions& o, const Dataset& data, const Group& world) {
  std::optional<ShardedConstruction> in_parts;
  if (world && (o.strategy == "zero3" || o.strategy == "hybrid-shard")) in_parts.emplace(world);
  check_kernels(o.precision, o.device);
  std::int64_t inputs = 1;
  for (const std::int64_t extent : data.shape()) inputs *= extent;
  check_model_size(o, static_cast<double>(inputs), static_cast<double>(data.classes()));
  at::manual_seed(o.seed);
  ModelOptions options;
  options.resnet = {
      .classes = data.classes(), .channels = o.channels, .cifar_stem = o.cifar_stem, .norm = norm_of(o)};
  options.gpt = {.blocks = o.blocks,
                 .width = o.width,
                 .heads = o.heads,
                 .context = o.context,
                 .vocabulary = data.classes(),
                 .dropout = o.dropout,
                 .tied_embeddings = o.tied_embeddings};
  options.mlp = {.inputs = inputs, .width = o.width, .layers = o.layers, .classes = data.classes()};
  auto model = lockstep::make_model(o.model, options);
  if (o.recompute) recompute_units(*model);
  return model;
}

ModelSize planned_size(TrainOptions options) {
  const Precision precision = parse_precision(options.precision);
  options.precision = "fp32";  // what the processor lacks takes memory all the same
  options.examples = options.eval_examples = 1;
  // Of the form of shapes, which need not be drawn for it.
  const auto no_drawings = [] { return open_dataset({.name = "synthetic", .shape = {3, 32, 32}}); };
  const std::shared_ptr<Model> model =
      make_model(options, options.data == "shapes" ? *no_drawings() : *make_data(options).train);
  apply_precision(precision, *model);
  return model_size(*model);
}

std::string data_path(const TrainOptions& options) {
  TrainOptions o = options;
  const std::string place = place_of(o);
  return place.empty() ? "" : fs::absolute(place).lexically_normal().string();
}

TrainOptions locate_data(TrainOptions o, const DataRecord& before) {
  std::error_code ignored;
  std::string& place = place_of(o);
  if (place.empty() || before.path.empty()) return o;
  const bool made_again = o.data == "shapes" || o.data == "synthetic";
  if (fs::exists(before.path, ignored))
    place = before.path;
  else if (!fs::exists(place, ignored) && !made_again)
    throw UsageError(fmt::format("the run's data is not at {} any more; {} says where it is now", before.path,
                                 is_name(o.data) ? "--data-dir" : "--data"));
  return o;
}

Task make_task(const std::shared_ptr<Model>& model, const TrainData& data, double label_smoothing) {
  return {.train = data.train,
          .test = data.test,
          .loss =
              [model, label_smoothing](const torch::Tensor& logits, const Batch& batch) {
                return cross_entropy(logits, batch.target, model->is_training() ? label_smoothing : 0);
              },
          .metrics = {{"accuracy", count_correct}},
          .forward = [model](const Batch& batch) { return model->forward(batch.data); },
          .takes_low_precision = true};
}

StrategyOptions strategy_options(const TrainOptions& o) {
  StrategyOptions options{
      .bucket_cap_mb = o.bucket_cap_mb,
      .first_bucket_mb = o.first_bucket_mb,
      .reduce_precision = o.reduce_precision == "fp32" ? ReducePrecision::f32 : ReducePrecision::same,
      .algorithm = o.algorithm == "auto" ? "" : o.algorithm,
      .order = o.order == "any" ? Order::any : Order::canonical};
  options.gathered_mb = o.gathered_mb;
  if (offloads_params(o)) options.offload_params.folder = o.offload;
  if (o.compress == "bf16") options.exchange = bf16_exchange;
  if (compresses_by_method(o))
    options.exchange = compressed({.method = o.compress,
                                   .groups = static_cast<int>(o.compress_groups),
                                   .lanes = static_cast<int>(o.lanes),
                                   .seed = o.seed,
                                   .max_error = o.compress_max_error,
                                   .probe_every = o.compress_probe_every});
  return options;
}

double learning_rate(const TrainOptions& o) {
  if (!o.base_lr) return *o.lr;
  return scaled_lr(*o.base_lr,
                   static_cast<double>(o.lanes * o.lane_batch) / static_cast<double>(o.base_batch),
                   o.lr_scaling == "sqrt" ? LrScaling::square_root : LrScaling::linear);
}

TrainerOptions trainer_options(const TrainOptions& o) {
  return {.model_name = o.model,
          .data_name = o.data,
          .lanes = static_cast<int>(o.lanes),
          .lane_batch = static_cast<int>(o.lane_batch),
          .last_step = parse_last_step(o.last_step),
          .augment = !o.no_augment,
          .seed = o.seed,
          .threads = static_cast<int>(o.threads),
          .optimizer = o.optimizer,
          .momentum = o.momentum,
          .nesterov = o.nesterov,
          .weight_decay = *o.weight_decay,
          .exclude = o.exclude,
          .trust_coefficient = o.trust_coefficient,
          .trust_clip = o.trust_clip,
          .clip_norm = o.clip_norm,
          .clip_value = o.clip_value,
          .schedule = {.kind = parse_schedule(o.schedule),
                       .lr = learning_rate(o),
                       .final_lr = o.min_lr,
                       .warmup_steps = o.warmup_steps,
                       .power = o.lr_power,
                       .every = o.lr_every,
                       .factor = o.lr_factor},
          .warmup_epochs = o.warmup_epochs,
          .precision = o.precision,
          .loss_scaling = o.loss_scaling,
          .scaler = {.init_scale = o.loss_scale, .growth_interval = o.loss_scale_every},
          .device = o.device,
          .deterministic = o.deterministic,
          .tf32 = o.tf32,
          .channels_last = o.channels_last,
          .epochs = o.epochs,
          .steps = o.steps,
          .cuda_graph = o.cuda_graph,
          .strategy = o.strategy,
          .parallel = strategy_options(o),
          .offload = {.folder = offloads_state(o) && o.offload != kHostOffload ? o.offload : "",
                      .host = o.offload == kHostOffload},
          .gpu_memory_mb = o.gpu_memory_mb,
          .on_nan = o.on_nan,
          .measure = o.measure,
          .loader_threads = static_cast<int>(o.loader_threads),
          .eval_every = o.eval_every,
          .eval_batch = o.eval_batch,
          .out = o.out,
          .init = o.init,
          .checkpoint_every = o.checkpoint_every,
          .checkpoint_async = o.checkpoint_async,
          .keep = o.keep,
          .trace_steps = o.trace_steps};
}

}  // namespace lockstep
