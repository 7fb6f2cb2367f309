// Who a worker is, for every launcher, and what a broken environment is told.
#include "lockstep/base/identity.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

// Replaces the whole environment for the length of a test.
class IdentityTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      saved_[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
    }
    ::clearenv();
  }
  void TearDown() override {
    ::clearenv();
    for (const auto& [name, value] : saved_) ::setenv(name.c_str(), value.c_str(), 1);
  }

  static Identity with(const Variables& variables) {
    ::clearenv();
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    return Identity::from_environment();
  }

  static void expect_refused(const Variables& variables, std::initializer_list<const char*> words) {
    try {
      with(variables);
      FAIL() << "accepted";
    } catch (const UsageError& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      for (const char* word : words)
        EXPECT_NE(message.find(word), std::string::npos) << word << " not in: " << message;
    }
  }

 private:
  Variables saved_;
};

void expect_places(const Identity& identity, int rank, int size, int local_rank, int local_size) {
  EXPECT_EQ(identity.rank, rank);
  EXPECT_EQ(identity.size, size);
  EXPECT_EQ(identity.local_rank, local_rank);
  EXPECT_EQ(identity.local_size, local_size);
}

const Variables kOurs = {{"LOCKSTEP_JOB", "abc"}, {"LOCKSTEP_RESTART", "2"}, {"RANK", "5"},
                         {"WORLD_SIZE", "8"},     {"LOCAL_RANK", "1"},       {"LOCAL_WORLD_SIZE", "4"}};

TEST_F(IdentityTest, NoLauncherIsOneWorker) {
  const Identity identity = with({});
  expect_places(identity, 0, 1, 0, 1);
  EXPECT_EQ(identity.job, "");
  EXPECT_EQ(identity.launcher, "none");
}

TEST_F(IdentityTest, LockstepRun) {
  const Identity identity = with(kOurs);
  expect_places(identity, 5, 8, 1, 4);
  EXPECT_EQ(identity.job, "abc.2");
  EXPECT_EQ(identity.launcher, "lockstep run");
}

TEST_F(IdentityTest, TorchrunJobChangesWithRestart) {
  Variables variables = {{"RANK", "1"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "host"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "run"},
                         {"TORCHELASTIC_RESTART_COUNT", "0"}};
  const Identity first = with(variables);
  expect_places(first, 1, 2, 1, 2);
  EXPECT_EQ(first.launcher, "torchrun");
  EXPECT_EQ(with(variables).job, first.job);
  variables["TORCHELASTIC_RESTART_COUNT"] = "1";
  EXPECT_NE(with(variables).job, first.job);
}

TEST_F(IdentityTest, PlainRankAndSizeMeanThisMachine) {
  const Identity identity = with({{"RANK", "2"}, {"WORLD_SIZE", "3"}});
  expect_places(identity, 2, 3, 2, 3);
  EXPECT_NE(identity.job, "");
  EXPECT_EQ(with({{"RANK", "0"}, {"WORLD_SIZE", "3"}}).job, identity.job);
}

TEST_F(IdentityTest, OpenMpi) {
  const Identity identity = with({{"OMPI_COMM_WORLD_RANK", "3"},
                                  {"OMPI_COMM_WORLD_SIZE", "4"},
                                  {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                  {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                  {"PMIX_NAMESPACE", "77"}});
  expect_places(identity, 3, 4, 1, 2);
  EXPECT_EQ(identity.launcher, "Open MPI");
  EXPECT_EQ(identity.job, "openmpi.77");
}

const Variables kSlurm = {{"SLURM_JOB_ID", "42"}, {"SLURM_STEP_ID", "1"},
                          {"SLURM_PROCID", "9"},  {"SLURM_STEP_NUM_TASKS", "11"},
                          {"SLURM_NTASKS", "99"}, {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},  {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};

TEST_F(IdentityTest, SlurmUnderSrun) {
  const Identity identity = with(kSlurm);
  expect_places(identity, 9, 11, 1, 3);
  EXPECT_EQ(identity.launcher, "SLURM");
  EXPECT_EQ(identity.job, "slurm.42.1");
}

TEST_F(IdentityTest, SlurmBatchScriptIsOneWorker) {
  Variables variables = kSlurm;
  variables.erase("SLURM_STEP_ID");
  EXPECT_EQ(with(variables).launcher, "none");
  variables["SLURM_STEP_ID"] = "4294967291";
  EXPECT_EQ(with(variables).launcher, "none");
}

TEST_F(IdentityTest, SlurmRefusesTasksThatDoNotReachTheNode) {
  Variables variables = kSlurm;
  variables["SLURM_STEP_TASKS_PER_NODE"] = "4(x2)";
  expect_refused(variables, {"SLURM_STEP_TASKS_PER_NODE=4(x2)", "node 2"});
  variables["SLURM_STEP_TASKS_PER_NODE"] = "many";
  expect_refused(variables, {"SLURM_STEP_TASKS_PER_NODE=many"});
}

TEST_F(IdentityTest, Pmi) {
  const Identity identity =
      with({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  expect_places(identity, 1, 4, 1, 2);
  EXPECT_EQ(identity.launcher, "PMI");
  EXPECT_EQ(identity.job, "pmi.parent" + std::to_string(::getppid()));
}

TEST_F(IdentityTest, OurVariablesComeBeforeOpenMpis) {
  Variables variables = kOurs;
  variables["OMPI_COMM_WORLD_RANK"] = "0";
  variables["OMPI_COMM_WORLD_SIZE"] = "1";
  EXPECT_EQ(with(variables).launcher, "lockstep run");
}

TEST_F(IdentityTest, HalfSetFamiliesAreRefused) {
  expect_refused({{"RANK", "3"}}, {"RANK=3", "WORLD_SIZE missing"});
  expect_refused({{"WORLD_SIZE", "3"}}, {"WORLD_SIZE=3", "RANK missing"});
  expect_refused({{"LOCAL_RANK", "0"}}, {"RANK, WORLD_SIZE missing"});
  expect_refused({{"LOCKSTEP_JOB", "abc"}}, {"LOCKSTEP_JOB=abc", "RANK and WORLD_SIZE are missing",
                                             "lockstep run", "unset LOCKSTEP_JOB"});
  expect_refused({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}},
                 {"LOCAL_RANK=0", "LOCAL_WORLD_SIZE missing"});
  expect_refused({{"OMPI_COMM_WORLD_RANK", "1"}}, {"Open MPI", "OMPI_COMM_WORLD_SIZE missing"});
  expect_refused({{"PMI_SIZE", "1"}}, {"PMI", "PMI_RANK missing"});
  Variables slurm = kSlurm;
  slurm.erase("SLURM_LOCALID");
  expect_refused(slurm, {"SLURM_PROCID=9", "SLURM_LOCALID missing"});
}

TEST_F(IdentityTest, BadNumbersAreRefusedWithTheirValue) {
  const auto change = [](const char* name, const char* value) {
    Variables variables = kOurs;
    variables[name] = value;
    return variables;
  };
  expect_refused(change("RANK", "two"), {"RANK='two'"});
  expect_refused(change("RANK", ""), {"RANK=''"});
  expect_refused(change("RANK", "-1"), {"RANK='-1'"});
  expect_refused(change("RANK", "1x"), {"RANK='1x'"});
  expect_refused(change("WORLD_SIZE", "99999999999"), {"WORLD_SIZE='99999999999'"});
  expect_refused(change("RANK", "8"), {"RANK=8", "WORLD_SIZE=8", "0 to 7"});
  expect_refused(change("WORLD_SIZE", "0"), {"WORLD_SIZE=0", "at least 1"});
  expect_refused(change("LOCAL_RANK", "4"), {"LOCAL_RANK=4", "LOCAL_WORLD_SIZE=4"});
  expect_refused(change("LOCAL_WORLD_SIZE", "9"), {"LOCAL_WORLD_SIZE=9", "WORLD_SIZE=8"});
  expect_refused(change("LOCKSTEP_JOB", ""), {"LOCKSTEP_JOB"});
}

}  // namespace
}  // namespace lockstep
