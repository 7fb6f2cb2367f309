#include "launch/worker_environment.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep::launcher {

std::vector<std::string> worker_environment(const LaunchOptions& options, const StartNames& names, int rank,
                                            int threads) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  const std::string index = std::to_string(rank);
  const std::string count = std::to_string(options.workers);
  const std::string restart = std::to_string(names.restart);
  const auto set = [&variables](const char* name, const std::string& value) { variables[name] = value; };
  set("RANK", index);
  set("LOCAL_RANK", index);
  set("ROLE_RANK", index);
  set("GROUP_RANK", "0");
  set("WORLD_SIZE", count);
  set("LOCAL_WORLD_SIZE", count);
  set("ROLE_WORLD_SIZE", count);
  set("GROUP_WORLD_SIZE", "1");
  set("ROLE_NAME", options.role);
  set("MASTER_ADDR", options.master_addr);
  set("MASTER_PORT", std::to_string(names.master_port));
  set("TORCHELASTIC_RUN_ID", options.run_id.empty() ? names.job : options.run_id);
  set("TORCHELASTIC_RESTART_COUNT", restart);
  set("TORCHELASTIC_MAX_RESTARTS", std::to_string(options.max_restarts));
  set("TORCHELASTIC_USE_AGENT_STORE", "False");  // nobody listens on MASTER_PORT: rank 0 may
  set("LOCKSTEP_JOB", names.job);
  set("LOCKSTEP_RESTART", restart);
  variables.emplace("LOCKSTEP_DUMP_DIR", names.dump_dir);
  variables.emplace("OMP_NUM_THREADS", std::to_string(threads));
  for (const auto& [name, value] : options.environment) variables[name] = value;

  std::vector<std::string> result;
  result.reserve(variables.size());
  for (const auto& [name, value] : variables) result.emplace_back(name).append("=").append(value);
  return result;
}

int free_port() {
  constexpr int usual = 29500;  // torchrun's, where the system has no network to ask
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) return usual;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), any, bytes) != 0 || ::getsockname(socket.get(), any, &bytes) != 0) return usual;
  return ntohs(address.sin_port);
}

std::string random_name() {
  std::uint8_t bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes) throw SystemError("no random numbers", errno);
  std::string name;
  for (const std::uint8_t byte : bytes) {
    name += "0123456789abcdef"[byte >> 4];
    name += "0123456789abcdef"[byte & 15];
  }
  return name;
}

}  // namespace lockstep::launcher
