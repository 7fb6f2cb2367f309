// Transfers by io_uring, spoken with the kernel directly: two rings of memory that both see. One entry a
// transfer goes into the ring of submissions, one comes back in that of completions.
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"
#include "offload/aligned_memory.h"
#include "offload/transfers.h"

namespace lockstep {
namespace {

// A mapping of the ring's own, unmapped with it.
class RingMemory {
 public:
  RingMemory() = default;
  RingMemory(int fd, std::size_t bytes, off_t which) : bytes_(bytes) {
    void* const at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, which);
    data_ = at == MAP_FAILED ? nullptr : static_cast<std::byte*>(at);
  }
  RingMemory(RingMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  RingMemory& operator=(RingMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  RingMemory(const RingMemory&) = delete;
  RingMemory& operator=(const RingMemory&) = delete;
  ~RingMemory() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }
  explicit operator bool() const { return data_ != nullptr; }
  template <class T>
  T* at(std::size_t offset) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class UringTransfers final : public Transfers {
 public:
  UringTransfers(const ScratchFile& file, std::size_t most) : file_(file), places_(most) {
    for (std::size_t i = 0; i < most; ++i) free_.push_back(i);
  }
  ~UringTransfers() override { wait_for_all(); }

  // False, with the reason in errno: the kernel has none for this process, one that is too old, or one that
  // does not read and write.
  bool open() { return make_rings() && try_transfers(); }

  void begin(const Transfer& transfer) override {
    if (refused_ != 0) fail(verb(transfer), refused_);
    const std::size_t place = free_.back();
    free_.pop_back();
    places_[place] = transfer;
    submit(place);
  }

  std::optional<std::size_t> take(Wait wait) override {
    while (free_.size() < places_.size()) {
      const unsigned head = *seen_;
      if (head == std::atomic_ref(*completed_).load(std::memory_order_acquire)) {
        if (wait == Wait::no) return std::nullopt;
        if (refused_ == 0 && !enter(0, 1)) refused_ = errno;
        if (refused_ != 0) fail("wait for", refused_);
        continue;
      }
      const io_uring_cqe done = completions_[head & complete_mask_];
      std::atomic_ref(*seen_).store(head + 1, std::memory_order_release);
      if (const auto tag = end(done.user_data, done.res)) return tag;
    }
    return std::nullopt;
  }
  void abandon() noexcept override { wait_for_all(); }
  const char* name() const override { return "io_uring"; }

 private:
  // Of transfers that the kernel can't be asked for any more: how often they are looked for, and how long.
  static constexpr std::chrono::milliseconds kPollInterval{1};
  static constexpr std::chrono::seconds kLongestUntold{2};
  // A kernel that is short of memory is asked again as often, and for so long.
  static constexpr std::chrono::seconds kLongestShortage{10};

  void wait_for_all() noexcept {
    const Deadline end = Deadline::after(kLongestUntold);
    while (free_.size() < places_.size() && (refused_ == 0 || !end.passed())) try {
        if (!take(refused_ == 0 ? Wait::yes : Wait::no) && refused_ != 0)
          std::this_thread::sleep_for(kPollInterval);
      } catch (const OffloadError&) {
        // Nobody is left to be told: who cares for the bytes has waited before, or has heard of an error.
      }
  }

  bool make_rings() {
    io_uring_params about = {};
    ring_.reset(static_cast<int>(::syscall(__NR_io_uring_setup, places_.size(), &about)));
    if (!ring_) return false;
    constexpr unsigned kNeeded = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_NODROP | IORING_FEAT_RW_CUR_POS;
    if ((about.features & kNeeded) != kNeeded) {  // of 5.6, which reads and writes plain buffers
      errno = ENOSYS;
      return false;
    }
    const std::size_t bytes = std::max(about.sq_off.array + about.sq_entries * sizeof(unsigned),
                                       about.cq_off.cqes + about.cq_entries * sizeof(io_uring_cqe));
    rings_ = RingMemory(ring_.get(), bytes, IORING_OFF_SQ_RING);
    if (!rings_) return false;
    entries_ = RingMemory(ring_.get(), about.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES);
    if (!entries_) return false;
    submitted_ = rings_.at<unsigned>(about.sq_off.tail);
    submit_mask_ = *rings_.at<unsigned>(about.sq_off.ring_mask);
    submit_order_ = rings_.at<unsigned>(about.sq_off.array);
    completed_ = rings_.at<unsigned>(about.cq_off.tail);
    seen_ = rings_.at<unsigned>(about.cq_off.head);
    complete_mask_ = *rings_.at<unsigned>(about.cq_off.ring_mask);
    completions_ = rings_.at<io_uring_cqe>(about.cq_off.cqes);
    return true;
  }

  // What a process may do (seccomp, a kernel's settings) can be to have rings and nothing in them. The first
  // bytes of the file, out and back: they stay what they are.
  bool try_transfers() {
    if (file_.bytes() == 0) return true;
    tried_ = AlignedMemory(ScratchFile::kAlign);
    for (const Transfer::Way way : {Transfer::Way::read, Transfer::Way::write}) try {
        begin({.way = way, .at = 0, .bytes = tried_.first(tried_.size()), .tag = 0});
        take(Wait::yes);
      } catch (const OffloadError&) {
        errno = error_;
        return false;
      }
    return true;
  }

  static const char* verb(const Transfer& transfer) {
    return transfer.way == Transfer::Way::read ? "read" : "write";
  }

  void submit(std::size_t place) {
    const Transfer& transfer = places_[place];
    const unsigned tail = *submitted_, index = tail & submit_mask_;
    io_uring_sqe& entry = entries_.at<io_uring_sqe>(0)[index];
    std::memset(&entry, 0, sizeof entry);
    entry.opcode = transfer.way == Transfer::Way::read ? IORING_OP_READ : IORING_OP_WRITE;
    entry.fd = file_.fd();
    entry.off = transfer.at;
    entry.addr = reinterpret_cast<std::uint64_t>(transfer.bytes.data());
    entry.len = static_cast<unsigned>(transfer.bytes.size());
    entry.user_data = place;
    submit_order_[index] = index;
    std::atomic_ref(*submitted_).store(tail + 1, std::memory_order_release);
    if (enter(1, 0)) return;
    const int error = errno;
    std::atomic_ref(*submitted_).store(tail, std::memory_order_release);  // it was not taken
    free_.push_back(place);
    fail(verb(transfer), error);
  }

  // The tag of a transfer that is through; nullopt: the rest of it is under way. The kernel may do less than
  // was asked.
  std::optional<std::size_t> end(std::size_t place, int result) {
    Transfer& transfer = places_[place];
    const bool again = result == -EINTR || result == -EAGAIN;
    if (result <= 0 && !again) {
      free_.push_back(place);
      if (result < 0) fail(verb(transfer), -result);
      error_ = EIO;
      const std::string at = std::to_string(transfer.at);
      throw OffloadError(transfer_text(verb(transfer), file_.folder()) +
                         (transfer.way == Transfer::Way::read
                              ? ": it ends at byte " + at + ", before what it held"
                              : ": it takes nothing at byte " + at));
    }
    if (again) result = 0;
    const auto did = static_cast<std::size_t>(result);
    transfer.at += did;
    transfer.bytes = transfer.bytes.subspan(did);
    if (!transfer.bytes.empty()) {
      submit(place);
      return std::nullopt;
    }
    free_.push_back(place);
    return transfer.tag;
  }

  [[noreturn]] void fail(const char* what, int error) {
    error_ = error;
    throw OffloadError(transfer_text(what, file_.folder()), error);
  }

  bool enter(unsigned submissions, unsigned completions) {
    for (const Deadline end = Deadline::after(kLongestShortage);;) {
      const long done = ::syscall(__NR_io_uring_enter, ring_.get(), submissions, completions,
                                  completions > 0 ? IORING_ENTER_GETEVENTS : 0, nullptr, 0);
      if (done >= 0) return true;
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EBUSY) || end.passed()) return false;
      std::this_thread::sleep_for(kPollInterval);
    }
  }

  const ScratchFile& file_;
  int error_ = 0;                  // of the last transfer that failed
  int refused_ = 0;                // why nothing can be waited for any more
  AlignedMemory tried_;            // for try_transfers()
  std::vector<Transfer> places_;   // by what the kernel calls them
  std::vector<std::size_t> free_;  // of those
  UniqueFd ring_;
  RingMemory rings_, entries_;
  unsigned* submitted_ = nullptr;     // how many in all, for the kernel to see
  unsigned* submit_order_ = nullptr;  // which entry each of them is
  unsigned submit_mask_ = 0;
  unsigned* completed_ = nullptr;  // likewise, of the kernel
  unsigned* seen_ = nullptr;       // of those, how many we have looked at
  unsigned complete_mask_ = 0;
  io_uring_cqe* completions_ = nullptr;
};

}  // namespace

std::unique_ptr<Transfers> make_uring_transfers(const ScratchFile& file, std::size_t most) {
  auto ring = std::make_unique<UringTransfers>(file, most);
  return ring->open() ? std::move(ring) : nullptr;
}

}  // namespace lockstep
