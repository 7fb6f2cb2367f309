#include "comm/fault_worker.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <map>
#include <numeric>

#include "comm/call/reach.h"
#include "comm/fault_plan.h"
#include "comm/fault_values.h"
#include "comm/process_ranks.h"
#include "comm/world/group_impl.h"
#include "lockstep/comm/init.h"

namespace lockstep::testing {
namespace {

struct Place {
  Group group;
  std::vector<int> members;  // world ranks
};

// What is passed to a Group, after everything was settled.
struct Arguments {
  Collective what;
  std::size_t count;
  DType dtype;
  int root;
  CallOptions options;
};

DType twin(DType dtype) {  // of the same size
  constexpr DType twins[] = {DType::i64, DType::i32, DType::bf16, DType::f16,
                             DType::f64, DType::f32, DType::u8,   DType::i8};
  return twins[static_cast<std::size_t>(dtype)];
}

class Worker {
 public:
  explicit Worker(const Plan& plan) : plan_(plan) {}

  void run() {
    try {
      world_.group = init({.timeout = plan_.timeout});
    } catch (const Error& error) {
      return say(to_line(describe("init", error, {})));
    }
    world_.members.resize(static_cast<std::size_t>(plan_.size));
    std::iota(world_.members.begin(), world_.members.end(), 0);
    part_ = world_;
    rank_ = world_.group.rank();
    for (auto& slot : slots_) {
      for (CommMemory& memory : slot.comm) memory = world_.group.allocate(plan_.most_bytes);
      for (auto& memory : slot.own) memory.resize(plan_.most_bytes);
    }
    // Ranks come out of init one after the other, and on a busy machine much may happen between them: the
    // first to come out may be the one that commits its fault, or miss the last. Those are faults of init;
    // not here.
    if (plan_.fault != Fault::killed_in_init) {
      try {
        world_.group.barrier({.timeout = std::chrono::minutes(1)});
      } catch (const Error& error) {  // the others are past it already
        return report(world_, error);
      }
    }
    say("ready");
    for (int index = 0; !failed_; ++index) step(index);
  }

  // Destroys the groups as a program would that is done with them.
  void leave() {
    pending_.clear();
    part_ = {};
    world_ = {};
  }

 private:
  struct Pending {
    Work work;
    Place place;
    int index;  // of the call
    Call call;  // what is to be looked at when it is done
    const void* got;
  };
  struct Slot {
    std::array<CommMemory, 2> comm;
    std::array<std::vector<std::byte>, 2> own;
  };
  static constexpr std::size_t kSlots = 3;

  void step(int index) {
    PlannedCall call = call_at(plan_, index);
    const bool victim = plan_.is_victim(rank_);
    if (victim && index == plan_.at_call) commit_between_calls();
    if (gone_) return;
    Place place = call.on == PlannedCall::On::world ? world_ : part_;
    try {
      if (call.what == Collective::split) {
        split(index);
        return;
      }
      Arguments arguments = settle(call, place.group);
      if (victim && plan_.fault == Fault::mismatched && !differed_ && index >= plan_.at_call &&
          call.what != Collective::send) {
        differed_ = true;
        arguments = differ(index, arguments);
        say("fault " + std::to_string(now_ns()));
      }
      while (!pending_.empty() &&
             pending_.front().index + static_cast<int>(kSlots) <= index) {  // its slot is needed
        const Pending first = pending_.front();
        pending_.pop_front();
        place = first.place;
        first.work.wait();
        look_at(first.call, first.got, place.group);
        place = call.on == PlannedCall::On::world ? world_ : part_;
      }
      perform(call, arguments, index, place);
    } catch (const Error& error) {
      report(place, error);
    }
  }

  void commit_between_calls() {
    const auto announce = [] { say("fault " + std::to_string(now_ns())); };
    if (plan_.fault == Fault::died_of_itself) {
      announce();
      std::raise(plan_.signal);
    } else if (plan_.fault == Fault::exited) {
      announce();
      std::exit(3);
    } else if (plan_.fault == Fault::left) {
      for (const Pending& pending : pending_) {
        pending.work.wait();
        look_at(pending.call, pending.got, pending.place.group);
      }
      announce();
      leave();
      gone_ = failed_ = true;
    }
  }

  void split(int index) {
    const int colour = colour_at(plan_, index, rank_);
    part_.group = world_.group.split(colour, key_at(plan_, index, rank_));
    part_.members.clear();
    for (int r = 0; r < plan_.size; ++r)
      if (colour_at(plan_, index, r) == colour) part_.members.push_back(r);
    std::stable_sort(part_.members.begin(), part_.members.end(),
                     [&](int a, int b) { return key_at(plan_, index, a) < key_at(plan_, index, b); });
  }

  // The dice's meaning in a group: the same on all of its ranks.
  Arguments settle(const PlannedCall& call, const Group& group) const {
    const auto n = static_cast<std::size_t>(group.size());
    const std::size_t whole = plan_.most_bytes / size_of(call.dtype);
    const bool sliced = call.what != Collective::all_reduce && call.what != Collective::broadcast &&
                        call.what != Collective::reduce && call.what != Collective::send;
    const std::size_t most = (sliced ? whole / n : whole) - 1;  // one to spare, for a rank that errs
    const std::size_t ceilings[] = {1, 18, 4096, 4096, most, most};
    const std::size_t below = ceilings[call.size_dice % 6];
    Arguments arguments{call.what,
                        call.size_dice / 6 % std::min(below, most),
                        call.dtype,
                        static_cast<int>(call.root_dice % n),
                        {.op = call.op}};
    const auto& names = algorithms(call.what, group);
    const std::size_t choice = call.algorithm_dice % (names.size() + 1);
    if (choice < names.size() && (names[choice] != "eager" || fits_eager(arguments, n)))
      arguments.options.algorithm = names[choice];
    Call asked;  // not every algorithm of a vendor's engine has every type
    asked.what = call.what;
    asked.dtype = call.dtype;
    asked.op = call.op;
    asked.count = arguments.count;
    asked.algorithm = arguments.options.algorithm;
    if (!engine_of(group).refuses(asked).empty()) arguments.options.algorithm = {};
    return arguments;
  }

  static bool fits_eager(const Arguments& arguments, std::size_t n) {
    return (arguments.count + 1) * size_of(arguments.dtype) * n <= kEagerBytes;
  }

  // Names that stay valid: options borrow them.
  const std::vector<std::string>& algorithms(Collective what, const Group& group) const {
    auto& names = algorithms_[{group.engine(), what}];
    if (names.empty()) names = group.algorithms(what);
    return names;
  }

  Arguments differ(int index, const Arguments& planned) {
    Arguments other = planned;
    const bool has_elements = planned.what != Collective::barrier;
    const bool has_root = planned.what == Collective::broadcast || planned.what == Collective::reduce ||
                          planned.what == Collective::gather || planned.what == Collective::scatter;
    switch (plan_.difference) {
      case Difference::count:
        if (!has_elements) break;
        ++other.count;
        return other;
      case Difference::dtype:
        if (!has_elements) break;
        other.dtype = twin(planned.dtype);
        if (!supports(other.options.op, other.dtype)) other.options.op = ReduceOp::sum;
        return other;
      case Difference::root:
        if (!has_root) break;
        other.root = (planned.root + 1) % plan_.size;
        return other;
      case Difference::algorithm:
        for (const std::string& name : algorithms(planned.what, world_.group))
          if (name != planned.options.algorithm && name != "eager") {
            other.options.algorithm = name;
            return other;
          }
        break;
      case Difference::order:  // a call forgotten
        for (int next = index + 1;; ++next) {
          const PlannedCall call = call_at(plan_, next);
          if (call.what != Collective::send && call.what != Collective::split && call.what != planned.what)
            return settle(call, world_.group);
        }
      case Difference::operation: break;
    }
    other.what = has_elements ? Collective::barrier : Collective::all_reduce;
    other.options = {};
    return other;
  }

  void perform(const PlannedCall& call, const Arguments& a, int index, const Place& place) {
    Slot& slot = slots_[static_cast<std::size_t>(index) % kSlots];
    const auto memory = [&](std::size_t which) {
      return call.private_memory ? static_cast<void*>(slot.own[which].data()) : slot.comm[which].data();
    };
    const auto n = static_cast<std::size_t>(place.group.size());
    const auto in = [&](std::size_t count) { return Buffer{memory(0), count, a.dtype}; };
    const auto out = [&](std::size_t count) { return Buffer{memory(1), count, a.dtype}; };
    const Group& g = place.group;
    Call what;  // in words, for what is given and expected
    what.what = a.what;
    what.count = a.count;
    what.dtype = a.dtype;
    what.op = a.options.op;
    what.root = a.root;
    what.algorithm = a.options.algorithm;
    const bool in_place = a.what == Collective::broadcast || a.what == Collective::send;
    give(memory(0), gives_slices(a.what) ? a.count * n : a.count, a.dtype, what, g.rank());
    const void* const got = memory(in_place ? 0 : 1);
    if (!in_place) spoil(memory(1), std::min(plan_.most_bytes, a.count * n * size_of(a.dtype)));
    const auto go = [&](auto&& blocking, auto&& starting) {
      if (call.asynchronous) {
        pending_.push_back({starting(), place, index, what, got});
      } else {
        blocking();
        look_at(what, got, g);
      }
    };
    const CallOptions& o = a.options;
    const std::size_t c = a.count;
    switch (a.what) {
      case Collective::all_reduce:
        return go([&] { g.all_reduce(in(c), out(c), o); },
                  [&] { return g.all_reduce_async(in(c), out(c), o); });
      case Collective::reduce_scatter:
        return go([&] { g.reduce_scatter(in(c * n), out(c), o); },
                  [&] { return g.reduce_scatter_async(in(c * n), out(c), o); });
      case Collective::all_gather:
        return go([&] { g.all_gather(in(c), out(c * n), o); },
                  [&] { return g.all_gather_async(in(c), out(c * n), o); });
      case Collective::broadcast:
        return go([&] { g.broadcast(in(c), a.root, o); },
                  [&] { return g.broadcast_async(in(c), a.root, o); });
      case Collective::reduce:
        return go([&] { g.reduce(in(c), out(c), a.root, o); },
                  [&] { return g.reduce_async(in(c), out(c), a.root, o); });
      case Collective::gather:
        return go([&] { g.gather(in(c), out(c * n), a.root, o); },
                  [&] { return g.gather_async(in(c), out(c * n), a.root, o); });
      case Collective::scatter:
        return go([&] { g.scatter(in(c * n), out(c), a.root, o); },
                  [&] { return g.scatter_async(in(c * n), out(c), a.root, o); });
      case Collective::all_to_all:
        return go([&] { g.all_to_all(in(c * n), out(c * n), o); },
                  [&] { return g.all_to_all_async(in(c * n), out(c * n), o); });
      case Collective::send: {
        message(in(c), g, a.root);
        what.what = Collective::recv;
        if (g.size() > 1 && g.rank() == (a.root + 1) % g.size()) look_at(what, got, g);
        return;
      }
      default: return go([&] { g.barrier(o); }, [&] { return g.barrier_async(o); });
    }
  }

  // A sum that is wrong is a line that the test does not know.
  static void look_at(const Call& call, const void* got, const Group& group) {
    const std::string wrong = find_wrong(got, call, group.rank(), group.size());
    if (!wrong.empty()) say("wrong: in group " + group.name() + " " + wrong);
  }

  static bool gives_slices(Collective what) {
    return what == Collective::reduce_scatter || what == Collective::scatter ||
           what == Collective::all_to_all;
  }

  static void message(const Buffer& x, const Group& g, int from) {
    const int to = (from + 1) % g.size();
    if (from == to) return;
    if (g.rank() == from) g.send(x, to);
    if (g.rank() == to) g.recv(x, from);
  }

  Report describe(const std::string& group, const Error& error, const std::vector<int>& members) const {
    Report report;
    report.thrown_ns = now_ns();
    report.group = group;
    report.kind = error.kind();
    report.text = error.what();
    report.sticky = "same";
    const auto in_world = [&](int rank) {
      return rank >= 0 && static_cast<std::size_t>(rank) < members.size()
                 ? members[static_cast<std::size_t>(rank)]
                 : rank;
    };
    if (const auto* peer = dynamic_cast<const PeerError*>(&error)) report.peer = in_world(peer->rank());
    if (const auto* timeout = dynamic_cast<const TimeoutError*>(&error))
      for (int rank : timeout->missing()) report.missing.push_back(in_world(rank));
    return report;
  }

  void report(const Place place, const Error& error) {  // a copy: the part goes
    failed_ = true;
    Report report = describe(place.group.name(), error, place.members);
    float x = 0;
    const Group& group = place.group;
    std::array<std::int64_t, 3> times = {again(report, [&] { group.barrier(); }),
                                         again(report,
                                               [&] {
                                                 group.all_reduce(Buffer{&x, 1, DType::f32});
                                               }),
                                         again(report, [&] {
                                           group.all_reduce_async(Buffer{&x, 1, DType::f32}).wait();
                                         })};
    std::sort(times.begin(), times.end());
    report.sticky_ns = times[1];
    say(to_line(report));
    if (group.name() == "world") {  // peers in the part may not know yet, and wait there for this rank
      pending_.clear();
      part_ = {};
      return;
    }
    // Who is gone is gone from the world too; a timeout stays in its group.
    if (error.kind() != ErrorKind::peer) return;
    try {
      world_.group.barrier();
      say("the world goes on although a peer is gone");
    } catch (const Error& second) {
      this->report(world_, second);
    }
  }

  template <class Body>
  static std::int64_t again(Report& report, Body&& body) {
    const std::int64_t start = now_ns();
    try {
      body();
      report.sticky = "a further call returned";
    } catch (const Error& error) {
      if (error.kind() != report.kind || report.text != error.what())
        report.sticky = std::string("a further call threw: ") + error.what();
    }
    return now_ns() - start;
  }

  const Plan& plan_;
  int rank_ = -1;
  // Buffers outlive the groups: asynchronous calls write to them until the end.
  std::array<Slot, kSlots> slots_;
  mutable std::map<std::pair<std::string, Collective>, std::vector<std::string>> algorithms_;
  Place world_;
  Place part_;
  std::deque<Pending> pending_;
  bool failed_ = false;
  bool differed_ = false;
  bool gone_ = false;  // left
};

}  // namespace

int fault_worker(std::uint64_t seed, int round) {
  const Plan plan = plan_of(seed, round);
  Worker worker(plan);
  worker.run();
  say("done");
  stay();
  return 0;
}

}  // namespace lockstep::testing
