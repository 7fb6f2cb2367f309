#include "launch/agents.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "launch/worker_environment.h"

namespace lockstep::test {
namespace {

// Tests run side by side: each process has an address of its own among the millions of 127.0.0.0/8.
std::string own_loopback() {
  const int pid = ::getpid();
  return "127." + std::to_string(1 + (pid >> 16) % 250) + "." + std::to_string((pid >> 8) & 255) + "." +
         std::to_string(1 + (pid & 127));
}

}  // namespace

Agents::Agents(int nodes)
    : nodes_(nodes),
      host_(own_loopback()),
      endpoint_(host_ + ":" + std::to_string(launcher::free_port(host_))),
      secret_(launcher::random_name() + launcher::random_name()),
      secret_file_(folder_.path() + "/job.key") {
  std::ofstream(secret_file_) << secret_ << '\n';
  ::chmod(secret_file_.c_str(), 0600);
}

std::vector<std::string> Agents::arguments(const std::vector<std::string>& flags,
                                           const std::vector<std::string>& program) const {
  std::vector<std::string> words = {"run"};
  const std::pair<std::string, std::string> usual[] = {{"--nnodes", std::to_string(nodes_)},
                                                       {"--rdzv-endpoint", endpoint_},
                                                       {"--secret-file", secret_file_},
                                                       {"--rdzv-conf", "join_timeout=15"}};
  for (const auto& [flag, value] : usual)
    if (std::find(flags.begin(), flags.end(), flag) == flags.end()) words.insert(words.end(), {flag, value});
  words.insert(words.end(), flags.begin(), flags.end());
  words.emplace_back("--");
  words.insert(words.end(), program.begin(), program.end());
  return words;
}

std::unique_ptr<Program> Agents::start(const std::vector<std::string>& flags,
                                       const std::vector<std::string>& program,
                                       const std::vector<std::string>& environment) const {
  return std::make_unique<Program>(arguments(flags, program), environment);
}

std::unique_ptr<Program> Agents::start(int node, int workers, const std::string& script,
                                       const std::vector<std::string>& flags) const {
  std::vector<std::string> all = {"--node-rank", std::to_string(node), "-n", std::to_string(workers)};
  all.insert(all.end(), flags.begin(), flags.end());
  return start(all, {"sh", "-c", script});
}

std::string without_waits(const std::string& err) {
  const auto is_wait = [](const std::string& line) {
    return line.starts_with("lockstep run: waiting at ") ||
           (line.starts_with("lockstep run: no agent of node 0 answers at ") &&
            line.ends_with(" yet; trying on")) ||
           (line.starts_with("lockstep run: all ranks on this machine have ended") &&
            line.ends_with("; waiting for those of the others"));
  };
  std::string rest;
  for (const std::string& line : lines_of(err))
    if (!is_wait(line)) rest += line + "\n";
  return rest;
}

void expect_words(const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& word : words)
    EXPECT_NE(text.find(word), std::string::npos) << "'" << word << "' is not in: " << text;
}

void expect_line(const Outcome& outcome, int status, const std::vector<std::string>& words) {
  EXPECT_EQ(outcome.status, status) << outcome.err;
  const std::string err = without_waits(outcome.err);
  EXPECT_EQ(lines_of(err).size(), 1U) << outcome.err;
  expect_words(err, words);
}

void expect_well(const Outcome& outcome) {
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(without_waits(outcome.err), "");
}

}  // namespace lockstep::test
