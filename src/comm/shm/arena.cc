#include "comm/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <string>

#include "base/round_up.h"
#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::shm {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;
constexpr std::uint64_t kPopulateStep = std::uint64_t{16} << 20;
constexpr int kMadviseCollapse = 25;  // MADV_COLLAPSE, Linux 6.1; headers may be older than the kernel

// What a block of so many bytes takes.
std::uint64_t block_bytes(std::size_t bytes) {
  return round_up(std::max<std::uint64_t>(bytes, 1), bytes >= kHugePage ? kHugePage : kPage);
}

// What a block that several ranks hold takes, with the page of its holders.
std::uint64_t held_bytes(std::size_t bytes) { return block_bytes(bytes) + kPage; }

// MemAvailable of the machine; 0 if unknown.
std::uint64_t available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  std::uint64_t kib = 0;
  std::string unit;
  while (meminfo >> key >> kib && std::getline(meminfo, unit))
    if (key == "MemAvailable:") return kib * 1024;
  return 0;
}

// What this process's control group may still take; no limit: the largest number. (Containers.)
std::uint64_t allowed_bytes() {
  constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};
  std::ifstream own("/proc/self/cgroup");
  std::string path;
  if (!std::getline(own, path) || !path.starts_with("0::")) return kNoLimit;  // no version 2 hierarchy
  const std::string folder = "/sys/fs/cgroup" + path.substr(3);
  std::uint64_t most = 0;
  std::uint64_t used = 0;
  if (!(std::ifstream(folder + "/memory.max") >> most)) return kNoLimit;  // "max", or not there
  if (!(std::ifstream(folder + "/memory.current") >> used)) return kNoLimit;
  return most > used ? most - used : 0;
}

}  // namespace

// An odd number of huge pages from region to region. Ranks allocate alike, so their blocks lie a multiple of
// this apart, and `direct` works on the same element of all of them at once. A distance that is a large power
// of two would give those elements one and the same tag in the first cache of some processors (AMD's Zen tags
// lines by a hash of address bits 12 to 27), where each then drives the other out: four times slower.
std::uint64_t ArenaShape::region_offset(int rank) const {
  const std::uint64_t stride = round_up(region_bytes, kHugePage) | kHugePage;
  return round_up(head_bytes, kHugePage) + static_cast<std::uint64_t>(rank) * stride;
}

std::uint64_t ArenaShape::total_bytes() const { return region_offset(ranks); }

UniqueFd Arena::create(const ArenaShape& shape) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < shape.total_bytes())
    throw SystemError("shared memory needs a file size limit of " + format_bytes(shape.total_bytes()) +
                      " but it is " + format_bytes(limit.rlim_cur) +
                      "; raise it (ulimit -f unlimited) or set LOCKSTEP_ARENA smaller");
  UniqueFd fd(::memfd_create("lockstep", MFD_CLOEXEC));
  if (!fd) throw SystemError("cannot make shared memory (memfd_create)", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(shape.total_bytes())) != 0)
    throw SystemError(
        "cannot size shared memory to " + format_bytes(shape.total_bytes()) + " (LOCKSTEP_ARENA sets it)",
        errno);
  return fd;
}

Arena::Arena(UniqueFd fd, const ArenaShape& shape) : fd_(std::move(fd)), shape_(shape) {
  try {
    mapping_ = Mapping(fd_.get(), shape_.total_bytes());
  } catch (const SystemError& error) {
    throw SystemError(std::string(error.what()) +
                      "; raise the address space limit (ulimit -v) or set LOCKSTEP_ARENA smaller");
  }
  ::madvise(mapping_.data(), mapping_.bytes(), MADV_DONTDUMP);
}

std::byte* Arena::head() const { return mapping_.data(); }

std::optional<std::uint64_t> Arena::offset_of(const void* data, std::size_t bytes) const {
  const auto* const p = static_cast<const std::byte*>(data);
  const std::byte* const begin = mapping_.data();
  if (p < begin || p + bytes > begin + mapping_.bytes()) return std::nullopt;
  return static_cast<std::uint64_t>(p - begin);
}

// At the end of a block that several ranks hold.
struct Arena::Holders {
  std::atomic<std::uint32_t> left;
  std::atomic<std::uint32_t> gone;  // 1: nobody holds it, its memory is the system's again
};

// `whole`: with what lies behind the `bytes` that were asked for.
std::uint64_t Arena::make_block(int rank, std::size_t bytes, std::uint64_t whole) {
  if (bytes > shape_.region_bytes) refuse(rank, bytes, "is smaller");
  if (const std::uint64_t free_bytes = available_bytes(); free_bytes != 0 && whole > free_bytes)
    throw SystemError("cannot allocate " + format_bytes(bytes) + " of comm memory: the machine has " +
                      format_bytes(free_bytes) + " available");
  if (const std::uint64_t allowed = allowed_bytes(); whole > allowed)
    throw SystemError("cannot allocate " + format_bytes(bytes) +
                      " of comm memory: the memory limit of this control group leaves " +
                      format_bytes(allowed));
  const std::uint64_t offset = take(rank, whole, whole >= kHugePage ? kHugePage : kPage);
  try {
    populate(offset, whole);
  } catch (...) {
    give(rank, offset, whole);
    throw;
  }
  return offset;
}

CommMemory Arena::allocate(int rank, std::size_t bytes) {
  const std::uint64_t want = block_bytes(bytes);
  const std::uint64_t offset = make_block(rank, bytes, want);
  auto owner = std::shared_ptr<void>(
      at(offset), [self = shared_from_this(), rank, offset, want](void*) { self->give(rank, offset, want); });
  return {std::move(owner), bytes};
}

// `whole`: of a block with its holders, who have the last page of it.
std::uint64_t Arena::holders_offset(std::uint64_t offset, std::uint64_t whole) {
  return offset + whole - kPage;
}

Arena::Holders& Arena::holders_of(std::uint64_t offset, std::uint64_t whole) const {
  return *reinterpret_cast<Holders*>(at(holders_offset(offset, whole)));
}

std::uint64_t Arena::share(int rank, std::size_t bytes, int holders) {
  const std::uint64_t whole = held_bytes(bytes);
  const std::uint64_t offset = make_block(rank, bytes, whole);
  auto* const state = new (&holders_of(offset, whole)) Holders{};
  state->left.store(static_cast<std::uint32_t>(holders), std::memory_order_release);
  const std::lock_guard lock(mutex_);
  regions_[rank].shared.emplace(offset, whole);
  return offset;
}

CommMemory Arena::hold(std::uint64_t offset, std::size_t bytes) {
  auto owner = std::shared_ptr<void>(
      at(offset), [self = shared_from_this(), offset, bytes](void*) { self->let_go(offset, bytes); });
  return {std::move(owner), bytes};
}

// The last one gives the memory back. The place is its maker's, who alone knows what is free in its region
// and takes it back when it looks for some.
void Arena::let_go(std::uint64_t offset, std::size_t bytes) {
  Holders& holders = holders_of(offset, held_bytes(bytes));
  if (holders.left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  punch(offset, block_bytes(bytes));
  holders.gone.store(1, std::memory_order_release);
}

void Arena::take_back_shared(Region& region) const {
  for (auto block = region.shared.begin(); block != region.shared.end();) {
    const auto [offset, whole] = *block;
    if (holders_of(offset, whole).gone.load(std::memory_order_acquire) == 0) {
      ++block;
      continue;
    }
    punch(holders_offset(offset, whole), kPage);
    put_back(region, offset, whole);
    block = region.shared.erase(block);
  }
}

std::uint64_t Arena::reserve(int rank, std::size_t bytes) {
  return take(rank, round_up(bytes, kPage), kPage);
}

void Arena::release(int rank, std::uint64_t offset, std::size_t bytes) {
  give(rank, offset, round_up(bytes, kPage));
}

void Arena::refuse(int rank, std::uint64_t bytes, const char* why) const {
  const std::string who = rank < names_.size() ? names_.named(rank) : "rank " + std::to_string(rank);
  throw SystemError("cannot allocate " + format_bytes(bytes) + " of comm memory: " + who + "'s region of " +
                    format_bytes(shape_.region_bytes) + " " + why + "; set LOCKSTEP_ARENA larger");
}

// First fit: blocks are few and large.
std::uint64_t Arena::take(int rank, std::uint64_t bytes, std::uint64_t align) {
  const std::lock_guard lock(mutex_);
  auto [place, fresh] = regions_.try_emplace(rank);
  auto& free = place->second.free;
  if (fresh) free.emplace(shape_.region_offset(rank), round_up(shape_.region_bytes, kHugePage));
  take_back_shared(place->second);
  for (auto hole = free.begin(); hole != free.end(); ++hole) {
    const auto [offset, size] = *hole;
    const std::uint64_t start = round_up(offset, align);
    if (start + bytes > offset + size) continue;
    free.erase(hole);
    if (start > offset) free.emplace(offset, start - offset);
    if (start + bytes < offset + size) free.emplace(start + bytes, offset + size - start - bytes);
    return start;
  }
  refuse(rank, bytes, "is full");
}

// Gives the pages back to the system and makes the block read as zero again.
void Arena::punch(std::uint64_t offset, std::uint64_t bytes) const {
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes)) != 0)
    log().warn("cannot give {} of comm memory back: errno {}", format_bytes(bytes), errno);
}

void Arena::keep(const void* data) noexcept try {
  const auto offset = offset_of(data, 1);
  if (!offset) return;
  const std::lock_guard lock(mutex_);
  for (auto& [rank, region] : regions_)
    if (const std::uint64_t begin = shape_.region_offset(rank);
        *offset >= begin && *offset < begin + shape_.region_bytes)
      region.kept.insert(*offset);
} catch (const std::exception&) {  // no memory for the note
}

void Arena::give(int rank, std::uint64_t offset, std::uint64_t bytes) {
  punch(offset, bytes);
  const std::lock_guard lock(mutex_);
  put_back(regions_[rank], offset, bytes);
}

void Arena::put_back(Region& region, std::uint64_t offset, std::uint64_t bytes) {
  const auto kept = region.kept.lower_bound(offset);
  if (kept != region.kept.end() && *kept < offset + bytes) return;
  auto& free = region.free;
  auto next = free.lower_bound(offset);
  if (next != free.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = free.erase(next);
  }
  if (next != free.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += bytes;
      return;
    }
  }
  free.emplace(offset, bytes);
}

void Arena::populate(std::uint64_t offset, std::uint64_t bytes) {
  if (huge_pages_ && bytes >= kHugePage) {
    ::madvise(at(offset), bytes, MADV_HUGEPAGE);
    ::madvise(at(offset), bytes, kMadviseCollapse);  // a wish: what it leaves out, fallocate fills
  }
  // In steps: a signal undoes the step that it interrupts, and a timer's signals would undo one large step
  // again and again.
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t step = std::min(bytes - done, kPopulateStep);
    if (::fallocate(fd_.get(), 0, static_cast<off_t>(offset + done), static_cast<off_t>(step)) == 0)
      done += step;
    else if (errno != EINTR)
      throw SystemError("cannot allocate " + format_bytes(bytes) + " of comm memory", errno);
  }
}

}  // namespace lockstep::shm
