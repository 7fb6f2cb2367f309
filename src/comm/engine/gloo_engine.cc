#include "comm/engine/gloo_engine.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <array>

#include "comm/engine/gloo_address.h"
#include "comm/engine/gloo_store.h"
#include "comm/engine/vendor.h"
#include "lockstep/base/knobs.h"

namespace lockstep {
namespace {

using ReduceFunction = void (*)(void*, const void*, const void*, std::size_t);

template <class T>
ReduceFunction function_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return &gloo::sum<T>;
    case ReduceOp::min: return &gloo::min<T>;
    case ReduceOp::max: return &gloo::max<T>;
    case ReduceOp::product: return &gloo::product<T>;
    case ReduceOp::bit_and:
    case ReduceOp::bit_or: return nullptr;
  }
  return nullptr;
}

// Null where Gloo has none.
ReduceFunction reduce_function(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f64: return function_for<double>(op);
    case DType::f32: return function_for<float>(op);
    case DType::f16: return op == ReduceOp::avg ? nullptr : function_for<gloo::float16>(op);
    case DType::bf16: return nullptr;
    case DType::i64: return function_for<std::int64_t>(op);
    case DType::i32: return function_for<std::int32_t>(op);
    case DType::i8: return function_for<std::int8_t>(op);
    case DType::u8: return function_for<std::uint8_t>(op);
  }
  return nullptr;
}

using Byte = std::uint8_t;
Byte* bytes_of(const void* data) { return static_cast<Byte*>(const_cast<void*>(data)); }

// Point-to-point slots; Gloo's own collectives use prefixes 1 to 8 in the top byte.
constexpr std::uint64_t kMessageSlot = std::uint64_t{0x70} << 56;
constexpr std::uint64_t kExchangeSlot = std::uint64_t{0x71} << 56;

class GlooEngine final : public Engine {
 public:
  GlooEngine(int rank, std::vector<int> nodes, const Exchange& exchange)
      : rank_(rank), size_(static_cast<int>(nodes.size())), nodes_(std::move(nodes)) {
    const Knobs knobs = Knobs::from_environment();
    gloo::transport::tcp::attr attr;
    // A number, never a name: Gloo would look this machine's name up, which may be loopback or nothing.
    attr.hostname = gloo_address(nodes_, knobs);
    translate("connecting from " + attr.hostname, [&] {
      device_ = gloo::transport::tcp::CreateDevice(attr);
      auto context = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
      context->setTimeout(knobs.init_timeout);
      ExchangeStore store(exchange);
      context->connectFullMesh(store, device_);
      context->setTimeout(knobs.timeout);  // of calls that bring none
      context_ = std::move(context);
    });
  }

  const char* name() const override { return "gloo"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  const std::vector<int>& nodes() const override { return nodes_; }

  std::string refuses(const Call& call) const override {
    if (call.device.kind != Device::Kind::cpu) return "the gloo engine works on host memory only";
    if (call.what == Collective::split) return "";
    if (call.divisor == kDivisorOfOthers) return "gloo needs the divisor from every rank";
    if (call.what == Collective::reduce_scatter) return "gloo has no reduce_scatter";
    const auto known = algorithms(call.what);
    if (!call.algorithm.empty() && std::ranges::find(known, call.algorithm) == known.end()) {
      std::string accepted;
      for (const auto& name : known) accepted += (accepted.empty() ? "" : ", ") + name;
      return std::string("gloo ") + to_string(call.what) + " has no algorithm '" + call.algorithm +
             "'; accepted: " + accepted;
    }
    if (reduces(call.what) && reduce_function(call.dtype, call.op) == nullptr)
      return std::string("gloo has no ") + to_string(call.op) + " of " + to_string(call.dtype);
    return "";
  }

  std::vector<std::string> algorithms(Collective what) const override {
    if (what == Collective::reduce_scatter) return {};
    if (what == Collective::all_reduce) return {"ring", "bcube"};
    return {"native"};
  }

  void run(const Call& call) override {
    if (const std::string why = refuses(call); !why.empty()) throw UsageError(why);
    failure_.guard([&] {
      if (size_ == 1)
        run_alone(call);
      else if (call.count != 0 || call.what == Collective::barrier)
        translate(call.describe(), [&] { dispatch(call); });
      finish_average(call, rank_, size_);
    });
  }

  CommMemory allocate(std::size_t bytes) override { return private_memory(bytes); }

  std::unique_ptr<Engine> split(int colour, int key, const std::string&, const Call& call) override {
    // Everybody learns everybody's choice, then the members of a colour meet over our messages.
    std::vector<std::array<std::int32_t, 2>> all(static_cast<std::size_t>(size_));
    const std::array<std::int32_t, 2> mine = {colour, key};
    Call gather;
    gather.what = Collective::all_gather;
    gather.in = mine.data();
    gather.out = all.data();
    gather.count = mine.size();
    gather.dtype = DType::i32;
    gather.timeout = call.timeout;
    run(gather);
    if (colour < 0) return nullptr;
    std::vector<int> members;
    for (int r = 0; r < size_; ++r)
      if (all[static_cast<std::size_t>(r)][0] == colour) members.push_back(r);
    std::ranges::stable_sort(members, {}, [&](int r) { return all[static_cast<std::size_t>(r)][1]; });
    std::vector<int> nodes;
    for (const int r : members) nodes.push_back(nodes_[static_cast<std::size_t>(r)]);
    renumber(nodes);
    const int rank = static_cast<int>(std::ranges::find(members, rank_) - members.begin());
    std::unique_ptr<Engine> engine;
    failure_.guard([&] {
      engine = std::make_unique<GlooEngine>(
          rank, std::move(nodes), [&](const std::string& blob) { return exchange_among(members, blob); });
    });
    return engine;
  }

 private:
  // Nodes counted from 0 in the order of appearance.
  static void renumber(std::vector<int>& nodes) {
    std::vector<int> seen;
    for (int& node : nodes) {
      const auto at = std::ranges::find(seen, node);
      const auto index = at - seen.begin();
      if (at == seen.end()) seen.push_back(node);
      node = static_cast<int>(index);
    }
  }

  // Gloo's exceptions as ours, on one line. It doesn't say which rank was late or gone: that rank is -1. When
  // one rank gives up, Gloo closes its connections, which is how the others notice.
  template <class F>
  void translate(const std::string& what, F&& body) const {
    try {
      body();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& e) {
      std::string text = e.what();
      std::ranges::replace(text, '\n', ' ');
      const std::string message = "gloo " + what + ": " + text;
      const std::vector<int> peers = size_ == 2 ? std::vector<int>{1 - rank_} : std::vector<int>{};
      if (text.find("imed out") != std::string::npos) throw TimeoutError(peers, message);
      if (dynamic_cast<const gloo::IoException*>(&e) != nullptr)
        throw PeerError(peers.empty() ? -1 : peers[0], message);
      throw SystemError(message);
    }
  }

  template <class Options>
  void prepare(Options& options, const Call& call) {
    options.setTag(++tag_);
    if (call.timeout.count() > 0) options.setTimeout(call.timeout);
  }

  void dispatch(const Call& call) {
    const auto slices = static_cast<std::size_t>(size_);
    const bool root = rank_ == call.root;
    Byte* in = bytes_of(call.in);
    Byte* out = bytes_of(call.out);
    const std::size_t bytes = call.bytes();
    switch (call.what) {
      case Collective::all_reduce: return all_reduce(call);
      case Collective::reduce: return reduce(call);
      case Collective::all_gather: {
        gloo::AllgatherOptions options(context_);
        prepare(options, call);
        options.setInput(in, bytes);
        options.setOutput(out, slices * bytes);
        return gloo::allgather(options);
      }
      case Collective::broadcast: {
        gloo::BroadcastOptions options(context_);
        prepare(options, call);
        options.setRoot(call.root);
        options.setOutput(out, bytes);
        return gloo::broadcast(options);
      }
      case Collective::gather: {
        gloo::GatherOptions options(context_);
        prepare(options, call);
        options.setRoot(call.root);
        options.setInput(in, bytes);
        if (root) options.setOutput(out, slices * bytes);
        return gloo::gather(options);
      }
      case Collective::scatter: {
        gloo::ScatterOptions options(context_);
        prepare(options, call);
        options.setRoot(call.root);
        if (root) {
          std::vector<Byte*> parts;
          for (std::size_t r = 0; r < slices; ++r) parts.push_back(in + r * bytes);
          options.setInputs(std::move(parts), bytes);
        }
        options.setOutput(out, bytes);
        return gloo::scatter(options);
      }
      case Collective::all_to_all: {
        if (in == out) {  // Gloo can't in place
          scratch_.assign(in, in + slices * bytes);
          in = scratch_.data();
        }
        gloo::AlltoallOptions options(context_);
        prepare(options, call);
        options.setInput(in, slices * bytes);
        options.setOutput(out, slices * bytes);
        return gloo::alltoall(options);
      }
      case Collective::barrier: {
        gloo::BarrierOptions options(context_);
        prepare(options, call);
        return gloo::barrier(options);
      }
      case Collective::send: return send(in, bytes, call.root, kMessageSlot, call.timeout);
      case Collective::recv: return recv(out, bytes, call.root, kMessageSlot, call.timeout);
      default: throw UsageError(std::string("gloo has no ") + to_string(call.what));
    }
  }

  // Options want a typed pointer only for its size; the reduction gets the count of elements.
  template <class Options>
  void set_buffers(Options& options, const Call& call) {
    const auto set = [&]<class T>(T*) {
      if (call.in != call.out) options.setInput(static_cast<T*>(const_cast<void*>(call.in)), call.count);
      if (call.out != nullptr) options.setOutput(static_cast<T*>(call.out), call.count);
    };
    switch (size_of(call.dtype)) {
      case 1: return set(static_cast<std::uint8_t*>(nullptr));
      case 2: return set(static_cast<std::uint16_t*>(nullptr));
      case 4: return set(static_cast<std::uint32_t*>(nullptr));
      default: return set(static_cast<std::uint64_t*>(nullptr));
    }
  }

  void all_reduce(const Call& call) {
    gloo::AllreduceOptions options(context_);
    prepare(options, call);
    options.setAlgorithm(call.algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                   : gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(reduce_function(call.dtype, call.op));
    set_buffers(options, call);
    gloo::allreduce(options);
  }

  void reduce(const Call& call) {
    // Gloo works in the output on every rank; elsewhere than on root ours must stay as it is.
    Call mine = call;
    if (rank_ != call.root) {
      scratch_.resize(call.bytes());
      mine.out = scratch_.data();
    }
    gloo::ReduceOptions options(context_);
    prepare(options, mine);
    options.setRoot(mine.root);
    options.setReduceFunction(reduce_function(mine.dtype, mine.op));
    set_buffers(options, mine);
    gloo::reduce(options);
  }

  std::chrono::milliseconds limit(std::chrono::milliseconds timeout) const {
    return timeout.count() > 0 ? timeout : context_->getTimeout();
  }

  void send(const void* data, std::size_t bytes, int to, std::uint64_t slot,
            std::chrono::milliseconds timeout) {
    auto buffer = context_->createUnboundBuffer(bytes_of(data), bytes);
    buffer->send(to, slot);
    buffer->waitSend(limit(timeout));
  }

  void recv(void* data, std::size_t bytes, int from, std::uint64_t slot, std::chrono::milliseconds timeout) {
    auto buffer = context_->createUnboundBuffer(data, bytes);
    buffer->recv(from, slot);
    buffer->waitRecv(limit(timeout));
  }

  // The blobs of `members` in that order, by messages between each two of them; the lower rank of a pair
  // sends first, so no two wait for each other.
  std::vector<std::string> exchange_among(const std::vector<int>& members, const std::string& mine) {
    std::vector<std::string> blobs;
    for (const int peer : members) {
      std::string theirs;
      const auto give = [&] {
        const std::uint64_t length = mine.size();
        send(&length, sizeof length, peer, kExchangeSlot, {});
        send(mine.data(), mine.size(), peer, kExchangeSlot, {});
      };
      const auto take = [&] {
        std::uint64_t length = 0;
        recv(&length, sizeof length, peer, kExchangeSlot, {});
        theirs.resize(length);
        recv(theirs.data(), theirs.size(), peer, kExchangeSlot, {});
      };
      if (peer == rank_) {
        theirs = mine;
      } else if (rank_ < peer) {
        give();
        take();
      } else {
        take();
        give();
      }
      blobs.push_back(std::move(theirs));
    }
    return blobs;
  }

  int rank_;
  int size_;
  std::vector<int> nodes_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::Context> context_;
  std::uint32_t tag_ = 0;  // counts calls; the same on every rank
  std::vector<Byte> scratch_;
  StickyFailure failure_;
};

// Blobs of different lengths over a group: first the longest length, then the padded bytes.
std::vector<std::string> exchange_over(const Group& world, const std::string& mine) {
  const auto ranks = static_cast<std::size_t>(world.size());
  const std::vector<std::int64_t> length = {static_cast<std::int64_t>(mine.size())};
  std::vector<std::int64_t> lengths(ranks);
  world.all_gather(buffer(length), buffer(lengths));
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(lengths));
  std::vector<std::uint8_t> padded(longest);
  std::ranges::copy(mine, padded.begin());
  std::vector<std::uint8_t> all(ranks * longest);
  world.all_gather(buffer(padded), buffer(all));
  std::vector<std::string> blobs;
  for (std::size_t r = 0; r < ranks; ++r) {
    const auto begin = all.begin() + static_cast<long>(r * longest);
    blobs.emplace_back(begin, begin + lengths[r]);
  }
  return blobs;
}

}  // namespace

std::unique_ptr<Engine> make_gloo_engine(const Group& world) {
  return std::make_unique<GlooEngine>(world.rank(), world.nodes(),
                                      [&](const std::string& blob) { return exchange_over(world, blob); });
}

}  // namespace lockstep
