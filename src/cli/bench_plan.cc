#include "cli/bench_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/split.h"
#include "cli/command.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "recipe/engine_flag.h"

namespace lockstep::cli {
namespace {

std::vector<std::string> split_list(const std::string& text, const char* flag) {
  std::vector<std::string> items;
  for (std::string& item : split_at_commas(text)) {
    if (item.empty())
      throw UsageError(fmt::format("{} '{}' has an empty item; write them as a,b,c", flag, text));
    if (std::ranges::find(items, item) == items.end()) items.push_back(std::move(item));
  }
  return items;
}

// A value that is not understood, with the flag's name in front.
template <class F>
auto flagged(const char* flag, F&& parse) {
  try {
    return parse();
  } catch (const UsageError& e) {
    throw UsageError(fmt::format("{}: {}", flag, e.what()));
  }
}

// The engine that a job stands on, of which it has one: the others are made beside it.
bool is_own(const std::string& engine) { return engine == "auto" || engine.starts_with("shm"); }

void add_engines(const BenchFlags& flags, BenchPlan& plan) {
  if (flags.engines.empty()) {
    plan.engines = built_engines();
    std::erase(plan.engines, "tls");  // tcp again, encrypted: when asked for
    return;
  }
  for (const auto& name : split_list(flags.engines, "--engines")) {
    check_engine("--engines", name, {"tls"});
    if (is_own(name)) {
      if (!plan.own_engine.empty() && plan.own_engine != name)
        throw UsageError(
            fmt::format("--engines {} and {}: a job stands on one of them; accepted: one at a time",
                        plan.own_engine, name));
      plan.own_engine = name;
    }
    plan.engines.push_back(is_own(name) ? "shm" : name);
  }
}

std::vector<std::uint64_t> make_sizes(const BenchFlags& flags, BenchOp what, DType dtype) {
  if (what == BenchOp::barrier) return {0};
  std::vector<std::uint64_t> sizes;
  for (const auto& text : split_list(flags.sizes, "--sizes")) {
    const auto asked = flagged("--sizes", [&] { return parse_bytes(text); });
    const std::uint64_t bytes = extent_of(what, flags.workers, asked, dtype).total * size_of(dtype);
    if (bytes == 0)
      throw UsageError(fmt::format("--sizes: {} is less than one {} for each of {} workers", text,
                                   to_string(dtype), flags.workers));
    sizes.push_back(bytes);
  }
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace

BenchPlan make_plan(const BenchFlags& flags) {
  BenchPlan plan;
  std::vector<std::string> words = bench_op_names();
  if (std::ranges::find(words, flags.collective) == words.end()) {
    words.insert(words.end(),
                 {"compress", "step"});  // commands of their own, which this may have been meant to be
    throw UsageError("collective " + not_understood(flags.collective, words));
  }
  plan.what = parse_bench_op(flags.collective);
  if (flags.workers < 1 || flags.workers > 1024)
    throw UsageError(fmt::format("-n: {} workers; accepted: 1 to 1024", flags.workers));
  if (plan.what == BenchOp::send_recv && flags.workers < 2)
    throw UsageError("-n: send_recv needs at least 2 workers");
  plan.workers = flags.workers;
  plan.dtype = flagged("--dtype", [&] { return parse_dtype(flags.dtype); });
  plan.op = flagged("--op", [&] { return parse_reduce_op(flags.op); });
  if (reduces(plan.what) && !supports(plan.op, plan.dtype))
    throw UsageError(fmt::format("--op: {} needs an integer type, not {}", flags.op, flags.dtype));
  plan.sizes = make_sizes(flags, plan.what, plan.dtype);
  add_engines(flags, plan);
  plan.algorithms = split_list(flags.algorithms, "--algorithms");
  plan.memories = split_list(flags.memory, "--memory");
  for (const auto& memory : plan.memories)
    if (memory != "comm" && memory != "private")
      throw UsageError("--memory: " + not_understood(memory, {"comm", "private"}));
  if (flags.iterations < 0)
    throw UsageError(fmt::format("--iterations '{}' is out of range; accepted: 0 (as many as fit) or more",
                                 flags.iterations));
  if (flags.warmup < 0)
    throw UsageError(fmt::format("--warmup '{}' is out of range; accepted: 0 or more", flags.warmup));
  if (!(flags.min_time_s >= 0 && flags.min_time_s <= 3600))
    throw UsageError(fmt::format("--min-time: {} seconds; accepted: 0 to 3600", flags.min_time_s));
  plan.iterations = flags.iterations;
  plan.min_time_s = flags.min_time_s;
  plan.warmup = flags.warmup;
  plan.rewrite = flags.rewrite;
  return plan;
}

}  // namespace lockstep::cli
