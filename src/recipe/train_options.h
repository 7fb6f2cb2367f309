// What a training run is: every option of `lockstep train`, once.
//
// visit_options() is the only list of them: flags, config files, the JSON that workers get, checkpoints and
// the page are all made from it. A flag is the name with hyphens; config files take either.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace lockstep {

struct TrainOptions {
  std::string model = "resnet18";
  bool cifar_stem = false;
  std::string norm = "batch";
  std::int64_t channels = 64;
  std::int64_t layers = 8;
  std::int64_t blocks = 6;
  std::int64_t width = 0;  // 0: the model's own default
  std::int64_t heads = 8;
  std::int64_t context = 128;
  double dropout = 0;
  bool tied_embeddings = false;

  std::string data;  // empty: text for gpt, else shapes
  std::string data_dir;
  std::int64_t examples = 0;  // 0: all
  bool no_augment = false;
  std::int64_t lane_batch = 32;
  std::string last_step = "wrap";
  std::int64_t loader_threads = 1;
  std::int64_t eval_batch = 100;
  std::int64_t eval_examples = 0;  // 0: all

  std::int64_t workers = 0;  // 0: what the launcher says, or one
  std::int64_t lanes = 0;    // 0: workers × accumulate
  std::int64_t accumulate = 1;
  std::int64_t threads = 1;

  std::int64_t steps = 0;
  std::int64_t epochs = 0;  // 0 and no steps: one
  std::uint64_t seed = 0;

  double label_smoothing = 0;
  std::string optimizer = "adamw";
  std::optional<double> lr;       // not with base_lr, from which it then follows
  std::optional<double> base_lr;  // of a step of base_batch samples
  std::int64_t base_batch = 0;
  std::string lr_scaling = "linear";
  double momentum = 0.9;
  bool nesterov = false;
  std::optional<double> weight_decay;
  std::string exclude;  // empty: "1-d" for lars and lamb, "none" for the others
  double trust_coefficient = 0.001;
  double trust_clip = 0;  // 0: none
  double clip_norm = 0;   // 0: none
  double clip_value = 0;  // 0: none
  std::string schedule = "constant";
  std::int64_t warmup_steps = 0;
  double warmup_epochs = 0;
  double min_lr = 0;
  double lr_power = 2;
  std::int64_t lr_every = 0;
  double lr_factor = 0.1;
  std::string on_nan = "stop";

  double bucket_cap_mb = 0;  // 0: auto
  double first_bucket_mb = 1;
  std::string algorithm = "auto";
  std::string order = "canonical";
  std::string engine;  // empty: LOCKSTEP_ENGINE's
  std::string strategy = "ddp";
  double gathered_mb = 0;  // 0: auto
  bool recompute = false;
  std::string offload = "none";  // a folder, or host
  std::string offload_what = "state";
  std::string compress = "none";
  std::int64_t compress_groups = 0;  // 0: auto
  double compress_max_error = 0.05;
  std::int64_t compress_probe_every = 500;  // 0: once
  std::string precision = "fp32";
  std::string reduce_precision = "same";
  std::string loss_scaling = "auto";
  double loss_scale = 65536;
  std::int64_t loss_scale_every = 2000;
  std::string device = "cpu";
  bool deterministic = false;
  bool tf32 = false;
  double gpu_memory_mb = 0;  // 0: auto
  bool channels_last = false;
  bool cuda_graph = false;

  std::string out;
  std::string resume;
  std::string init;
  std::int64_t checkpoint_every = 0;  // steps; 0: at the end of every epoch; -1: never
  std::string checkpoint_async = "on";
  std::int64_t keep = 2;
  std::int64_t eval_every = 1;  // epochs; 0: never
  std::int64_t trace_steps = 50;
  std::string measure = "none";
  bool overwrite = false;
};

inline bool offloads(const TrainOptions& o) { return o.offload != "none"; }
// With a GPU: in the host's memory.
inline constexpr const char* kHostOffload = "host";
inline bool offloads_state(const TrainOptions& o) { return offloads(o) && o.offload_what != "params"; }
inline bool offloads_params(const TrainOptions& o) { return offloads(o) && o.offload_what != "state"; }

// Its optimizer sends momenta, by the method of the same name.
inline constexpr const char* kOneBitAdam = "onebit-adam";

// By one of the methods of compress.h; bf16 is a plain exchange.
inline bool compresses_by_method(const TrainOptions& o) {
  return (o.compress != "none" && o.compress != "bf16") || o.optimizer == kOneBitAdam;
}

// What an option may change.
enum class Role : std::uint8_t {
  defines,  // the numbers that come out: a resumed run keeps it
  length,   // how long the run is: a resumed run may change it, unless the schedule depends on it
  stays,    // only how or where they are computed; a resumed run keeps it unless another is given
  runs,     // only how or where they are computed
};

struct OptionInfo {
  const char* name;
  const char* group;
  Role role;
  const char* text;
  const char* zero = nullptr;  // the word for 0, which flags and config files take too
};

inline constexpr const char* kModelGroup = "Model";

// Calls visit(const OptionInfo&, field) for every option.
template <class Options, class Visit>
void visit_options(Options& o, Visit&& visit) {
  const char* const model = kModelGroup;
  visit(OptionInfo{"model", model, Role::defines, "resnet18, resnet34, resnet50, gpt or mlp"}, o.model);
  visit(OptionInfo{"cifar_stem", model, Role::defines, "ResNet's first layer for 32x32 images"},
        o.cifar_stem);
  visit(OptionInfo{"norm", model, Role::defines,
                   "ResNet's: batch (of a lane), sync (of all workers, each with one lane) or group (of "
                   "channels)"},
        o.norm);
  visit(OptionInfo{"channels", model, Role::defines, "ResNet: channels of the first layer"}, o.channels);
  visit(OptionInfo{"layers", model, Role::defines, "mlp: hidden layers"}, o.layers);
  visit(OptionInfo{"blocks", model, Role::defines, "gpt: transformer blocks"}, o.blocks);
  visit(OptionInfo{"width", model, Role::defines, "gpt, mlp: width (0: 256 and 1024)"}, o.width);
  visit(OptionInfo{"heads", model, Role::defines, "gpt: attention heads"}, o.heads);
  visit(OptionInfo{"context", model, Role::defines, "gpt: bytes of text it sees"}, o.context);
  visit(OptionInfo{"dropout", model, Role::defines, "gpt: dropout"}, o.dropout);
  visit(OptionInfo{"tied_embeddings", model, Role::defines,
                   "gpt: the last projection is the embedding's matrix"},
        o.tied_embeddings);

  const char* const data = "Data";
  visit(OptionInfo{"data", data, Role::stays,
                   "shapes, cifar10, mnist, text, synthetic, or a folder or file (default: text for gpt, "
                   "else shapes)"},
        o.data);
  visit(
      OptionInfo{
          "data_dir", data, Role::stays,
          "where the data's files are (shapes: where they are made; text: without it, sentences are made)"},
      o.data_dir);
  visit(OptionInfo{"examples", data, Role::defines, "use only so many training examples (0: all)"},
        o.examples);
  visit(OptionInfo{"no_augment", data, Role::defines, "no random crops and flips"}, o.no_augment);
  visit(OptionInfo{"lane_batch", data, Role::defines, "samples of a lane in a step"}, o.lane_batch);
  visit(OptionInfo{"last_step", data, Role::defines,
                   "examples that fill no step at an epoch's end: short (a smaller step), drop, or wrap "
                   "(filled up with the epoch's first)"},
        o.last_step);
  visit(OptionInfo{"loader_threads", data, Role::runs, "of a worker, that make its batches"},
        o.loader_threads);
  visit(OptionInfo{"eval_batch", data, Role::defines, "samples of a batch of the evaluation"}, o.eval_batch);
  visit(OptionInfo{"eval_examples", data, Role::defines, "evaluate on so many test examples (0: all)"},
        o.eval_examples);

  const char* const workers = "Workers";
  visit(OptionInfo{"workers", workers, Role::runs, "workers to start (0: one, or what the launcher says)"},
        o.workers);
  visit(OptionInfo{"lanes", workers, Role::defines, "lanes: they define the run, not the workers"}, o.lanes);
  visit(OptionInfo{"accumulate", workers, Role::runs, "without --lanes: lanes a worker"}, o.accumulate);
  visit(OptionInfo{"threads", workers, Role::defines, "threads of a worker"}, o.threads);

  const char* const length = "Length";
  visit(OptionInfo{"steps", length, Role::length, "steps in all"}, o.steps);
  visit(OptionInfo{"epochs", length, Role::length,
                   "epochs in all (without --steps: 1; beside it the shorter holds)"},
        o.epochs);
  visit(OptionInfo{"seed", length, Role::defines, "of every random number"}, o.seed);

  const char* const optimizer = "Optimizer";
  visit(OptionInfo{"label_smoothing", optimizer, Role::defines,
                   "so much of a target is every class alike, 0 to 0.99, in training; evaluation has none"},
        o.label_smoothing);
  visit(OptionInfo{"optimizer", optimizer, Role::defines,
                   "sgd, adam, adamw; lars, lamb for large batches; onebit-adam, which sends a bit of each "
                   "momentum once its variance is known (--compress onebit-adam:warmup=1000); torch-sgd, "
                   "torch-adam, torch-adamw are libtorch's own"},
        o.optimizer);
  visit(OptionInfo{"lr", optimizer, Role::defines, "learning rate (5e-4; sgd: 0.05, lars: 1, lamb: 2e-3)"},
        o.lr);
  visit(OptionInfo{"base_lr", optimizer, Role::defines,
                   "in place of --lr: the rate for a step of --base-batch samples, scaled to this run's"},
        o.base_lr);
  visit(OptionInfo{"base_batch", optimizer, Role::defines, "samples of a step for which --base-lr is right"},
        o.base_batch);
  visit(OptionInfo{"lr_scaling", optimizer, Role::defines,
                   "how --base-lr grows with the samples of a step: linear, or sqrt"},
        o.lr_scaling);
  visit(OptionInfo{"momentum", optimizer, Role::defines, "of sgd and lars"}, o.momentum);
  visit(OptionInfo{"nesterov", optimizer, Role::defines, "Nesterov's momentum, sgd"}, o.nesterov);
  visit(OptionInfo{"weight_decay", optimizer, Role::defines,
                   "weight decay (adamw, lars: 1e-4, lamb: 1e-2, else 0)"},
        o.weight_decay);
  visit(OptionInfo{"exclude", optimizer, Role::defines,
                   "parameters without weight decay, nor a rate of their own with lars and lamb: names with "
                   "* for any text, with commas; 1-d for biases and gains; none (default: 1-d for lars and "
                   "lamb, else none)"},
        o.exclude);
  visit(
      OptionInfo{"trust_coefficient", optimizer, Role::defines, "lars: how far a step goes, by the weights"},
      o.trust_coefficient);
  visit(OptionInfo{"trust_clip", optimizer, Role::defines, "lars, lamb: the most that a rate is scaled by",
                   "none"},
        o.trust_clip);
  visit(OptionInfo{"clip_norm", optimizer, Role::defines, "the most that the norm of all gradients may be",
                   "none"},
        o.clip_norm);
  visit(OptionInfo{"clip_value", optimizer, Role::defines, "the most that an element of a gradient may be",
                   "none"},
        o.clip_value);
  visit(OptionInfo{"schedule", optimizer, Role::defines,
                   "of the learning rate: constant, cosine, linear, poly or step"},
        o.schedule);
  visit(OptionInfo{"warmup_steps", optimizer, Role::defines, "steps in which the rate rises to --lr"},
        o.warmup_steps);
  visit(OptionInfo{"warmup_epochs", optimizer, Role::defines, "the same in epochs, also fractions of one"},
        o.warmup_epochs);
  visit(OptionInfo{"min_lr", optimizer, Role::defines, "where cosine, linear and poly end"}, o.min_lr);
  visit(OptionInfo{"lr_power", optimizer, Role::defines, "poly: the power of what is left of the run"},
        o.lr_power);
  visit(OptionInfo{"lr_every", optimizer, Role::defines, "step: multiply the rate every so many steps"},
        o.lr_every);
  visit(OptionInfo{"lr_factor", optimizer, Role::defines, "step: by this"}, o.lr_factor);
  visit(OptionInfo{"on_nan", optimizer, Role::stays,
                   "when the loss is not finite: stop, skip the step, or go-on"},
        o.on_nan);

  const char* const comm = "Communication";
  visit(OptionInfo{"bucket_cap_mb", comm, Role::stays, "size of a gradient bucket, MiB (auto: by the links)",
                   "auto"},
        o.bucket_cap_mb);
  visit(OptionInfo{"first_bucket_mb", comm, Role::stays, "of the first one"}, o.first_bucket_mb);
  // Whether it sums in an order of its own, and so defines the run, only the group can say (order_of_sums()).
  visit(OptionInfo{"algorithm", comm, Role::runs, "of the all-reduce: auto, or a name such as direct"},
        o.algorithm);
  visit(OptionInfo{"order", comm, Role::defines, "of sums: canonical (the same bits for any workers) or any"},
        o.order);
  visit(OptionInfo{"engine", comm, Role::runs,
                   "what carries the collectives: auto, shm, tcp, mpi, gloo, ipc, nccl, shm+tcp, shm+mpi, "
                   "shm+gloo, tcp+tcp, tcp+gloo (default: LOCKSTEP_ENGINE, else auto)"},
        o.engine);
  visit(
      OptionInfo{
          "strategy", comm, Role::stays,
          "how workers share the model: ddp; or each keeps a part of the optimizer's state (zero1), of the "
          "gradients too (zero2), of the parameters too (zero3: one copy a machine, or gathered in units "
          "where workers have no memory in common; hybrid-shard: in shards inside of nodes)"},
      o.strategy);
  visit(
      OptionInfo{"gathered_mb", comm, Role::runs,
                 "what gathered parameters may take at a time, MiB; zero3 then gathers them in units on one "
                 "machine too (auto: two units, where they have to be gathered)",
                 "auto"},
      o.gathered_mb);
  visit(
      OptionInfo{
          "recompute", comm, Role::runs,
          "keep no activations inside of the model's units, its blocks: compute them again in backward"},
      o.recompute);
  visit(OptionInfo{"offload", comm, Role::stays,
                   "keep the optimizer's state in a file in this folder, on a local disk, and not in memory "
                   "(none: in memory; host, with --device cuda: in the host's memory)"},
        o.offload);
  visit(OptionInfo{"offload_what", comm, Role::stays,
                   "what --offload keeps there: state (the optimizer's), params (a worker's parts of "
                   "parameters; zero3, hybrid-shard), or state,params"},
        o.offload_what);
  visit(OptionInfo{"compress", comm, Role::defines,
                   "gradients on the wire: none (as they are), bf16, auto (by the links), or "
                   "METHOD[:OPTIONS] such as topk:0.01, onebit, "
                   "powersgd:rank=4, with rules by name before it: 'tok.*=topk:0.001,fp8'"},
        o.compress);
  visit(
      OptionInfo{
          "compress_groups", comm, Role::defines,
          "parts of the lanes that are compressed as one, a power of two (auto: as many as workers at the "
          "start)",
          "auto"},
      o.compress_groups);
  visit(OptionInfo{"compress_max_error", comm, Role::defines,
                   "relative error that --compress auto accepts of what it sends"},
        o.compress_max_error);
  visit(
      OptionInfo{
          "compress_probe_every", comm, Role::defines,
          "steps, at most, until --compress auto looks again at links and errors, 10 or more (0: never)"},
      o.compress_probe_every);
  const char* const precision = "Precision";
  visit(
      OptionInfo{
          "precision", precision, Role::defines,
          "fp32; bf16 or fp16 (parameters and gradients, with f32 master weights in the optimizer); or "
          "bf16-autocast (f32 parameters, computed with in bf16)"},
      o.precision);
  visit(OptionInfo{"reduce_precision", precision, Role::defines,
                   "in which 16-bit gradients are added up and travel: same (16 bits) or fp32"},
        o.reduce_precision);
  visit(OptionInfo{"loss_scaling", precision, Role::defines,
                   "dynamic, with steps that overflow skipped: on, off, or auto (on for fp16)"},
        o.loss_scaling);
  visit(OptionInfo{"loss_scale", precision, Role::defines, "loss scaling: the factor that it begins with"},
        o.loss_scale);
  visit(OptionInfo{"loss_scale_every", precision, Role::defines,
                   "loss scaling: steps without overflow after which the factor doubles"},
        o.loss_scale_every);
  const char* const device = "Device";
  visit(OptionInfo{"device", device, Role::defines,
                   "cpu; cuda (each worker the GPU of its local rank, shared where there are fewer); cuda:N"},
        o.device);
  visit(OptionInfo{"deterministic", device, Role::defines,
                   "cuda: kernels with the same bits each time, or an error that names what has none"},
        o.deterministic);
  visit(OptionInfo{"tf32", device, Role::defines, "cuda: products of f32 may round their factors to 10 bits"},
        o.tf32);
  visit(
      OptionInfo{
          "gpu_memory_mb", device, Role::runs,
          "cuda: MiB that a worker may take of its GPU, for tensors and comm memory together (auto: all)",
          "auto"},
      o.gpu_memory_mb);
  visit(OptionInfo{"channels_last", device, Role::defines,
                   "images and weights of convolutions with their channels side by side"},
        o.channels_last);
  visit(
      OptionInfo{"cuda_graph", device, Role::runs,
                 "cuda: forward and backward are recorded once and replayed; one lane a worker, no dropout"},
      o.cuda_graph);

  const char* const folder = "Run folder";
  visit(OptionInfo{"out", folder, Role::runs, "the run's folder (default: runs/MODEL-DATA)"}, o.out);
  visit(OptionInfo{"overwrite", folder, Role::runs, "remove what an earlier run left in it"}, o.overwrite);
  visit(OptionInfo{"resume", folder, Role::runs,
                   "go on from a checkpoint: a run's folder, or one checkpoint. Options come from there"},
        o.resume);
  visit(OptionInfo{"init", folder, Role::runs,
                   "begin a new run with the weights of a checkpoint: a run's folder, or one checkpoint. The "
                   "model comes "
                   "from there, nothing else"},
        o.init);
  visit(
      OptionInfo{"checkpoint_every", folder, Role::stays, "steps (0: at the end of every epoch; -1: never)"},
      o.checkpoint_every);
  visit(OptionInfo{"checkpoint_async", folder, Role::stays,
                   "on: written while training goes on; off: training waits for it"},
        o.checkpoint_async);
  visit(OptionInfo{"keep", folder, Role::stays, "newest checkpoints that stay (0: all)"}, o.keep);
  visit(OptionInfo{"eval_every", folder, Role::stays, "epochs between evaluations (0: none)"}, o.eval_every);
  visit(OptionInfo{"trace_steps", folder, Role::runs, "first steps that trace.json shows"}, o.trace_steps);
  visit(OptionInfo{"measure", folder, Role::stays,
                   "none, or noise: how large a batch still pays, from the gradients of two lanes or more"},
        o.measure);
}

// Names of the options that were written on the command line or in a config file.
using Given = std::set<std::string>;

// "lane_batch" -> "--lane-batch"
std::string flag_of(const std::string& name);
std::vector<std::string> option_names();

// Every value by itself. Throws UsageError that names the flag, its value and what is accepted.
void check_values(const TrainOptions& options);
// The values together too. Throws UsageError in the same way. Fills in what follows from other
// options: data, learning rate, weight decay, width, epochs.
void check_options(TrainOptions& options);
// Flags of `given` that would change nothing, because the model, optimizer or schedule is another one. Throws
// UsageError. Not for files of options, which may have all of them.
void check_of_use(const TrainOptions& options, const Given& given);
// What the model is trained on when nothing is said.
std::string default_data(const TrainOptions& options);
// Whether so many workers can share the run's lanes, where these are given, and its norm; and whether there
// are as many lanes as what is measured needs. Throws UsageError.
void check_lanes(const TrainOptions& options, std::int64_t workers);
// The same for a run that is gone on with, whose lanes stay as they are. `run`: what --resume names.
void check_resumed_lanes(const std::string& run, std::int64_t lanes, std::int64_t workers);

// "'99999999999999999999' is out of range; accepted: 0 to 1024" for a whole number that the option's type
// can't hold; empty for anything else.
std::string beyond_range(const std::string& name, const std::string& text);

nlohmann::ordered_json to_json(const TrainOptions& options);
// Takes the keys that are there. Throws UsageError naming a key that is unknown (with the valid ones) or
// whose value is of the wrong kind; `where` begins the message. Gives the names.
Given merge_json(TrainOptions& options, const nlohmann::ordered_json& json, const std::string& where,
                 const Given& except = {});

// Options for a run that continues `before`: what was not given is taken from there. Throws UsageError naming
// the first option that was given and would make it another run.
void continue_options(TrainOptions& options, const Given& given, const TrainOptions& before);

// Options for a new run that begins with the weights of `before`: the model's are taken from there where they
// were not given.
void take_model(TrainOptions& options, const Given& given, const TrainOptions& before);

}  // namespace lockstep
