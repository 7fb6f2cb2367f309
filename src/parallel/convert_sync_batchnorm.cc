// A Sequential calls its modules through its own list, so there one can be exchanged for another. A module
// that holds BatchNorm as a member calls that member, whatever is registered under its name.
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>

#include <map>
#include <set>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {
namespace {

using torch::nn::SequentialImpl;

template <class Norm>
std::shared_ptr<SyncBatchNormImpl> in_place_of(const torch::nn::Module& module) {
  const auto* const norm = module.as<Norm>();
  if (norm == nullptr) return nullptr;
  auto made = std::make_shared<SyncBatchNormImpl>(
      norm->options, BatchNormTensors{norm->weight, norm->bias, norm->running_mean, norm->running_var,
                                      norm->num_batches_tracked});
  made->train(norm->is_training());
  return made;
}

// Null: no batch norm, or a class of the user's own that is more than one.
std::shared_ptr<SyncBatchNormImpl> made_from(const torch::nn::Module& module) {
  const std::type_info& type = typeid(module);
  if (type == typeid(torch::nn::BatchNorm1dImpl)) return in_place_of<torch::nn::BatchNorm1dImpl>(module);
  if (type == typeid(torch::nn::BatchNorm2dImpl)) return in_place_of<torch::nn::BatchNorm2dImpl>(module);
  if (type == typeid(torch::nn::BatchNorm3dImpl)) return in_place_of<torch::nn::BatchNorm3dImpl>(module);
  return nullptr;
}

bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

// One module of the tree, by the names that lead there, and who holds it.
struct Place {
  std::string name;
  torch::nn::Module* parent;
  std::string child;
  std::weak_ptr<torch::nn::Module> module;
};

void find_batch_norms(torch::nn::Module& parent, const std::string& prefix, std::vector<Place>& found) {
  for (const auto& child : parent.named_children()) {
    const std::string name = prefix + child.key();
    if (is_batch_norm(*child.value()))
      found.push_back({name, &parent, child.key(), child.value()});
    else
      find_batch_norms(*child.value(), name + ".", found);
  }
}

// A Sequential holds a module twice: to call it, and as its child. It may have several names itself.
void refuse_unreachable(const std::vector<Place>& places) {
  std::map<const torch::nn::Module*, long> known;
  std::set<std::pair<const torch::nn::Module*, std::string>> seen;
  for (const Place& place : places)
    if (seen.emplace(place.parent, place.child).second) known[place.module.lock().get()] += 2;
  const auto refuse = [](const Place& place, const char* why) {
    throw UsageError("convert_sync_batchnorm: '" + place.name + "' " + why +
                     ", which would go on without the other workers; accepted: lockstep::SyncBatchNorm in "
                     "its place, or a BatchNorm that only a torch::nn::Sequential holds");
  };
  for (const Place& place : places) {
    const long holders = place.module.use_count();
    const auto module = place.module.lock();
    if (place.parent->as<SequentialImpl>() == nullptr)
      refuse(place, "is a BatchNorm that its module holds as a member");
    if (made_from(*module) == nullptr) refuse(place, "is of a class of its own, beyond BatchNorm");
    if (holders != known.at(module.get()))
      refuse(place, "is held by its Sequential and by something else, a member or a variable");
  }
}

}  // namespace

int convert_sync_batchnorm(const ModuleRef& model, const Group& group) {
  const std::shared_ptr<torch::nn::Module>& root = model.pointer();
  if (root == nullptr) throw UsageError("convert_sync_batchnorm of no module");
  if (is_batch_norm(*root))
    throw UsageError(
        "convert_sync_batchnorm: the model is itself a BatchNorm; accepted: "
        "lockstep::SyncBatchNorm in its place");
  std::vector<Place> places;
  find_batch_norms(*root, "", places);
  refuse_unreachable(places);
  const Group part = group ? group.split(0) : Group();
  // One that has several places stays one.
  std::map<std::shared_ptr<torch::nn::Module>, std::shared_ptr<SyncBatchNormImpl>> made;
  std::vector<std::shared_ptr<torch::nn::Module>> old;
  for (const Place& place : places) {
    old.push_back(place.module.lock());
    auto& norm = made[old.back()];
    if (norm != nullptr) continue;
    norm = made_from(*old.back());
    norm->join(part, "SyncBatchNorm '" + place.name + "'");
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    auto* const sequential = places[i].parent->as<SequentialImpl>();
    const auto& norm = made.at(old[i]);
    for (torch::nn::AnyModule& slot : *sequential)
      if (slot.ptr() == old[i]) slot = torch::nn::AnyModule(norm);
    sequential->replace_module(places[i].child, norm);
  }
  return static_cast<int>(made.size());
}

}  // namespace lockstep
