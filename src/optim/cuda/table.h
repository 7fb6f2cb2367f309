// Many arrays as one grid: each is cut into chunks of a fixed number of elements, and chunk k of all of them
// is block k. The arrays' addresses are parameters of the launch: nothing is copied before it, nothing has to
// stay behind it, and arrays may be others in every step.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace lockstep::kernel::cuda {

inline constexpr unsigned kThreads = 256;
inline constexpr unsigned kChunkElements = 8192;

inline unsigned chunks_of(std::size_t count) {
  return static_cast<unsigned>((count + kChunkElements - 1) / kChunkElements);
}

// Entry: what the kernel knows of an array; it has a `count`. kMost: how many fit a launch.
template <class Entry, int kMost_>
struct Table {
  static constexpr int kMost = kMost_;
  Entry entries[kMost];
  unsigned first_chunk[kMost + 1];  // of each, and behind the last
  int size = 0;

  // The array that a chunk belongs to.
  __device__ int find(unsigned chunk) const {
    int low = 0, high = size - 1;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (first_chunk[middle] <= chunk)
        low = middle;
      else
        high = middle - 1;
    }
    return low;
  }
};

// Parameters of a launch take 32,764 bytes at most, and up to 4 KiB they cost least: two sizes of table.
template <class Entry>
struct Tables {
  static constexpr std::size_t kRest = 256;  // for the kernel's other parameters
  static constexpr std::size_t kEach = sizeof(Entry) + sizeof(unsigned);
  using Small = Table<Entry, static_cast<int>((4096 - kRest) / kEach)>;
  using Large = Table<Entry, static_cast<int>((32764 - kRest) / kEach)>;
  static_assert(sizeof(Large) + 64 <= 32764);
};

// Calls launch(table, chunks, first) for as many tables as `count` arrays need; entry(i) gives them. Arrays
// of no elements are left out. `first`: the number of chunks in tables before.
template <class Entry, class Make, class Launch>
void by_tables(std::size_t count, const Make& entry, const Launch& launch) {
  const auto run = [&]<class T>(T table) {
    unsigned before = 0, chunks = 0;
    table.size = 0;
    const auto flush = [&] {
      if (table.size == 0) return;
      table.first_chunk[table.size] = chunks;
      launch(std::as_const(table), chunks, before);
      before += chunks;
      chunks = 0;
      table.size = 0;
    };
    for (std::size_t i = 0; i < count; ++i) {
      const Entry one = entry(i);
      if (one.count == 0) continue;
      table.entries[table.size] = one;
      table.first_chunk[table.size] = chunks;
      ++table.size;
      chunks += chunks_of(one.count);
      if (table.size == T::kMost) flush();
    }
    flush();
  };
  if (count <= static_cast<std::size_t>(Tables<Entry>::Small::kMost))
    run(typename Tables<Entry>::Small());
  else
    run(typename Tables<Entry>::Large());
}

}  // namespace lockstep::kernel::cuda
