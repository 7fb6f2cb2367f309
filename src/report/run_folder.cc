#include "report/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/job_name.h"
#include "base/option_name.h"
#include "base/shell_word.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/folder.h"
#include "report/folder_content.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

double ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

std::string cell(const std::optional<double>& value) { return value ? fmt::format("{}", *value) : ""; }

fs::path made(const fs::path& folder) {
  try {
    make_folder(folder);
  } catch (const SystemError& refused) {
    throw UsageError(fmt::format("{}: {}", option_text("out", folder.string()), refused.what()));
  }
  return folder;
}

}  // namespace

bool RunFolder::begun_by_this_job(const fs::path& folder) {
  const fs::path file = folder / "job.txt";
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!fd && (errno == ENOENT || errno == ENOTDIR)) return false;
  std::array<char, 1024> text{};  // a name is shorter
  const ssize_t length = fd ? ::read(fd.get(), text.data(), text.size()) : -1;
  // Not the same as none: who took it for that would begin anew.
  if (length < 0) throw SystemError("cannot read " + file.string(), errno);
  const std::string_view line(text.data(), static_cast<std::size_t>(length));
  const std::string job(line.substr(0, line.find('\n')));
  return !job.empty() && job == job_name();
}

RunFolder::RunFolder(const fs::path& folder, FolderUse use, std::int64_t steps_done,
                     const std::vector<std::string>& further,
                     const std::vector<std::string>& further_of_steps)
    : folder_(made(folder)), lock_(folder_) {
  if (use == FolderUse::overwrite) remove_run(folder_);
  if (use == FolderUse::fresh && !is_unused(folder_)) {
    // Only what would be taken is offered.
    const std::string name = shell_word(folder_.string());
    throw UsageError(fmt::format("{} is not empty; accepted: another folder{}{}", option_text("out", name),
                                 has_checkpoint(folder_) ? fmt::format(", --resume {} to go on", name) : "",
                                 find_foreign_file(folder_).empty() ? ", or --overwrite for a new run" : ""));
  }
  remove_leftovers(folder_);
  if (use == FolderUse::resume) {
    set_aside_ = set_aside_later(folder_, steps_done);
    read_earlier_steps(steps_done);
  }
  // First of all: a launcher that starts the workers again knows the folder by it.
  if (const std::string job = job_name(); !job.empty()) replace("job.txt", job + "\n");
  const auto keep = [steps_done](std::int64_t step) { return step <= steps_done; };
  std::vector<std::string> of_steps = {
      "step",    "epoch",           "loss",        "lr", "samples", "step_ms", "compute_ms",
      "comm_ms", "exposed_comm_ms", "data_wait_ms"};
  of_steps.insert(of_steps.end(), further_of_steps.begin(), further_of_steps.end());
  steps_.emplace(folder_ / "steps.csv", of_steps, keep);
  open_epochs(steps_done);
  std::vector<std::string> evaluated = {"step", "epoch", "validation_loss", "accuracy"};
  evaluated.insert(evaluated.end(), further.begin(), further.end());
  evaluations_.emplace(folder_ / "evaluations.csv", evaluated, keep);
  buckets_.emplace(folder_ / "buckets.csv",
                   std::vector<std::string>{"step", "bucket", "bytes", "ready", "start", "end", "algorithm"},
                   keep);
  if (fs::exists(folder_ / "noise.csv")) open_noise(steps_done);
}

void RunFolder::open_epochs(std::int64_t last_step) {
  epochs_.emplace(
      folder_ / "epochs.csv",
      std::vector<std::string>{"epoch", "step", "seconds_per_step", "comm_fraction", "overlap_fraction",
                               "train_loss", "validation_loss", "accuracy", "samples_per_s", "lr"},
      [last_step](std::int64_t step) { return step <= last_step; });
}

void RunFolder::open_noise(std::int64_t last_step) {
  noise_.emplace(folder_ / "noise.csv",
                 std::vector<std::string>{"step", "gradient_square", "trace", "noise_scale", "low", "high"},
                 [last_step](std::int64_t step) { return step <= last_step; });
}

void RunFolder::read_earlier_steps(std::int64_t steps_done) {
  std::error_code ignored;
  if (!fs::exists(folder_ / "steps.csv", ignored)) return;
  std::vector<std::string> left_out;  // CsvFile says so
  const CsvTable table = read_csv(folder_ / "steps.csv", &left_out);
  const std::vector<double> steps = table.numbers("step"), epochs = table.numbers("epoch"),
                            losses = table.numbers("loss"), samples = table.numbers("samples");
  if (epochs.size() != steps.size() || losses.size() != steps.size() || samples.size() != steps.size())
    return;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!(steps[i] <= static_cast<double>(steps_done)) || !std::isfinite(epochs[i]) ||
        !std::isfinite(samples[i]))
      continue;
    const auto epoch = static_cast<std::int64_t>(epochs[i]);
    if (!earlier_.empty() && earlier_.back().epoch != epoch) earlier_.clear();
    earlier_.push_back({.step = static_cast<std::int64_t>(steps[i]),
                        .epoch = epoch,
                        .loss = losses[i],
                        .samples = static_cast<std::int64_t>(samples[i])});
  }
}

std::span<const StepRecord> RunFolder::earlier_steps(std::int64_t epoch) const {
  if (earlier_.empty() || earlier_.back().epoch != epoch) return {};
  return earlier_;
}

void RunFolder::add_step(const StepRecord& s, std::span<const BucketTimes> buckets, std::int64_t origin_ns) {
  std::string row = fmt::format("{},{},{},{},{},{:.4f},{:.4f},{:.4f},{:.4f},{:.4f}", s.step, s.epoch, s.loss,
                                s.lr, s.samples, ms(s.step_ns()), ms(s.compute_ns()), ms(s.comm_ns),
                                ms(s.exposed_ns), ms(s.data_wait_ns));
  for (const double value : s.further) row += fmt::format(",{}", value);
  steps_->add_row(row);
  for (const BucketTimes& b : buckets)
    buckets_->add_row(fmt::format("{},{},{},{:.4f},{:.4f},{:.4f},{}", s.step, b.bucket, b.bytes,
                                  ms(b.ready_ns - origin_ns), ms(b.start_ns - origin_ns),
                                  ms(b.end_ns - origin_ns), b.algorithm));
  steps_->flush();
  buckets_->flush();
}

void RunFolder::add_noise(std::int64_t step, const NoiseSample& sample, const NoiseFigures& f) {
  if (!noise_) open_noise(step - 1);
  noise_->add_row(
      fmt::format("{},{},{},{},{},{}", step, sample.gradient_square, sample.trace, f.scale, f.low, f.high));
  noise_->flush();
}

void RunFolder::add_epoch(const EpochRecord& e) {
  if (const auto earlier = earlier_steps(e.epoch); !earlier.empty()) open_epochs(earlier.front().step - 1);
  epochs_->add_row(fmt::format("{},{},{:.6f},{:.6f},{:.6f},{},{},{},{:.3f},{}", e.epoch, e.step,
                               e.seconds_per_step, e.figures.comm_fraction, e.figures.overlap_fraction,
                               e.figures.mean_loss, cell(e.validation_loss), cell(e.accuracy),
                               e.figures.samples_per_s, e.lr));
  epochs_->flush();
  if (!e.validation_loss) return;
  std::string row = fmt::format("{},{},{},{}", e.step, e.epoch, *e.validation_loss, cell(e.accuracy));
  for (const auto& [name, value] : e.further) row += fmt::format(",{}", value);
  evaluations_->add_row(row);
  evaluations_->flush();
}

nlohmann::ordered_json to_json(const EpochRecord& e) {
  nlohmann::ordered_json json = {{"epoch", e.epoch},
                                 {"step", e.step},
                                 {"train_loss", e.figures.mean_loss},
                                 {"validation_loss", nullptr},
                                 {"accuracy", nullptr},
                                 {"samples_per_s", e.figures.samples_per_s},
                                 {"seconds_per_step", e.seconds_per_step},
                                 {"comm_fraction", e.figures.comm_fraction},
                                 {"overlap_fraction", e.figures.overlap_fraction},
                                 {"lr", e.lr}};
  if (e.validation_loss) json["validation_loss"] = *e.validation_loss;
  if (e.accuracy) json["accuracy"] = *e.accuracy;
  for (const auto& [name, value] : e.further) json["metrics"][name] = value;
  return json;
}

}  // namespace lockstep
