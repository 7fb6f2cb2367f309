#include "checkpoint/pieces.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lockstep/checkpoint/sha256.h"

namespace lockstep {
namespace {

// Elements of the tensor that piece `i` of a run holds.
std::string where(const StoredTensor& tensor, const StoredRun& run, std::uint64_t i) {
  const std::uint64_t each = kPieceBytes / size_of(tensor.dtype);
  return fmt::format("elements {} to {}", run.begin + i * each,
                     std::min(run.end, run.begin + (i + 1) * each));
}

}  // namespace

std::string read_pieces(const InputFile& input, const StoredTensor& tensor, const StoredRun& run,
                        std::uint64_t begin, std::uint64_t end,
                        const std::function<void(std::span<const std::byte>)>& take) {
  if (begin >= end) return "";
  const std::uint64_t size = size_of(tensor.dtype);
  const std::uint64_t first = (begin - run.begin) * size,
                      last = (end - run.begin) * size;  // bytes of the run
  const std::uint64_t bytes = tensor.bytes_of(run);
  std::vector<std::byte> piece(std::min(kPieceBytes, bytes));
  for (std::uint64_t i = first / kPieceBytes; i * kPieceBytes < last; ++i) {
    const std::uint64_t at = i * kPieceBytes;
    piece.resize(std::min(kPieceBytes, bytes - at));
    input.read_at(run.at + at, piece);
    Sha256 hash;
    hash.update(piece);
    if (hash.hex() != run.sha256.at(i)) return where(tensor, run, i);
    const std::uint64_t from = std::max(first, at) - at, to = std::min(last, at + piece.size()) - at;
    take(std::span(piece).subspan(from, to - from));
  }
  return "";
}

std::string find_altered_piece(const InputFile& input, const StoredTensor& tensor, const StoredRun& run,
                               const std::function<void(std::uint64_t)>& on_read) {
  const std::uint64_t bytes = tensor.bytes_of(run);
  std::vector<std::byte> some(std::min(kReadBytes, bytes));
  std::string found;
  for (std::uint64_t i = 0; i * kPieceBytes < bytes; ++i) {
    const std::uint64_t end = std::min(bytes, (i + 1) * kPieceBytes);
    Sha256 hash;
    for (std::uint64_t at = i * kPieceBytes; at < end; at += some.size()) {
      some.resize(std::min(kReadBytes, end - at));
      input.read_at(run.at + at, some);
      hash.update(some);
      if (on_read) on_read(some.size());
    }
    if (found.empty() && hash.hex() != run.sha256.at(i)) found = where(tensor, run, i);
  }
  return found;
}

}  // namespace lockstep
