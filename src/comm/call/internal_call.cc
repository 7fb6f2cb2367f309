#include "comm/call/internal_call.h"

#include <algorithm>
#include <cstdint>

#include "lockstep/base/knobs.h"

namespace lockstep {

Call internal_call(Collective what, void* data, std::size_t bytes, int root) {
  Call call;
  call.what = what;
  call.in = data;
  call.out = data;
  call.count = bytes;
  call.dtype = DType::u8;
  call.root = root;
  call.timeout = Knobs::from_environment().timeout;
  return call;
}

void broadcast_bytes(Engine& engine, void* data, std::size_t bytes) {
  engine.run(internal_call(Collective::broadcast, data, bytes, 0));
}

std::string broadcast_text(Engine& engine, std::string text) {
  std::uint64_t size = text.size();
  broadcast_bytes(engine, &size, sizeof size);
  text.resize(size);
  if (size > 0) broadcast_bytes(engine, text.data(), size);
  return text;
}

std::vector<std::string> gather_texts(Engine& engine, std::string own, std::chrono::milliseconds timeout) {
  const auto gather = [&](void* in, void* out, std::size_t bytes) {
    Call call = internal_call(Collective::all_gather, in, bytes, -1);
    call.out = out;
    call.timeout = timeout;
    engine.run(call);
  };
  std::uint64_t length = own.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(engine.size()));
  gather(&length, lengths.data(), sizeof length);
  const std::size_t longest = *std::ranges::max_element(lengths);
  own.resize(longest);
  std::string all(lengths.size() * longest, '\0');
  gather(own.data(), all.data(), longest);
  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r) texts.push_back(all.substr(r * longest, lengths[r]));
  return texts;
}

}  // namespace lockstep
