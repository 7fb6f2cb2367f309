// What Optimizer does with parameters on a GPU whose state is the host's: gradients come down, the processor
// updates, parameters go up. The kernels' bits are the GPU's.
#include <ATen/Parallel.h>

#include <algorithm>

#include "grad/torch_types.h"
#include "lockstep/base/clock.h"
#include "optim/crew.h"
#include "optim/host_copies.h"
#include "optim/layout.h"
#include "optim/slot.h"

namespace lockstep {
namespace {

// What is waited for and sent at once: a copy of so much takes a fraction of a millisecond, and its update
// many times that.
constexpr std::size_t kHostChunkElements = std::size_t{8} << 20;
constexpr std::size_t kUpdateSampleElements = std::size_t{16} << 20;

}  // namespace

void Optimizer::leave_device() {
  std::vector<torch::Tensor> parameters;
  for (const Slot& slot : slots_) parameters.push_back(slot.parameter);
  host_copies_ = std::make_unique<HostCopies>(parameters);
  for (std::size_t k = 0; k < slots_.size(); ++k) slots_[k].parameter = host_copies_->parameter(k);
  remember_writes();
}

void Optimizer::take_over_from_device() {
  const std::vector<NamedTensor> parameters = source_->parameters();
  for (std::size_t k = 0; k < slots_.size(); ++k)
    if (parameters[k].tensor._version() != slots_[k].version) host_copies_->refresh(k);
}

void Optimizer::run_on_host(const std::vector<Update>& updates) {
  const auto number = [&](const Update& each) {
    return static_cast<std::size_t>(&each.slot - slots_.data());
  };
  std::vector<const Update*> here(slots_.size(), nullptr);
  for (std::size_t first = 0; first < updates.size();) {
    std::vector<std::size_t> slices;
    std::size_t elements = 0;
    for (std::size_t i = first; i < updates.size() && (i == first || elements < kHostChunkElements); ++i) {
      slices.push_back(number(updates[i]));
      here[slices.back()] = &updates[i];
      elements += updates[i].elements.count;
      host_copies_->await(slices.back());
    }
    run_here(here, slices);
    for (const std::size_t k : slices) {
      here[k]->write_back();
      host_copies_->send(k);
    }
    first += slices.size();
  }
  host_copies_->end_step();
}

// Behind what is on disk: slices that keep no state there.
void Optimizer::send_what_is_in_memory(const std::vector<Update>& updates) {
  for (const Update& each : updates) {
    if (each.slot.on_disk) continue;
    host_copies_->send(static_cast<std::size_t>(&each.slot - slots_.data()));
  }
  host_copies_->end_step();
}

// Elements a second, of a sample as large as caches are not, with the type that most elements have.
double Optimizer::host_update_rate() const {
  const auto largest =
      std::ranges::max_element(slots_, {}, [](const Slot& slot) { return slot.parameter.numel(); });
  if (largest == slots_.end()) return 0;
  const torch::ScalarType type = largest->parameter.scalar_type();
  const auto count = static_cast<std::int64_t>(std::min(kUpdateSampleElements, host_copies_->elements()));
  const auto zeros = [&](torch::ScalarType of) {
    return torch::zeros({count}, torch::TensorOptions().dtype(of));
  };
  const torch::Tensor parameter = zeros(type), gradient = zeros(type), first = zeros(largest->kept_type()),
                      second = zeros(largest->kept_type()), master = zeros(torch::kFloat32);
  const std::size_t states = traits_.state_names.size();
  const kernel::Elements all{.dtype = *float_dtype(parameter),
                             .parameter = parameter.data_ptr(),
                             .gradient = gradient.data_ptr(),
                             .first = states > 0 ? first.data_ptr() : nullptr,
                             .second = states > 1 ? second.data_ptr() : nullptr,
                             .count = static_cast<std::size_t>(count),
                             .device = {},
                             .master = largest->has_master ? master.data_ptr() : nullptr};
  Crew crew;
  double best = 0;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t begin = now_ns();
    crew.run((all.count + kPartElements - 1) / kPartElements, static_cast<std::size_t>(at::get_num_threads()),
             [&](std::size_t k) {
               const std::size_t from = k * kPartElements;
               const kernel::Elements part = all.part(from, std::min(kPartElements, all.count - from));
               update(std::span(&part, 1), {.step = 1, .lr = lr_, .weight_decay = traits_.weight_decay});
             });
    best = std::max(best, static_cast<double>(count) * 1e9 /
                              static_cast<double>(std::max<std::int64_t>(1, now_ns() - begin)));
  }
  return best;
}

OffloadFigures Optimizer::host_figures() const {
  if (!host_rates_) {
    const HostCopies::BusRates bus = host_copies_->measure_bus();
    const double rate = host_update_rate();
    double bytes = 0;
    std::uint64_t state = 0;
    for (const Slot& slot : slots_) {
      bytes += static_cast<double>(slot.parameter.nbytes());
      for (const torch::Tensor& tensor : slot.state) state += tensor.nbytes();
      if (slot.master.defined()) state += slot.master.nbytes();
    }
    const auto elements = static_cast<double>(host_copies_->elements());
    // The first gradients come, then the update or the bus is what lasts longer, then the last ones go.
    const double chunk = elements > 0 ? std::min(1.0, static_cast<double>(kHostChunkElements) / elements) : 0;
    const double down = bus.down > 0 ? bytes / bus.down : 0, up = bus.up > 0 ? bytes / bus.up : 0;
    const double seconds = chunk * (down + up) + std::max({rate > 0 ? elements / rate : 0, down, up});
    host_rates_ = OffloadFigures{.folder = {},
                                 .bytes = state,
                                 .io = "host",
                                 .path = OffloadPath::memory,
                                 .read_rate = bus.down,
                                 .write_rate = bus.up,
                                 .both_rate = std::min(bus.down, bus.up),
                                 .predicted_ms = seconds * 1e3};
  }
  OffloadFigures figures = *host_rates_;
  figures.host_bytes = host_copies_->host_bytes();
  figures.measured_ms = host_copies_->measured_ms();
  return figures;
}

}  // namespace lockstep
