// The program `lockstep-train`: what needs libtorch. `lockstep` starts it; see cli/train_program.h.
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "base/json_text.h"
#include "base/option_name.h"
#include "base/start_thread.h"
#include "cli/infer.h"
#include "cli/step_bench.h"
#include "cli/train_plan.h"
#include "launch/starter.h"
#include "launch/worker_events.h"
#include "lockstep/base/error.h"
#include "lockstep/base/standard_fds.h"
#include "lockstep/comm/init.h"
#include "plan/memory_request.h"
#include "recipe/task/train_task.h"
#include "report/printer.h"
#include "report/progress.h"
#include "train/device.h"
#include "train/gpu_memory.h"
#include "train/memory_use.h"
#include "train/stop_watch.h"
#include "train/threads.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// libtorch says "[enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you
// tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)".
std::string in_plain_words(const std::string& message) {
  const std::string_view mark = "tried to allocate ";
  const std::size_t at = message.find(mark);
  if (at == std::string::npos) return first_line(message);
  const double bytes = std::strtod(message.c_str() + at + mark.size(), nullptr);
  return fmt::format(
      "not enough memory for {:.1f} GiB more; accepted: a smaller model, --context, --lane-batch or "
      "--eval-batch, or "
      "fewer workers",
      bytes / 0x1p30);
}

// Says what went wrong where it will be read, and ends the process without destructors, which might wait for
// peers that are gone.
[[noreturn]] void fail(const std::string& report_to, const std::string& command, const std::string& kind,
                       const std::string& text, const std::string& hint) {
  try {
    if (!report_to.empty())
      EventReporter(report_to).send({{"event", "error"}, {"kind", kind}, {"text", text}});
  } catch (const Error&) {
    // The parent is gone: then nobody asks.
  }
  if (report_to.empty())
    std::fprintf(stderr, "lockstep %s: %s%s%s\n", command.c_str(), text.c_str(), hint.empty() ? "" : "; ",
                 hint.c_str());
  std::fflush(nullptr);
  std::_Exit(!report_to.empty() ? kReported : kind == "usage" ? 2 : 1);
}

// `hint`: how to go on after a failure, as far as the run has come.
int run_train(const Json& request, std::string& hint) {
  const Group world = init({.device = device_kind(request.at("options").value("device", "cpu"))});
  const TrainPlan plan = make_train_plan(request, world);
  std::unique_ptr<EventReporter> reporter;
  RunDisplay report(plan.show);
  if (world.rank() == 0 && !plan.report_to.empty())
    reporter = std::make_unique<EventReporter>(plan.report_to);
  report.give_up_when([] { return noted_stop() != 0; });
  bool parent_gone = false;
  const EventSink sink = [&](const Json& event) {
    if (!reporter) {
      report.handle(event);
      hint = report.hint();
      return;
    }
    // A parent that is killed takes its launcher along, which tells the workers to stop: nothing that was
    // trained is to be lost because nobody can be told.
    try {
      if (parent_gone) return;
      if (event.at("event") == "step")
        reporter->offer(event);
      else
        reporter->send(event);
    } catch (const SystemError&) {
      parent_gone = true;
    }
  };
  pin_threads(plan.options.threads);
  const TrainOptions located = locate_data(plan.options, plan.data);
  check_attention(plan.options);
  const TrainData data = make_data(located);
  std::unique_ptr<RunPlan> run = run_plan(plan, located);
  run->sink = sink;
  run->resident_before = memory_bytes("VmRSS");
  const std::shared_ptr<Model> model = make_model(plan.options, *data.train, world);
  Trainer trainer(ModuleRef(model), make_task(model, data, plan.options.label_smoothing), std::move(run),
                  world);
  const int stopped_by = trainer.run().stopped_by;
  world.barrier();
  return stopped_by == 0 ? 0 : 128 + stopped_by;
}

int run_plan_memory(const Json& json) {
  MemoryRequest request = memory_request(json);
  if (request.gpu && gpu_count() > 0)
    request.gpus = {gpu_count(), static_cast<double>(gpu_memory(0).total_bytes)};
  const ModelSize size = request.params.empty() ? planned_size(request.options) : size_in_params(request);
  std::fputs(answer(request, size, wants_colours(1)).c_str(), stdout);
  return 0;
}

// What no run of it could do, before the first one.
int run_sweep_check(const Json& request) {
  for (const Json& precision : request.at("precisions")) check_kernels(precision, request.at("device"));
  return 0;
}

int run(const std::string& what, const Json& request, std::string& hint) {
  if (what == "train") return run_train(request, hint);
  if (what == "infer") return run_infer(request);
  if (what == "step") return run_step_bench_worker(request);
  if (what == "plan memory") return run_plan_memory(request);
  if (what == "sweep batch") return run_sweep_check(request);
  throw UsageError("'" + what + "' is not understood; this program is started by commands of lockstep");
}

}  // namespace
}  // namespace lockstep::cli

int main(int argc, char** argv) {
  using nlohmann::ordered_json;
  lockstep::open_standard_descriptors();
  lockstep::name_options_as_flags();
  // A step frees and takes the same large blocks again and again: keep them, instead of handing their pages
  // back to the kernel, which would zero them anew each time (a tenth of a ResNet-18 step).
  ::mallopt(M_MMAP_MAX, 0);
  ::mallopt(M_TRIM_THRESHOLD, -1);
  // A file that grows beyond a limit is an error to report, not a reason to die.
  std::signal(SIGXFSZ, SIG_IGN);
  const ordered_json request = argc == 3 ? lockstep::try_json<ordered_json>(argv[2]) : ordered_json();
  if (!request.is_object()) {
    std::fputs("lockstep-train is the part of lockstep that needs libtorch; run lockstep train --help\n",
               stderr);
    return 2;
  }
  const std::string what = argv[1];
  const std::string report_to = request.value("report_to", "");
  const std::string command = what == "step" ? "bench step" : what;
  std::string hint;
  try {
    const int status = lockstep::cli::run(what, request, hint);
    const std::string lost = lockstep::lost_output();
    if (!lost.empty()) std::fprintf(stderr, "lockstep %s: %s\n", command.c_str(), lost.c_str());
    std::fflush(nullptr);
    return status == 0 && !lost.empty() ? 1 : status;
  } catch (const lockstep::UsageError& e) {
    lockstep::cli::fail(report_to, command, lockstep::to_string(e.kind()), e.what(), "");
  } catch (const lockstep::Error& e) {
    lockstep::cli::fail(report_to, command, lockstep::to_string(e.kind()), e.what(), hint);
  } catch (const std::bad_alloc&) {
    lockstep::cli::fail(report_to, command, "error", "not enough memory", hint);
  } catch (const std::system_error& e) {
    const bool of_a_thread = e.code() == std::errc::resource_unavailable_try_again &&
                             dynamic_cast<const std::filesystem::filesystem_error*>(&e) == nullptr;
    lockstep::cli::fail(
        report_to, command, "error",
        of_a_thread ? lockstep::no_thread("a thread", e) : lockstep::cli::in_plain_words(e.what()), hint);
  } catch (const std::exception& e) {
    lockstep::cli::fail(report_to, command, "error", lockstep::cli::in_plain_words(e.what()), hint);
  }
}
