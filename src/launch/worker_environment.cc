#include "launch/worker_environment.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <map>
#include <random>

#include "base/environment.h"
#include "base/hex.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

std::vector<std::string> worker_environment(const LaunchOptions& options, const Start& start,
                                            int local_rank) {
  std::map<std::string, std::string> variables;
  for (const std::string& text : all_variables()) {
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  const Job& job = start.job;
  const std::string rank = std::to_string(job.own().first_rank + local_rank);
  const std::string world_size = std::to_string(job.world_size());
  const std::string restart = std::to_string(start.restart);
  const auto set = [&variables](const char* name, const std::string& value) { variables[name] = value; };
  set("RANK", rank);
  set("LOCAL_RANK", std::to_string(local_rank));
  set("ROLE_RANK", rank);
  set("GROUP_RANK", std::to_string(job.node));
  set("WORLD_SIZE", world_size);
  set("LOCAL_WORLD_SIZE", std::to_string(job.own().workers));
  set("ROLE_WORLD_SIZE", world_size);
  set("GROUP_WORLD_SIZE", std::to_string(job.nodes.size()));
  set("ROLE_NAME", options.role);
  set("MASTER_ADDR", job.master_addr);
  set("MASTER_PORT", std::to_string(job.master_port));
  set("TORCHELASTIC_RUN_ID", options.run_id.empty() ? job.name : options.run_id);
  set("TORCHELASTIC_RESTART_COUNT", restart);
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(job.max_restarts));
  set("TORCHELASTIC_USE_AGENT_STORE", "False");  // nobody listens on MASTER_PORT: rank 0 may
  set("LOCKSTEP_JOB", job.name);
  set("LOCKSTEP_RESTART", restart);
  set("LOCKSTEP_AGENT", job.agent());
  set("LOCKSTEP_SECRET", job.worker_secret);
  variables.erase("LOCKSTEP_SECRET_FILE");
  if (options.plaintext) set("LOCKSTEP_TLS", "off");
  variables.emplace("LOCKSTEP_DUMP_DIR", start.dump_dir);
  set("OMP_NUM_THREADS", job.threads);
  for (const auto& [name, value] : options.environment) variables[name] = value;

  std::vector<std::string> result;
  result.reserve(variables.size());
  for (const auto& [name, value] : variables) result.emplace_back(name).append("=").append(value);
  return result;
}

std::string name_for_workers(const Start& start) {
  return start.job.name + "." + std::to_string(start.restart);
}

namespace {

// The least port that the system gives to whoever asks for any.
int first_given_port() {
  int first = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> first;
  return first;
}

bool can_bind(const std::string& address, int port) {
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return false;
  const UniqueFd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool bound = socket && ::bind(socket.get(), found->ai_addr, found->ai_addrlen) == 0;
  ::freeaddrinfo(found);
  return bound;
}

}  // namespace

int free_port(const std::string& address) {
  constexpr int least = 10240, usual = 29500;  // torchrun's, where the system has no network to ask
  const int given = first_given_port();
  const int end = given > 2 * least ? given : 65536;  // where it gives nearly all there is no choice
  std::random_device device;
  for (int tries = 0; tries < 100; ++tries)
    if (const int port = std::uniform_int_distribution(least, end - 1)(device); can_bind(address, port))
      return port;
  return usual;
}

std::string random_name() {
  std::uint8_t bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) throw SystemError("no random numbers", errno);
  return hex_of(std::as_bytes(std::span(bytes)));
}

}  // namespace lockstep::launcher
