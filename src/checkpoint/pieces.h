// Runs of tensors in a file, read piece by piece (stored_form.h), each held against its hash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "checkpoint/file.h"
#include "checkpoint/stored_form.h"

namespace lockstep {

inline constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;  // at a time

// Elements [begin, end) of a run's tensor, counted as the run's are and all of them in it, to `take` in
// order. The pieces that they lie in are read whole, each once. Gives where the first piece lies that differs
// from its hash, "elements 1048576 to 2097152", and then nothing of that is taken; empty: none. Throws
// SystemError, and what `take` throws.
std::string read_pieces(const InputFile& input, const StoredTensor& tensor, const StoredRun& run,
                        std::uint64_t begin, std::uint64_t end,
                        const std::function<void(std::span<const std::byte>)>& take);

// The same of the whole run, in little memory. `on_read` is told of bytes as they are read.
std::string find_altered_piece(const InputFile& input, const StoredTensor& tensor, const StoredRun& run,
                               const std::function<void(std::uint64_t)>& on_read = {});

}  // namespace lockstep
