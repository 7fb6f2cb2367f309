#include "bench/worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/memory_bandwidth.h"
#include "bench/own_core.h"
#include "bench/row.h"
#include "bench/sampling.h"
#include "bench/variant.h"
#include "launch/starter.h"
#include "launch/worker_events.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/identity.h"
#include "lockstep/comm/init.h"
#include "lockstep/observe/histogram.h"

namespace lockstep {
namespace {

class Measurement {
 public:
  Measurement(const BenchPlan& plan, Group world, EventReporter& reporter)
      : plan_(plan), world_(std::move(world)), reporter_(reporter), variants_(make_variants(plan, world_)) {}

  void run() {
    std::size_t rows = 0;
    for (std::size_t i = 0; i < plan_.sizes.size(); ++i) {
      if (leads())
        reporter_.offer(
            {{"event", "progress"}, {"bytes", plan_.sizes[i]}, {"step", i}, {"steps", plan_.sizes.size()}});
      rows += measure_size(plan_.sizes[i]);
    }
    if (rows == 0)
      throw UsageError(fmt::format("no engine of {} has {} {}", fmt::join(plan_.engines, ","),
                                   to_string(plan_.what), fmt::join(plan_.algorithms, ",")));
  }

 private:
  struct Entry {
    const Variant* variant;
    const BenchBuffers* buffers;
    std::string mistake;  // the same on every rank
  };

  bool leads() const { return world_.rank() == 0; }

  std::size_t measure_size(std::uint64_t bytes) {
    expectation_ = {.what = plan_.what,
                    .rank = world_.rank(),
                    .workers = world_.size(),
                    .root = 0,
                    .dtype = plan_.dtype,
                    .op = plan_.op,
                    .extent = extent_of(plan_.what, world_.size(), bytes, plan_.dtype)};
    // Variants of the same kind of memory share it.
    std::map<std::string, BenchBuffers> buffers;
    std::vector<Entry> entries;
    for (const Variant& variant : variants_) {
      if (!buffers.contains(variant.memory))
        buffers[variant.memory] = make_buffers(world_, variant.memory, expectation_);
      const BenchBuffers& own = buffers[variant.memory];
      const std::string why = variant.refuses(expectation_, own);
      if (why.empty())
        entries.push_back({.variant = &variant, .buffers = &own, .mistake = ""});
      else if (leads() && noted_.insert(why).second)
        reporter_.post({{"event", "note"}, {"text", "left out: " + why}});
    }
    if (entries.empty()) return 0;
    const double moved = bytes_that_must_move(plan_.what, world_.size(), static_cast<double>(bytes));
    const double floor_us = moved == 0 ? 0 : moved / memory_bandwidth(world_, bytes) * 1e6;
    for (Entry& e : entries) check(e);
    std::vector<Contender> contenders;
    for (const Entry& e : entries) {
      contenders.push_back({.call = [this, e] { call(e); }});
      if (plan_.rewrite) contenders.back().prepare = [this, e] { rewrite_input(*e.buffers, expectation_); };
    }
    sample_interleaved(world_, contenders,
                       {.iterations = plan_.iterations,
                        .min_time_s = plan_.min_time_s,
                        .warmup = plan_.warmup,
                        .fewest = bytes <= (1U << 20) ? 200.0 : 10.0});
    for (Entry& e : entries) check(e);
    if (leads()) report(entries, contenders, bytes, floor_us);
    return entries.size();
  }

  void call(const Entry& c) const { c.variant->run(expectation_, *c.buffers); }

  void check(Entry& c) const {
    load_input(*c.buffers, expectation_);
    world_.barrier();
    call(c);
    // Everybody learns the lowest rank's mistake.
    const std::vector<std::string> wrong =
        world_.all_gather(find_mistake(c.buffers->out.data(), expectation_).value_or(""));
    for (std::size_t r = 0; r < wrong.size() && c.mistake.empty(); ++r)
      if (!wrong[r].empty()) c.mistake = fmt::format("on rank {} {}", r, wrong[r]);
  }

  void report(const std::vector<Entry>& entries, const std::vector<Contender>& contenders,
              std::uint64_t bytes, double floor_us) const {
    std::vector<BenchRow> rows;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const Entry& c = entries[i];
      const std::vector<double>& us = contenders[i].us;
      BenchRow row;
      row.op = to_string(plan_.what);
      row.engine = c.variant->engine;
      row.algorithm = c.variant->algorithm;
      row.memory = c.variant->memory;
      row.dtype = to_string(plan_.dtype);
      row.reduction = reduces(plan_.what) ? to_string(plan_.op) : "";
      row.workers = world_.size();
      row.bytes = bytes;
      row.iterations = static_cast<int>(us.size());
      row.us = quantile_of_sorted(us, 0.5);
      row.us_min = us.front();
      row.us_p25 = quantile_of_sorted(us, 0.25);
      row.us_p75 = quantile_of_sorted(us, 0.75);
      row.us_max = us.back();
      row.algbw_gbs = static_cast<double>(bytes) / std::max(row.us, 1e-3) * 1e-3;
      row.busbw_gbs = row.algbw_gbs * bus_factor(plan_.what, world_.size());
      if (floor_us > 0) {
        row.floor_us = floor_us;
        row.floor_ratio = row.us / floor_us;
      }
      row.checked = c.mistake.empty();
      if (!row.checked)
        reporter_.post({{"event", "error"},
                        {"kind", "wrong result"},
                        {"text", fmt::format("wrong result of {} by {} at {}: {}", row.op, row.variant(),
                                             format_bytes(bytes), c.mistake)}});
      rows.push_back(std::move(row));
    }
    fill_peer_ratio(rows);
    for (const auto& row : rows) reporter_.post({{"event", "row"}, {"row", row}});
  }

  const BenchPlan& plan_;
  Group world_;
  EventReporter& reporter_;
  std::vector<Variant> variants_;
  Expectation expectation_;
  std::set<std::string> noted_;
};

}  // namespace

int run_bench_worker(const BenchPlan& plan, EventReporter& reporter) {
  try {
    const Identity who = Identity::from_environment();
    const int place = who.local_rank;
    Group world = [&] {
      const OwnCore core(place, who.local_size);
      return init();
    }();
    if (world.size() != plan.workers)
      throw SystemError(fmt::format("{} workers came, not {}", world.size(), plan.workers));
    Measurement measurement(plan, world, reporter);  // Gloo's threads start here, bound to no core
    const OwnCore core(place, who.local_size);
    measurement.run();
    world.barrier();
    reporter.flush();
    return 0;
  } catch (const Error& e) {
    reporter.send({{"event", "error"}, {"kind", to_string(e.kind())}, {"text", e.what()}});
    // Not by way of destructors at exit: MPI's would wait for peers that may be gone.
    const int status = e.kind() == ErrorKind::usage ? 2 : 1;
    std::_Exit(reporter.here() ? status : kReported);
  }
}

}  // namespace lockstep
