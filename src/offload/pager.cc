#include "offload/pager.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

std::uint64_t end_of(std::span<const FilePage> pages) {
  std::uint64_t end = 0;
  for (const FilePage& page : pages) end = std::max(end, page.at + page.bytes);
  return end;
}

}  // namespace

Pager::Pager(const Offload& offload, std::vector<FilePage> pages)
    : pages_(std::move(pages)),
      file_(offload.folder, end_of(pages_)),
      transfers_(make_transfers(file_, kStagedPages, offload.io)) {
  std::size_t most = 0;
  for (const FilePage& page : pages_) most = std::max(most, page.bytes);
  for (std::size_t i = 0; i < std::min(kStagedPages, pages_.size()); ++i) buffers_.emplace_back(most);
}

Pager::~Pager() = default;

std::size_t Pager::staging_bytes() const {
  std::size_t bytes = 0;
  for (const AlignedMemory& buffer : buffers_) bytes += buffer.size();
  return bytes;
}

// One way through the visits. Their numbers are the tags of transfers.
class Pager::Pass {
 public:
  Pass(Pager& pager, std::span<const Visit> visits) : pager_(pager), visits_(visits), state_(visits.size()) {
    for (std::size_t i = 0; i < pager_.buffers_.size(); ++i) free_.push_back(i);
  }

  void run(const Work& work) {
    for (std::size_t now = 0; now < visits_.size(); ++now) {
      while (under_way_ > 0 && end_one(Wait::no)) {
      }
      read_ahead();
      while (!state_[now].there) {
        wait();
        read_ahead();
      }
      const std::size_t page = visits_[now].page;
      const std::span<std::byte> bytes = buffer_of(now);
      if (visits_[now].use == PageUse::write) std::memset(bytes.data(), 0, bytes.size());
      work(page, bytes);
      if (visits_[now].use == PageUse::read)
        free_.push_back(state_[now].buffer);
      else
        begin(now, Transfer::Way::write);
    }
    while (under_way_ > 0) wait();
    if (!pager_.file_.direct() && wrote_) timed([&] { pager_.file_.sync(); });
  }
  // Until no buffer is in use, whatever becomes of the transfers.
  void give_up() {
    while (under_way_ > 0) try {
        end_one(Wait::yes);
      } catch (const OffloadError&) {
        // The first one is on its way to the caller.
      }
  }

 private:
  struct State {
    std::size_t buffer = 0;
    bool there = false;  // read, or nothing to be read
  };

  std::span<std::byte> buffer_of(std::size_t visit) const {
    return pager_.buffers_[state_[visit].buffer].first(pager_.pages_[visits_[visit].page].bytes);
  }
  void begin(std::size_t visit, Transfer::Way way) {
    timed([&] {  // a full queue, or a disk that is asked on this thread, keeps it waiting here
      pager_.transfers_->begin(
          {.way = way, .at = pager_.pages_[visits_[visit].page].at, .bytes = buffer_of(visit), .tag = visit});
    });
    ++under_way_;
    wrote_ = wrote_ || way == Transfer::Way::write;
  }
  void read_ahead() {
    for (; next_ < visits_.size() && !free_.empty(); ++next_) {
      state_[next_].buffer = free_.back();
      free_.pop_back();
      if (visits_[next_].use == PageUse::write)
        state_[next_].there = true;
      else
        begin(next_, Transfer::Way::read);
    }
  }
  // False: none is through.
  bool end_one(Wait how) {
    std::optional<std::size_t> tag;
    try {
      tag = pager_.transfers_->take(how);
    } catch (const OffloadError&) {
      --under_way_;
      throw;
    }
    if (!tag) return false;
    --under_way_;
    // A page that was there already comes back from being written.
    if (std::exchange(state_[*tag].there, true)) free_.push_back(state_[*tag].buffer);
    return true;
  }
  void wait() {
    timed([&] { end_one(Wait::yes); });
  }
  template <class Work>
  void timed(Work&& work) {
    const std::int64_t since = now_ns();
    work();
    pager_.waited_ns_ += now_ns() - since;
  }

  Pager& pager_;
  std::span<const Visit> visits_;
  std::vector<State> state_;
  std::vector<std::size_t> free_;  // buffers
  std::size_t next_ = 0;           // the first visit whose page is not asked for
  std::size_t under_way_ = 0;
  bool wrote_ = false;
};

void Pager::pass(std::span<const Visit> visits, const Work& work) {
  Pass pass(*this, visits);
  try {
    pass.run(work);
  } catch (...) {
    pass.give_up();
    throw;
  }
}

}  // namespace lockstep
