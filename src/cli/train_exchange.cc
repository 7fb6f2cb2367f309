#include "cli/train_exchange.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <string>

#include "comm/group_impl.h"
#include "lockstep/base/clock.h"

namespace lockstep::cli {
namespace {

constexpr std::size_t kProbeBytes = std::size_t{4} << 20;
constexpr int kProbes = 3;

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double expected_all_reduce(const Group& group, const TrainOptions& options, std::size_t count, DType dtype) {
  if (count == 0 || group.size() == 1) return 0;
  Call call;
  call.what = Collective::all_reduce;
  call.count = count;
  call.dtype = dtype;
  call.algorithm = options.algorithm == "auto" ? "" : options.algorithm;
  call.order = options.order == "any" ? Order::any : Order::canonical;
  return group.impl().engine().expected_seconds(call);
}

// Cores for each worker, counting those that share them: all workers under this kernel, whatever container or
// namespace they are in.
double cores_a_worker(const Group& world) {
  struct Place {
    std::uint64_t kernel = 0;
    cpu_set_t cores{};
  };
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id") >> std::ws, boot);
  Place mine{.kernel = std::hash<std::string>{}(boot)};
  ::sched_getaffinity(0, sizeof mine.cores, &mine.cores);
  std::vector<std::uint8_t> own(sizeof(Place)), all(sizeof(Place) * static_cast<std::size_t>(world.size()));
  std::memcpy(own.data(), &mine, sizeof mine);
  world.all_gather(buffer(own), buffer(all));
  cpu_set_t cores = mine.cores;
  int workers = 0;
  for (std::size_t at = 0; at < all.size(); at += sizeof(Place)) {
    Place other;
    std::memcpy(&other, &all[at], sizeof other);
    cpu_set_t both;
    CPU_AND(&both, &other.cores, &mine.cores);
    if (other.kernel != mine.kernel || CPU_COUNT(&both) == 0) continue;
    ++workers;
    CPU_OR(&cores, &cores, &other.cores);
  }
  return static_cast<double>(CPU_COUNT(&cores)) / std::max(workers, 1);
}

}  // namespace

std::vector<BucketTimes> take_exchange(const Reducer& reducer, StepRecord& record) {
  std::vector<BucketTimes> buckets;
  for (const BucketEvent& e : reducer.events())
    buckets.push_back({e.bucket, e.bytes, e.ready_ns, e.running_ns, e.end_ns, e.algorithm});
  record.comm_ns = union_ns(buckets);
  record.hidden_ns = union_ns(buckets, reducer.wait_begin_ns());
  record.exposed_ns = buckets.empty() ? 0 : reducer.wait_end_ns() - reducer.wait_begin_ns();
  return buckets;
}

bool expect_exchange(DataParallel& ddp, const TrainOptions& options, StepProfile& profile,
                     double& buffers_s) {
  const Group& world = ddp.group();
  const std::vector<BucketEvent>& events = ddp.reducer().events();
  if (events.size() != profile.buckets.size()) return false;
  for (std::size_t b = 0; b < events.size(); ++b) {
    profile.buckets[b].exchange_s =
        expected_all_reduce(world, options, events[b].bytes / sizeof(float), DType::f32);
    if (world.size() > 1 && !(profile.buckets[b].exchange_s > 0)) return false;
  }
  TrainOptions any = options;
  any.algorithm = "auto";
  any.order = "canonical";
  profile.counts_s = expected_all_reduce(world, any, ddp.parameters().size(), DType::i32);
  std::size_t reals = 0, wholes = 0;
  for (const torch::Tensor& tensor : ddp.module().buffers())
    (tensor.is_floating_point() ? reals : wholes) += static_cast<std::size_t>(tensor.numel());
  buffers_s = expected_all_reduce(world, any, reals, DType::f64) +
              expected_all_reduce(world, any, wholes, DType::i64);
  return true;
}

double measure_exchange_cpu(const Group& world, std::int64_t threads) {
  const double spare = cores_a_worker(world) - static_cast<double>(threads);
  if (world.size() == 1) return 0;
  const CommMemory memory = world.allocate(kProbeBytes);
  std::memset(memory.data(), 0, kProbeBytes);
  const auto probe = [&] {
    world.all_reduce_async(Buffer{memory.data(), kProbeBytes / sizeof(float), DType::f32}).wait();
  };
  probe();
  const double processor = processor_seconds();
  const std::int64_t begin = now_ns();
  for (int i = 0; i < kProbes; ++i) probe();
  const double wall = static_cast<double>(now_ns() - begin) * 1e-9;
  return std::min((processor_seconds() - processor) / wall, 1.0) * std::clamp(1 - spare, 0.0, 1.0);
}

}  // namespace lockstep::cli
