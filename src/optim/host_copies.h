// Host memory in the place of slices on a GPU, for an optimizer whose state is the host's to update
// (offload): gradients come down into it, what is updated goes up again.
//
// All of it is put on the current stream. Gradients come down one behind the other as soon as they are there;
// the host waits for those of a slice when it needs them, and updates while the next ones are on their way.
// Of a bf16 parameter two bytes come and two go, where its state would be twelve each way.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/comm/device.h"
#include "lockstep/grad/gradient_source.h"
#include "offload/step_waits.h"

namespace lockstep {

class HostCopies {
 public:
  // Of parameters on one device: each gets a copy on the host, with its values, dense and in the order of its
  // state (optim/layout.h). Pinned where the device is a GPU.
  explicit HostCopies(const std::vector<torch::Tensor>& parameters);
  // Waits for what is on its way up: whoever gets the memory next would write what goes.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  const torch::Tensor& parameter(std::size_t i) const { return parameters_[i]; }
  // It was written to on the device: the copy has those values when this returns.
  void refresh(std::size_t i);

  // Gradients begin to come; where one is undefined its copy is.
  void bring(std::span<const Slice> slices);
  const torch::Tensor& gradient(std::size_t i) const { return gradients_[i]; }
  // Until that gradient is there.
  void await(std::size_t i);
  // Elements of the copy go up to the parameter.
  void send(std::size_t i, std::size_t begin, std::size_t count);
  void send(std::size_t i) { send(i, 0, static_cast<std::size_t>(parameters_[i].numel())); }
  // All that was updated is on its way, and every gradient that came has been waited for: the device's are
  // let go of. Parameters on the device count as written to.
  void end_step();

  std::size_t host_bytes() const;  // parameters' and gradients'
  std::size_t elements() const { return elements_; }

  // Bytes a second from and to the device, by pinned memory.
  struct BusRates {
    double down = 0;
    double up = 0;
  };
  BusRates measure_bus() const;
  // From when a step's gradients were there until all was sent, by step, of the last 1000; the median.
  // nullopt: there was no step.
  std::optional<double> measured_ms();

 private:
  void note_last_step();
  DeviceStream stream() const { return runtime_of(device_).current_stream(device_.index); }

  Device device_;
  std::vector<torch::Tensor> there_;       // on the device
  std::vector<torch::Tensor> parameters_;  // on the host
  std::vector<torch::Tensor> places_;      // for gradients, likewise
  std::vector<torch::Tensor> gradients_;   // of this step
  std::vector<torch::Tensor> kept_;        // on the device, while they come
  std::vector<DeviceEvent> arrived_;
  std::vector<char> written_;  // in this step, by send()
  std::size_t elements_ = 0;
  DeviceEvent ready_;  // the gradients were there
  DeviceEvent sent_;
  std::int64_t ready_ns_ = 0;  // where the device does not tell
  std::int64_t sent_ns_ = 0;
  StepWaits steps_;
};

}  // namespace lockstep
