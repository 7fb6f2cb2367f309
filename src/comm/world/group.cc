// The front door: each call is checked here, made a Call, and handed to GroupImpl.
#include "lockstep/comm/group.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "comm/algo/algorithm.h"
#include "comm/call/call.h"
#include "comm/engine/registry.h"
#include "comm/kernel/reduce.h"
#include "comm/world/group_impl.h"

namespace lockstep {
namespace {

[[noreturn]] void refuse(const Call& call, const std::string& why) {
  throw UsageError(std::string(to_string(call.what)) + ": " + why);
}

std::string elements(const ConstBuffer& x) { return std::to_string(x.count) + " " + to_string(x.dtype); }

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* const p = static_cast<const std::byte*>(a);
  const auto* const q = static_cast<const std::byte*>(b);
  return std::less<>()(p, q + b_bytes) && std::less<>()(q, p + a_bytes);
}

// One call from its buffers: `whole` is the factor between input and output counts.
class Builder {
 public:
  Builder(const GroupImpl& group, Collective what, const CallOptions& options) : group_(group) {
    call_.what = what;
    call_.op = options.op;
    call_.order = options.order;
    call_.algorithm = options.algorithm;
    call_.purpose = options.purpose;
    call_.divisor = options.divisor == 0 ? group.engine().size() : options.divisor;
    call_.timeout = std::min(options.timeout, kLongestTimeout);
  }

  Builder& root(int root) {
    const int n = group_.engine().size();
    if (root < 0 || root >= n)
      refuse(call_, "rank " + std::to_string(root) + " is not in group " + group_.name() +
                        "; accepted: 0 to " + std::to_string(n - 1));
    call_.root = root;
    return *this;
  }

  Builder& in(const ConstBuffer& x) {
    check(x);
    in_ = x;
    call_.in = x.data;
    return *this;
  }
  Builder& out(const Buffer& x) {
    check(x);
    out_ = x;
    call_.out = x.data;
    return *this;
  }
  // One buffer for both.
  Builder& both(const Buffer& x) { return in(x).out(x).count(x.count); }
  Builder& on(Device device) {
    call_.device = device;
    return *this;
  }
  Builder& count(std::size_t count) {
    call_.count = count;
    return *this;
  }
  // in.count == in_factor * count and out.count == out_factor * count.
  Builder& counts(std::size_t count, std::size_t in_factor, std::size_t out_factor) {
    call_.count = count;
    if (count > kMostElements / std::max(in_factor, out_factor) || in_.count != count * in_factor ||
        out_.count != count * out_factor)
      refuse(call_, "counts do not fit: in has " + elements(in_) + ", out has " + elements(out_) +
                        ", the group " + std::to_string(group_.engine().size()) + " ranks");
    return *this;
  }
  // The part of one buffer that may be the other, if they share memory at all.
  Builder& shares(std::size_t in_offset, std::size_t out_offset) {
    if (in_.bytes() == 0 || out_.bytes() == 0 || !overlap(in_.data, in_.bytes(), out_.data, out_.bytes()))
      return *this;
    const auto* const a = static_cast<const std::byte*>(in_.data) + in_offset;
    const auto* const b = static_cast<const std::byte*>(out_.data) + out_offset;
    if (a != b) refuse(call_, "in and out overlap, but not as an in-place call would");
    return *this;
  }

  Call done() {
    if (in_.data != nullptr && out_.data != nullptr &&
        (in_.dtype != out_.dtype || !(in_.device == out_.device)))
      refuse(call_, "in has " + elements(in_) + ", out has " + elements(out_) +
                        ": types and devices must be the same");
    if (const std::string why = refusal(); !why.empty()) refuse(call_, why);
    return std::move(call_);
  }

  // A call without buffers, to ask about.
  Builder& asks(const CallQuestion& question) {
    call_.count = question.count;
    call_.dtype = question.dtype;
    return *this;
  }
  const Call& call() const { return call_; }
  // What is wrong with it whatever its buffers are; empty: nothing.
  std::string refusal() const {
    if (call_.timeout.count() < 0)
      return "timeout of " + std::to_string(call_.timeout.count()) +
             " ms; accepted: positive, or zero for the group's";
    if (call_.count > kMostElements)
      return "a buffer of " + std::to_string(call_.count) + " elements is larger than any memory";
    if (reduces(call_.what) && !supports(call_.op, call_.dtype))
      return std::string(to_string(call_.op)) + " needs integers, not " + to_string(call_.dtype);
    if (reduces(call_.what) && call_.op == ReduceOp::avg && call_.divisor != kDivisorOfOthers &&
        !kernel::accepts_divisor(call_.dtype, call_.divisor))
      return "divisor " + std::to_string(call_.divisor) + " for " + to_string(call_.dtype) +
             "; accepted: a positive number, for integers a whole one";
    return group_.engine().refuses(call_);
  }

 private:
  void check(const ConstBuffer& x) {
    if (x.count > kMostElements)
      refuse(call_, "a buffer of " + elements(x) + " elements is larger than any memory");
    if (x.data == nullptr && x.count > 0) refuse(call_, "a null buffer of " + elements(x));
    call_.dtype = x.dtype;
    call_.device = x.device;
  }

  const GroupImpl& group_;
  Call call_;
  ConstBuffer in_;
  ConstBuffer out_;
};

Call all_reduce_call(const GroupImpl& g, const ConstBuffer& in, const Buffer& out, const CallOptions& o) {
  return Builder(g, Collective::all_reduce, o).in(in).out(out).counts(in.count, 1, 1).shares(0, 0).done();
}

Call reduce_scatter_call(const GroupImpl& g, const ConstBuffer& in, const Buffer& out, const CallOptions& o) {
  const auto n = static_cast<std::size_t>(g.engine().size());
  const auto own = static_cast<std::size_t>(g.engine().rank());
  return Builder(g, Collective::reduce_scatter, o)
      .in(in)
      .out(out)
      .counts(out.count, n, 1)
      .shares(own * out.bytes(), 0)
      .done();
}

Call all_gather_call(const GroupImpl& g, const ConstBuffer& in, const Buffer& out, const CallOptions& o) {
  const auto n = static_cast<std::size_t>(g.engine().size());
  const auto own = static_cast<std::size_t>(g.engine().rank());
  return Builder(g, Collective::all_gather, o)
      .in(in)
      .out(out)
      .counts(in.count, 1, n)
      .shares(0, own * in.bytes())
      .done();
}

Call broadcast_call(const GroupImpl& g, const Buffer& x, int root, const CallOptions& o) {
  return Builder(g, Collective::broadcast, o).root(root).both(x).done();
}

Call reduce_call(const GroupImpl& g, const ConstBuffer& in, Buffer out, int root, const CallOptions& o) {
  Builder builder(g, Collective::reduce, o);
  builder.root(root).in(in).count(in.count);
  if (g.engine().rank() == root) builder.out(out).counts(in.count, 1, 1).shares(0, 0);
  return builder.done();
}

Call gather_call(const GroupImpl& g, const ConstBuffer& in, const Buffer& out, int root,
                 const CallOptions& o) {
  const auto n = static_cast<std::size_t>(g.engine().size());
  Builder builder(g, Collective::gather, o);
  builder.root(root).in(in).count(in.count);
  if (g.engine().rank() == root)
    builder.out(out).counts(in.count, 1, n).shares(0, static_cast<std::size_t>(root) * in.bytes());
  return builder.done();
}

Call scatter_call(const GroupImpl& g, const ConstBuffer& in, const Buffer& out, int root,
                  const CallOptions& o) {
  const auto n = static_cast<std::size_t>(g.engine().size());
  Builder builder(g, Collective::scatter, o);
  builder.root(root).out(out).count(out.count);
  if (g.engine().rank() == root)
    builder.in(in).counts(out.count, n, 1).shares(static_cast<std::size_t>(root) * out.bytes(), 0);
  return builder.done();
}

Call all_to_all_call(const GroupImpl& g, const ConstBuffer& in, const Buffer& out, const CallOptions& o) {
  const auto n = static_cast<std::size_t>(g.engine().size());
  return Builder(g, Collective::all_to_all, o).in(in).out(out).counts(in.count / n, n, n).shares(0, 0).done();
}

Call barrier_call(const GroupImpl& g, const CallOptions& o, Device device = {}) {
  return Builder(g, Collective::barrier, o).on(device).done();
}

Call message_call(const GroupImpl& g, Collective what, int peer, const CallOptions& o) {
  Builder builder(g, what, o);
  builder.root(peer);
  if (peer == g.engine().rank())
    throw UsageError(std::string(to_string(what)) + ": rank " + std::to_string(peer) +
                     " is this rank itself");
  return builder.done();
}

Call send_call(const GroupImpl& g, const ConstBuffer& x, int to, const CallOptions& o) {
  message_call(g, Collective::send, to, o);
  return Builder(g, Collective::send, o).root(to).in(x).count(x.count).done();
}

Call recv_call(const GroupImpl& g, const Buffer& x, int from, const CallOptions& o) {
  message_call(g, Collective::recv, from, o);
  return Builder(g, Collective::recv, o).root(from).out(x).count(x.count).done();
}

}  // namespace

GroupImpl& Group::impl() const {
  if (impl_ == nullptr)
    throw UsageError("this Group is empty: it was never initialised, or its split gave this rank none");
  return *impl_;
}

int Group::rank() const { return impl().engine().rank(); }
int Group::size() const { return impl().engine().size(); }
const std::string& Group::name() const { return impl().name(); }
std::string Group::named(int rank) const {
  if (rank < 0 || rank >= size())
    throw UsageError("rank " + std::to_string(rank) + " is not in group " + name() + "; accepted: 0 to " +
                     std::to_string(size() - 1));
  return impl().engine().rank_names().named(rank);
}
const char* Group::engine() const { return impl().engine().name(); }
const std::vector<int>& Group::nodes() const { return impl().engine().nodes(); }
std::chrono::milliseconds Group::timeout() const { return impl().timeout(); }
CommMemory Group::allocate(std::size_t bytes, Device device) const {
  const Engine& engine = impl().engine();
  if (const std::string why = engine.capabilities().refuses(engine.name(), device); !why.empty())
    throw UsageError("allocate: " + why);
  return impl().engine().allocate(bytes, device);
}
bool Group::reaches(const void* data) const { return impl().engine().reaches(data); }

double Group::expected_seconds(const CallQuestion& call) const {
  return impl().engine().expected_seconds(Builder(impl(), call.what, call.options).asks(call).call());
}
std::string Group::why_refused(const CallQuestion& call) const {
  return Builder(impl(), call.what, call.options).asks(call).refusal();
}
std::vector<std::string> Group::algorithms(Collective what) const { return impl().engine().algorithms(what); }
bool Group::sums_canonically(const CallQuestion& call) const {
  const std::string name(call.options.algorithm);
  if (name.empty()) return call.options.order == Order::canonical;
  const auto all_canonical = [&](const std::vector<Offer>& offers) -> std::optional<bool> {
    std::optional<bool> all;
    for (const Offer& offer : offers)
      if (offer.name == name && offer.collectives.has(call.what)) all = all.value_or(true) && offer.canonical;
    return all;
  };
  if (const auto here = all_canonical(impl().engine().capabilities().offers)) return *here;
  if (const Algorithm* const ours = find_algorithm(name)) return ours->canonical(nodes());
  std::optional<bool> elsewhere;
  for (const EngineView& engine : all_engines())
    if (const auto there = all_canonical(engine.can.offers)) elsewhere = elsewhere.value_or(true) && *there;
  return elsewhere.value_or(false);
}

void Group::all_reduce(Buffer x, CallOptions o) const { impl().run(all_reduce_call(impl(), x, x, o)); }
void Group::all_reduce(ConstBuffer in, Buffer out, CallOptions o) const {
  impl().run(all_reduce_call(impl(), in, out, o));
}
void Group::reduce_scatter(ConstBuffer in, Buffer out, CallOptions o) const {
  impl().run(reduce_scatter_call(impl(), in, out, o));
}
void Group::all_gather(ConstBuffer in, Buffer out, CallOptions o) const {
  impl().run(all_gather_call(impl(), in, out, o));
}
void Group::broadcast(Buffer x, int root, CallOptions o) const {
  impl().run(broadcast_call(impl(), x, root, o));
}
void Group::reduce(ConstBuffer in, Buffer out, int root, CallOptions o) const {
  impl().run(reduce_call(impl(), in, out, root, o));
}
void Group::gather(ConstBuffer in, Buffer out, int root, CallOptions o) const {
  impl().run(gather_call(impl(), in, out, root, o));
}
void Group::scatter(ConstBuffer in, Buffer out, int root, CallOptions o) const {
  impl().run(scatter_call(impl(), in, out, root, o));
}
void Group::all_to_all(ConstBuffer in, Buffer out, CallOptions o) const {
  impl().run(all_to_all_call(impl(), in, out, o));
}
void Group::barrier(CallOptions o) const { impl().run(barrier_call(impl(), o)); }
void Group::barrier(Device device, CallOptions o) const { impl().run(barrier_call(impl(), o, device)); }
void Group::send(ConstBuffer x, int to, CallOptions o) const { impl().run(send_call(impl(), x, to, o)); }
void Group::recv(Buffer x, int from, CallOptions o) const { impl().run(recv_call(impl(), x, from, o)); }

Work Group::all_reduce_async(Buffer x, CallOptions o) const {
  return impl().start(all_reduce_call(impl(), x, x, o));
}
Work Group::all_reduce_async(ConstBuffer in, Buffer out, CallOptions o) const {
  return impl().start(all_reduce_call(impl(), in, out, o));
}
Work Group::reduce_scatter_async(ConstBuffer in, Buffer out, CallOptions o) const {
  return impl().start(reduce_scatter_call(impl(), in, out, o));
}
Work Group::all_gather_async(ConstBuffer in, Buffer out, CallOptions o) const {
  return impl().start(all_gather_call(impl(), in, out, o));
}
Work Group::broadcast_async(Buffer x, int root, CallOptions o) const {
  return impl().start(broadcast_call(impl(), x, root, o));
}
Work Group::reduce_async(ConstBuffer in, Buffer out, int root, CallOptions o) const {
  return impl().start(reduce_call(impl(), in, out, root, o));
}
Work Group::gather_async(ConstBuffer in, Buffer out, int root, CallOptions o) const {
  return impl().start(gather_call(impl(), in, out, root, o));
}
Work Group::scatter_async(ConstBuffer in, Buffer out, int root, CallOptions o) const {
  return impl().start(scatter_call(impl(), in, out, root, o));
}
Work Group::all_to_all_async(ConstBuffer in, Buffer out, CallOptions o) const {
  return impl().start(all_to_all_call(impl(), in, out, o));
}
Work Group::barrier_async(CallOptions o) const { return impl().start(barrier_call(impl(), o)); }
Work Group::send_async(ConstBuffer x, int to, CallOptions o) const {
  return impl().start(send_call(impl(), x, to, o));
}
Work Group::recv_async(Buffer x, int from, CallOptions o) const {
  return impl().start(recv_call(impl(), x, from, o));
}

Group Group::split(int colour, int key) const { return impl().split(colour, key); }
std::shared_ptr<LaneBoard> Group::lane_board() const { return impl().lane_board(); }

Group Group::split_by_node() const { return split(nodes()[static_cast<std::size_t>(rank())]); }

}  // namespace lockstep
