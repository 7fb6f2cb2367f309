// What compression saved in a step, and what it cost in accuracy, on this rank.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>

namespace lockstep::compress {

// Told by the thread that runs backward and by those of groups.
class Savings {
 public:
  // The error takes passes of its own: it is measured in every so many steps.
  static constexpr std::int64_t kEvery = 10;
  static bool measures(std::int64_t step) { return step % kEvery == 0; }

  void begin_step() {
    const std::lock_guard lock(mutex_);
    dense_ = sent_ = error_ = meant_ = 0;
  }
  void add_bytes(double dense, double sent) {
    const std::lock_guard lock(mutex_);
    dense_ += dense;
    sent_ += sent;
  }
  // Squares: of what was not sent, of what was meant.
  void add_error(double error, double meant) {
    const std::lock_guard lock(mutex_);
    error_ += error;
    meant_ += meant;
  }

  double dense_bytes() const { return get(dense_); }
  double sent_bytes() const { return get(sent_); }
  // Relative; NaN where it was not measured.
  double error() const {
    const std::lock_guard lock(mutex_);
    return meant_ > 0 ? std::sqrt(error_ / meant_) : std::numeric_limits<double>::quiet_NaN();
  }

 private:
  double get(const double& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }

  mutable std::mutex mutex_;
  double dense_ = 0, sent_ = 0, error_ = 0, meant_ = 0;
};

}  // namespace lockstep::compress
