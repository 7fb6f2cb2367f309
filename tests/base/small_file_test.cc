#include "lockstep/base/small_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep {
namespace {

TEST(SmallFile, OnlyRegularFilesWithinTheBoundAreRead) {
  std::string folder = (std::filesystem::temp_directory_path() / "small-file-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string file = folder + "/file", pipe = folder + "/pipe", zero = folder + "/zero",
                    link = folder + "/link";
  std::ofstream(file) << "some text";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  ASSERT_EQ(::symlink("/dev/zero", zero.c_str()), 0);
  ASSERT_EQ(::symlink("file", link.c_str()), 0);
  EXPECT_EQ(read_small_file(file, 9), "some text");
  EXPECT_EQ(read_small_file(link, 100), "some text");
  EXPECT_EQ(read_small_file(file, 8), std::nullopt);
  EXPECT_EQ(read_small_file(pipe, 100), std::nullopt);
  EXPECT_EQ(read_small_file(zero, 100), std::nullopt);
  EXPECT_EQ(read_small_file(folder, 100), std::nullopt);
  EXPECT_EQ(read_small_file(folder + "/none", 100), std::nullopt);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep
