// `lockstep bench`: the parent starts the workers, shows what they report.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/report.h"
#include "bench/worker.h"
#include "cli/bench_plan.h"
#include "cli/command.h"
#include "launch/starter.h"
#include "launch/worker_events.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "recipe/engine_flag.h"
#include "report/progress.h"
#include "report/table.h"

namespace lockstep::cli {
namespace {

std::string joined(const std::vector<std::string>& items) { return fmt::format("{}", fmt::join(items, ",")); }

std::vector<std::string> worker_command(const BenchFlags& flags, const BenchPlan& plan,
                                        const std::string& report_to) {
  std::vector<std::string> words = {own_path(),
                                    "bench",
                                    flags.collective,
                                    "-n",
                                    std::to_string(flags.workers),
                                    "--sizes",
                                    flags.sizes,
                                    "--engines",
                                    joined(plan.engines),
                                    "--algorithms",
                                    flags.algorithms,
                                    "--memory",
                                    flags.memory,
                                    "--dtype",
                                    flags.dtype,
                                    "--op",
                                    flags.op,
                                    "--iterations",
                                    std::to_string(flags.iterations),
                                    "--min-time",
                                    fmt::format("{}", flags.min_time_s),
                                    "--warmup",
                                    std::to_string(flags.warmup),
                                    "--report-to",
                                    report_to};
  if (flags.rewrite) words.emplace_back("--rewrite");
  return words;
}

// What arrived from the workers.
class Results {
 public:
  explicit Results(const BenchFlags& flags) : flags_(flags) {}

  void handle(const nlohmann::ordered_json& event) {
    const std::string kind = event.value("event", "");
    if (kind == "progress")
      progress_.show(fmt::format("{}: {} ({} of {})", flags_.collective,
                                 format_bytes(event.at("bytes").get<std::uint64_t>()),
                                 event.at("step").get<int>() + 1, event.at("steps").get<int>()));
    else if (kind == "note")
      say("note: " + event.at("text").get<std::string>());
    else if (kind == "row")
      add(event.at("row"));
    else if (kind == "error" && errors.size() < 8)
      errors.push_back({event.at("kind").get<std::string>(), event.at("text").get<std::string>()});
  }

  void say(const std::string& text) {
    progress_.clear();
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  void finish() { progress_.clear(); }

  std::vector<BenchRow> rows;
  std::vector<WorkerError> errors;  // the first is the cause

 private:
  void add(const nlohmann::ordered_json& row) {
    rows.push_back(row.get<BenchRow>());
    if (!flags_.json) return;
    progress_.clear();
    std::printf("%s\n", row.dump().c_str());
    std::fflush(stdout);
  }

  const BenchFlags& flags_;
  Progress progress_;
};

void print(const Results& results, const BenchFlags& flags, const BenchPlan& plan, std::ofstream& plot) {
  if (!results.rows.empty() && !flags.json)
    std::printf("%s, %s%s, %s\n\n%s\n%s\n", flags.collective.c_str(), results.rows[0].dtype.c_str(),
                results.rows[0].reduction.empty() ? "" : (" " + results.rows[0].reduction).c_str(),
                counted(plan.workers, "worker").c_str(), bench_table(results.rows, wants_colours(1)).c_str(),
                bench_conclusion(results.rows).c_str());
  if (!plot.is_open() || results.rows.empty()) return;
  plot << bench_plot(results.rows);
  if (!plot.flush()) throw SystemError(fmt::format("--plot: can't write '{}'", flags.plot));
}

// The workers of a job that was started already are as many as they are.
BenchFlags with_job(BenchFlags flags) {
  const Identity who = Identity::from_environment();
  if (flags.report_to.empty() && who.size > 1) flags.workers = who.size;
  return flags;
}

int run_bench(const BenchFlags& flags) {
  if (flags.collective.empty())
    throw UsageError("collective is required: one of " + joined(bench_op_names()) + ", compress or step");
  BenchPlan plan = make_plan(with_job(flags));
  if (flags.report_to.empty()) use_engine(plan.own_engine);
  if (!flags.report_to.empty()) {
    EventReporter reporter(flags.report_to);
    return run_bench_worker(plan, reporter);
  }
  const Identity who = Identity::from_environment();

  std::ofstream plot;
  if (!flags.plot.empty()) {  // found out now rather than after the measurement
    plot.open(flags.plot);
    if (!plot) throw UsageError(fmt::format("--plot: can't write '{}'", flags.plot));
    if (plan.what == BenchOp::barrier) throw UsageError("--plot: barrier has no sizes to plot");
  }
  Results results(flags);
  if (who.size > 1) {  // started as a job, by lockstep run or mpirun: these are the workers
    if (flags.engines.empty() && plan.has_engine("mpi") && !who.started_by_mpi()) {
      if (who.rank == 0) results.say("note: left out: mpi, because mpirun did not start these workers");
      std::erase(plan.engines, "mpi");
    }
    EventReporter reporter([&](const nlohmann::ordered_json& event) {
      results.handle(event);
      if (event.value("event", "") == "error")
        results.say("lockstep bench: " + event.at("text").get<std::string>());
    });
    const int status = run_bench_worker(plan, reporter);
    if (who.rank == 0) print(results, flags, plan, plot);
    return status == 0 && !results.errors.empty() ? 1 : status;
  }
  if (flags.engines.empty() && plan.has_engine("mpi") && !has_mpirun()) {
    results.say("note: left out: mpi, because mpirun is not on the path");
    std::erase(plan.engines, "mpi");
  }
  EventListener listener;
  const Starter starter = start_workers({.program = worker_command(flags, plan, listener.name()),
                                         .workers = plan.workers,
                                         .with_mpi = plan.has_engine("mpi") || plan.own_engine == "shm+mpi"});
  const int status =
      listener.serve(starter.pid, [&](const nlohmann::ordered_json& event) { results.handle(event); });
  results.finish();
  print(results, flags, plan, plot);
  return conclude("bench", results.errors, starter, status, listener.interrupted_by());
}

}  // namespace

void add_bench(Cli& cli) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = cli.app.add_subcommand(
      "bench", "Measure a collective beside MPI and Gloo, compression, or a training step");
  command->group(kMeasure);
  command->add_option("collective", flags->collective, "one of " + joined(bench_op_names()));
  command->add_option("-n,--workers", flags->workers, "workers to start (default: 2)");
  command->add_option("--sizes", flags->sizes,
                      "bytes as nccl-tests counts them (default: " + flags->sizes + ")");
  command->add_option("--engines,--engine", flags->engines,
                      "of " + accepted_engines({"tls"}) + " (default: all that stand alone, but tls)");
  command->add_option("--algorithms", flags->algorithms,
                      "auto, all, or names such as direct,ring (default: auto)");
  command->add_option("--memory", flags->memory, "of comm,private, for our engine (default: comm)");
  command->add_option("--dtype", flags->dtype, "f64 f32 f16 bf16 i64 i32 i8 u8 (default: f32)");
  command->add_option("--op", flags->op, "sum avg min max product bit_and bit_or (default: sum)");
  command->add_option("--iterations", flags->iterations, "samples of each (default: by --min-time)");
  command->add_option("--min-time", flags->min_time_s, "seconds for each variant and size (default: 0.3)");
  command->add_option("--warmup", flags->warmup, "calls before the first sample (default: 3)");
  command->add_flag("--rewrite", flags->rewrite,
                    "every rank writes its input anew before each call, untimed, as training does");
  command->add_option("--plot", flags->plot, "write time over size as an SVG file");
  command->add_flag("--json", flags->json, "one JSON object a line on standard output");
  command->add_option("--report-to", flags->report_to)->group("");  // for workers: hidden
  command->footer(
      "Times are medians of the slowest rank's; \"× floor\" is the time over that in which this machine's\n"
      "memory moves the bytes that must move; \"× peer\" is the time over the faster of mpi and gloo.\n\n"
      "Examples:\n"
      "  lockstep bench all_reduce -n 2 --sizes 64K,1M,25M\n"
      "  lockstep bench all_reduce --algorithms all --memory comm,private --plot all_reduce.svg\n"
      "  lockstep bench all_gather -n 4 --engines shm,mpi --json\n"
      "  lockstep bench all_reduce --engines tcp,tls,gloo --sizes 4K,25M\n"
      "  lockstep run -n 2 --nnodes 2 --node-rank 0 --rdzv-endpoint HOST:PORT -- lockstep bench all_reduce\n"
      "  lockstep bench step -n 2 --model resnet18 --lane-batch 32");
  add_compress_bench(cli, *command);
  add_step_bench(cli, *command);
  command->callback([&cli, command, flags] {
    if (command->get_subcommands().empty()) cli.action = [flags] { return run_bench(*flags); };
  });
}

}  // namespace lockstep::cli
