// What agents write to each other, as JSON texts.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include "launch/agent_link.h"
#include "launch/job.h"

namespace lockstep::launcher {

// The first words of a connection between agents.
inline constexpr const char* kAgentHello = "lockstep agent 4";

// To node 0.
struct Join {
  int nodes = 0;
  std::optional<int> node = {};
  int workers = 0;
  std::string host = {};
  std::chrono::milliseconds grace{};
};
struct WorkerFailed {
  WorkerEnd end = {};
};
struct Interrupted {
  int signal = 0;
};
struct Finished {
  LocalEnd end = {};
};

// From node 0.
struct Welcome {
  Job job = {};  // without the secret, which every agent derives by itself
};
struct Refused {
  std::string why = {};
  bool usage = false;  // this agent was started wrongly; else node 0 has given up
};
struct Stop {
  AgentLink::Order order = {};
};

// Either way.
struct GivenUp {
  std::string why = {};
};
struct Alive {};   // about once a second
struct Paused {};  // a terminal's Ctrl-Z: nothing will be heard of this agent until it goes on

using AgentMail = std::variant<Join, WorkerFailed, Interrupted, Finished, Welcome, Refused, Stop, Verdict,
                               GivenUp, Alive, Paused>;

std::string write_mail(const AgentMail& mail);
// Throws net::ConnectionLost for a text that is none: such a peer is as good as gone.
AgentMail read_mail(const std::string& text);

}  // namespace lockstep::launcher
