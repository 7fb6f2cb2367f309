#include "checkpoint/inspect/tensor_source.h"

#include <algorithm>
#include <vector>

#include "checkpoint/safetensors_file.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::uint64_t kPieceBytes = std::uint64_t{1} << 20;

}  // namespace

TensorSource::TensorSource(const std::filesystem::path& file) try
    : input_(file), header_(read_header(input_)) {
  // A header that could be read ends its last tensor where the file ends.
  data_begin_ = input_.bytes() - (header_.tensors.empty() ? 0 : header_.tensors.back().end);
  for (const TensorEntry& entry : header_.tensors) by_name_.emplace(entry.name, &entry);
} catch (const UsageError& wrong) {
  throw SystemError(file.string() + ": " + wrong.what());
}

const TensorEntry* TensorSource::find(const std::string& name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : at->second;
}

void TensorSource::read(const TensorEntry& entry,
                        const std::function<void(std::span<const std::byte>)>& take) const {
  std::vector<std::byte> piece(std::min(kPieceBytes, entry.end - entry.begin));
  for (std::uint64_t at = entry.begin; at < entry.end; at += piece.size()) {
    piece.resize(std::min<std::uint64_t>(piece.size(), entry.end - at));
    input_.read_at(data_begin_ + at, piece);
    take(piece);
  }
}

}  // namespace lockstep
