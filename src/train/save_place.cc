#include "train/save_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/leader.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
constexpr std::size_t kSentBytes = std::size_t{4} << 20;  // at a time

// All ranks stay here until rank 0 has done `write`. Those that have nothing to send would wait elsewhere for
// all that comes from the others, which may take longer than any call may.
void meet(const Group& world, const std::function<void()>& write = {}) {
  run_on_leader(world, "writing what came from another machine's disk", write);
}

// A name that nobody has looked for before: file systems across machines remember what was not there.
std::string new_name() {
  std::random_device random;
  return fmt::format("seen-{:08x}{:08x}", random(), random());
}

// What `rank`, which sees no folder, has to send of a set: forms, and on that rank the tensors.
struct Sent {
  std::vector<RunForm> forms;
  std::vector<torch::Tensor> tensors;
  std::vector<StateStream> streams;  // in the place of some
};

Sent sent_of(int rank, const SavePlace& place, const SavedState::Set& set, const SliceOwners& owners) {
  Sent sent;
  for (const SavedRun& run : set.runs) {
    if (run.slice == SavedRun::kLeaders) continue;
    const auto slice = static_cast<std::size_t>(run.slice);
    if (owners.saver(rank, slice, place.sees) != rank) continue;
    sent.forms.push_back(run.form);
    sent.forms.back().begin = owners.of(rank, slice).begin;
    sent.forms.back().end = owners.of(rank, slice).end;
    sent.tensors.push_back(run.tensor);
    sent.streams.push_back(run.stream);
  }
  return sent;
}

void send(const Group& world, const Sent& sent) {
  meet(world);
  // Messages of kSentBytes and one of the rest, however the bytes come: what receive() waits for.
  for (const std::size_t i : order_of_runs(sent.forms)) {
    const auto send_all = [&](std::span<const std::byte> bytes) {
      for (; !bytes.empty(); bytes = bytes.subspan(std::min(kSentBytes, bytes.size()))) {
        world.send(ConstBuffer(bytes.data(), std::min(kSentBytes, bytes.size()), DType::u8), 0);
        meet(world);
      }
    };
    if (!sent.streams[i]) {
      const torch::Tensor bytes = sent.tensors[i].cpu().contiguous();
      send_all({static_cast<const std::byte*>(bytes.data_ptr()), static_cast<std::size_t>(bytes.nbytes())});
      continue;
    }
    std::vector<std::byte> message;
    sent.streams[i]([&](std::span<const std::byte> bytes) {
      while (!bytes.empty()) {
        const auto some = bytes.first(std::min(bytes.size(), kSentBytes - message.size()));
        message.insert(message.end(), some.begin(), some.end());
        bytes = bytes.subspan(some.size());
        if (message.size() < kSentBytes) continue;
        send_all(message);
        message.clear();
      }
    });
    send_all(message);
  }
  meet(world);
}

// While a rank sends to rank 0, what the others do.
void look_on(const Group& world, const Sent& sent) {
  meet(world);
  for (const std::size_t i : order_of_runs(sent.forms))
    for (std::uint64_t left = sent.forms[i].bytes(); left > 0;
         left -= std::min<std::uint64_t>(kSentBytes, left))
      meet(world);
  meet(world);
}

// Takes all that is sent, also when it can't be written.
std::string receive(const Group& world, int from, const fs::path& folder, const std::string& name,
                    const std::string& set, const Metadata& metadata, const Sent& sent,
                    std::exception_ptr& failure) {
  std::unique_ptr<PartFile> part;
  const auto attempt = [&](const auto& what) {
    meet(world, [&] {
      if (failure == nullptr) try {
          what();
        } catch (const std::exception&) {
          failure = std::current_exception();
        }
    });
  };
  attempt([&] { part = std::make_unique<PartFile>(folder, name, set, sent.forms, metadata); });
  std::vector<std::byte> some;
  for (const std::size_t i : order_of_runs(sent.forms))
    for (std::uint64_t left = sent.forms[i].bytes(); left > 0; left -= some.size()) {
      some.resize(std::min<std::uint64_t>(kSentBytes, left));
      world.recv(Buffer(some.data(), some.size(), DType::u8), from);
      attempt([&] { part->write(some); });
    }
  std::string note;
  attempt([&] { note = compose_manifest(part->finish()); });
  return note;
}

}  // namespace

void find_place(const Group& world, const CheckpointDraft* draft, SavePlace& place) {
  std::string hidden, seen;
  run_on_leader(world, "making room for a checkpoint", [&] {
    hidden = draft->folder().filename().string();
    seen = new_name();
    write_file(draft->folder() / seen, "");
  });
  world.broadcast(hidden, 0);
  world.broadcast(seen, 0);
  place.folder = place.folder / hidden;
  std::error_code unknown;
  const std::uint8_t mine = draft != nullptr || fs::exists(place.folder / seen, unknown) ? 1 : 0;
  place.sees.resize(static_cast<std::size_t>(world.size()));
  world.all_gather(std::vector{mine}, place.sees);
  if (draft != nullptr) fs::remove(draft->folder() / seen, unknown);
}

std::vector<std::string> bring_parts(const Group& world, const SavePlace& place, const SavedState& state,
                                     const SliceOwners& owners) {
  std::vector<std::string> notes;
  std::exception_ptr failure;
  for (int rank = 1; rank < world.size(); ++rank) {
    if (place.sees[static_cast<std::size_t>(rank)] != 0) continue;
    for (const auto& [set, content] : state.sets) {
      const Sent sent = sent_of(rank, place, content, owners);
      if (order_of_runs(sent.forms).empty()) continue;
      if (world.rank() == rank)
        send(world, sent);
      else if (world.rank() != 0)
        look_on(world, sent);
      else
        notes.push_back(receive(world, rank, place.folder, part_name(set, rank, world.size()), set,
                                content.metadata, sent, failure));
    }
  }
  if (failure != nullptr) try {
      std::rethrow_exception(failure);
    } catch (const std::exception& wrong) {
      throw SystemError(wrong.what());
    }
  return notes;
}

std::vector<FileToSave> files_to_save(const Group& world, const SavePlace& place, SavedState state,
                                      const SliceOwners& owners) {
  std::vector<FileToSave> files;
  const int rank = world.rank();
  if (rank != 0 && (place.alone || place.sees[static_cast<std::size_t>(rank)] == 0)) return files;
  for (auto& [set, content] : state.sets) {
    FileToSave file{.file = place.alone ? set : part_name(set, rank, world.size()),
                    .set = set,
                    .metadata = std::move(content.metadata),
                    .runs = {}};
    for (SavedRun& run : content.runs)
      if (place.alone || run.slice == SavedRun::kLeaders ||
          owners.saver(rank, static_cast<std::size_t>(run.slice), place.sees) == rank)
        if (run.form.begin != run.form.end || run.form.whole()) file.runs.push_back(std::move(run));
    if (!file.runs.empty() || place.alone) files.push_back(std::move(file));
  }
  return files;
}

}  // namespace lockstep
