// lockstep run when all goes well: what workers are told, and what becomes of their output.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

#include "launch/harness.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::test {
namespace {

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// NAME -> value as each rank sees it.
std::map<int, std::map<std::string, std::string>> environments(const std::string& out) {
  std::map<int, std::map<std::string, std::string>> result;
  for (const std::string& line : lines_of(out)) {
    int rank = -1;
    if (std::sscanf(line.c_str(), "[rank %d] ", &rank) != 1) continue;
    const std::string text = line.substr(line.find("] ") + 2);
    result[rank][text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  return result;
}

TEST(Run, TellsWorkersWhoTheyAre) {
  const Outcome outcome =
      run({"run", "-n", "3", "env"}, {"LOCKSTEP_DUMP_DIR=", "RANK=77", "LOCKSTEP_JOB=outer"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  auto seen = environments(outcome.out);
  ASSERT_EQ(seen.size(), 3U);
  for (int rank = 0; rank < 3; ++rank) {
    auto& env = seen[rank];
    EXPECT_EQ(env["RANK"], std::to_string(rank));
    EXPECT_EQ(env["LOCAL_RANK"], std::to_string(rank));
    EXPECT_EQ(env["GROUP_RANK"], "0");
    EXPECT_EQ(env["WORLD_SIZE"], "3");
    EXPECT_EQ(env["LOCAL_WORLD_SIZE"], "3");
    EXPECT_EQ(env["MASTER_ADDR"], "127.0.0.1");
    EXPECT_EQ(env["MASTER_PORT"], seen[0]["MASTER_PORT"]);
    EXPECT_GT(std::stoi(env["MASTER_PORT"]), 0);
    EXPECT_EQ(env["LOCKSTEP_JOB"].size(), 32U);
    EXPECT_EQ(env["LOCKSTEP_JOB"], seen[0]["LOCKSTEP_JOB"]);
    EXPECT_EQ(env["LOCKSTEP_RESTART"], "0");
    EXPECT_EQ(env["TORCHELASTIC_RESTART_COUNT"], "0");
  }
  EXPECT_NE(environments(run({"run", "-n", "2", "env"}).out)[0]["LOCKSTEP_JOB"], seen[0]["LOCKSTEP_JOB"]);
}

TEST(Run, NamesADumpFolderThatIsNotThere) {
  const Outcome outcome = run({"run", "sh", "-c", "echo $LOCKSTEP_DUMP_DIR; test ! -e $LOCKSTEP_DUMP_DIR"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  const std::string folder = lines_of(outcome.out).at(0);
  EXPECT_TRUE(folder.starts_with("/")) << folder;
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(Run, GivesEachWorkerCoresOfItsOwn) {
  const int cores = available_cores();
  const std::string count = std::to_string(std::min(cores, 8));
  const std::string script = "grep Cpus_allowed_list /proc/self/status";
  const Outcome pinned = run({"run", "-n", count, "sh", "-c", script});
  std::set<std::string> masks;
  for (const std::string& line : lines_of(pinned.out))
    if (line.find("Cpus_allowed_list") != std::string::npos) masks.insert(line.substr(line.find("] ")));
  EXPECT_EQ(masks.size(), static_cast<std::size_t>(std::min(cores, 8))) << pinned.out;

  for (const std::vector<std::string>& flags : {std::vector<std::string>{"--no-pin"}, {"--pin", "none"}}) {
    std::vector<std::string> arguments = {"run", "-n", count};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"sh", "-c", script});
    masks.clear();
    for (const std::string& line : lines_of(run(arguments).out))
      if (line.find("Cpus_allowed_list") != std::string::npos) masks.insert(line.substr(line.find("] ")));
    EXPECT_EQ(masks.size(), 1U);
  }
}

TEST(Run, KeepsStreamsApartAndEndsUnfinishedLines) {
  const Outcome outcome =
      run({"run", "-n", "2", "--", "sh", "-c", "printf 'out %s' $RANK; printf 'err %s' $RANK >&2"});
  EXPECT_EQ(outcome.status, 0);
  std::vector<std::string> out = lines_of(outcome.out);
  std::vector<std::string> err = lines_of(outcome.err);
  std::sort(out.begin(), out.end());
  std::sort(err.begin(), err.end());
  EXPECT_EQ(out, (std::vector<std::string>{"[rank 0] out 0", "[rank 1] out 1"}));
  EXPECT_EQ(err, (std::vector<std::string>{"[rank 0] err 0", "[rank 1] err 1"}));
  EXPECT_TRUE(outcome.out.ends_with("\n"));
}

TEST(Run, OneWorkerIsNotPrefixedAndPassesBytesAsTheyAre) {
  const Outcome outcome = run({"run", "printf", "a\\000b\\r\\377\\nlast"});
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, std::string("a\0b\r\377\nlast", 10));
  EXPECT_EQ(outcome.err, "");
}

TEST(Run, NeverMixesLinesOfEightWorkers) {
  const std::string script = "seq -f \"$RANK:%.0f:abcdefghijklmnopqrstuvwxyz:$RANK\" 20000";
  const Outcome outcome = run({"run", "-n", "8", "sh", "-c", script});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  std::map<int, int> next;
  for (const std::string& line : lines_of(outcome.out)) {
    int rank = -1;
    ASSERT_EQ(std::sscanf(line.c_str(), "[rank %d]", &rank), 1) << line;
    const std::string name = std::to_string(rank);
    const std::string expected = "[rank " + name + "] " + name + ":" + std::to_string(++next[rank]) +
                                 ":abcdefghijklmnopqrstuvwxyz:" + name;
    ASSERT_EQ(line, expected);
  }
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(next[rank], 20000);
}

TEST(Run, BoundsHugeLines) {
  const Outcome outcome =
      run({"run", "-n", "2", "sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end"});
  ASSERT_EQ(outcome.status, 0);
  std::map<char, std::size_t> bytes;
  for (const std::string& line : lines_of(outcome.out)) {
    EXPECT_LE(line.size(), (64U << 10) + 9);
    bytes[line[6]] += static_cast<std::size_t>(std::count(line.begin(), line.end(), 'x'));
  }
  EXPECT_EQ(bytes['0'], 3000000U);
  EXPECT_EQ(bytes['1'], 3000000U);
}

TEST(Run, WaitsForASlowReaderWithoutLosingLines) {
  Program program({"run", "-n", "2", "seq", "200000"});
  ASSERT_TRUE(program.wait_until_stuck());
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(lines_of(outcome.out).size(), 400000U);
}

TEST(Run, GivesPipedInputToRankZero) {
  const std::string command =
      std::string("echo hello | ") + LOCKSTEP_PROGRAM + " run -n 2 sh -c 'echo got $(cat)'";
  const Outcome outcome = run({"run", "sh", "-c", command});
  EXPECT_NE(outcome.out.find("[rank 0] got hello"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("[rank 1] got\n"), std::string::npos) << outcome.out;
}

TEST(Run, WritesPerRankFiles) {
  const TempFolder folder;
  const std::string script = "echo out $RANK; echo err $RANK >&2";
  const Outcome teed = run({"run", "-n", "2", "--log-dir", folder.path(), "sh", "-c", script});
  EXPECT_EQ(teed.status, 0);
  EXPECT_NE(teed.out.find("[rank 1] out 1"), std::string::npos);
  ASSERT_TRUE(teed.err.find("logs in " + folder.path()) != std::string::npos) << teed.err;
  const std::string logs = teed.err.substr(teed.err.find(folder.path()));
  EXPECT_EQ(contents(logs.substr(0, logs.find('\n')) + "/rank-1.stdout.log"), "out 1\n");
  EXPECT_EQ(contents(logs.substr(0, logs.find('\n')) + "/rank-0.stderr.log"), "err 0\n");

  const Outcome moved = run({"run", "-n", "2", "--rdzv_id", "mine", "--log_dir=" + folder.path(),
                             "--redirects", "0:3,1:2", "--tee", "1:1", "sh", "-c", script});
  EXPECT_EQ(moved.status, 0);
  EXPECT_EQ(moved.out, "[rank 1] out 1\n");
  const std::size_t at = moved.err.find(folder.path() + "/mine-");
  ASSERT_NE(at, std::string::npos) << moved.err;
  EXPECT_EQ(lines_of(moved.err).size(), 1U) << moved.err;
  const std::string place = moved.err.substr(at, moved.err.find('\n', at) - at);
  EXPECT_EQ(contents(place + "/rank-0.stdout.log"), "out 0\n");
  EXPECT_EQ(contents(place + "/rank-0.stderr.log"), "err 0\n");
  EXPECT_EQ(contents(place + "/rank-1.stdout.log"), "out 1\n");
  EXPECT_EQ(contents(place + "/rank-1.stderr.log"), "err 1\n");
}

TEST(Run, JsonHasStandardOutputForItself) {
  const Outcome outcome = run({"run", "-n", "2", "--json", "echo", "hi"});
  EXPECT_EQ(outcome.status, 0);
  ASSERT_EQ(lines_of(outcome.out).size(), 1U) << outcome.out;
  EXPECT_TRUE(outcome.out.starts_with("{\"ok\":true,\"exit_status\":0")) << outcome.out;
  EXPECT_NE(outcome.err.find("[rank 1] hi"), std::string::npos);
}

TEST(Run, EndsWhatWorkersLeaveBehind) {
  Program program({"run", "-n", "2", "sh", "-c", "setsid sleep 60 & sleep 61 & echo started"});
  const Outcome outcome = program.finish();
  EXPECT_EQ(outcome.status, 0);
  EXPECT_TRUE(program.leftovers().empty());
}

TEST(Run, StopsWhenItsReaderIsGone) {
  const std::string command = std::string(LOCKSTEP_PROGRAM) + " run -n 2 yes | head -n 3";
  Program program({"run", "sh", "-c", command});
  const Outcome outcome = program.finish();
  EXPECT_EQ(lines_of(outcome.out).size(), 3U);
  EXPECT_TRUE(program.leftovers().empty());
}

}  // namespace
}  // namespace lockstep::test
