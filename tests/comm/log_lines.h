// The lines that the library's logger writes while this lives, instead of standard error. Make it before the
// threads that log, and let it go after them.
#pragma once

#include <spdlog/sinks/base_sink.h>

#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/log.h"

namespace lockstep::testing {

class LogLines {
 public:
  LogLines() : sink_(std::make_shared<Sink>()), before_(log().sinks()) { log().sinks() = {sink_}; }
  ~LogLines() { log().sinks() = before_; }
  LogLines(const LogLines&) = delete;
  LogLines& operator=(const LogLines&) = delete;

  std::vector<std::string> take() const { return sink_->take(); }
  // Those that hold `part`.
  std::vector<std::string> with(const std::string& part) const {
    std::vector<std::string> some;
    for (std::string& line : take())
      if (line.find(part) != std::string::npos) some.push_back(std::move(line));
    return some;
  }

 private:
  class Sink final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    std::vector<std::string> take() {
      const std::lock_guard lock(mutex_);
      return lines_;
    }

   private:
    void sink_it_(const spdlog::details::log_msg& message) override {
      lines_.emplace_back(message.payload.data(), message.payload.size());
    }
    void flush_() override {}
    std::vector<std::string> lines_;
  };

  std::shared_ptr<Sink> sink_;
  std::vector<spdlog::sink_ptr> before_;
};

}  // namespace lockstep::testing
