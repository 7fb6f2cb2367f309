// What a flag that names an engine takes: the words of LOCKSTEP_ENGINE, which it beats.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// Those of the words that need MPI or Gloo, where this build has none of it.
std::vector<std::string> missing_engines();

// "auto, shm, tcp, …, shm+tcp, …" (engine_words), then `besides`, and what this build lacks.
std::string accepted_engines(const std::vector<std::string>& besides = {});

// Throws UsageError that names the flag, what is accepted, and what this build lacks.
void check_engine(const std::string& flag, const std::string& value,
                  const std::vector<std::string>& besides = {});

// From now on, for this process and those that it starts. Empty: what LOCKSTEP_ENGINE says, which is checked.
void use_engine(const std::string& engine);

}  // namespace lockstep
