// The memory that all ranks of one machine share: one sparse, nameless file (memfd), mapped whole by
// every rank. Having no name it cannot outlive its processes, however they end, and a container's small
// /dev/shm does not limit it. Each rank owns a region and allocates from it without asking anybody, so
// any block of any rank is reachable everywhere as base + offset. Only touched pages take memory.
//
//   | header | head (the world group's control block) | region of rank 0 | region of rank 1 | …
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "comm/call/rank_names.h"
#include "lockstep/base/fd.h"
#include "lockstep/base/mapping.h"
#include "lockstep/comm/memory.h"

namespace lockstep::shm {

struct ArenaShape {
  int ranks = 1;
  std::uint64_t head_bytes = 0;
  std::uint64_t region_bytes = 0;

  std::uint64_t region_offset(int rank) const;
  std::uint64_t total_bytes() const;
};

class Arena : public std::enable_shared_from_this<Arena> {
 public:
  // Makes the file. Throws SystemError.
  static UniqueFd create(const ArenaShape& shape);

  Arena(UniqueFd fd, const ArenaShape& shape);

  std::byte* at(std::uint64_t offset) const { return mapping_.data() + offset; }
  std::byte* head() const;
  // Where [data, data + bytes) lies, if it lies in this arena.
  std::optional<std::uint64_t> offset_of(const void* data, std::size_t bytes) const;

  // A zeroed block of `rank`'s region with its memory already taken, so that using it cannot fail later.
  // Huge pages under blocks of 2 MiB and more, where the kernel gives them. Throws SystemError when the
  // region or the machine has too little.
  CommMemory allocate(int rank, std::size_t bytes);
  // The offset of a zeroed block whose pages come when touched: for control blocks, mostly untouched. Lives
  // until it is released.
  std::uint64_t reserve(int rank, std::size_t bytes);
  void release(int rank, std::uint64_t offset, std::size_t bytes);

  // A zeroed block of `rank`'s region that `holders` ranks hold, each by a handle of its own that it gets
  // from hold(): the memory goes with the last of them, in whichever process that is. The offset of the
  // block.
  std::uint64_t share(int rank, std::size_t bytes, int holders);
  // Once a holder.
  CommMemory hold(std::uint64_t offset, std::size_t bytes);

  // Somebody may yet write into the block of this process in which `data` lies: its place is not handed out
  // again. Nothing where it is in none.
  void keep(const void* data) noexcept;

  void use_huge_pages(bool yes) { huge_pages_ = yes; }
  // What the owners of regions are called in errors; before that, by their numbers. Before the first block.
  void call_ranks(RankNames names) { names_ = std::move(names); }

 private:
  struct Region {
    std::map<std::uint64_t, std::uint64_t> free;    // offset → bytes, never touching each other
    std::set<std::uint64_t> kept;                   // offsets in blocks whose places are used no more
    std::map<std::uint64_t, std::uint64_t> shared;  // blocks of share() that were not found let go yet
  };
  struct Holders;

  static std::uint64_t holders_offset(std::uint64_t offset, std::uint64_t whole);
  Holders& holders_of(std::uint64_t offset, std::uint64_t whole) const;
  void let_go(std::uint64_t offset, std::size_t bytes);
  std::uint64_t make_block(int rank, std::size_t bytes, std::uint64_t whole);
  [[noreturn]] void refuse(int rank, std::uint64_t bytes, const char* why) const;
  std::uint64_t take(int rank, std::uint64_t bytes, std::uint64_t align);
  void give(int rank, std::uint64_t offset, std::uint64_t bytes);
  void punch(std::uint64_t offset, std::uint64_t bytes) const;
  static void put_back(Region& region, std::uint64_t offset, std::uint64_t bytes);
  void take_back_shared(Region& region) const;
  void populate(std::uint64_t offset, std::uint64_t bytes);

  UniqueFd fd_;
  ArenaShape shape_;
  Mapping mapping_;
  bool huge_pages_ = true;
  RankNames names_;
  std::mutex mutex_;
  std::map<int, Region> regions_;  // only of the ranks in this process
};

}  // namespace lockstep::shm
