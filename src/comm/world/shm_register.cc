// Adds the engine of shared memory: linking lockstep_comm asks for the symbol below (engine/mpi_register.cc).
#include "comm/engine/registry.h"
#include "comm/tune/calibrate.h"
#include "comm/world/local_world.h"
#include "net/secret.h"

namespace lockstep {
namespace {

// Under which the workers of one machine find each other. Its socket's name is for everybody to see, and to
// take first where it can be guessed: with a secret it can't. Launchers of ours give one.
std::string door_of(const Membership& who) {
  const std::string node = who.node < 0 ? "" : std::to_string(who.node);
  const auto secret = net::Secret::from_environment();
  if (!secret) return node.empty() ? who.label() : who.label() + ".node" + node;
  // All that tells doors apart is derived: the socket's name is a hash that lets whoever reads one compute
  // those of texts that end otherwise.
  return secret
      ->derive("rendezvous on one machine, " + (node.empty() ? "" : "node " + node + ", ") + "job " +
               who.label())
      .hex();
}

std::unique_ptr<Engine> make_shm(const Membership& who, const Knobs& knobs,
                                 const std::shared_ptr<Engine>& /*carrier*/) {
  auto engine = local_world(door_of(who), who,
                            who.node < 0 ? pretended_nodes(who.size, knobs)
                                         : std::vector<int>(static_cast<std::size_t>(who.size), who.node),
                            knobs);
  load_or_measure_costs(*engine);
  return engine;
}

}  // namespace
}  // namespace lockstep

extern "C" const bool lockstep_shm_is_linked;
const bool lockstep_shm_is_linked = lockstep::add_engine({.profile = *lockstep::known_engine("shm"),
                                                          .can =
                                                              [] {
                                                                return lockstep::shm_capabilities({0, 0}, {});
                                                              },
                                                          .make = lockstep::make_shm});
