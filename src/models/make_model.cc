#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/models/models.h"

namespace lockstep {

std::vector<std::string> model_names() { return {"resnet18", "resnet34", "resnet50", "gpt", "mlp"}; }

std::shared_ptr<Model> make_model(std::string_view name, const ModelOptions& options) {
  ResNetOptions resnet = options.resnet;
  for (const int depth : {18, 34, 50}) {
    if (name != fmt::format("resnet{}", depth)) continue;
    resnet.depth = depth;
    return make_resnet(resnet);
  }
  if (name == "gpt") return make_gpt(options.gpt);
  if (name == "mlp") return make_mlp(options.mlp);
  throw UsageError(fmt::format("model '{}'; accepted: {}", name, fmt::join(model_names(), ", ")));
}

}  // namespace lockstep
