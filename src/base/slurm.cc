#include "lockstep/base/slurm.h"

#include <algorithm>
#include <cctype>

#include "lockstep/base/error.h"

namespace lockstep::slurm {
namespace {

// For identifiers of any form: only where they fall among `count` matters.
unsigned place(const std::string& text, unsigned count) {
  unsigned value = 0;
  for (const char c : text) value = (value * 31 + static_cast<unsigned char>(c)) % count;
  return value;
}

bool is_host(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '.' || c == '_' || c == ':';
  });
}

}  // namespace

std::optional<std::string> first_of(const Lookup& environment, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (auto value = environment(name); value && !value->empty()) return value;
  return std::nullopt;
}

std::optional<std::string> step_of(const Lookup& environment) {
  const auto step = first_of(environment, {"SLURM_STEP_ID", "SLURM_STEPID"});
  if (!step || !environment("SLURM_PROCID")) return std::nullopt;
  for (const char* special : {"4294967290", "4294967291", "4294967292", "batch", "interactive", "extern"})
    if (*step == special) return std::nullopt;
  return step;
}

std::string first_host(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    const std::size_t close = list.find(']');
    if (close == std::string_view::npos) return "";
    // The first number of the brackets: up to a comma, a dash or their end.
    const std::string_view inside = list.substr(1, close - 1);
    const std::string_view first = inside.substr(0, inside.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) return "";
    host += first;
    list.remove_prefix(close + 1);
  }
  return is_host(host) ? host : "";
}

std::string endpoint(const Lookup& environment) {
  const std::string list =
      first_of(environment, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}).value_or("");
  const std::string host = first_host(list);
  if (host.empty())
    throw UsageError("SLURM_STEP_NODELIST='" + list +
                     "' is not understood; accepted: SLURM's form, for example node[01-03,7], or "
                     "--nnodes, --node-rank and --rdzv-endpoint by hand");
  // Below the ports that the system hands out by itself.
  constexpr unsigned first_port = 15000;
  constexpr unsigned ports = 15000;
  const std::string job = first_of(environment, {"SLURM_JOB_ID", "SLURM_JOBID"}).value_or("0");
  return host + ":" +
         std::to_string(first_port + place(job + "." + step_of(environment).value_or("0"), ports));
}

}  // namespace lockstep::slurm
