#include "train/load_parts.h"

#include <algorithm>
#include <memory>
#include <span>
#include <system_error>

#include "checkpoint/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/stored_tensors.h"
#include "checkpoint/torch_types.h"
#include "checkpoint/training_files.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/leader.h"
#include "lockstep/checkpoint/sha256.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::map<std::string, StateEntry> forms_of(const StoredTensors& stored) {
  std::map<std::string, StateEntry> forms;
  for (const auto& [name, form] : stored.forms()) forms[name] = {to_torch(form.dtype), form.shape};
  return forms;
}

std::span<std::byte> bytes_of(const torch::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

// Whether all have the manifest that rank 0 has.
bool seen_by_all(const Group& world, const fs::path& checkpoint) {
  std::string hash;
  try {
    hash = sha256_file(checkpoint / kManifestName);
  } catch (const SystemError&) {
    hash.clear();  // it has none, and need not
  }
  const std::vector<std::string> all = world.all_gather(hash);
  return std::ranges::all_of(all, [&](const std::string& other) { return other == all[0]; });
}

// Whether bytes of the file may go where the part lies.
bool in_place(const StatePart& part) {
  return part.plain && part.tensor.is_cpu() && part.tensor.is_contiguous();
}

torch::Tensor read_whole(const StoredTensors& stored, const StatePart& part) {
  torch::Tensor whole = torch::empty(part.whole, part.tensor.scalar_type());
  stored.read(part.name, 0, static_cast<std::uint64_t>(whole.numel()), bytes_of(whole));
  return whole;
}

// The elements of this worker, from the file.
void read_own(const StoredTensors& stored, const StatePart& part, const GradientSource& source) {
  if (in_place(part))
    stored.read(part.name, part.elements.begin, part.elements.end, bytes_of(part.tensor));
  else if (part.elements.count() > 0)
    torch::Tensor(part.tensor).copy_(source.cut(part.slice, read_whole(stored, part)));
}

// From rank 0, which has `stored`, to all.
void read_and_send(const StoredTensors* stored, const StatePart& part, const GradientSource& source,
                   const Group& world) {
  const bool direct = part.everywhere || (in_place(part) && part.tensor.sizes() == part.whole);
  torch::Tensor whole;
  run_on_leader(world, "reading the optimizer's state", [&] {
    if (!direct)
      whole = read_whole(*stored, part);
    else
      stored->read(part.name, part.elements.begin, part.elements.end, bytes_of(part.tensor));
  });
  if (direct)
    whole = part.tensor;
  else if (!whole.defined())
    whole = torch::empty(part.whole, part.tensor.scalar_type());
  world.broadcast(Buffer(whole.data_ptr(), whole.nbytes(), DType::u8), 0);
  if (!direct) torch::Tensor(part.tensor).copy_(source.cut(part.slice, whole));
}

}  // namespace

void load_optimizer_state(const fs::path& checkpoint, Optimizer& optimizer, const SliceOwners& owners,
                          const Group& world) {
  std::unique_ptr<StoredTensors> stored;
  run_on_leader(world, "reading the optimizer's state", [&] {
    stored = std::make_unique<StoredTensors>(checkpoint, kOptimizerFile);
    optimizer.check_state(forms_of(*stored));
  });
  const GradientSource& source = optimizer.source();
  if (!owners.whole_everywhere() && seen_by_all(world, checkpoint)) {
    run_on_all(world, "reading the optimizer's state", [&] {
      if (!stored) stored = std::make_unique<StoredTensors>(checkpoint, kOptimizerFile);
      optimizer.load_parts([&](const StatePart& part) { read_own(*stored, part, source); });
    });
    return;
  }
  optimizer.load_parts([&](const StatePart& part) { read_and_send(stored.get(), part, source, world); });
}

}  // namespace lockstep
