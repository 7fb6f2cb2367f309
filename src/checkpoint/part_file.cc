#include "checkpoint/part_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/output_file.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/sha256.h"

namespace lockstep {
namespace {

TensorEntry entry_of(const RunForm& run) {
  if (run.whole()) return {.name = run.name, .dtype = run.dtype, .shape = run.shape};
  return {.name = fmt::format("{}[{}:{}]", run.name, run.begin, run.end),
          .dtype = run.dtype,
          .shape = {static_cast<std::int64_t>(run.end - run.begin)}};
}

// Gives the header its entries; which run each is of.
std::map<std::string, std::size_t> lay_out_runs(const std::vector<RunForm>& runs, SafetensorsHeader& header) {
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].begin == runs[i].end && !runs[i].whole()) continue;
    header.tensors.push_back(entry_of(runs[i]));
    if (!index.emplace(header.tensors.back().name, i).second)
      throw UsageError("tensor " + show_name(header.tensors.back().name) + " is to be stored twice");
  }
  lay_out(header.tensors);
  return index;
}

}  // namespace

std::vector<std::size_t> order_of_runs(const std::vector<RunForm>& runs) {
  SafetensorsHeader header;
  const std::map<std::string, std::size_t> index = lay_out_runs(runs, header);
  std::vector<std::size_t> order;
  for (const TensorEntry& entry : header.tensors)
    if (entry.begin != entry.end) order.push_back(index.at(entry.name));
  return order;
}

bool RunForm::whole() const { return begin == 0 && end * size_of(dtype) == tensor_bytes(dtype, shape, name); }

std::string part_name(const std::string& set, int part, int parts) {
  const std::filesystem::path plain(set);
  return fmt::format("{}-{:05}-of-{:05}{}", plain.stem().string(), part, parts, plain.extension().string());
}

struct PartFile::State {
  State(const std::filesystem::path& path, std::string file_, std::string set_)
      : file(std::move(file_)), set(std::move(set_)), output(path) {}

  // The hash of a piece that is complete goes to its run.
  void end_piece() {
    StoredTensor& tensor = content.tensors.at(runs[order[now]].name);
    tensor.runs.back().sha256.push_back(hash.hex());
    hash = Sha256();
    in_piece = 0;
  }

  std::string file;
  std::string set;
  OutputFile output;
  std::vector<RunForm> runs;
  std::vector<std::size_t> order;
  TensorSet content;
  std::uint64_t bytes = 0;  // so far
  std::uint64_t head = 0;
  std::string head_sha256;
  std::size_t now = 0;         // the run that is being written, in `order`
  std::uint64_t in_run = 0;    // bytes of it so far
  std::uint64_t in_piece = 0;  // likewise
  Sha256 hash;
};

PartFile::PartFile(const std::filesystem::path& folder, std::string file, std::string set,
                   const std::vector<RunForm>& runs, const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  const std::map<std::string, std::size_t> index = lay_out_runs(runs, header);
  const std::string head = compose_header(header);
  state_ = std::make_unique<State>(folder / file, file, std::move(set));
  State& s = *state_;
  s.runs = runs;
  s.content.metadata = metadata;
  s.head = s.bytes = head.size();
  s.head_sha256 = sha256_text(head);
  s.output.write(std::as_bytes(std::span(head)));
  for (const TensorEntry& entry : header.tensors) {
    const std::size_t i = index.at(entry.name);
    StoredTensor& tensor = s.content.tensors[runs[i].name];
    tensor.dtype = runs[i].dtype;
    tensor.shape = runs[i].shape;
    if (runs[i].begin == runs[i].end) continue;  // no byte of it comes
    s.order.push_back(i);
  }
}

PartFile::~PartFile() = default;

const std::vector<std::size_t>& PartFile::order() const { return state_->order; }

void PartFile::write(std::span<const std::byte> bytes) {
  State& s = *state_;
  while (!bytes.empty()) {
    if (s.now == s.order.size()) throw UsageError(s.file + ": more bytes than its runs have");
    const RunForm& run = s.runs[s.order[s.now]];
    if (s.in_run == 0)
      s.content.tensors.at(run.name).runs.push_back(
          {.begin = run.begin, .end = run.end, .file = s.file, .at = s.bytes});
    const std::uint64_t room = std::min(kPieceBytes - s.in_piece, run.bytes() - s.in_run);
    const auto some = bytes.first(std::min<std::uint64_t>(room, bytes.size()));
    s.output.write(some);
    s.hash.update(some);
    s.bytes += some.size();
    s.in_run += some.size();
    s.in_piece += some.size();
    bytes = bytes.subspan(some.size());
    const bool ended = s.in_run == run.bytes();
    if (ended || s.in_piece == kPieceBytes) s.end_piece();
    if (!ended) continue;
    s.in_run = 0;
    ++s.now;
  }
}

Manifest PartFile::finish() {
  State& s = *state_;
  if (s.now != s.order.size()) throw UsageError(s.file + ": fewer bytes than its runs have");
  s.output.finish();
  Manifest part;
  part.files[s.file] = {.bytes = s.bytes, .sha256 = s.head_sha256, .head = s.head};
  part.sets[s.set] = std::move(s.content);
  return part;
}

}  // namespace lockstep
