// Transfers by threads that read and write at a place: what every kernel has.

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/start_thread.h"
#include "offload/transfers.h"

namespace lockstep {
namespace {

constexpr std::size_t kMostThreads = 4;  // two reads and two writes keep a disk busy

class ThreadTransfers final : public Transfers {
 public:
  ThreadTransfers(const ScratchFile& file, std::size_t most) : file_(file) {
    threads_.reserve(std::min(most, kMostThreads));
    while (threads_.size() < std::min(most, kMostThreads)) try {
        threads_.emplace_back([this] { serve(); });
      } catch (const std::system_error& refused) {
        if (!threads_.empty()) return;  // those that are there do it all, later
        throw OffloadError(no_thread("a thread for the scratch file in " + file.folder().string(), refused));
      }
  }
  ~ThreadTransfers() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    asked_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void begin(const Transfer& transfer) override {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(transfer);
    ++under_way_;
    asked_.notify_one();
  }
  std::optional<std::size_t> take(Wait wait) override {
    std::unique_lock lock(mutex_);
    if (wait == Wait::yes && under_way_ > 0) through_.wait(lock, [&] { return !done_.empty(); });
    if (done_.empty()) return std::nullopt;
    const Done first = std::move(done_.front());
    done_.pop_front();
    --under_way_;
    if (first.error) std::rethrow_exception(first.error);
    return first.tag;
  }
  void abandon() noexcept override {
    std::unique_lock lock(mutex_);
    through_.wait(lock, [&] { return done_.size() == under_way_; });
    done_.clear();
    under_way_ = 0;
  }
  const char* name() const override { return "threads"; }

 private:
  struct Done {
    std::size_t tag;
    std::exception_ptr error;
  };

  // What was begun is done before the end, as the destructor promises.
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      asked_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      const Transfer next = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      Done done{next.tag, nullptr};
      try {
        if (next.way == Transfer::Way::read)
          read_fully(file_, next.at, next.bytes);
        else
          write_fully(file_, next.at, next.bytes);
      } catch (const OffloadError&) {
        done.error = std::current_exception();
      }
      lock.lock();
      done_.push_back(std::move(done));
      through_.notify_one();
    }
  }

  const ScratchFile& file_;
  std::mutex mutex_;
  std::condition_variable asked_, through_;
  std::deque<Transfer> waiting_;
  std::deque<Done> done_;
  std::size_t under_way_ = 0;  // begun and not taken
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Transfers> make_thread_transfers(const ScratchFile& file, std::size_t most) {
  return std::make_unique<ThreadTransfers>(file, most);
}

}  // namespace lockstep
