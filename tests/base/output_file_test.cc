#include "base/output_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdarg.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <iterator>

#include "lockstep/base/error.h"

namespace {
bool has_nameless_files = true;
}

// In place of the C library's, for this whole program: a file system without O_TMPFILE.
extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  if (!has_nameless_files && (flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The parameter: whether files can be without a name.
class ReplaceFile : public ::testing::TestWithParam<bool> {
 protected:
  ReplaceFile() {
    has_nameless_files = GetParam();
    std::string name = (fs::temp_directory_path() / "lockstep-replace-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~ReplaceFile() override {
    has_nameless_files = true;
    fs::remove_all(folder_);
  }

  std::string text_of(const fs::path& file) const {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string failure(const fs::path& file, const std::string& text) const {
    try {
      replace_file(file, text, Sync::yes);
    } catch (const SystemError& error) {
      return error.what();
    }
    return "";
  }
  std::ptrdiff_t entries() const {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  }

  fs::path folder_;
};

TEST_P(ReplaceFile, TakesThePlaceOfTheOldOneAndLeavesNothingBeside) {
  const fs::path file = folder_ / "a.json";
  std::ofstream(folder_ / (".a.json." + std::to_string(::getpid()))) << "of a process that was killed";
  for (const char* text : {"first", "second", ""}) {
    replace_file(file, text, Sync::no);
    EXPECT_EQ(text_of(file), text);
  }
  replace_file(file, "third", Sync::yes);
  EXPECT_EQ(text_of(file), "third");
  EXPECT_EQ(entries(), 1);
}

TEST_P(ReplaceFile, WorksInTheCurrentFolder) {
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  replace_file("plain", "text", Sync::no);
  fs::current_path(before);
  EXPECT_EQ(text_of(folder_ / "plain"), "text");
}

TEST_P(ReplaceFile, AFailureNamesTheFileAndLeavesNothing) {
  EXPECT_EQ(failure(folder_ / "none" / "a", "x"),
            "cannot write " + (folder_ / "none" / "a").string() + ": No such file or directory");
  fs::create_directory(folder_ / "folder");  // nothing can be renamed over it
  EXPECT_EQ(failure(folder_ / "folder", "x"),
            "cannot write " + (folder_ / "folder").string() + ": Is a directory");
  EXPECT_EQ(entries(), 1);
}

// A limit on the size of files stands for a full disk: write() fails half way.
TEST_P(ReplaceFile, AFullDiskKeepsTheOldOne) {
  replace_file(folder_ / "a.json", "old", Sync::yes);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{.rlim_cur = 100, .rlim_max = before.rlim_max};
  std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = failure(folder_ / "a.json", std::string(1000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, SIG_DFL);
  EXPECT_EQ(message, "cannot write " + (folder_ / "a.json").string() + ": File too large");
  EXPECT_EQ(text_of(folder_ / "a.json"), "old");
  EXPECT_EQ(entries(), 1);
}

TEST_P(ReplaceFile, WhatIsThereStaysWhenItIsToStay) {
  const fs::path file = folder_ / "a.json";
  const auto publish = [&](const char* text) {
    publish_file(
        file, [&](const PieceWriter& write) { write(std::as_bytes(std::span(std::string_view(text)))); },
        Sync::yes, Existing::refuse);
  };
  publish("first");
  try {
    publish("second");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const SystemError& error) {
    EXPECT_EQ(error.what(), "cannot write " + file.string() + ": File exists");
  }
  EXPECT_EQ(text_of(file), "first");
  EXPECT_EQ(entries(), 1);
}

TEST_P(ReplaceFile, WhoFailsToFillItLeavesNothing) {
  const auto fill = [](const PieceWriter& write) {
    write(std::as_bytes(std::span(std::string_view("half"))));
    throw UsageError("no more");
  };
  EXPECT_THROW(publish_file(folder_ / "a.json", fill, Sync::no, Existing::replace), UsageError);
  EXPECT_EQ(entries(), 0);
}

INSTANTIATE_TEST_SUITE_P(FileSystems, ReplaceFile, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "Nameless" : "Named"; });

}  // namespace
}  // namespace lockstep
