// Runs of any length to and from a scratch file.
#include "offload/mover.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "checkpoint/temp_folder.h"
#include "offload/aligned_memory.h"

namespace lockstep {
namespace {

constexpr std::size_t kRun = std::size_t{9} << 20;  // several pieces, and a part of one
constexpr std::size_t kRuns = 4;

class MoverTest : public ::testing::TestWithParam<OffloadIo> {
 protected:
  const std::filesystem::path& folder() const { return folder_.path(); }
  test::TempFolder folder_;
};

void fill_run(const AlignedMemory& memory, unsigned seed) {
  for (std::size_t i = 0; i < memory.size(); i += 512)
    memory.data()[i] = static_cast<std::byte>(i / 512 + seed);
}

TEST_P(MoverTest, BringsBackWhatWasWritten) {
  const ScratchFile file(folder(), kRuns * kRun);
  std::vector<AlignedMemory> out, in;
  for (std::size_t i = 0; i < kRuns; ++i) {
    out.emplace_back(kRun);
    in.emplace_back(kRun);
    fill_run(out.back(), static_cast<unsigned>(i));
  }
  Mover mover(file, GetParam());
  std::vector<Mover::Ticket> tickets;
  for (std::size_t i = 0; i < kRuns; ++i)
    tickets.push_back(mover.begin(Transfer::Way::write, i * kRun, out[i].first(kRun)));
  for (std::size_t i = kRuns; i-- > 0;) mover.wait(tickets[i]);  // in any order
  for (std::size_t i = 0; i < kRuns; ++i)
    tickets[i] = mover.begin(Transfer::Way::read, i * kRun, in[i].first(kRun));
  for (std::size_t i = 0; i < kRuns; ++i) {
    mover.wait(tickets[i]);
    EXPECT_TRUE(mover.done(tickets[i]));
    EXPECT_EQ(std::memcmp(in[i].data(), out[i].data(), kRun), 0) << i;
  }
  EXPECT_GT(mover.waited_ns(), 0);
}

TEST_P(MoverTest, AFileThatIsShorterThanItWasIsAnErrorThatStays) {
  const ScratchFile file(folder(), 2 * kRun);
  const AlignedMemory memory(2 * kRun);
  Mover mover(file, GetParam());
  ASSERT_EQ(::ftruncate(file.fd(), kRun), 0);
  const Mover::Ticket ticket = mover.begin(Transfer::Way::read, 0, memory.first(2 * kRun));
  for (int i = 0; i < 2; ++i) try {
      mover.wait(ticket);
      ADD_FAILURE() << "all of it came";
    } catch (const OffloadError& error) {
      if (i == 0) {
        EXPECT_NE(std::string(error.what()).find("it ends at byte"), std::string::npos) << error.what();
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Both, MoverTest, ::testing::Values(OffloadIo::automatic, OffloadIo::threads));

}  // namespace
}  // namespace lockstep
