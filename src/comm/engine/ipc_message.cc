#include "comm/engine/ipc_message.h"

#include <algorithm>

#include "comm/cuda/runtime.h"
#include "comm/engine/ipc_round.h"

namespace lockstep {
namespace {

using cuda::CudaRuntime;
using cuda::IpcPost;

IpcPost post_of_message(const IpcMessage& message, std::size_t begin, std::size_t end) {
  const Call& call = message.call;
  IpcPost post = message.lender.new_post(call.device, call.divisor);
  if (end > begin) {
    post.in = message.lender.place_of(element(call.in, call, begin), 0);
    if (post.in.block == 0) {
      const std::size_t bytes = (end - begin) * size_of(call.dtype);
      post.in = message.lender.staging_of(call.device, bytes, bytes);
      CudaRuntime::get().copy(reinterpret_cast<void*>(post.in.address), element(call.in, call, begin), bytes,
                              call.stream);
    }
  }
  message.lender.record_ready(call.stream);
  return post;
}

// A post to the peer, or from it.
void pass(const IpcMessage& message, IpcPost& post, bool out) {
  Call part = part_of(message.call);
  part.what = out ? Collective::send : Collective::recv;
  part.count = sizeof(IpcPost);
  part.dtype = DType::u8;
  part.in = out ? &post : nullptr;
  part.out = out ? nullptr : &post;
  message.carrier.run(part);
}

}  // namespace

void put_message(const IpcMessage& message, const char* algorithm) {
  const Call& call = message.call;
  const bool sends = call.what == Collective::send;
  for (std::size_t begin = 0; begin < call.count || begin == 0;) {
    const std::size_t end = std::min(call.count, begin + at_once(call, message.carrier.size()));
    IpcPost post =
        sends ? post_of_message(message, begin, end) : message.lender.new_post(call.device, call.divisor);
    pass(message, post, sends);
    call.running(algorithm);
    if (!sends && end > begin) {
      message.peers.wait(post, post.ready, call.stream);
      CudaRuntime::get().copy(element(call.out, call, begin),
                              message.peers.reach(post, post.in, call.device.index),
                              (end - begin) * size_of(call.dtype), call.stream);
      post = message.lender.new_post(call.device, call.divisor);
      message.lender.record_done(call.stream);
    }
    pass(message, post, !sends);
    if (sends && end > begin) message.peers.wait(post, post.done, call.stream);
    if (begin == end) return;
    begin = end;
  }
}

}  // namespace lockstep
