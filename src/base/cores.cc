#include "base/cores.h"

#include <sched.h>

#include <array>
#include <cstddef>

namespace lockstep {
namespace {

// What the kernel takes for a set of cores: of any length, which is told beside it.
constexpr std::size_t kCoresAWord = 8 * sizeof(unsigned long);
using CoreWords = std::array<unsigned long, kMostCpus / kCoresAWord>;

}  // namespace

CoreMask allowed_cores() {
  CoreMask cores;
  CoreWords words{};
  if (::sched_getaffinity(0, sizeof words, reinterpret_cast<cpu_set_t*>(words.data())) != 0) return cores;
  for (std::size_t core = 0; core < cores.size(); ++core)
    cores[core] = (words[core / kCoresAWord] >> (core % kCoresAWord) & 1U) != 0;
  return cores;
}

bool allow_cores(const CoreMask& cores) {
  CoreWords words{};
  for (std::size_t core = 0; core < cores.size(); ++core)
    if (cores[core]) words[core / kCoresAWord] |= 1UL << (core % kCoresAWord);
  return ::sched_setaffinity(0, sizeof words, reinterpret_cast<const cpu_set_t*>(words.data())) == 0;
}

}  // namespace lockstep
