#include "comm/cuda/shared_event.h"

#include <map>
#include <mutex>
#include <vector>

#include "comm/cuda/check.h"

namespace lockstep::cuda {
namespace {

struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<const SharedEvent*>> spare;  // by GPU
  std::uint64_t next = 1;
};

Pool& pool() {
  static Pool& events = *new Pool;  // groups may go after main
  return events;
}

const SharedEvent* new_event(int index) {
  const OnDevice on(index);
  auto event = std::make_unique<SharedEvent>();
  event->index = index;
  check(cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming | cudaEventInterprocess),
        "cudaEventCreateWithFlags(interprocess)", index);
  check(cudaIpcGetEventHandle(&event->handle, event->event), "cudaIpcGetEventHandle", index);
  const std::lock_guard lock(pool().mutex);
  event->id = pool().next++;
  return event.release();
}

const SharedEvent* spare_event(int index) {
  const std::lock_guard lock(pool().mutex);
  std::vector<const SharedEvent*>& spare = pool().spare[index];
  if (spare.empty()) return nullptr;
  const SharedEvent* const event = spare.back();
  spare.pop_back();
  return event;
}

}  // namespace

std::shared_ptr<const SharedEvent> shared_event(int index) {
  const SharedEvent* event = spare_event(index);
  if (event == nullptr) event = new_event(index);
  return {event, [](const SharedEvent* gone) {
            const std::lock_guard lock(pool().mutex);
            pool().spare[gone->index].push_back(gone);
          }};
}

}  // namespace lockstep::cuda
