#include "train/threads.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "base/option_name.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A function of the OpenMP library that libtorch brings along, if it does.
template <class Function>
Function* omp(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name));
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
}

}  // namespace lockstep
