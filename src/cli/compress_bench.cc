// `lockstep bench compress`: methods of compression on one core, and the links on which they pay.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/split.h"
#include "bench/coder.h"
#include "bench/compress.h"
#include "cli/command.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "report/progress.h"

namespace lockstep::cli {
namespace {

struct CompressBenchFlags {
  std::string sizes = "64K,1M,25M";
  std::string methods = fmt::format("{}", fmt::join(coder_examples(), ","));
  double min_time_s = 0.1;
  bool json = false;
};

CompressPlan plan_of(const CompressBenchFlags& flags) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 34;  // 2^32 elements
  CompressPlan plan{.sizes = {}, .methods = {}, .min_time_s = flags.min_time_s};
  if (!(flags.min_time_s >= 0 && flags.min_time_s <= 3600))
    throw UsageError(fmt::format("--min-time {}; accepted: 0 to 3600 seconds", flags.min_time_s));
  for (const auto& text : split_at_commas(flags.sizes)) {
    std::uint64_t bytes = 0;
    try {
      bytes = parse_bytes(text);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("--sizes: {}", error.what()));
    }
    if (bytes < sizeof(float) || bytes > kMost)
      throw UsageError(fmt::format("--sizes: {}; accepted: 4 bytes, one f32, to 16G", text));
    plan.sizes.push_back(bytes / sizeof(float) * sizeof(float));
  }
  std::ranges::sort(plan.sizes);
  plan.sizes.erase(std::unique(plan.sizes.begin(), plan.sizes.end()), plan.sizes.end());
  for (const auto& text : split_at_commas(flags.methods)) {
    try {
      plan.methods.push_back(make_coder(text, 1)->name());
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("--methods: {}", error.what()));
    }
  }
  return plan;
}

int run_compress_bench(const CompressBenchFlags& flags) {
  const CompressPlan plan = plan_of(flags);
  std::vector<CompressRow> rows;
  Progress progress;
  const std::size_t steps = plan.sizes.size() * plan.methods.size();
  const auto show = [&] {
    if (rows.size() == steps) return;
    progress.show(fmt::format("{} of {} ({} of {})", plan.methods[rows.size() % plan.methods.size()],
                              format_bytes(plan.sizes[rows.size() / plan.methods.size()]), rows.size() + 1,
                              steps));
  };
  show();
  measure_codecs(plan, [&](const CompressRow& row) {
    rows.push_back(row);
    progress.clear();
    if (flags.json) {
      std::printf("%s\n", nlohmann::ordered_json(row).dump().c_str());
      std::fflush(stdout);
    }
    show();
  });
  progress.clear();
  if (!flags.json) std::printf("%s", compress_table(rows, wants_colours(1)).c_str());
  return 0;
}

}  // namespace

void add_compress_bench(Cli& cli, CLI::App& bench) {
  auto flags = std::make_shared<CompressBenchFlags>();
  CLI::App* command = bench.add_subcommand(
      "compress", "Methods of compression on one core: speed, size, error, and where they pay");
  command->add_option("--sizes", flags->sizes, "bytes of f32 gradient (default: " + flags->sizes + ")");
  command->add_option("--methods", flags->methods, "(default: " + flags->methods + ")");
  command->add_option("--min-time", flags->min_time_s,
                      "seconds for encoding and for decoding of each method and size (default: 0.1)");
  command->add_flag("--json", flags->json, "one JSON object a line on standard output");
  command->footer(
      "GB/s are of gradient, on one core, medians; \"of copy\" is bytes read and written a second over those "
      "of\n"
      "memcpy, in turn with it. Decoding adds to a sum. \"error\" is |sent - gradient| / |gradient| of "
      "normal\n"
      "numbers, once: what error feedback sends later counts as lost. \"pays below\": on links slower than "
      "this, each\n"
      "way, two workers that send each other payloads and add both up are faster than a dense all-reduce, "
      "where\n"
      "nothing overlaps and latency does not count; intsgd and powersgd are added up on the way.\n\n"
      "Examples:\n"
      "  lockstep bench compress\n"
      "  lockstep bench compress --sizes 64K,32M --methods int8,topk:0.001,qsgd:4 --json");
  command->callback([&cli, flags] { cli.action = [flags] { return run_compress_bench(*flags); }; });
}

}  // namespace lockstep::cli
