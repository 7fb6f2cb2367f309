#include "bench/variant.h"

#include <algorithm>
#include <cstring>

#include "base/suggest.h"
#include "comm/engine/registry.h"
#include "comm/engine/vendor.h"
#include "comm/world/group_impl.h"
#include "comm/world/tcp_world.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

bool in_place(BenchOp what) { return what == BenchOp::all_reduce || what == BenchOp::broadcast; }

// Who sends first in send_recv: with blocking calls a ring in which all send would never move.
bool sends_first(const Expectation& e) { return e.rank % 2 == 0; }
int next(const Expectation& e) { return (e.rank + 1) % e.workers; }
int previous(const Expectation& e) { return (e.rank + e.workers - 1) % e.workers; }

// The names that "auto", "all" or a name means to an engine that has `known`.
std::vector<std::string> resolve(const std::string& asked, const std::vector<std::string>& known,
                                 bool chooses) {
  if (asked == "all") {
    std::vector<std::string> names = known;
    if (chooses) names.insert(names.begin(), "auto");
    return names;
  }
  if (asked == "auto") return {chooses || known.empty() ? "auto" : known.front()};
  if (std::ranges::find(known, asked) != known.end()) return {asked};
  return {};
}

std::vector<std::string> algorithms_for(const BenchPlan& plan, const Engine& engine, bool chooses) {
  std::vector<std::string> names;
  for (const auto& asked : plan.algorithms)
    for (const auto& name : resolve(asked, engine.algorithms(collective_of(plan.what)), chooses))
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  return names;
}

Call make_call(const Expectation& e, const BenchBuffers& buffers, const std::string& algorithm) {
  Call call;
  call.what = collective_of(e.what);
  call.in = in_place(e.what) ? buffers.out.data() : buffers.in.data();
  call.out = buffers.out.data();
  call.count = e.extent.slice;
  call.dtype = e.dtype;
  call.op = e.op;
  call.root = e.what == BenchOp::send_recv ? next(e) : e.root;
  call.algorithm = algorithm == "auto" ? "" : algorithm;
  return call;
}

}  // namespace

Variant::Variant(Group group, std::string algorithm_, std::string memory_)
    : engine(group.engine()),
      algorithm(std::move(algorithm_)),
      memory(std::move(memory_)),
      group_(std::move(group)) {}

Variant::Variant(std::shared_ptr<Engine> peer, std::string algorithm_)
    : engine(peer->name()), algorithm(std::move(algorithm_)), memory("private"), peer_(std::move(peer)) {}

std::string Variant::refuses(const Expectation& e, const BenchBuffers& buffers) const {
  const Engine& runs = peer_ ? *peer_ : engine_of(group_);
  return runs.refuses(make_call(e, buffers, algorithm));
}

void Variant::run(const Expectation& e, const BenchBuffers& buffers) const {
  if (peer_)
    run_engine(e, buffers);
  else
    run_group(e, buffers);
}

void Variant::run_engine(const Expectation& e, const BenchBuffers& buffers) const {
  Call call = make_call(e, buffers, algorithm);
  if (e.what != BenchOp::send_recv) return peer_->run(call);
  Call receive = call;
  receive.what = Collective::recv;
  receive.root = previous(e);
  peer_->run(sends_first(e) ? call : receive);
  peer_->run(sends_first(e) ? receive : call);
}

void Variant::run_group(const Expectation& e, const BenchBuffers& buffers) const {
  const CallOptions options = {.op = e.op,
                               .algorithm = algorithm == "auto" ? "" : std::string_view(algorithm)};
  const ConstBuffer in(buffers.in.data(), input_count(e), e.dtype);
  const Buffer out{buffers.out.data(), output_count(e), e.dtype};
  switch (e.what) {
    case BenchOp::all_reduce: return group_.all_reduce(out, options);
    case BenchOp::reduce_scatter: return group_.reduce_scatter(in, out, options);
    case BenchOp::all_gather: return group_.all_gather(in, out, options);
    case BenchOp::broadcast: return group_.broadcast(out, e.root, options);
    case BenchOp::reduce: return group_.reduce(in, out, e.root, options);
    case BenchOp::gather: return group_.gather(in, out, e.root, options);
    case BenchOp::scatter: return group_.scatter(in, out, e.root, options);
    case BenchOp::all_to_all: return group_.all_to_all(in, out, options);
    case BenchOp::barrier: return group_.barrier(options);
    case BenchOp::send_recv:
      if (sends_first(e)) group_.send(in, next(e), options);
      group_.recv(out, previous(e), options);
      if (!sends_first(e)) group_.send(in, next(e), options);
      return;
  }
}

std::vector<Variant> make_variants(const BenchPlan& plan, const Group& world) {
  std::vector<Variant> variants;
  std::vector<std::string> known = {"auto", "all"};
  const auto add_known = [&](const Engine& engine) {
    for (const auto& name : engine.algorithms(collective_of(plan.what)))
      if (std::ranges::find(known, name) == known.end()) known.push_back(name);
  };
  const auto add_peer = [&](std::shared_ptr<Engine> engine) {
    add_known(*engine);
    for (const auto& name : algorithms_for(plan, *engine, false)) variants.emplace_back(engine, name);
  };
  for (const auto& name : plan.engines) {
    if (name == "shm") {
      const Engine& engine = engine_of(world);
      add_known(engine);
      for (const auto& algorithm : algorithms_for(plan, engine, true))
        for (const auto& memory : plan.memories) variants.emplace_back(world, algorithm, memory);
    }
    if (name == "tcp" || name == "tls") {
      const auto security = name == "tls" ? net::Security::tls : net::Security::plaintext;
      const Group wire = make_group(tcp_beside(world, security), name, world.timeout());
      add_known(engine_of(wire));
      for (const auto& algorithm : algorithms_for(plan, engine_of(wire), true)) {
        variants.emplace_back(wire, algorithm, "private");
        variants.back().engine = name;
      }
    }
    const EngineKind* const kind = find_engine(name);
    if (kind == nullptr || kind->profile.meets == Meets::alone) continue;
    const bool carried = kind->profile.meets == Meets::over_another;
    auto vendor = kind->make({.rank = world.rank(), .size = world.size(), .job = {}, .launcher = {}},
                             Knobs::from_environment(),
                             carried ? kept_engine_of(world.split(0, world.rank())) : nullptr);
    if (vendor->size() != world.size())
      throw UsageError("--engines " + name + ": MPI knows " + std::to_string(vendor->size()) + " of these " +
                       std::to_string(world.size()) +
                       " workers; start them with mpirun, or measure other engines");
    add_peer(std::move(vendor));
  }
  for (const auto& asked : plan.algorithms)
    if (std::ranges::find(known, asked) == known.end())
      throw UsageError("--algorithms: " + not_understood(asked, known));
  return variants;
}

BenchBuffers make_buffers(const Group& world, const std::string& memory, const Expectation& e) {
  const auto allocate = [&](std::size_t count) {
    const std::size_t bytes = count * size_of(e.dtype);
    if (bytes == 0) return CommMemory();
    return memory == "comm" ? world.allocate(bytes) : private_memory(bytes);
  };
  BenchBuffers buffers;
  if (!in_place(e.what)) buffers.in = allocate(input_count(e));
  buffers.out = allocate(output_count(e));
  return buffers;
}

void load_input(const BenchBuffers& buffers, const Expectation& e) {
  // What is not input must be overwritten by the call, so it starts out wrong.
  if (buffers.out.bytes() != 0) std::memset(buffers.out.data(), 0x55, buffers.out.bytes());
  void* in = in_place(e.what) ? buffers.out.data() : buffers.in.data();
  fill_pattern(in, input_count(e), e.dtype, e.op, e.rank);
}

void rewrite_input(const BenchBuffers& buffers, const Expectation& e) {
  const CommMemory& input = in_place(e.what) ? buffers.out : buffers.in;
  // Word by word, as a backward pass writes: memset has instructions of its own that leave the lines
  // elsewhere.
  auto* const words = input.as<volatile std::uint32_t>();
  for (std::size_t i = 0; i < input.bytes() / sizeof(*words); ++i) words[i] = 0x3c3c3c3c;
}

}  // namespace lockstep
