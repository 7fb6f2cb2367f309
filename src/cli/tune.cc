// `lockstep tune`: measures what the choice of algorithms rests on, and shows it.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <ranges>

#include "base/machine_memory.h"
#include "bench/tune_worker.h"
#include "cli/bench_plan.h"
#include "cli/command.h"
#include "cli/tune_engines.h"
#include "comm/tune/selector.h"
#include "comm/world/group_impl.h"
#include "launch/starter.h"
#include "launch/worker_events.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "lockstep/comm/init.h"
#include "lockstep/observe/histogram.h"
#include "report/progress.h"
#include "report/table.h"

namespace lockstep::cli {
namespace {

struct TuneFlags {
  std::string collective = "all_reduce";
  int workers = 2;
  std::string sizes = "1K,4K,16K,64K,256K,1M,2M,4M,6M,8M,12M,16M,24M,32M,64M,256M";
  std::string memory = "comm,private";
  double min_time_s = 0.03;
  bool sizes_given = false;
  bool engines = false;
  std::vector<std::string> for_measuring = {};  // flags given that a job which runs already has no use for
  bool json = false;
  std::string report_to;  // set for workers only
};

TunePlan plan_of(const TuneFlags& flags) {
  // The benchmark's rules for the same words.
  BenchFlags words;
  words.collective = flags.collective;
  words.workers = flags.workers;
  words.sizes = flags.sizes;
  words.engines = "shm";
  words.memory = flags.memory;
  words.min_time_s = flags.min_time_s;
  const BenchPlan checked = make_plan(words);
  if (checked.what == BenchOp::barrier || checked.what == BenchOp::send_recv)
    throw UsageError("tune: " + flags.collective +
                     " has no sizes to choose by; accepted: the other collectives");
  if (flags.workers < 2)
    throw UsageError(fmt::format("-n: {} worker has nobody to talk to; accepted: 2 and more", flags.workers));
  return {.what = checked.what,
          .workers = checked.workers,
          .sizes = checked.sizes,
          .memories = checked.memories,
          .min_time_s = flags.min_time_s};
}

class Results {
 public:
  explicit Results(const TuneFlags& flags) : flags_(flags) {}

  void handle(const nlohmann::ordered_json& event) {
    const std::string kind = event.value("event", "");
    if (kind == "progress") {
      progress_.show(fmt::format("tune {}: {} ({} of {})", flags_.collective,
                                 format_bytes(event.at("bytes").get<std::uint64_t>()),
                                 event.at("step").get<int>() + 1, event.at("steps").get<int>()));
    } else if (kind == "error") {
      errors.push_back({event.at("kind").get<std::string>(), event.at("text").get<std::string>()});
    } else if (kind == "costs") {
      costs_ = event.at("row");
      if (flags_.json) print_line(costs_);
    } else if (kind == "row") {
      rows_.push_back(event.at("row"));
      if (flags_.json) print_line(rows_.back());
    }
  }

  void show() {
    progress_.clear();
    if (flags_.json || rows_.empty()) return;
    std::printf("%s, f32 sum, %d workers. Measured on this machine:\n", flags_.collective.c_str(),
                flags_.workers);
    std::printf(
        "  α meeting %.2f µs, message %.2f µs; at 1 MiB, ns per KiB: β send %.0f, copy %.0f; γ reduce "
        "%.0f\n\n",
        costs_.value("barrier_us", 0.0), costs_.value("message_us", 0.0),
        costs_.value("send_ns_per_kib", 0.0), costs_.value("copy_ns_per_kib", 0.0),
        costs_.value("reduce_ns_per_kib", 0.0));
    std::printf("%s\n", table().render(wants_colours(1)).c_str());
    conclusion();
  }

  // Says why when it is not, although it should be.
  bool kept_as_asked() const {
    if (rows_.empty() || costs_.value("cache", "").empty() || kept()) return true;
    std::fprintf(
        stderr,
        "lockstep tune: can't write %s; set LOCKSTEP_CACHE_DIR to a folder that can be written, or off\n",
        costs_.value("cache", "").c_str());
    return false;
  }

  std::vector<WorkerError> errors;

 private:
  bool kept() const { return costs_.value("kept", false); }

  void print_line(const nlohmann::ordered_json& row) {
    progress_.clear();
    std::printf("%s\n", row.dump().c_str());
    std::fflush(stdout);
  }

  Table table() const {
    Table table({{"size"},
                 {"memory", Align::left},
                 {"algorithm", Align::left},
                 {"predicted µs"},
                 {"measured µs"},
                 {"off by"},
                 {"× best"},
                 {"", Align::left}});
    std::string last;
    for (const auto& row : rows_) {
      const auto bytes = row.at("bytes").get<std::uint64_t>();
      const std::string group = format_bytes(bytes) + row.at("memory").get<std::string>();
      if (!last.empty() && group != last) table.add_gap();
      const bool chosen = row.at("chosen").get<bool>();
      const Style style = chosen ? Style::bold : Style::plain;
      table.add_row({{group == last ? "" : format_bytes(bytes)},
                     {group == last ? "" : row.at("memory").get<std::string>()},
                     {row.at("algorithm").get<std::string>(), style},
                     {format_number(row.at("predicted_us").get<double>()), style},
                     {format_number(row.at("us").get<double>()), style},
                     {fmt::format("{:+.0f} %", std::round(100 * error_of(row)) + 0.0), style},  // no -0
                     {format_number(row.at("over_best").get<double>()), style},
                     {chosen                            ? "◀ chosen"
                      : row.at("canonical").get<bool>() ? ""
                                                        : "other order",
                      chosen ? Style::bold : Style::dim}});
      last = group;
    }
    return table;
  }

  // Of the prediction, as a part of what was measured.
  static double error_of(const nlohmann::ordered_json& row) {
    return row.at("predicted_us").get<double>() / row.at("us").get<double>() - 1;
  }

  void conclusion() const {
    double worst = 0;
    std::string where;
    int choices = 0;
    std::vector<double> off;
    double most = 0;
    std::string most_where;
    const auto place = [](const auto& row) {
      return format_bytes(row.at("bytes").template get<std::uint64_t>()) + ", " +
             row.at("memory").template get<std::string>() + " memory";
    };
    for (const auto& row : rows_) {
      if (!row.at("chosen").get<bool>()) continue;
      ++choices;
      off.push_back(std::abs(error_of(row)));
      if (off.back() > most) {
        most = off.back();
        most_where = place(row);
      }
      const double over = row.at("over_best").get<double>();
      if (over <= worst) continue;
      worst = over;
      where = place(row);
    }
    std::printf("%d choice%s, measured again after they were made: at worst %.2f of the best (at %s).\n",
                choices, choices == 1 ? "" : "s", worst, where.c_str());
    std::printf("Predictions of what they take: off by %.0f %% in the median, at worst by %.0f %% (at %s).\n",
                100 * median_of(off), 100 * most, most_where.c_str());
    const std::string cache = costs_.value("cache", "");
    if (cache.empty())
      std::printf("Not kept: LOCKSTEP_CACHE_DIR is off.\n");
    else if (kept())
      std::printf("Kept in %s\n", cache.c_str());
  }

  const TuneFlags& flags_;
  Progress progress_;
  nlohmann::ordered_json costs_ = nlohmann::ordered_json::object();
  std::vector<nlohmann::ordered_json> rows_;
};

// Started as a job, by lockstep run or mpirun: what its links are and what it would do.
int show_job(TuneFlags flags) {
  if (!flags.for_measuring.empty())
    throw UsageError(
        fmt::format("{}: these workers were started as a job, whose links are shown and nothing measured; "
                    "accepted there: "
                    "--collective, --sizes, --json",
                    fmt::join(flags.for_measuring, ", ")));
  if (!flags.sizes_given) flags.sizes = "64K,1M,25M";
  const TunePlan plan = plan_of(flags);
  const Group world = init();
  Engine& engine = engine_of(world);
  if (world.rank() != 0) {
    world.barrier();
    return 0;
  }
  const int nodes = 1 + *std::max_element(world.nodes().begin(), world.nodes().end());
  if (!flags.json)
    std::printf("%s on %s, engine %s\n%s\n", counted(world.size(), "worker").c_str(),
                counted(nodes, "node").c_str(), world.engine(), engine.selector()->topology().c_str());
  Table table({{flags.collective}, {"expected ms"}, {"MB/s"}});
  for (const std::uint64_t bytes : plan.sizes) {
    Call call;
    call.what = collective_of(plan.what);
    call.count = extent_of(plan.what, world.size(), bytes, DType::f32).slice;
    const double seconds = engine.expected_seconds(call);
    if (flags.json)
      std::printf("%s\n", nlohmann::ordered_json{{"engine", world.engine()},
                                                 {"workers", world.size()},
                                                 {"nodes", nodes},
                                                 {"bytes", bytes},
                                                 {"expected_us", seconds * 1e6}}
                              .dump()
                              .c_str());
    table.add_row({{format_bytes(bytes)},
                   {format_number(seconds * 1e3)},
                   {format_number(static_cast<double>(bytes) / seconds * 1e-6)}});
  }
  if (!flags.json) std::printf("%s", table.render(wants_colours(1)).c_str());
  std::fflush(stdout);
  world.barrier();
  return 0;
}

// The sizes that nobody asked for end where the workers' buffers would take a quarter of the machine's
// memory.
void leave_memory(TuneFlags& flags) {
  const double memory = machine_memory();
  for (const TunePlan plan = plan_of(flags); const std::uint64_t bytes : std::views::reverse(plan.sizes)) {
    const double all = static_cast<double>(bytes) * plan.workers * static_cast<double>(plan.memories.size());
    if (all <= memory / 4 || bytes == plan.sizes.front()) return;
    flags.sizes.resize(flags.sizes.rfind(','));
  }
}

int run_tune(TuneFlags flags) {
  if (flags.engines) {
    if (flags.sizes_given) flags.for_measuring.emplace_back("--sizes");
    if (!flags.for_measuring.empty())
      throw UsageError(fmt::format("--engines and {}: nothing is measured; accepted with --engines: --json",
                                   fmt::join(flags.for_measuring, ", ")));
    return show_engines(flags.json);
  }
  if (flags.report_to.empty() && Identity::from_environment().size > 1) return show_job(flags);
  if (!flags.sizes_given) leave_memory(flags);
  const TunePlan plan = plan_of(flags);
  if (!flags.report_to.empty()) return run_tune_worker(plan, flags.report_to);
  Results results(flags);
  EventListener listener;
  const Starter starter = start_workers(
      {.program = {own_path(), "tune", "--collective", flags.collective, "-n", std::to_string(flags.workers),
                   "--sizes", flags.sizes, "--memory", flags.memory, "--min-time",
                   fmt::format("{}", flags.min_time_s), "--report-to", listener.name()},
       .workers = plan.workers});
  const int status =
      listener.serve(starter.pid, [&](const nlohmann::ordered_json& event) { results.handle(event); });
  results.show();
  const int concluded = conclude("tune", results.errors, starter, status, listener.interrupted_by());
  return concluded == 0 && !results.kept_as_asked() ? 1 : concluded;
}

}  // namespace

void add_tune(Cli& cli) {
  auto flags = std::make_shared<TuneFlags>();
  CLI::App* command =
      cli.app.add_subcommand("tune", "Measure this machine, and show which algorithm each size gets");
  command->group(kMeasure);
  command->add_option("-n,--workers", flags->workers, "workers to start (default: 2)");
  command->add_option("--collective", flags->collective, "which one (default: all_reduce)");
  command->add_option("--sizes", flags->sizes, "bytes (default: " + flags->sizes + ")");
  command->add_option("--memory", flags->memory, "of comm,private (default: both)");
  command->add_option("--min-time", flags->min_time_s, "seconds for each algorithm and size (default: 0.03)");
  command->add_flag("--engines", flags->engines,
                    "measure nothing: what each engine can do, and which are missing");
  command->add_flag("--json", flags->json, "one JSON object a line on standard output");
  command->add_option("--report-to", flags->report_to)->group("");  // for workers: hidden
  command->footer(
      "Measures α, β, γ and every algorithm, keeps the result in the cache folder (LOCKSTEP_CACHE_DIR), "
      "then\n"
      "times everything once more, also between the sizes, to show how good the choices are.\n"
      "\n"
      "\"off by\" is the prediction against what was measured: -20 % says that it takes longer than "
      "predicted.\n"
      "\"× best\" is the time over that of the fastest. \"other order\" adds up in another order than the\n"
      "others, with other bits: taken only by calls that allow it (Order::any, train --order any).\n"
      "\n"
      "Examples:\n"
      "  lockstep tune                              two workers, all_reduce\n"
      "  lockstep run -n 4 … -- lockstep tune       the links of a job on several machines\n"
      "  lockstep tune -n 8 --collective all_gather --memory comm\n"
      "  lockstep tune --engines                    what each engine can do, and how to get those that are "
      "missing\n"
      "  LOCKSTEP_ALGORITHM=tree ./train            overrules the table for one run");
  command->callback([&cli, command, flags] {
    flags->sizes_given = command->count("--sizes") > 0;
    for (const char* name : {"--workers", "--memory", "--min-time"})
      if (command->count(name) > 0) flags->for_measuring.emplace_back(name);
    cli.action = [flags] { return run_tune(*flags); };
  });
}

}  // namespace lockstep::cli
