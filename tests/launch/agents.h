// Several agents of one job, all on this machine.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "launch/harness.h"

namespace lockstep::test {

class Agents {
 public:
  // `nodes`: what every agent says.
  explicit Agents(int nodes);

  const std::string& host() const { return host_; }  // a loopback address that no other test has
  const std::string& endpoint() const { return endpoint_; }
  const std::string& secret_file() const { return secret_file_; }
  const std::string& secret() const { return secret_; }  // hexadecimal

  // `lockstep run` with what all agents need unless `flags` has it, `flags` and `program`.
  std::vector<std::string> arguments(const std::vector<std::string>& flags,
                                     const std::vector<std::string>& program) const;
  std::unique_ptr<Program> start(const std::vector<std::string>& flags,
                                 const std::vector<std::string>& program,
                                 const std::vector<std::string>& environment = {}) const;
  // The agent of `node` with `workers` workers that run `script` in a shell.
  std::unique_ptr<Program> start(int node, int workers, const std::string& script,
                                 const std::vector<std::string>& flags = {}) const;

 private:
  int nodes_;
  TempFolder folder_;
  std::string host_;
  std::string endpoint_;
  std::string secret_;
  std::string secret_file_;
};

// What agents say while they wait for each other depends on how busy the machine is: `err` without those
// lines.
std::string without_waits(const std::string& err);
// Whether every one of `words` is in `text`; a test fails with what is missing.
void expect_words(const std::string& text, const std::vector<std::string>& words);
// That it ended with `status` and one line on standard error, with all `words`; waits are not counted.
void expect_line(const Outcome& outcome, int status, const std::vector<std::string>& words);
// That it ended well and said nothing on standard error but that it waits.
void expect_well(const Outcome& outcome);

}  // namespace lockstep::test
