// Threads that help with one loop at a time. They sleep between loops and start when first needed.
#pragma once

#include <cfenv>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep {

class Crew {
 public:
  Crew() = default;
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  // Calls work(i) once for every i < count, on this thread and up to threads - 1 others, and returns when all
  // calls have. The others take over this thread's floating-point environment (rounding, flushing of
  // subnormals), so that it doesn't matter who does what. `work` must not throw. One caller at a time.
  void run(std::size_t count, std::size_t threads, const std::function<void(std::size_t)>& work);

 private:
  void help(std::size_t number);
  void take_parts(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  std::vector<std::thread> helpers_;
  // The loop at hand, under mutex_.
  const std::function<void(std::size_t)>* work_ = nullptr;
  std::fenv_t environment_ = {};
  std::size_t count_ = 0;
  std::size_t next_ = 0;     // the first part that nobody has taken
  std::size_t running_ = 0;  // parts taken and not finished
  std::size_t invited_ = 0;  // helpers with a lower number take part
  bool stopping_ = false;
};

}  // namespace lockstep
