#include "train/recorder.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "lockstep/base/clock.h"
#include "lockstep/checkpoint/leader.h"
#include "report/folder_content.h"
#include "report/noise_json.h"
#include "report/page.h"
#include "train/exchange.h"
#include "train/precision.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kReportEvery_ns = 100'000'000;
constexpr std::size_t kRecent = 20;     // steps that "now" means
constexpr std::size_t kLastTraced = 5;  // steps at the end of the trace
constexpr std::int64_t kShownStep = 8;  // its timeline is on the page: late enough to be typical

int colour_of(const std::string& span) {
  if (span == "forward") return 0;
  if (span == "backward") return 2;
  if (span == "optimizer") return 5;
  if (span == "data") return 4;
  return span.find("bucket") != std::string::npos && !span.starts_with("wait") ? 1 : 3;
}

std::span<const StepRecord> last_of(std::span<const StepRecord> steps, std::size_t count) {
  return steps.subspan(steps.size() - std::min(count, steps.size()));
}

}  // namespace

TrainRecorder::TrainRecorder(const RunPlan& plan, const Task& task, Group world, RunFacts facts)
    : plan_(plan), task_(task), world_(std::move(world)), facts_(facts), origin_ns_(now_ns()) {
  // What rank 0 can't do nobody does, and all say why: none is taken for lost.
  run_on_leader(world_, "opening the run's folder", [&] {
    std::vector<std::string> further;
    for (const auto& [name, metric] : task_.metrics)
      if (name != "accuracy") further.push_back(name);
    std::vector<std::string> of_steps;
    if (plan_.options.clip_norm > 0) of_steps.emplace_back("grad_norm");
    if (scales_loss(plan_.options)) of_steps.insert(of_steps.end(), {"loss_scale", "skipped"});
    if (tells_figures(plan_.options))
      of_steps.insert(of_steps.end(),
                      {"dense_bytes", "compressed_bytes", "compress_error", "compress_changes"});
    folder_.emplace(plan_.options.out, plan_.folder_use, plan_.first_step, further, of_steps);
    for (const std::string& name : folder_->set_aside())
      plan_.sink({{"event", "note"},
                  {"text", fmt::format("{} is later than step {}: it is now in {}", name, plan_.first_step,
                                       (RunFolder::checkpoints_of(folder_->path()) / kSetAside).string())}});
    Json recipe = plan_.recipe;  // of the whole run, in whatever parts it was done
    if (recipe.contains("resume")) recipe["resume"] = "";
    if (recipe.contains("overwrite")) recipe["overwrite"] = false;
    folder_->replace("config.json", recipe.dump(2) + "\n");
    if (plan_.options.measure == "noise") noise_ = read_noise(folder_->path());
  });
  // One zero of time for all ranks' traces. Machines have clocks of their own: there it is the end of a
  // barrier.
  if (std::ranges::adjacent_find(world_.nodes(), std::not_equal_to<>()) != world_.nodes().end()) {
    world_.barrier();
    origin_ns_ = now_ns();
    return;
  }
  std::vector<std::int64_t> origin = {origin_ns_};
  world_.broadcast(buffer(origin), 0);
  origin_ns_ = origin[0];
}

void TrainRecorder::add_step(const StepRecord& step, std::vector<BucketTimes> buckets,
                             std::vector<TraceSpan> spans) {
  steps_.push_back(step);
  if (steps() <= kShownStep) shown_spans_ = spans;
  if (steps() <= plan_.options.trace_steps) {
    first_spans_.insert(first_spans_.end(), spans.begin(), spans.end());
  } else if (plan_.options.trace_steps > 0) {
    last_spans_.push_back(std::move(spans));
    if (last_spans_.size() > kLastTraced) last_spans_.pop_front();
  }
  if (!leads()) return;
  latencies_.add(buckets);
  if (step.noise) noise_.add(*step.noise);
  try {
    folder_->add_step(step, buckets, origin_ns_);
    if (step.noise) folder_->add_noise(step.step, *step.noise, *noise_.figures());
  } catch (const SystemError& wrong) {
    throw RunFolderError(wrong.what());
  }
  report_step(step);
}

void TrainRecorder::report_step(const StepRecord& step) {
  if (step.end_ns - last_report_ns_ < kReportEvery_ns && step.step != facts_.steps) return;
  last_report_ns_ = step.end_ns;
  const auto recent = last_of(steps_, kRecent);
  const StepFigures figures = figures_of(recent);
  const double span = static_cast<double>(recent.back().end_ns - recent.front().begin_ns) / 1e9;
  plan_.sink(
      {{"event", "step"},
       {"step", step.step},
       {"steps", facts_.steps},
       {"epoch", step.epoch},
       {"loss", step.loss},
       {"samples_per_s", figures.samples_per_s},
       {"comm_fraction", figures.comm_fraction},
       {"eta_s", span / static_cast<double>(recent.size()) * static_cast<double>(facts_.steps - step.step)}});
}

void TrainRecorder::end_epoch(std::int64_t epoch, const std::optional<Evaluation>& evaluation) {
  const std::span<const StepRecord> of_epoch = std::span<const StepRecord>(steps_).subspan(epoch_begin_);
  epoch_begin_ = steps_.size();
  if (of_epoch.empty()) return;
  run_on_leader(world_, "writing the run's page", [&] { write_epoch(of_epoch, epoch, evaluation); });
}

void TrainRecorder::write_epoch(std::span<const StepRecord> of_epoch, std::int64_t epoch,
                                const std::optional<Evaluation>& evaluation) {
  EpochRecord record{.step = of_epoch.back().step,
                     .epoch = epoch,
                     .seconds_per_step = 0,
                     .figures = figures_of(settled(of_epoch)),
                     .accuracy = accuracy_of(task_, evaluation),
                     .lr = of_epoch.back().lr};
  if (evaluation) record.validation_loss = evaluation->loss;
  for (std::size_t i = 0; evaluation && i < task_.metrics.size(); ++i)
    if (task_.metrics[i].first != "accuracy")
      record.further.emplace_back(task_.metrics[i].first, evaluation->metrics[i]);
  // Of the whole epoch, in whatever parts it was done; the other figures are this part's.
  const auto earlier = folder_->earlier_steps(epoch);
  std::vector<StepRecord> whole(earlier.begin(), earlier.end());
  whole.insert(whole.end(), of_epoch.begin(), of_epoch.end());
  record.figures.mean_loss = figures_of(whole).mean_loss;
  const auto recent = last_of(of_epoch, kRecent);
  for (const StepRecord& s : recent)
    record.seconds_per_step += static_cast<double>(s.step_ns()) / 1e9 / static_cast<double>(recent.size());
  folder_->add_epoch(record);
  Json event = {{"event", "epoch"}};
  event.update(to_json(record));
  if (const auto noise = noise_.figures()) event["noise"] = to_json(*noise);
  plan_.sink(event);
  write_page();
}

Json TrainRecorder::finish(const Json& rest) {
  const std::vector<std::string> parts = gather_trace();
  Json summary;
  run_on_leader(world_, "writing the run's files", [&] { summary = write_summary(rest, parts); });
  return summary;
}

Json TrainRecorder::write_summary(const Json& rest, const std::vector<std::string>& trace_parts) const {
  const StepFigures figures = figures_of(settled(steps_));
  const TrainerOptions& o = plan_.options;
  Json summary = {{"model", o.model_name},
                  {"data", o.data_name},
                  {"workers", world_.size()},
                  {"lanes", o.lanes},
                  {"lane_batch", o.lane_batch},
                  {"steps", plan_.first_step + steps()},
                  {"samples_per_s", figures.samples_per_s},
                  {"step_ms_p50", figures.step_ms_p50},
                  {"step_ms_p95", figures.step_ms_p95},
                  {"comm_fraction", figures.comm_fraction},
                  {"overlap_fraction", figures.overlap_fraction},
                  {"data_wait_fraction", figures.data_wait_fraction}};
  add_losses(summary);
  if (const auto noise = noise_.figures()) summary["noise"] = to_json(*noise);
  summary.update(rest);
  folder_->replace("latency.csv", latencies_.csv());
  folder_->replace("trace.json", trace_document(trace_parts));
  folder_->replace("summary.json", summary.dump(2) + "\n");
  write_page();
  return summary;
}

// From the folder, which has the steps that other processes did before this one too: a run that was stopped
// comes to the same figure as one that was not.
void TrainRecorder::add_losses(Json& summary) const {
  const std::vector<double> losses = read_csv(folder_->path() / "steps.csv").numbers("loss");
  const bool skipped = plan_.options.on_nan == "skip";
  const FinalLoss last_epoch =
      final_loss(losses, facts_.steps_per_epoch, skipped ? NotFinite::was_skipped : NotFinite::counts);
  summary["final_loss"] = last_epoch.mean;
  summary["final_loss_steps"] = last_epoch.steps;
  summary["last_step_loss"] = losses.empty() ? Json() : Json(losses.back());
  summary["loss_floor"] = facts_.loss_floor ? Json(*facts_.loss_floor) : Json();
}

std::vector<std::string> TrainRecorder::gather_trace() const {
  std::vector<TraceSpan> spans = first_spans_;
  for (const auto& step : last_spans_) spans.insert(spans.end(), step.begin(), step.end());
  const std::string own =
      trace_events({.rank = world_.rank(), .tracks = {"compute", "communication"}}, spans, origin_ns_);
  std::vector<std::string> parts = world_.all_gather(own);
  if (!leads()) parts.clear();
  return parts;
}

std::vector<TimelineRow> TrainRecorder::timeline() const {
  std::vector<TimelineRow> rows = {{"compute", {}}, {"waiting", {}}, {"communication", {}}};
  std::int64_t begin = INT64_MAX;
  for (const TraceSpan& span : shown_spans_) begin = std::min(begin, span.begin_ns);
  for (const TraceSpan& span : shown_spans_) {
    const std::size_t row = span.track == kCommunicationTrack ? 2 : span.name.starts_with("wait for") ? 1 : 0;
    rows[row].spans.push_back({.begin_ms = static_cast<double>(span.begin_ns - begin) / 1e6,
                               .end_ms = static_cast<double>(span.end_ns - begin) / 1e6,
                               .label = span.name,
                               .colour = colour_of(span.name)});
  }
  return rows;
}

void TrainRecorder::write_page() const {
  folder_->replace("index.html", render_page(folder_->path(), timeline(), facts_.loss_floor));
}

}  // namespace lockstep
