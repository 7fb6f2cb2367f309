// What Replicated does where parameters are gathered in units; nothing where they are not.
#include "lockstep/parallel/replicated.h"
#include "parallel/parameter_units.h"

namespace lockstep {

void Replicated::wait_for_passes() {
  if (traits_.units) traits_.units->wait_over();
}
void Replicated::meet() {
  if (!traits_.units) return;
  traits_.units->passes_over();
  traits_.units->wait_over();
}
void Replicated::set_whole(bool on) {
  if (traits_.units) traits_.units->set_whole(on);
}
void Replicated::bring(const torch::Tensor& parameter) {
  if (traits_.units) traits_.units->bring(parameter);
}
bool Replicated::gathers() const { return traits_.units != nullptr; }
std::size_t Replicated::gathered_bytes() const { return traits_.units ? traits_.units->peak_bytes() : 0; }
std::optional<OffloadFigures> Replicated::offload(int lanes) const {
  return traits_.units && traits_.units->store() != nullptr
             ? std::optional(traits_.units->store()->figures(lanes))
             : std::nullopt;
}

}  // namespace lockstep
