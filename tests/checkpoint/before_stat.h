// What another process does just before this one looks at a folder.
#pragma once

#include <filesystem>
#include <functional>

namespace lockstep::test {

// While it lives: calls `act` once, before the stat() of `folder` that is the `number`th from now on.
class BeforeStat {
 public:
  BeforeStat(std::filesystem::path folder, std::function<void()> act, int number = 1);
  ~BeforeStat();
  BeforeStat(const BeforeStat&) = delete;
  BeforeStat& operator=(const BeforeStat&) = delete;

  void note(const char* path);

 private:
  std::filesystem::path folder_;
  std::function<void()> act_;
  int number_;
  BeforeStat* outer_;
};

}  // namespace lockstep::test
