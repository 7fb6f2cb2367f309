#include "comm/engine/mpi_engine.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <new>
#include <numeric>

#include "comm/call/rank_mask.h"
#include "comm/channel/mpi_channel.h"
#include "comm/engine/channel_engine.h"
#include "comm/engine/mpi_native.h"
#include "comm/engine/vendor.h"
#include "lockstep/base/knobs.h"

namespace lockstep {
namespace {

constexpr const char* kNative = "native";
constexpr const char* kBlocking = "blocking";

bool is_mpis_own(const std::string& algorithm) { return algorithm == kNative || algorithm == kBlocking; }

class MpiEngine final : public ChannelEngine {
 public:
  // `usual`: what a call that names no algorithm is run by where it can be: "native", or empty for the
  // table's choice.
  MpiEngine(std::unique_ptr<MpiChannel> channel, std::string group, std::vector<int> nodes, Selector selector,
            std::string usual)
      : ChannelEngine("mpi", std::move(channel), std::move(group), std::move(nodes), std::move(selector)),
        usual_(std::move(usual)),
        native_(mpi_channel()) {
    can() = mpi_capabilities(this->nodes(), mpi::Runtime::get().multiple());
  }

 protected:
  void execute(const Call& call) override {
    const bool usual = call.algorithm.empty() && !is_message(call.what) && usual_ == kNative &&
                       can().refuses(name(), call, size(), kNative).empty();
    if (is_mpis_own(call.algorithm) || usual)
      run_native(call);
    else
      ChannelEngine::execute(call);
  }

  std::unique_ptr<ChannelEngine> over(std::unique_ptr<WireChannel> channel, std::string group,
                                      std::vector<int> nodes) override {
    std::unique_ptr<MpiChannel> part(
        static_cast<MpiChannel*>(channel.release()));  // as MpiChannel::among made it
    return std::make_unique<MpiEngine>(std::move(part), std::move(group), std::move(nodes), *selector(),
                                       usual_);
  }

 private:
  MpiChannel& mpi_channel() { return static_cast<MpiChannel&>(channel()); }

  void run_native(const Call& call) {
    if (size() == 1) return run_alone(call);
    const bool message = is_message(call.what);
    const bool blocking = call.algorithm == kBlocking;
    Call& told =
        begin(call, kNative, message ? WireChannel::Kind::point_to_point : WireChannel::Kind::collective);
    if (!message && !blocking) mpi_channel().meet();
    told.running(blocking ? kBlocking : kNative);
    native_.run(told, blocking ? MpiNative::Calls::blocking : MpiNative::Calls::non_blocking);
    finish_average(told, rank(), size());
  }

  std::string usual_;
  MpiNative native_;
};

// Which node each rank is on, counted from 0 in the order of appearance.
std::vector<int> find_nodes(MPI_Comm comm, int rank, int size) {
  MPI_Comm node = MPI_COMM_NULL;
  mpi::call("MPI_Comm_split_type",
            [&] { return MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node); });
  int leader = rank;
  mpi::call("MPI_Bcast", [&] { return MPI_Bcast(&leader, 1, MPI_INT, 0, node); });
  mpi::call("MPI_Comm_free", [&] { return MPI_Comm_free(&node); });
  std::vector<int> nodes(static_cast<std::size_t>(size));
  mpi::call("MPI_Allgather",
            [&] { return MPI_Allgather(&leader, 1, MPI_INT, nodes.data(), 1, MPI_INT, comm); });
  std::map<int, int> index;  // leader's rank to node
  for (int& n : nodes) n = index.try_emplace(n, static_cast<int>(index.size())).first->second;
  return nodes;
}

}  // namespace

Capabilities mpi_capabilities(const std::vector<int>& nodes, bool multiple) {
  Capabilities can = channel_capabilities(nodes);
  std::vector<Offer> own = MpiNative::offers(multiple);
  can.offers.insert(can.offers.begin(), own.begin(), own.end());
  return can;
}

std::unique_ptr<Engine> make_mpi_engine() {
  const Knobs knobs = Knobs::from_environment();
  mpi::Runtime::get();
  MPI_Comm comm = MPI_COMM_NULL;
  mpi::call("MPI_Comm_dup", [&] { return MPI_Comm_dup(MPI_COMM_WORLD, &comm); });
  int rank = 0;
  int size = 1;
  mpi::call("MPI_Comm_rank", [&] { return MPI_Comm_rank(comm, &rank); });
  mpi::call("MPI_Comm_size", [&] { return MPI_Comm_size(comm, &size); });
  check_group_size(size);
  std::vector<int> nodes = find_nodes(comm, rank, size);
  // Not the cores that this process may use: MPI's launcher may have bound each to its own.
  const auto here = std::ranges::count(nodes, nodes[static_cast<std::size_t>(rank)]);
  const double crowding =
      std::max(1.0, static_cast<double>(here) / static_cast<double>(::sysconf(_SC_NPROCESSORS_ONLN)));
  if (knobs.node_size > 0)
    for (int r = 0; r < size; ++r) nodes[static_cast<std::size_t>(r)] = r / knobs.node_size;

  const bool native = knobs.algorithm == kNative;
  Selector selector(native ? "" : knobs.algorithm);
  Costs costs;
  costs.crowding = crowding;
  selector.set_costs(costs);
  const auto spin = knobs.spin.value_or(std::chrono::microseconds(crowding > 1 ? 0 : 100));
  std::vector<int> everybody(nodes.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  auto channel = std::make_unique<MpiChannel>(comm, RankNames("world", std::move(everybody)), spin);
  return std::make_unique<MpiEngine>(std::move(channel), "world", std::move(nodes), std::move(selector),
                                     native ? kNative : "");
}

}  // namespace lockstep
