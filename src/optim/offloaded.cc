// What Optimizer does with state on disk: the same as with state in memory, a page at a time.
#include "optim/offloaded.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"
#include "optim/crew.h"
#include "optim/host_copies.h"
#include "optim/layout.h"

namespace lockstep {
namespace {

torch::Tensor on_memory(void* at, std::size_t count, torch::ScalarType dtype) {
  return torch::from_blob(at, {static_cast<std::int64_t>(count)}, torch::TensorOptions().dtype(dtype));
}

torch::Tensor some_of(const torch::Tensor& flat, const StateInMemory& part) {
  return flat.narrow(0, static_cast<std::int64_t>(part.begin), static_cast<std::int64_t>(part.count));
}

std::string order_text(const StateOrder& order) {
  return fmt::format("{} [{}] of strides [{}]", c10::toString(order.dtype), fmt::join(order.sizes, ", "),
                     fmt::join(order.strides, ", "));
}

}  // namespace

void Optimizer::Slot::check_on_disk(const std::string& optimizer) const {
  if (!on_disk) return;
  if (const StateOrder now = order_of_state(parameter); now != made_for)
    throw UsageError(fmt::format(
        "{}: '{}' is {}, but its state on disk was made for {}; make a new optimizer after changing "
        "parameters",
        optimizer, name, order_text(now), order_text(made_for)));
}

void Optimizer::make_slots_on_disk() {
  const torch::NoGradGuard no_grad;
  const std::size_t states = traits_.state_names.size();
  std::vector<StateShape> shapes;
  for (Slot& slot : slots_) {
    const std::size_t arrays = states + (slot.has_master ? 1 : 0);
    slot.on_disk = arrays > 0;
    slot.made_for = order_of_state(slot.parameter);
    shapes.push_back(
        {.elements = slot.elements, .arrays = arrays, .element_bytes = c10::elementSize(slot.kept_type())});
  }
  disk_ = std::make_unique<DiskState>(traits_.offload, std::move(shapes));
  disk_->initialize([&](std::span<const StateInMemory> parts) {
    if (traits_.master_weights == MasterWeights::f32) hold(parts, SliceStore::Use::read);
    for (const StateInMemory& part : parts)
      if (const Slot& slot = slots_[part.slice]; slot.has_master)
        on_memory(part.array(states), part.count, torch::kFloat32)
            .copy_(some_of(in_state_order(slot.parameter), part));
  });
  if (SliceStore* const store = source_->store()) store->let_go();
  if (traits_.master_weights == MasterWeights::f32 || host_copies_) remember_writes();
}

void Optimizer::hold(std::span<const StateInMemory> parts, SliceStore::Use use) const {
  SliceStore* const store = source_->store();
  if (store == nullptr) return;
  std::vector<std::size_t> slices;
  for (const StateInMemory& part : parts) slices.push_back(part.slice);
  store->hold(slices, use);
}

void Optimizer::take_over_on_disk(const std::vector<NamedTensor>& parameters) {
  std::vector<bool> written(slots_.size(), false);
  for (std::size_t k = 0; k < slots_.size(); ++k)
    written[k] =
        slots_[k].on_disk && slots_[k].has_master && parameters[k].tensor._version() != slots_[k].version;
  if (std::ranges::find(written, true) == written.end()) return;
  disk_->pass(
      written, [](std::size_t) { return PageUse::update; },
      [&](std::span<const StateInMemory> parts) {
        hold(parts, SliceStore::Use::read);
        for (const StateInMemory& part : parts) {
          const torch::Tensor& whole = slots_[part.slice].parameter;
          const torch::Tensor parameter = some_of(in_state_order(whole), part);
          torch::Tensor master =
              on_memory(part.array(traits_.state_names.size()), part.count, torch::kFloat32);
          const torch::Tensor same = master.to(whole.scalar_type()).eq(parameter);
          master.copy_(torch::where(same, master, parameter.to(torch::kFloat32)));
        }
      });
}

void Optimizer::run_on_disk(const std::vector<Update>& updates) {
  const std::size_t states = traits_.state_names.size();
  std::vector<const Update*> updated(slots_.size(), nullptr);
  std::vector<bool> wanted(slots_.size(), false);
  for (const Update& each : updates) {
    const auto i = static_cast<std::size_t>(&each.slot - slots_.data());
    updated[i] = &each;
    wanted[i] = each.slot.on_disk;
  }
  struct Piece {
    const Update* update;
    kernel::Elements elements;
  };
  // Moments that have moved before stay as they are.
  const bool moves = traits_.adapts != Adapts::to_moments;
  disk_->pass(
      wanted, [&](std::size_t i) { return moves || slots_[i].has_master ? PageUse::update : PageUse::read; },
      [&](std::span<const StateInMemory> parts) {
        hold(parts, SliceStore::Use::update);
        std::vector<Piece> pieces;
        for (const StateInMemory& part : parts) {
          if (host_copies_) host_copies_->await(part.slice);
          const Update& update = *updated[part.slice];
          const kernel::Elements elements = elements_in(part, update, states);
          for (std::size_t begin = 0; begin < part.count; begin += kPartElements)
            pieces.push_back({&update, elements.part(begin, std::min(kPartElements, part.count - begin))});
        }
        crew().run(pieces.size(), static_cast<std::size_t>(at::get_num_threads()), [&](std::size_t k) {
          const auto& [each, elements] = pieces[k];
          update(std::span(&elements, 1), each->pass);
        });
        for (const StateInMemory& part : parts) {
          const Update& update = *updated[part.slice];
          if (!update.to_stored_master) continue;
          const torch::ScalarType narrow = update.slot.parameter.scalar_type();  // its master was updated
          auto* const to = static_cast<std::byte*>(update.parameter_comes ? update.slot.parameter.data_ptr()
                                                                          : update.arrays.parameter()) +
                           part.begin * c10::elementSize(narrow);
          on_memory(to, part.count, narrow).copy_(on_memory(part.array(states), part.count, torch::kFloat32));
        }
        for (const StateInMemory& part : parts)
          if (host_copies_) host_copies_->send(part.slice, part.begin, part.count);
      });
  if (host_copies_) send_what_is_in_memory(updates);
}

torch::Tensor Optimizer::fetch(const Slot& slot, std::size_t array) const {
  torch::Tensor tensor = empty_state(slot.parameter, slot.kept_type());
  auto* to = static_cast<std::byte*>(tensor.data_ptr());
  disk_->read(static_cast<std::size_t>(&slot - slots_.data()), array, [&](std::span<const std::byte> bytes) {
    std::memcpy(to, bytes.data(), bytes.size());
    to += bytes.size();
  });
  return tensor;
}

std::optional<OffloadFigures> Optimizer::offload() const {
  if (!disk_) return host_copies_ ? std::optional(host_figures()) : std::nullopt;
  OffloadFigures figures = disk_->figures();
  const bool masters =
      std::ranges::any_of(slots_, [](const Slot& slot) { return slot.on_disk && slot.has_master; });
  const StepNorms norms = traits_.adapts == Adapts::to_moments      ? StepNorms::of_moments
                          : traits_.adapts == Adapts::to_parameters ? StepNorms::of_parameters
                                                                    : StepNorms::none;
  figures.predicted_ms =
      disk_->predicted_ms(passes_of_step(norms, masters ? StepMasters::on_disk : StepMasters::none));
  if (!host_copies_) return figures;
  // The disk, the bus and the update go on beside each other.
  const OffloadFigures host = host_figures();
  figures.predicted_ms = std::max(figures.predicted_ms, host.predicted_ms);
  figures.measured_ms = host.measured_ms;
  figures.host_bytes = host.host_bytes + figures.staging_bytes;
  return figures;
}

}  // namespace lockstep
