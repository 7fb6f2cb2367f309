#include "bench/tune_worker.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "bench/own_core.h"
#include "bench/sampling.h"
#include "bench/variant.h"
#include "comm/tune/calibrate.h"
#include "comm/tune/trials.h"
#include "comm/world/group_impl.h"
#include "launch/starter.h"
#include "launch/worker_events.h"
#include "lockstep/base/identity.h"
#include "lockstep/comm/init.h"
#include "lockstep/observe/histogram.h"

namespace lockstep {
namespace {

// Larger calls are measured of those algorithms alone that work on shared memory: the others, which take
// several times as long, would make people wait for minutes.
constexpr std::uint64_t kAllUpTo = std::uint64_t{16} << 20;
constexpr std::size_t kPasses = 5;
constexpr double kHopeless = 2;  // times what another takes

class Tuning {
 public:
  Tuning(const TunePlan& plan, Group world, EventReporter& reporter)
      : plan_(plan), world_(std::move(world)), reporter_(reporter), nodes_(world_.nodes()) {
    for (const std::string& memory : plan.memories)
      for (const std::string& name : world_.algorithms(collective_of(plan.what)))
        variants_.emplace_back(world_, name, memory);
    for (const Algorithm* algorithm : all_algorithms()) {
      Call by_pages;
      by_pages.what = collective_of(plan.what);
      by_pages.algorithm = algorithm->name();
      pages_ |= algorithm->needs().pages && engine_of(world_).refuses(by_pages).empty();
    }
  }

  void run() {
    const std::vector<std::uint64_t> between = with_middles();
    steps_ = kPasses * between.size();
    const std::set<std::uint64_t> fitted(plan_.sizes.begin(), plan_.sizes.end());
    Selector table;
    table.set_costs(measure_costs(engine_of(world_)));
    run_trials(engine_of(world_), table);  // the other collectives
    // Several passes, and the middle time: what disturbs one algorithm for a while must not cost it its
    // place, and what once went uncommonly well is no promise. A second, independent look follows on the
    // first, at the same memory: neither what changes on the machine meanwhile nor where pages lie in a cache
    // is a fault of the predictions.
    Times times, again;
    for (std::size_t pass = 0; pass < kPasses; ++pass)
      for (std::uint64_t bytes : between)
        time_all(bytes, fitted.contains(bytes) ? std::vector<Times*>{&times, &again} : std::vector{&again});
    for (const auto& [key, us] : times) {
      const auto& [bytes, memory, algorithm] = key;
      table.add_measurement(shape(bytes, memory), *find_algorithm(algorithm), median_of(us) * 1e-6);
    }
    const bool kept = share_costs(engine_of(world_), table);
    if (leads()) report_costs(table.costs(), kept);
    for (std::uint64_t bytes : between) report(bytes, again);
  }

 private:
  struct Timed {
    std::string algorithm, memory;
    double us = 0;
  };
  using Times = std::map<std::tuple<std::uint64_t, std::string, std::string>, std::vector<double>>;

  bool leads() const { return world_.rank() == 0; }

  // The sizes and, between each two, their geometric middle in whole elements of every type.
  std::vector<std::uint64_t> with_middles() const {
    std::vector<std::uint64_t> all;
    for (std::size_t i = 0; i < plan_.sizes.size(); ++i) {
      if (i > 0) {
        const double middle =
            std::sqrt(static_cast<double>(plan_.sizes[i - 1]) * static_cast<double>(plan_.sizes[i]));
        const auto rounded = static_cast<std::uint64_t>(middle) / 1024 * 1024;
        if (rounded > plan_.sizes[i - 1] && rounded < plan_.sizes[i]) all.push_back(rounded);
      }
      all.push_back(plan_.sizes[i]);
    }
    return all;
  }

  CallShape shape(std::uint64_t bytes, const std::string& memory) const {
    const Extent extent = extent_of(plan_.what, world_.size(), bytes, DType::f32);
    return {.what = collective_of(plan_.what),
            .ranks = world_.size(),
            .bytes = extent.slice * size_of(DType::f32),
            .reachable = memory == "comm",
            .pages = pages_,
            .nodes = nodes_};
  }

  // Far behind another in an earlier pass: it stands in the table by what it took then.
  bool hopeless(const Times& times, std::uint64_t bytes, const Variant& variant) const {
    const auto own = times.find({bytes, variant.memory, variant.algorithm});
    if (own == times.end()) return false;
    return std::ranges::any_of(times, [&](const auto& other) {
      const auto& [size, memory, algorithm] = other.first;
      return size == bytes && memory == variant.memory &&
             kHopeless * median_of(other.second) < median_of(own->second);
    });
  }

  void time_all(std::uint64_t bytes, const std::vector<Times*>& looks) {
    if (leads())
      reporter_.offer({{"event", "progress"}, {"bytes", bytes}, {"step", step_}, {"steps", steps_}});
    ++step_;
    const Expectation e{.what = plan_.what,
                        .rank = world_.rank(),
                        .workers = world_.size(),
                        .root = 0,
                        .dtype = DType::f32,
                        .op = ReduceOp::sum,
                        .extent = extent_of(plan_.what, world_.size(), bytes, DType::f32)};
    std::vector<BenchBuffers> buffers;
    for (const std::string& memory : plan_.memories) {
      buffers.push_back(make_buffers(world_, memory, e));
      load_input(buffers.back(), e);
    }
    std::vector<Timed> timed;
    std::vector<Contender> contenders;
    for (const Variant& variant : variants_) {
      if (bytes > kAllUpTo && !find_algorithm(variant.algorithm)->needs().reach) continue;
      const auto place =
          std::find(plan_.memories.begin(), plan_.memories.end(), variant.memory) - plan_.memories.begin();
      const BenchBuffers& own = buffers[static_cast<std::size_t>(place)];
      if (!variant.refuses(e, own).empty() || hopeless(*looks.back(), bytes, variant)) continue;
      timed.push_back({.algorithm = variant.algorithm, .memory = variant.memory});
      contenders.push_back({.call = [&variant, &own, &e] { variant.run(e, own); }});
    }
    for (Times* const times : looks) {
      sample_interleaved(world_, contenders, {.min_time_s = plan_.min_time_s, .fewest = 50});
      for (std::size_t i = 0; i < timed.size(); ++i)
        (*times)[{bytes, timed[i].memory, timed[i].algorithm}].push_back(
            quantile_of_sorted(contenders[i].us, 0.5));
    }
  }

  void report_costs(const Costs& costs, bool kept) const {
    reporter_.post({{"event", "costs"},
                    {"row",
                     {{"barrier_us", costs.barrier_s * 1e6},
                      {"message_us", costs.message_s * 1e6},
                      {"send_ns_per_kib", costs.send.at(1 << 20) * 1024e9},
                      {"copy_ns_per_kib", costs.copy.at(1 << 20) * 1024e9},
                      {"reduce_ns_per_kib", costs.reduce.at(1 << 20) * 1024e9},
                      {"cache", cost_cache_path(world_.size()).string()},
                      {"kept", kept}}}});
  }

  void report(std::uint64_t bytes, const Times& times) const {
    if (!leads()) return;
    std::vector<Timed> timed;
    for (const Variant& variant : variants_)
      if (const auto at = times.find({bytes, variant.memory, variant.algorithm}); at != times.end())
        timed.push_back(
            {.algorithm = variant.algorithm, .memory = variant.memory, .us = median_of(at->second)});
    const Selector& selector = *engine_of(world_).selector();
    for (const std::string& memory : plan_.memories) {
      const CallShape s = shape(bytes, memory);
      const Algorithm* const chosen = selector.choose(s, Order::canonical);
      double best = 0;
      for (const Timed& t : timed) {
        const Algorithm& algorithm = *find_algorithm(t.algorithm);
        const bool eligible = !lockstep::reduces(s.what) || algorithm.canonical(nodes_);
        if (t.memory == memory && eligible && (best == 0 || t.us < best)) best = t.us;
      }
      for (const Timed& t : timed) {
        if (t.memory != memory) continue;
        const Algorithm& algorithm = *find_algorithm(t.algorithm);
        reporter_.post({{"event", "row"},
                        {"row",
                         {{"op", to_string(plan_.what)},
                          {"workers", world_.size()},
                          {"bytes", bytes},
                          {"memory", memory},
                          {"algorithm", t.algorithm},
                          {"canonical", !lockstep::reduces(s.what) || algorithm.canonical(nodes_)},
                          {"predicted_us", selector.expect(algorithm, s) * 1e6},
                          {"us", t.us},
                          {"chosen", &algorithm == chosen},
                          {"over_best", t.us / best}}}});
      }
    }
  }

  const TunePlan& plan_;
  Group world_;
  EventReporter& reporter_;
  std::vector<int> nodes_;
  std::vector<Variant> variants_;
  bool pages_ = false;  // ranks may read each other's private memory
  std::size_t step_ = 0;
  std::size_t steps_ = 0;
};

}  // namespace

int run_tune_worker(const TunePlan& plan, const std::string& report_to) {
  EventReporter reporter(report_to);
  try {
    const OwnCore core(Identity::from_environment().local_rank, plan.workers);
    const Group world = init();
    Tuning(plan, world, reporter).run();
    world.barrier();
    reporter.flush();
    return 0;
  } catch (const Error& e) {
    reporter.send({{"event", "error"}, {"kind", to_string(e.kind())}, {"text", e.what()}});
    return kReported;
  }
}

}  // namespace lockstep
