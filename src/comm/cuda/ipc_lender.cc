#include "comm/cuda/ipc_lender.h"

#include "comm/cuda/check.h"

namespace lockstep::cuda {
namespace {

IpcEventPost shown(const SharedEvent& event) {
  return {.id = event.id, .event = reinterpret_cast<std::uintptr_t>(event.event), .handle = event.handle};
}

void record(const SharedEvent& event, const DeviceStream& stream) {
  const OnDevice on(stream.device.index);
  check(cudaEventRecord(event.event, static_cast<cudaStream_t>(stream.handle)),
        "cudaEventRecord(interprocess)", stream.device.index);
}

}  // namespace

IpcLender::OnGpu& IpcLender::gpu(int index) {
  OnGpu& here = gpus_[index];
  if (here.ready == nullptr) here.ready = shared_event(index);
  if (here.done == nullptr) here.done = shared_event(index);
  return here;
}

IpcPost IpcLender::new_post(Device device, double divisor) {
  const OnGpu& here = gpu(device.index);
  IpcPost post;
  post.process = process_token();
  post.divisor = divisor;
  post.device = device.index;
  post.ready = shown(*here.ready);
  post.done = shown(*here.done);
  return post;
}

IpcPlace IpcLender::place_of(const void* data, std::size_t stride) {
  const std::shared_ptr<IpcBlock> block = IpcMemory::get().find(data);
  if (block == nullptr) return {};
  lent_.emplace(block->id(), block);
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return {.block = block->id(),
          .address = address,
          .offset = address - reinterpret_cast<std::uintptr_t>(block->base()),
          .stride = stride,
          .handle = block->handle()};
}

IpcPlace IpcLender::staging_of(Device device, std::size_t bytes, std::size_t stride) {
  CommMemory& staging = gpu(device.index).staging;
  if (staging.bytes() < bytes) staging = {};  // first, so that both are never there
  if (staging.bytes() < bytes) staging = IpcMemory::get().allocate(bytes, device);
  return place_of(staging.data(), stride);
}

void IpcLender::record_ready(const DeviceStream& stream) { record(*gpu(stream.device.index).ready, stream); }
void IpcLender::record_done(const DeviceStream& stream) { record(*gpu(stream.device.index).done, stream); }

void IpcLender::retire(IpcPost& post) const {
  int retired = 0;
  for (const auto& [id, block] : lent_)
    if (retired < kRetiredBlocks && block->is_over()) post.retired[retired++] = id;
}

void IpcLender::drop_retired(const IpcPost& mine) {
  for (const std::uint64_t block : mine.retired) lent_.erase(block);
}

}  // namespace lockstep::cuda
