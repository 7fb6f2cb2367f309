#include "checkpoint/before_stat.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <utility>

namespace lockstep::test {
namespace {

BeforeStat* current = nullptr;

}  // namespace

BeforeStat::BeforeStat(std::filesystem::path folder, std::function<void()> act, int number)
    : folder_(std::move(folder)), act_(std::move(act)), number_(number), outer_(current) {
  current = this;
}

BeforeStat::~BeforeStat() { current = outer_; }

void BeforeStat::note(const char* path) {
  if (folder_ == path && --number_ == 0) act_();
}

}  // namespace lockstep::test

// Stands before the C library's.
extern "C" int stat(const char* path, struct stat* status) noexcept {
  if (lockstep::test::current != nullptr) lockstep::test::current->note(path);
  return ::fstatat(AT_FDCWD, path, status, 0);
}
