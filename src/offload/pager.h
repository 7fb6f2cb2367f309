// A file that is gone over page by page: the pages ahead are read while one is worked on, those behind it
// written. A fixed number of buffers is all the memory that it takes.
//
//   page        1   2   3   4   5   6   7
//               ✓   w   w   ●   r   r          ✓ written, w on its way out, ● worked on, r on its way in
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/offload/offload.h"
#include "offload/aligned_memory.h"
#include "offload/scratch_file.h"
#include "offload/transfers.h"

namespace lockstep {

// What becomes of a page: `write` begins with zeros.
enum class PageUse : std::uint8_t { read, write, update };

struct FilePage {
  std::uint64_t at = 0;   // in the file
  std::size_t bytes = 0;  // both multiples of ScratchFile::kAlign
};

// Used by one thread, but for file().read().
class Pager {
 public:
  // Makes the file, and as many buffers as there are pages, at most kStagedPages. Throws OffloadError.
  Pager(const Offload& offload, std::vector<FilePage> pages);
  ~Pager();
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  struct Visit {
    std::size_t page = 0;
    PageUse use = PageUse::update;
  };
  // One page after the other, in this order and on this thread. Each page at most once. Returns when all that
  // is written is in the file, and on the disk where that is how errors show. Throws OffloadError, and what
  // `work` throws, when nothing is under way any more.
  using Work = std::function<void(std::size_t page, std::span<std::byte> bytes)>;
  void pass(std::span<const Visit> visits, const Work& work);

  ScratchFile& file() { return file_; }
  const ScratchFile& file() const { return file_; }
  std::span<const FilePage> pages() const { return pages_; }
  std::size_t staging_bytes() const;
  const char* io_name() const { return transfers_->name(); }
  // That passes were kept by transfers, so far.
  std::int64_t waited_ns() const { return waited_ns_; }

 private:
  class Pass;

  std::vector<FilePage> pages_;
  ScratchFile file_;
  std::vector<AlignedMemory> buffers_;
  std::int64_t waited_ns_ = 0;
  std::unique_ptr<Transfers> transfers_;  // last: it waits for what goes to and from the others
};

// Bytes a second, over the first pages: noise is written to them, read, and both at once.
struct DiskRates {
  double read = 0;
  double write = 0;
  double both = 0;  // in each direction
  OffloadPath path = OffloadPath::page_cache;
};
// What the pages held is lost. Throws OffloadError.
DiskRates measure_rates(Pager& pager);
// Of a folder where nothing lies yet; `most`: bytes that may be written there.
DiskRates rates_of(const Offload& offload, std::uint64_t most = std::uint64_t{1} << 40);

// How often a step goes over all of an optimizer's state.
struct StepPasses {
  int updates = 1;  // read and written
  int reads = 0;    // read alone
};
// Whose norms a step needs before it can update: LARS those of parameters, LAMB those of moments too, which
// take in the gradient for that.
enum class StepNorms : std::uint8_t { none, of_parameters, of_moments };
enum class StepMasters : bool { none, on_disk };
StepPasses passes_of_step(StepNorms norms, StepMasters masters);
// What they take for so many bytes, were nothing done beside them.
double milliseconds_of(const StepPasses& passes, double bytes, const DiskRates& rates);

}  // namespace lockstep
