#include "cli/bench_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/bench_floor.h"
#include "cli/bench_link.h"
#include "cli/bench_row.h"
#include "cli/bench_start.h"
#include "cli/bench_variant.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep::cli {
namespace {

class Measurement {
 public:
  Measurement(const BenchPlan& plan, Group world, BenchReporter& reporter)
      : plan_(plan), world_(std::move(world)), reporter_(reporter), variants_(make_variants(plan, world_)) {}

  void run() {
    std::size_t rows = 0;
    for (std::size_t i = 0; i < plan_.sizes.size(); ++i) {
      if (leads())
        reporter_.send(
            {{"event", "progress"}, {"bytes", plan_.sizes[i]}, {"step", i}, {"steps", plan_.sizes.size()}});
      rows += measure_size(plan_.sizes[i]);
    }
    if (rows == 0)
      throw UsageError(fmt::format("bench: no engine of {} has {} {}", fmt::join(plan_.engines, ","),
                                   to_string(plan_.what), fmt::join(plan_.algorithms, ",")));
  }

 private:
  struct Contender {
    const Variant* variant;
    const BenchBuffers* buffers;
    std::string mistake;  // the same on every rank
    int samples = 0;
    std::vector<std::int64_t> ns = {};
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
    std::vector<Contender> contenders;
    for (const Variant& variant : variants_) {
      if (!buffers.contains(variant.memory))
        buffers[variant.memory] = make_buffers(world_, variant.memory, expectation_);
      const BenchBuffers& own = buffers[variant.memory];
      const std::string why = variant.refuses(expectation_, own);
      if (why.empty())
        contenders.push_back({.variant = &variant, .buffers = &own, .mistake = ""});
      else if (leads() && noted_.insert(why).second)
        reporter_.send({{"event", "note"}, {"text", "left out: " + why}});
    }
    if (contenders.empty()) return 0;
    const double moved = bytes_that_must_move(plan_.what, world_.size(), static_cast<double>(bytes));
    const double floor_us = moved == 0 ? 0 : moved / memory_bandwidth(world_, bytes) * 1e6;
    for (Contender& c : contenders) check(c);
    for (Contender& c : contenders) warm_up(c, bytes);
    time_all(contenders);
    for (Contender& c : contenders) check(c);
    if (leads()) report(contenders, bytes, floor_us);
    return contenders.size();
  }

  void call(const Contender& c) const { c.variant->run(expectation_, *c.buffers); }

  void check(Contender& c) const {
    load_input(*c.buffers, expectation_);
    world_.barrier();
    call(c);
    const auto wrong = find_mistake(c.buffers->out.data(), expectation_);
    // Everybody learns the lowest rank's mistake.
    constexpr std::size_t kText = 160;
    std::vector<std::uint8_t> mine(kText), all(kText * static_cast<std::size_t>(world_.size()));
    if (wrong) std::memcpy(mine.data(), wrong->data(), std::min(wrong->size(), kText - 1));
    world_.all_gather(buffer(mine), buffer(all));
    for (int r = 0; r < world_.size() && c.mistake.empty(); ++r) {
      const auto* text = reinterpret_cast<const char*>(&all[static_cast<std::size_t>(r) * kText]);
      if (*text != '\0') c.mistake = fmt::format("on rank {} {}", r, text);
    }
  }

  std::int64_t sample(const Contender& c) const {
    world_.barrier();
    const std::int64_t begin = now_ns();
    call(c);
    return now_ns() - begin;
  }

  // Also decides how many samples to take: the same number on every rank.
  void warm_up(Contender& c, std::uint64_t bytes) const {
    for (int i = 0; i < plan_.warmup; ++i) {
      world_.barrier();
      call(c);
    }
    std::vector<std::int64_t> ns(3);
    const std::int64_t begin = now_ns();
    for (auto& t : ns) t = sample(c);
    std::vector<std::int64_t> each = {(now_ns() - begin) / static_cast<std::int64_t>(ns.size())};
    world_.all_reduce(buffer(each), {.op = ReduceOp::max});
    const double seconds = std::max(1e-7, static_cast<double>(each[0]) * 1e-9);
    // Small sizes want many samples, unless that took more than ten times the time that was asked for.
    const double fewest = bytes <= (1U << 20) ? std::clamp(10 * plan_.min_time_s / seconds, 10.0, 200.0) : 10;
    c.samples = plan_.iterations != 0
                    ? plan_.iterations
                    : static_cast<int>(std::clamp(std::ceil(plan_.min_time_s / seconds), fewest, 20000.0));
  }

  void time_all(std::vector<Contender>& contenders) const {
    constexpr int kRounds = 10;
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t k = 0; k < contenders.size(); ++k) {
        Contender& c = contenders[(k + static_cast<std::size_t>(round)) % contenders.size()];
        // The samples up to this round's end, so that the rounds add up to exactly c.samples.
        const auto target = static_cast<std::size_t>(std::int64_t{c.samples} * (round + 1) / kRounds);
        if (c.ns.size() >= target) continue;
        world_.barrier();
        call(c);
        while (c.ns.size() < target) c.ns.push_back(sample(c));
      }
    }
    for (Contender& c : contenders) world_.all_reduce(buffer(c.ns), {.op = ReduceOp::max});
  }

  void report(const std::vector<Contender>& contenders, std::uint64_t bytes, double floor_us) const {
    std::vector<BenchRow> rows;
    for (const Contender& c : contenders) {
      std::vector<double> us;
      for (const std::int64_t ns : c.ns) us.push_back(static_cast<double>(ns) * 1e-3);
      std::ranges::sort(us);
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
      row.us = quantile(us, 0.5);
      row.us_min = us.front();
      row.us_p25 = quantile(us, 0.25);
      row.us_p75 = quantile(us, 0.75);
      row.us_max = us.back();
      row.algbw_gbs = static_cast<double>(bytes) / std::max(row.us, 1e-3) * 1e-3;
      row.busbw_gbs = row.algbw_gbs * bus_factor(plan_.what, world_.size());
      if (floor_us > 0) {
        row.floor_us = floor_us;
        row.floor_ratio = row.us / floor_us;
      }
      row.checked = c.mistake.empty();
      if (!row.checked)
        reporter_.send({{"event", "error"},
                        {"kind", "wrong result"},
                        {"text", fmt::format("wrong result of {} by {} at {}: {}", row.op, row.variant(),
                                             format_bytes(bytes), c.mistake)}});
      rows.push_back(std::move(row));
    }
    fill_peer_ratio(rows);
    for (const auto& row : rows) reporter_.send({{"event", "row"}, {"row", row}});
  }

  const BenchPlan& plan_;
  Group world_;
  BenchReporter& reporter_;
  std::vector<Variant> variants_;
  Expectation expectation_;
  std::set<std::string> noted_;
};

}  // namespace

int run_bench_worker(const BenchPlan& plan, const std::string& report_to) {
  BenchReporter reporter(report_to);
  try {
    Group world = init();
    if (world.size() != plan.workers)
      throw SystemError(fmt::format("{} workers came, not {}", world.size(), plan.workers));
    Measurement(plan, world, reporter).run();
    world.barrier();
    return 0;
  } catch (const Error& e) {
    reporter.send({{"event", "error"}, {"kind", to_string(e.kind())}, {"text", e.what()}});
    // Not by way of destructors at exit: MPI's would wait for peers that may be gone.
    std::_Exit(kReported);
  }
}

}  // namespace lockstep::cli
