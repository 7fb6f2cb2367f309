#include "train/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <string>

#include "base/option_name.h"
#include "grad/waited_for.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/observe/histogram.h"
#include "lockstep/parallel/strategies.h"

namespace lockstep {
namespace {

constexpr std::size_t kLarge = std::size_t{4} << 20;
constexpr std::size_t kSmall = std::size_t{4} << 10;
constexpr int kComputed = 3;       // rounds of the local work that are timed
constexpr int kMostProbes = 2000;  // all-reduces beside them

double seconds_since(std::int64_t begin) { return static_cast<double>(now_ns() - begin) * 1e-9; }

double seconds_of(const WorkTiming& timing) {
  return static_cast<double>(timing.end_ns - timing.begin_ns) * 1e-9;
}

// All-reduces of one size, one behind the other, as buckets travel.
class Probes {
 public:
  Probes(const Group& world, std::size_t bytes)
      : world_(world), bytes_(bytes), memory_(world.allocate(bytes)) {
    std::memset(memory_.data(), 0, bytes);
  }

  // What one takes while nothing else is done.
  double alone() {
    std::vector<double> seconds;
    for (int i = 0; i < 9; ++i) seconds.push_back(run(1, [] {}).front());
    seconds.erase(seconds.begin(), seconds.begin() + 2);  // memory is touched, what came before ebbs away
    return median_of(std::move(seconds));
  }

  // Each of those that ran while `body` did.
  template <class Body>
  std::vector<double> run(int count, Body&& body) {
    WaitedFor all;  // they are in this memory, also where `body` throws
    for (int i = 0; i < count; ++i)
      all.add([&] {
        return world_.all_reduce_async(Buffer{memory_.data(), bytes_ / sizeof(float), DType::f32});
      });
    body();
    const std::int64_t end = now_ns();
    const std::vector<Work> works = all.wait();
    std::vector<double> seconds;
    for (const Work& work : works)
      if (seconds.empty() || work.timing().begin_ns < end) seconds.push_back(seconds_of(work.timing()));
    return seconds;
  }

 private:
  const Group& world_;
  std::size_t bytes_;
  CommMemory memory_;
};

std::vector<BucketTimes> times_of(const std::vector<BucketEvent>& events) {
  std::vector<BucketTimes> times;
  for (const BucketEvent& e : events)
    times.push_back({e.bucket, e.bytes, e.ready_ns, e.running_ns, e.end_ns, e.algorithm});
  return times;
}

// Borrows the algorithm's name.
CallQuestion all_reduce_of(const StrategyOptions& options, std::size_t count, DType dtype) {
  CallQuestion call{.what = Collective::all_reduce, .count = count, .dtype = dtype};
  call.options.algorithm = options.algorithm;
  call.options.order = options.order;
  return call;
}

double expected_all_reduce(const Group& group, const StrategyOptions& options, std::size_t count,
                           DType dtype) {
  if (count == 0 || group.size() == 1) return 0;
  return group.expected_seconds(all_reduce_of(options, count, dtype));
}

}  // namespace

void check_algorithm(const Group& group, const std::string& strategy, const StrategyOptions& options,
                     std::size_t bucket_bytes) {
  if (options.exchange || options.hook) return;
  CallQuestion call = all_reduce_of(options, bucket_bytes / sizeof(float), DType::f32);
  if (leaves_of(strategy) == Exchange::Leaves::own_part) {
    call.what = Collective::reduce_scatter;
    call.count =
        (call.count + static_cast<std::size_t>(group.size()) - 1) / static_cast<std::size_t>(group.size());
  }
  if (const std::string why = group.why_refused(call); !why.empty())
    throw UsageError(fmt::format("{} (with {}): {}: {}", option_text("algorithm"),
                                 option_text("strategy", strategy), to_string(call.what), why));
}

std::string order_of_sums(const Group& group, const std::string& strategy, const StrategyOptions& options) {
  CallQuestion call = all_reduce_of(options, 1, DType::f32);
  if (leaves_of(strategy) == Exchange::Leaves::own_part) call.what = Collective::reduce_scatter;
  if (group.sums_canonically(call)) return "canonical";
  return options.algorithm.empty() ? "any" : options.algorithm;
}

bool goes_on_in_order(const std::string& then, const std::string& now) {
  return then == "any" || then == now;
}

bool tells_figures(const TrainerOptions& options) {
  return options.parallel.exchange && options.parallel.exchange(leaves_of(options.strategy)).figures;
}

std::size_t largest_bucket_bytes(const Strategy& strategy) {
  std::map<int, std::size_t> bytes;
  const std::vector<NamedTensor> parameters = strategy.parameters();
  for (std::size_t p = 0; p < parameters.size(); ++p)
    bytes[strategy.bucket_of(p)] += parameters[p].tensor.nbytes();
  std::size_t largest = 0;
  for (const auto& [bucket, size] : bytes) largest = std::max(largest, size);
  return largest;
}

std::vector<BucketTimes> take_shared(const ExchangeLog& log, StepRecord& record) {
  const std::vector<BucketTimes> shared = times_of(log.shared);
  record.comm_ns += union_ns(shared);
  if (!shared.empty()) record.exposed_ns += log.share_end_ns - log.share_begin_ns;
  return shared;
}

std::vector<BucketTimes> take_exchange(const ExchangeLog& log, StepRecord& record) {
  std::vector<BucketTimes> buckets = times_of(log.buckets);
  record.comm_ns = union_ns(buckets);
  record.hidden_ns = union_ns(buckets, log.wait_begin_ns);
  record.exposed_ns = buckets.empty() ? 0 : log.wait_end_ns - log.wait_begin_ns;
  return buckets;
}

bool expect_exchange(const Strategy& strategy, StepProfile& profile, double& buffers_s) {
  const Group& world = strategy.group();
  const std::vector<BucketEvent>& events = strategy.last_exchange().buckets;
  const auto& expected = strategy.exchange().expected_seconds;
  if (events.size() != profile.buckets.size() || !expected) return false;
  for (std::size_t b = 0; b < events.size(); ++b) {
    profile.buckets[b].exchange_s = expected(world, events[b].bytes / sizeof(float), DType::f32);
    if (world.size() > 1 && !(profile.buckets[b].exchange_s > 0)) return false;
  }
  for (const BucketEvent& event : strategy.last_exchange().shared) {
    const double share_s = world.expected_seconds(
        {.what = Collective::all_gather,
         .count = event.bytes / sizeof(float) / static_cast<std::size_t>(world.size())});
    if (!(share_s > 0)) return false;
    profile.share_s += share_s;
  }
  const StrategyOptions any;
  profile.counts_s = expected_all_reduce(world, any, strategy.parameters().size(), DType::i32);
  std::size_t reals = 0, wholes = 0;
  for (const torch::Tensor& tensor : strategy.module().buffers())
    (tensor.is_floating_point() ? reals : wholes) += static_cast<std::size_t>(tensor.numel());
  buffers_s = expected_all_reduce(world, any, reals, DType::f64) +
              expected_all_reduce(world, any, wholes, DType::i64);
  return true;
}

// All ranks take rank 0's figures: how many all-reduces there are must be the same everywhere.
Crowding measure_crowding(const Group& world, const std::function<void()>& compute) {
  if (world.size() == 1) return {};
  const auto timed = [&] {
    std::vector<double> seconds;
    for (int i = 0; i < kComputed; ++i) {
      const std::int64_t begin = now_ns();
      compute();
      seconds.push_back(seconds_since(begin));
    }
    return median_of(seconds);
  };
  Probes large(world, kLarge), small(world, kSmall);
  std::vector<double> alone = {large.alone(), small.alone(), timed()};
  world.broadcast(buffer(alone), 0);
  // Enough to outlast the local work when that takes three times as long, so that none of it is undisturbed.
  const double outlast = 3 * kComputed * alone[2];
  const auto count = [&](double one) {
    return static_cast<int>(std::clamp(outlast / one, 2.0, double{kMostProbes}));
  };
  double computed = 0;
  const double slower = median_of(large.run(count(alone[0]), [&] { computed = timed(); })) / alone[0];
  const std::vector<double> begun = small.run(count(std::max(alone[1], alone[2] / 20)), [&] { timed(); });
  const double begin_s =
      std::accumulate(begun.begin(), begun.end(), 0.0) / static_cast<double>(begun.size()) - alone[1];
  log().debug(
      "an all-reduce of 4 MiB takes {:.2f} ms, by the table {:.2f}, beside computing {:.2f}; of 4 KiB {:.3f} "
      "and "
      "{:.3f}; computing {:.1f}, beside it {:.1f}",
      alone[0] * 1e3, expected_all_reduce(world, {}, kLarge / sizeof(float), DType::f32) * 1e3,
      slower * alone[0] * 1e3, alone[1] * 1e3, (begin_s + alone[1]) * 1e3, alone[2] * 1e3, computed * 1e3);
  return {.begin_s = std::max(begin_s, 0.0),
          .slower = std::max(slower, 1.0),
          .backward_rate = std::clamp(alone[2] / computed, 0.05, 1.0)};
}

}  // namespace lockstep
