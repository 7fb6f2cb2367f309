#include "plan/memory_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "lockstep/base/bytes.h"
#include "offload/scratch_file.h"
#include "plan/parameter_count.h"
#include "report/table.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

// "16.6 GB", "-3.2 MB", "512 B"
std::string decimal_bytes(double bytes) {
  constexpr std::array kUnits = {"kB", "MB", "GB", "TB", "PB"};
  if (std::abs(bytes) < 1000) return fmt::format("{:.0f} B", bytes);
  std::size_t unit = 0;
  // What would show as 1000.0 of a unit is 1.0 of the next.
  for (bytes /= 1000; std::abs(bytes) >= 999.95 && unit + 1 < kUnits.size(); ++unit) bytes /= 1000;
  return fmt::format("{:.1f} {}", bytes, kUnits[unit]);
}

bool shows(const MemoryQuestion& q, int from_stage) {
  return std::ranges::any_of(q.stages, [&](int stage) { return stage >= from_stage; });
}

// What stage 3 is called.
const char* of_parameters(const MemoryQuestion& q) { return q.in_nodes ? kHybridShard : kStageStrategies[3]; }

std::string lanes_note(const StateForm& form) {
  return fmt::format(
      "a worker carries up to {} lanes and keeps their sums whole until the last one: under zero2 and zero3 "
      "gradients take what they take under zero1, {} of buckets, and the worker's own part beside them",
      form.lanes, counted(gradient_sets(form.lanes), "set"));
}

std::string parameters_note(const MemoryQuestion& q) {
  const StateForm& form = q.form;
  if (form.has_common_memory() && !form.gathers)
    return fmt::format(
        "{}: the {} workers of a {} have one copy of the parameters between them, of which each "
        "counts its part; {}",
        of_parameters(q), form.machine_workers, form.on_gpus ? "GPU" : "machine",
        form.on_gpus                           ? "nothing is gathered"
        : form.machine_workers == form.workers ? "nothing is gathered (--machines: how many there are)"
                                               : "what other machines' workers updated arrives in buckets");
  return fmt::format("{}: {} gathers {}", of_parameters(q),
                     form.gathers   ? "what is on disk is in parts, so it"
                     : form.on_gpus ? "GPUs have no memory in common (--one-gpu: one has), so it"
                                    : "no two workers are on one machine, so it",
                     q.size.largest_unit_bytes > 0
                         ? fmt::format("{} units of up to {} at a time", kGatheredUnits,
                                       decimal_bytes(q.size.largest_unit_bytes))
                         : "units, whose size is not known (--unit-params says it), not counted");
}

std::string offload_note(const MemoryQuestion& q) {
  const bool state = q.form.staging_bytes > 0;
  std::string note = fmt::format(
      "{} on disk in {}, which reads and writes {:.2f} GB/s at once (measured here{}), for {}",
      !q.form.params_on_disk ? "the optimizer's state is"
      : state ? fmt::format("the optimizer's state, and {}'s parameters, are", of_parameters(q))
              : fmt::format("{}'s parameters are", of_parameters(q)),
      q.offload, q.disk_rate / 1e9, path_text(q.disk_path), counted(q.form.machine_workers, "worker"));
  if (state && !q.form.on_gpus)
    note += fmt::format("; in memory are {} in its place", decimal_bytes(q.form.staging_bytes));
  if (q.form.params_on_disk)
    note += fmt::format("; parameters are read twice for each of {} and once to be updated",
                        counted(q.form.lanes, "lane"));
  return note;
}

std::vector<std::string> notes_on(const MemoryQuestion& q) {
  std::vector<std::string> notes;
  if (q.form.lanes > 1 && shows(q, 2)) notes.push_back(lanes_note(q.form));
  if (q.form.lanes <= 1 && shows(q, 2))
    notes.push_back(
        fmt::format("zero2, zero3: up to {} buckets of gradients are in flight", kBucketsInFlight));
  if (q.form.workers > 1 && shows(q, 3)) notes.push_back(parameters_note(q));
  if (q.form.on_gpus && q.offload.empty() && q.form.staging_bytes > 0)
    notes.emplace_back("the optimizer's state is in the host's memory, which updates it");
  if (!q.offload.empty()) notes.push_back(offload_note(q));
  notes.emplace_back(
      "not counted: activations, which grow with --lane-batch, batches, what --compress keeps, and the "
      "program itself with libtorch");
  return notes;
}

std::string memory_line(const MemoryQuestion& q) {
  const auto binary = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
  if (q.memory_given)
    return fmt::format("{} ({}) a worker", binary(q.memory_bytes), decimal_bytes(q.memory_bytes));
  if (q.form.on_gpus)
    return fmt::format("{} ({}) a worker: its part of a GPU of this machine", binary(q.memory_bytes),
                       decimal_bytes(q.memory_bytes));
  return fmt::format("{} a worker: this machine's {} for {}", decimal_bytes(q.memory_bytes),
                     binary(q.memory_bytes * q.form.machine_workers),
                     counted(q.form.machine_workers, "worker"));
}

std::string fits_line(const MemoryPlan& plan) {
  std::vector<std::string> names;
  for (const StageMemory& s : plan.stages)
    if (s.fits) names.push_back(s.strategy);
  return names.empty() ? "none of these" : fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

MemoryPlan plan_memory(const MemoryQuestion& question) {
  MemoryPlan plan{.question = question, .notes = notes_on(question)};
  StateForm form = question.form;
  for (const int stage : question.stages) {
    form.stage = stage;
    const StateBytes bytes = state_bytes(question.size, form);
    const double moved =  // through one disk
        (bytes.on_disk * question.disk_passes + bytes.params_on_disk * question.params_passes) *
        form.machine_workers;
    plan.stages.push_back({.stage = stage,
                           .strategy = stage == 3 ? of_parameters(question) : kStageStrategies[stage],
                           .bytes = bytes,
                           .disk_ms = question.disk_rate > 0 ? moved / question.disk_rate * 1e3 : 0,
                           .fits = bytes.total() <= question.memory_bytes});
  }
  return plan;
}

Json to_json(const MemoryPlan& plan) {
  const MemoryQuestion& q = plan.question;
  Json stages = Json::array();
  for (const StageMemory& s : plan.stages) {
    stages.push_back({{"stage", s.stage},
                      {"strategy", s.strategy},
                      {"parameter_bytes", std::llround(s.bytes.parameters)},
                      {"gradient_bytes", std::llround(s.bytes.gradients)},
                      {"optimizer_bytes", std::llround(s.bytes.optimizer)},
                      {"state_bytes", std::llround(s.bytes.state())},
                      {"in_flight_bytes", std::llround(s.bytes.in_flight)},
                      {"total_bytes", std::llround(s.bytes.total())},
                      {"fits", s.fits}});
    if (q.offload.empty()) continue;
    stages.back()["disk_bytes"] = std::llround(s.bytes.on_disk + s.bytes.params_on_disk);
    stages.back()["disk_ms"] = s.disk_ms;
  }
  return {{"model", q.model.empty() ? Json() : Json(q.model)},
          {"params", std::llround(q.size.count())},
          {"precision", q.precision},
          {"optimizer", q.optimizer},
          {"workers", q.form.workers},
          {"machines", q.form.workers / q.form.machine_workers},
          {"lanes", q.lanes},
          {"memory_bytes", std::llround(q.memory_bytes)},
          {"stages", stages},
          {"notes", plan.notes}};
}

std::string describe(const MemoryPlan& plan, bool colours) {
  const MemoryQuestion& q = plan.question;
  const int machines = q.form.workers / q.form.machine_workers;
  std::string out = fmt::format(
      "{}{} parameters, {}, {}: {}{}, {}\n", q.model.empty() ? "" : q.model + ", ",
      parameter_count_text(q.size.count()), q.precision, q.optimizer, counted(q.form.workers, "worker"),
      machines == 1 ? "" : fmt::format(" on {} machines", machines), counted(q.lanes, "lane"));
  out += "memory  " + memory_line(q) + "\n\n";
  std::vector<Table::Column> columns = {{"stage"},      {"strategy", Align::left},
                                        {"parameters"}, {"gradients"},
                                        {"optimizer"},  {"state"},
                                        {"in flight"},  {"together"},
                                        {"left"}};
  if (!q.offload.empty()) columns.insert(columns.end(), {{"on disk"}, {"more a step"}});
  Table table(std::move(columns));
  for (const StageMemory& s : plan.stages) {
    const Style style = s.fits ? Style::plain : Style::dim;
    const auto cell = [&](double bytes) { return Table::Cell{decimal_bytes(bytes), style}; };
    const double left = q.memory_bytes - s.bytes.total();
    std::vector<Table::Cell> row = {{std::to_string(s.stage), style},
                                    {s.strategy, style},
                                    cell(s.bytes.parameters),
                                    cell(s.bytes.gradients),
                                    cell(s.bytes.optimizer),
                                    cell(s.bytes.state()),
                                    cell(s.bytes.in_flight),
                                    cell(s.bytes.total()),
                                    {decimal_bytes(left), s.fits ? Style::plain : Style::red}};
    if (!q.offload.empty()) {
      row.push_back(cell(s.bytes.on_disk + s.bytes.params_on_disk));
      row.push_back(
          {s.disk_ms < 1e4 ? fmt::format("{:.0f} ms", s.disk_ms) : fmt::format("{:.0f} s", s.disk_ms / 1e3),
           style});
    }
    table.add_row(std::move(row));
  }
  out += table.render(colours) + "\nfits    " + fits_line(plan) + "\n";
  for (const std::string& note : plan.notes) out += "note    " + note + "\n";
  return out;
}

}  // namespace lockstep
