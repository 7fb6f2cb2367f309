// How fast a scratch file is, measured as it will be used.
#include <algorithm>
#include <cstring>
#include <random>

#include "lockstep/base/clock.h"
#include "offload/pager.h"

namespace lockstep {
namespace {

// Enough for several rounds of the buffers, and at 100 MB/s two seconds in all.
constexpr std::size_t kMeasuredPages = 2 * kStagedPages;
// A pass is repeated as long as that takes less, and the median counts: others use the disk, too.
constexpr std::int64_t kRepeatNanoseconds = 200'000'000;
constexpr std::size_t kMostPasses = 7;

class RateMeter {
 public:
  explicit RateMeter(Pager& pager) : pager_(pager) {}

  double measure(PageUse use, const Pager::Work& work) {
    std::vector<Pager::Visit> visits;
    double bytes = 0;
    for (std::size_t i = 0; i < std::min(kMeasuredPages, pager_.pages().size()); ++i) {
      visits.push_back({.page = i, .use = use});
      bytes += static_cast<double>(pager_.pages()[i].bytes);
    }
    std::vector<double> took_ns;
    for (const std::int64_t since = now_ns();
         took_ns.empty() || (now_ns() - since < kRepeatNanoseconds && took_ns.size() < kMostPasses);) {
      const std::int64_t begin = now_ns();
      pager_.pass(visits, work);
      took_ns.push_back(static_cast<double>(now_ns() - begin));
    }
    std::ranges::nth_element(took_ns, took_ns.begin() + std::ssize(took_ns) / 2);
    return bytes * 1e9 / std::max(1.0, took_ns[took_ns.size() / 2]);
  }

 private:
  Pager& pager_;
};

}  // namespace

DiskRates measure_rates(Pager& pager) {
  // Zeros may never reach a disk; numbers like these can't be packed.
  std::mt19937_64 random;
  std::vector<std::uint64_t> noise(ScratchFile::kAlign / sizeof(std::uint64_t));
  for (std::uint64_t& number : noise) number = random();
  const auto fill = [&](std::size_t, std::span<std::byte> bytes) {
    for (std::size_t at = 0; at < bytes.size(); at += ScratchFile::kAlign) {
      noise[0] = at;  // no two blocks are alike, which some file systems would store once
      std::memcpy(bytes.data() + at, noise.data(), ScratchFile::kAlign);
    }
  };
  const auto nothing = [](std::size_t, std::span<std::byte>) {};
  RateMeter meter(pager);
  DiskRates rates{.path = pager.file().path()};
  rates.write = meter.measure(PageUse::write, fill);
  rates.read = meter.measure(PageUse::read, nothing);
  rates.both = meter.measure(PageUse::update, nothing);
  return rates;
}

DiskRates rates_of(const Offload& offload, std::uint64_t most) {
  const std::size_t bytes = offload.staging_bytes / kStagedPages / ScratchFile::kAlign * ScratchFile::kAlign;
  std::vector<FilePage> pages;
  for (std::size_t i = 0; i < kMeasuredPages; ++i) {
    const std::uint64_t left = (most - i * bytes) / ScratchFile::kAlign * ScratchFile::kAlign;
    if (most <= i * bytes || left == 0) break;
    pages.push_back(
        {.at = i * bytes, .bytes = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, left))});
  }
  Pager pager(offload, std::move(pages));
  return measure_rates(pager);
}

StepPasses passes_of_step(StepNorms norms, StepMasters masters) {
  const bool on_disk = masters == StepMasters::on_disk;
  if (norms == StepNorms::of_parameters) return {.updates = 1, .reads = on_disk ? 1 : 0};
  // First the moments move, and stay then as they are.
  if (norms == StepNorms::of_moments) return {.updates = on_disk ? 2 : 1, .reads = on_disk ? 0 : 1};
  return {};
}

double milliseconds_of(const StepPasses& passes, double bytes, const DiskRates& rates) {
  const auto seconds = [&](int times, double rate) { return rate > 0 ? times * bytes / rate : 0; };
  return 1e3 * (seconds(passes.updates, rates.both) + seconds(passes.reads, rates.read));
}

}  // namespace lockstep
