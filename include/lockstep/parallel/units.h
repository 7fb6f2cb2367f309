// Units: the parts of a model whose parameters come and go together, for workers that hold shares of the
// parameters and have no memory in common (Sharded at stage `parameters` over tcp, mpi, one worker a
// machine; FSDP's FULL_SHARD), and whose activations may be computed anew instead of kept.
//
// libtorch's C++ modules have no hooks around forward(), so a model says where its units are:
//
//   class Net : public torch::nn::Module {
//     Net() {
//       for (int i = 0; i < 12; ++i)
//         blocks_.push_back(lockstep::shard(register_module(std::to_string(i), std::make_shared<Block>())));
//     }
//     torch::Tensor forward(torch::Tensor x) {
//       for (auto& block : blocks_) x = block.forward(x);        // as before
//       return x;
//     }
//     std::vector<lockstep::UnitOf<Block>> blocks_;               // in place of std::shared_ptr<Block>
//   };
//
// Names of parameters stay as they are. Where nobody shards the model (DataParallel, stages 1 and 2, no
// strategy at all) a unit's forward is its module's and nothing else. Several modules as one unit, and what
// is no module's forward():
//
//   lockstep::Unit head_{{norm_.ptr(), out_.ptr()}};
//   head_.run([&](const torch::Tensor& x) { return out_->forward(norm_->forward(x)); }, x);
//
// Under Sharded with units each worker holds its share of a unit's parameters. They are gathered before the
// unit's forward, let go behind it, gathered again before its backward, let go behind that; the next unit's
// come while this one computes. docs/sharding.md says what that costs.
//
// Rules
//  - A unit's parameters may be used inside its forward() or run() alone: elsewhere their memory is not
//    there. Strategy::whole() brings all of them, to be read, saved or loaded.
//  - What goes in and comes out are tensors, or vectors, tuples or optionals of them, as arguments and
//    result; anything else among the arguments is passed on, and is nothing that autograd follows.
//  - All workers run the same units in the same order, as often as they run them; a worker whose data are
//    over sooner is waited for by nobody (Strategy::meet()). Otherwise: MismatchError that names both.
//  - Units may lie in each other, be used several times in a forward, and share parameters (tied weights).
//    What belongs to no unit, and what a module outside of all units uses too, is whole on every worker, and
//    so are frozen parameters.
//
// A model that is larger than a worker's memory: construction.h.
//
// recompute(): the activations inside of a unit are not kept for backward; its forward runs again there,
// with the same random numbers, and the same bits come out. It costs that forward, and saves what lies
// between the unit's inputs and outputs; with and without shards.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

class UnitPoint;

namespace detail {

using Tensors = std::vector<torch::Tensor>;

// One time through a unit's forward; ends it when destroyed.
class UnitPass {
 public:
  explicit UnitPass(const std::shared_ptr<UnitPoint>& point);
  ~UnitPass();
  UnitPass(const UnitPass&) = delete;
  UnitPass& operator=(const UnitPass&) = delete;
  // What the forward gave: its backward is this unit's.
  void gave(const Tensors& outputs);

 private:
  std::shared_ptr<UnitPoint> point_;
  std::shared_ptr<void> use_;
};

// Calls fn(tensor) for every tensor of a value, in order.
template <class T, class F>
void for_each_tensor(T& value, const F& fn) {
  (void)value, (void)fn;
}
template <class F>
void for_each_tensor(torch::Tensor& value, const F& fn) {
  fn(value);
}
template <class T, class F>
void for_each_tensor(std::vector<T>& values, const F& fn) {
  for (T& value : values) for_each_tensor(value, fn);
}
template <class T, class F>
void for_each_tensor(std::optional<T>& value, const F& fn) {
  if (value) for_each_tensor(*value, fn);
}
template <class... T, class F>
void for_each_tensor(std::tuple<T...>& values, const F& fn) {
  std::apply([&](T&... each) { (for_each_tensor(each, fn), ...); }, values);
}

template <class T>
Tensors tensors_of(T& value) {
  Tensors list;
  for_each_tensor(value, [&](torch::Tensor& tensor) { list.push_back(tensor); });
  return list;
}
template <class T>
void set_tensors(T& value, const Tensors& tensors) {
  std::size_t i = 0;
  for_each_tensor(value, [&](torch::Tensor& tensor) { tensor = tensors[i++]; });
}

// Whether for_each_tensor finds every tensor of a value of this type.
template <class T>
struct ShowsTensors : std::bool_constant<std::is_same_v<T, torch::Tensor> || std::is_arithmetic_v<T> ||
                                         std::is_enum_v<T> || std::is_same_v<T, std::string>> {};
template <class T>
struct ShowsTensors<std::vector<T>> : ShowsTensors<T> {};
template <class T>
struct ShowsTensors<std::optional<T>> : ShowsTensors<T> {};
template <class... T>
struct ShowsTensors<std::tuple<T...>> : std::bool_constant<(ShowsTensors<T>::value && ...)> {};

bool recomputes(const UnitPoint& point);
// Are its parameters gathered, and gone behind its forward?
bool gathered(const UnitPoint& point);
// `forward` makes outputs of inputs; it runs here without a graph, and again in backward.
Tensors run_recomputed(const std::shared_ptr<UnitPoint>& point,
                       std::function<Tensors(const Tensors& inputs)> forward, const Tensors& inputs);

}  // namespace detail

class Unit {
 public:
  Unit() = default;  // of nothing: run() just calls
  explicit Unit(std::vector<std::shared_ptr<torch::nn::Module>> modules);

  // fn(args…), which is this unit's forward. `fn` is kept for backward where the unit is recomputed: what it
  // refers to has to be there as long as the graph is.
  template <class F, class... Args>
  auto run(const F& fn, Args... args) const {
    using Result = std::invoke_result_t<const F&, Args...>;
    static_assert(detail::ShowsTensors<Result>::value,
                  "a unit gives tensors, or vectors, tuples or optionals of them: backward would not find "
                  "those in anything else");
    if (!point_) return fn(std::move(args)...);
    std::tuple<Args...> packed(std::move(args)...);
    if (!detail::recomputes(*point_)) {
      detail::UnitPass pass(point_);
      Result result = std::apply(fn, std::move(packed));
      pass.gave(detail::tensors_of(result));
      return result;
    }
    const auto form = std::make_shared<std::optional<Result>>();  // what the result is, its tensors aside
    const detail::Tensors inputs = detail::tensors_of(packed);
    detail::set_tensors(packed, detail::Tensors(inputs.size()));  // the graph keeps them
    const auto again = [fn, packed, form](const detail::Tensors& given) mutable {
      std::tuple<Args...> now = packed;
      detail::set_tensors(now, given);
      Result result = std::apply(fn, std::move(now));
      detail::Tensors outputs = detail::tensors_of(result);
      if (!form->has_value()) *form = std::move(result);
      return outputs;
    };
    const detail::Tensors outputs = detail::run_recomputed(point_, again, inputs);
    Result result = std::move(**form);
    detail::set_tensors(result, outputs);
    return result;
  }

  const std::shared_ptr<UnitPoint>& point() const { return point_; }

 private:
  std::shared_ptr<UnitPoint> point_;
};

// A module that is a unit. Copies are the same unit.
template <class M>
class UnitOf {
 public:
  UnitOf() = default;
  explicit UnitOf(std::shared_ptr<M> module) : module_(std::move(module)), unit_({module_}) {}

  template <class... Args>
  auto forward(Args&&... args) const {
    return unit_.run([module = module_.get()](
                         auto&&... each) { return module->forward(std::forward<decltype(each)>(each)...); },
                     std::decay_t<Args>(std::forward<Args>(args))...);
  }

  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  const std::shared_ptr<M>& ptr() const { return module_; }
  const Unit& unit() const { return unit_; }

 private:
  std::shared_ptr<M> module_;
  Unit unit_;
};

// Makes a module a unit; behind register_module(), whose result it takes.
template <class M>
UnitOf<M> shard(std::shared_ptr<M> module) {
  return UnitOf<M>(std::move(module));
}
template <class H, class M = typename H::ContainedType>
UnitOf<M> shard(const H& holder) {
  return UnitOf<M>(holder.ptr());
}

// fn(), which gives the unit's parameters their first values: where it was cut as it was made
// (construction.h) they are whole meanwhile, and what rank 0 has made of them counts.
void initialise(const Unit& unit, const std::function<void()>& fn);
template <class M>
void initialise(const UnitOf<M>& unit, const std::function<void()>& fn) {
  initialise(unit.unit(), fn);
}

// From now on, or no longer, its forward runs again in backward.
void recompute(const Unit& unit, bool on = true);
template <class M>
const UnitOf<M>& recompute(const UnitOf<M>& unit, bool on = true) {
  recompute(unit.unit(), on);
  return unit;
}
// Every unit of a model that lies in no other: what `lockstep train --recompute` does. Returns how many.
int recompute_units(const torch::nn::Module& module, bool on = true);

}  // namespace lockstep
