#include "train/threads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "base/option_name.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A function of the OpenMP library that libtorch brings along, if it does.
template <class Function>
Function* omp(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
}

// OpenBLAS wants a buffer of 128 MiB a thread with its first product, keeps it, and where there is no memory
// asks for it again and again without end. So it gets its buffers now, while there is some, and what comes
// later and finds none left ends with an error as everything else does.
void take_blas_buffers(std::int64_t threads) {
  constexpr std::size_t kBuffer = 132u << 20;  // with what goes around it
  if (!std::unique_ptr<void, decltype(&std::free)>(std::malloc(static_cast<std::size_t>(threads) * kBuffer),
                                                   &std::free))
    throw std::bad_alloc();
  constexpr std::int64_t kShared = 256;  // rows enough that all threads have some
  const at::Tensor factor = at::zeros({kShared, kShared});
  (void)at::mm(factor, factor);
}

}  // namespace

void pin_threads(std::int64_t threads) {
  at::set_num_threads(static_cast<int>(threads));
  // OMP_DYNAMIC lets the library take fewer when the machine is busy.
  if (auto* const set_dynamic = omp<void(int)>("omp_set_dynamic")) set_dynamic(0);
  auto* const thread_limit = omp<int()>("omp_get_thread_limit");
  if (const int limit = thread_limit == nullptr ? INT32_MAX : thread_limit(); limit < threads)
    throw UsageError(fmt::format("{}: OMP_THREAD_LIMIT={} leaves a worker fewer; accepted: up to that",
                                 option_text("threads", std::to_string(threads)), limit));
  take_blas_buffers(threads);
}

}  // namespace lockstep
