// How much memory there is.
#pragma once

#include <filesystem>

namespace lockstep {

// In bytes, free or not: the machine's, or less where the container that this process runs in may have less.
double machine_memory();

// The least limit of this process's control groups, from its own outwards (v2 memory.max, v1
// memory.limit_in_bytes); infinity: none. What is read lies below `root`.
double memory_limit(const std::filesystem::path& root = "/");

}  // namespace lockstep
