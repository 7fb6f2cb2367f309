// lockstep run that was started without some of descriptors 0, 1 and 2.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <string>

#include "launch/harness.h"

namespace lockstep::test {
namespace {

TEST(StandardDescriptors, OfWorkersAreNeverTheLaunchersOwn) {
  for (int closed = 1; closed < 8; ++closed) {  // a bit for each of 0, 1 and 2
    const TempFolder folder;
    const std::string file = folder.path() + "/rank";
    const std::string script =
        "links=$(for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done); echo \"$links\" > " + file +
        "$RANK; echo out $RANK; echo err $RANK >&2";
    Program program({"run", "-n", "2", "sh", "-c", script}, {}, [closed] {
      for (int fd = 0; fd <= 2; ++fd)
        if ((closed >> fd & 1) != 0) ::close(fd);
    });
    const Outcome outcome = program.finish();
    EXPECT_EQ(outcome.status, 0) << closed << ": " << outcome.err;
    for (const char* const rank : {"0", "1"}) {
      std::ifstream links(file + rank);
      std::string in, out, err;
      std::getline(links, in) && std::getline(links, out) && std::getline(links, err);
      if ((closed & 1) != 0 || *rank == '1') {
        EXPECT_EQ(in, "/dev/null") << closed << " rank " << rank;
      }
      EXPECT_TRUE(out.starts_with("pipe:")) << closed << ": " << out;
      EXPECT_TRUE(err.starts_with("pipe:")) << closed << ": " << err;
    }
    const auto lines = [](const std::string& text) { return lines_of(text).size(); };
    EXPECT_EQ(lines(outcome.out), (closed & 2) != 0 ? 0U : 2U) << closed << ": " << outcome.out;
    EXPECT_EQ(lines(outcome.err), (closed & 4) != 0 ? 0U : 2U) << closed << ": " << outcome.err;
  }
}

}  // namespace
}  // namespace lockstep::test
