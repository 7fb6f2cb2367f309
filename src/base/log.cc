#include "lockstep/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/knobs.h"

namespace lockstep {

spdlog::logger& log() {
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made =
        std::make_shared<spdlog::logger>("lockstep", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    try {
      made->set_level(spdlog::level::from_str(Knobs::from_environment().log));
    } catch (const UsageError&) {  // init() reports it; logging itself must not throw
      made->set_level(spdlog::level::warn);
    }
    made->set_pattern("lockstep %^%l%$: %v");
    return made;
  }();
  return *logger;
}

void set_log_rank(int rank) { log().set_pattern("lockstep rank " + std::to_string(rank) + " %^%l%$: %v"); }

}  // namespace lockstep
