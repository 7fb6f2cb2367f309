// The command line of lockstep run: torchrun's flags, and what bad ones are told.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <string>
#include <vector>

#include "launch/harness.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::test {
namespace {

// One line, exit status 2, and every word of `words` in it.
void expect_usage(const std::vector<std::string>& arguments, const std::vector<std::string>& words) {
  const Outcome outcome = run(arguments);
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(lines_of(outcome.err).size(), 1U) << outcome.err;
  for (const std::string& word : words)
    EXPECT_NE(outcome.err.find(word), std::string::npos) << word << " not in: " << outcome.err;
}

TEST(Flags, TorchrunsAreAcceptedWithHyphensAndUnderscores) {
  const Outcome outcome = run({"run",
                               "--standalone",
                               "--nproc_per_node=2",
                               "--nnodes",
                               "1:1",
                               "--max_restarts",
                               "0",
                               "--monitor_interval",
                               "0.5",
                               "--start-method",
                               "fork",
                               "--role",
                               "trainer",
                               "--rdzv_backend",
                               "c10d",
                               "--rdzv-id",
                               "job7",
                               "--master_addr",
                               "localhost",
                               "--master-port",
                               "1234",
                               "--no_python",
                               "--node_rank",
                               "0",
                               "--redirects",
                               "0",
                               "--tee",
                               "0",
                               "sh",
                               "-c",
                               "echo $ROLE_NAME $TORCHELASTIC_RUN_ID $MASTER_ADDR $MASTER_PORT $1",
                               "x",
                               "--my_flag"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("[rank 1] trainer job7 localhost 1234 --my_flag\n"), std::string::npos)
      << outcome.out;
}

TEST(Flags, TheRendezvousEndpointIsTheMaster) {
  EXPECT_EQ(run({"run", "--rdzv-endpoint", "box:77", "sh", "-c", "echo $MASTER_ADDR $MASTER_PORT"}).out,
            "box 77\n");
  EXPECT_EQ(run({"run", "--rdzv-endpoint", "box", "sh", "-c", "echo $MASTER_ADDR"}).out, "box\n");
}

TEST(Flags, TheProgramsOwnFlagsAreItsOwn) {
  EXPECT_EQ(run({"run", "-n", "1", "echo", "--json", "-n", "--", "--help"}).out, "--json -n -- --help\n");
  EXPECT_EQ(run({"run", "-n1", "--", "echo", "--json"}).out, "--json\n");
}

TEST(Flags, AutoIsOneWorkerACore) {
  const std::string cores = std::to_string(available_cores());
  for (const char* word : {"auto", "cpu"}) {
    const Outcome outcome = run({"run", "-n", word, "sh", "-c", "echo of $WORLD_SIZE"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const std::vector<std::string> lines = lines_of(outcome.out);
    EXPECT_EQ(std::to_string(lines.size()), cores) << outcome.out;
    for (const std::string& line : lines) EXPECT_TRUE(line.ends_with("of " + cores)) << line;
  }
}

TEST(Flags, BadOnesAreToldWhatIsAccepted) {
  expect_usage({}, {"no command"});
  expect_usage({"rnu"}, {"'rnu'", "Did you mean 'run'?"});
  expect_usage({"--versoin"}, {"--versoin", "did you mean --version?"});
  expect_usage({"run"}, {"no program"});
  expect_usage({"run", "-n", "2"}, {"no program"});
  expect_usage({"run", "-n"}, {"--nproc-per-node needs a value"});
  expect_usage({"run", "-n", "0", "true"}, {"-n", "'0'", "1 to 1024"});
  expect_usage({"run", "-n", "-3", "true"}, {"-n", "'-3'", "1 to 1024"});
  expect_usage({"run", "-n", "100000", "true"}, {"-n", "'100000'", "1 to 1024"});
  expect_usage({"run", "-n", "two", "true"}, {"-n", "'two'", "auto"});
  expect_usage({"run", "-n", "gpu", "true"}, {"-n", "'gpu'", "auto"});
  expect_usage({"run", "--nnodes", "two", "true"}, {"--nnodes", "'two'", "MIN:MAX"});
  expect_usage({"run", "--max-restrats=3", "true"}, {"--max-restrats", "did you mean --max-restarts?"});
  expect_usage({"run", "--max-restarts", "-1", "true"}, {"--max-restarts", "'-1'"});
  expect_usage({"run", "--grace", "soon", "true"}, {"--grace", "'soon'", "seconds"});
  for (const char* const bad : {"0", "-1", "1025", "2,1", "many", ""})
    expect_usage({"run", "--threads", bad, "true"}, {"--threads", "1 to 1024"});
  expect_usage({"run", "--pin", "sockets", "true"}, {"--pin", "'sockets'", "cores or none"});
  expect_usage({"run", "--tee", "4", "true"}, {"--tee", "'4'", "0:1,1:2"});
  expect_usage({"run", "--redirects", "0:1,", "true"}, {"--redirects", "'0:1,'"});
  expect_usage({"run", "-n", "2", "--tee", "2:1", "true"}, {"--tee", "rank 2", "0 to 1"});
  expect_usage({"run", "--master-port", "70000", "true"}, {"--master-port", "'70000'", "65535"});
  expect_usage({"run", "--rdzv-endpoint", "box:port", "true"}, {"--rdzv-endpoint", "'box:port'"});
  expect_usage({"run", "--start-method", "thread", "true"}, {"--start-method", "spawn, fork or forkserver"});
  expect_usage({"run", "-m", "module"}, {"-m", "python3 -m"});
}

TEST(Flags, ProgramsThatCannotRunAreNamed) {
  const TempFolder folder;
  expect_usage({"run", "no-such-program"}, {"'no-such-program'", "PATH"});
  expect_usage({"run", folder.path() + "/nothing"}, {"nothing'", "No such file"});
  expect_usage({"run", folder.path()}, {"is a folder"});
  const std::string script = folder.path() + "/script.py";
  std::ofstream(script) << "print(1)\n";
  expect_usage({"run", script}, {"not executable", "python3"});

  // Looks executable, but the kernel can't load it: only exec finds out.
  const std::string broken = folder.path() + "/broken";
  std::ofstream(broken) << "\x7f"
                           "ELF nonsense";
  ::chmod(broken.c_str(), 0755);
  const Outcome outcome = run({"run", "-n", "2", broken});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(lines_of(outcome.err).size(), 1U) << outcome.err;
  EXPECT_NE(outcome.err.find("Exec format error"), std::string::npos) << outcome.err;
}

TEST(Flags, AFolderThatCannotBeMadeIsNamed) {
  const Outcome outcome = run({"run", "--log-dir", "/proc/nowhere", "true"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(lines_of(outcome.err).size(), 1U) << outcome.err;
  EXPECT_NE(outcome.err.find("/proc/nowhere"), std::string::npos) << outcome.err;
}

TEST(Flags, HelpHasExamples) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"--help"}, {"run", "--help"}}) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.status, 0);
    EXPECT_NE(outcome.out.find("Examples:"), std::string::npos);
    EXPECT_EQ(outcome.err, "");
  }
  EXPECT_TRUE(run({"--version"}).out.starts_with("lockstep "));
}

}  // namespace
}  // namespace lockstep::test
