#include "comm/cuda/streams.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include "comm/cuda/check.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/cuda_streams.h"

namespace lockstep {
namespace cuda {
namespace {

struct AllStreams {
  std::mutex mutex;
  std::map<int, std::vector<cudaStream_t>> seen;   // by GPU
  std::map<int, std::vector<cudaStream_t>> spare;  // of threads that ended
};

// Never destroyed: threads end after main.
AllStreams& all() {
  static AllStreams& streams = *new AllStreams;
  return streams;
}

cudaStream_t new_stream(int index) {
  {
    const std::lock_guard lock(all().mutex);
    std::vector<cudaStream_t>& spare = all().spare[index];
    if (!spare.empty()) {
      const cudaStream_t stream = spare.back();
      spare.pop_back();
      return stream;
    }
  }
  const OnDevice on(index);
  int least = 0;
  int greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange", index);
  cudaStream_t stream = nullptr;
  // Collectives go before what runs beside them: somebody else waits for them, too.
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
        "cudaStreamCreateWithPriority", index);
  return stream;
}

// A thread's own, by GPU.
struct OwnStreams {
  std::map<int, cudaStream_t> by_index;
  cudaStream_t get(int index) {
    cudaStream_t& stream = by_index[index];
    if (stream == nullptr) stream = new_stream(index);
    return stream;
  }
  ~OwnStreams() {
    const std::lock_guard lock(all().mutex);
    for (const auto& [index, stream] : by_index)
      if (stream != nullptr) all().spare[index].push_back(stream);
  }
};
thread_local OwnStreams own;

// What this thread saw last, so that the list is looked at once a stream.
thread_local std::map<int, cudaStream_t> last_seen;

// Written once, before the first group.
CudaStreamSource source;
std::atomic<bool> has_source = false;

void note_seen(int index, cudaStream_t stream) {
  const std::lock_guard lock(all().mutex);
  std::vector<cudaStream_t>& seen = all().seen[index];
  if (std::ranges::find(seen, stream) == seen.end()) seen.push_back(stream);
}

}  // namespace

cudaStream_t current_stream(int index) {
  const cudaStream_t stream = has_source.load(std::memory_order_acquire)
                                  ? static_cast<cudaStream_t>(source.current(index))
                                  : own.get(index);
  const auto [last, fresh] = last_seen.try_emplace(index, stream);
  if (!fresh && last->second == stream) return stream;
  last->second = stream;
  note_seen(index, stream);
  return stream;
}

void use_own_stream(int index) {
  const cudaStream_t stream = own.get(index);
  if (has_source.load(std::memory_order_acquire)) source.use(index, stream);
}

cudaStream_t take_stream(int index) {
  const cudaStream_t stream = new_stream(index);
  note_seen(index, stream);
  return stream;
}

void give_stream(int index, cudaStream_t stream) {
  const std::lock_guard lock(all().mutex);
  all().spare[index].push_back(stream);
}

std::vector<cudaStream_t> seen_streams(int index) {
  const std::lock_guard lock(all().mutex);
  return all().seen[index];
}

}  // namespace cuda

void set_cuda_streams(CudaStreamSource source) {
  if (cuda::has_source) throw UsageError("set_cuda_streams: there is a source of streams already");
  if (source.current == nullptr || source.use == nullptr)
    throw UsageError("set_cuda_streams: a source without both functions");
  cuda::source = source;
  cuda::has_source.store(true, std::memory_order_release);
}

}  // namespace lockstep
