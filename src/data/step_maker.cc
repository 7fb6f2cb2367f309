#include "data/step_maker.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <limits>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

using Examples = StepDraft::Examples;

// Augmentation draws from the lane's stream, apart from what the lane's own generator (dropout) is seeded
// with.
RandomStream augmentation_stream(const LaneInfo& lane) {
  constexpr std::uint64_t kStream = 0x61'75'67'6d'65'6e'74;  // "augment"
  const auto name =
      stream_seed(lane.seed, static_cast<std::uint64_t>(lane.step), static_cast<std::uint64_t>(lane.index));
  return RandomStream(mix_bits(name ^ kStream));
}

std::shared_ptr<const Dataset> checked(std::shared_ptr<const Dataset> dataset) {
  if (dataset == nullptr) throw UsageError("loader without a dataset; accepted: any Dataset");
  return dataset;
}

void check_at_least(const char* option, std::int64_t value, std::int64_t least) {
  if (value < least)
    throw UsageError("loader: " + std::string(option) + " = " + std::to_string(value) +
                     "; accepted: " + std::to_string(least) + " or more");
}

std::int64_t steps_of_run(const LoaderOptions& options, std::int64_t steps_per_epoch) {
  check_at_least("epochs", options.epochs, 0);
  check_at_least("steps", options.steps, 0);
  if (options.epochs == 0 && options.steps == 0)
    throw UsageError("loader: epochs = 0 and steps = 0; accepted: 1 or more of either");
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t of_epochs = options.epochs == 0 || options.epochs > kMost / steps_per_epoch
                                     ? kMost
                                     : options.epochs * steps_per_epoch;
  return options.steps == 0 ? of_epochs : std::min(options.steps, of_epochs);
}

std::string place_of(std::int64_t step, int lane) {
  return "step " + std::to_string(step) + ", lane " + std::to_string(lane) + ": ";
}

// "example 17", or "examples 3, 17, 5, 8, …"
std::string in_words(const Examples& examples) {
  constexpr std::size_t kShown = 8;
  std::string text = examples.size() == 1 ? "example " : "examples ";
  for (std::size_t i = 0; i < std::min(examples.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(examples[i]);
  return examples.size() > kShown ? text + ", …" : text;
}

std::uint64_t hash_of(const LoaderOptions& options, std::int64_t examples, std::int64_t steps) {
  std::uint64_t hash = options.seed;
  for (const std::int64_t value :
       {static_cast<std::int64_t>(options.lanes), static_cast<std::int64_t>(options.lane_batch), examples,
        steps, static_cast<std::int64_t>(options.last_step), static_cast<std::int64_t>(options.shuffle),
        static_cast<std::int64_t>(options.augment)})
    hash = mix_bits(hash + 1) ^ static_cast<std::uint64_t>(value);
  return mix_bits(hash) | 1;  // not 0
}

// What the exception that is being handled says.
std::string current_message() {
  try {
    throw;
  } catch (const std::exception& error) {
    return one_line(error.what());
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

// By a handler of what get() threw: which of the examples it was is tried out one by one, since all that is
// known is the batch.
[[noreturn]] void rethrow_with_example(const Dataset& dataset, const Examples& examples,
                                       const std::optional<RandomStream>& random, const std::string& place) {
  for (const std::int64_t example : examples) {
    std::optional<RandomStream> draws = random;
    try {
      (void)dataset.get(std::span(&example, 1), draws ? &*draws : nullptr);
    } catch (...) {
      throw DatasetError({example}, place + in_words({example}) + ": " + current_message());
    }
  }
  throw DatasetError(examples, place + in_words(examples) + ": " + current_message());
}

double sum_of(const std::vector<double>& weights, const Examples& examples, const std::string& place) {
  if (weights.size() != examples.size())
    throw UsageError(place + "Dataset::weights gave " + std::to_string(weights.size()) + " numbers for " +
                     std::to_string(examples.size()) + " examples; accepted: one each");
  for (std::size_t i = 0; i < weights.size(); ++i) {
    // Lane::weights has them as f32: one that is nothing or infinite there would be another than here.
    const auto narrow = static_cast<float>(weights[i]);
    if (weights[i] >= 0 && std::isfinite(narrow) && (narrow > 0 || weights[i] == 0)) continue;
    std::ostringstream text;
    text << place << "example " << examples[i] << " weighs " << weights[i]
         << "; accepted: 0 or more, finite, and neither nothing nor infinite as f32";
    throw UsageError(text.str());
  }
  return std::accumulate(weights.begin(), weights.end(), 0.0);
}

}  // namespace

StepMaker::StepMaker(std::shared_ptr<const Dataset> dataset, int rank, int size, const LoaderOptions& options)
    : dataset_(checked(std::move(dataset))),
      options_(options),
      mine_(lanes_of(rank, size, options.lanes)),
      sampler_(dataset_->size(), {.lanes = options.lanes,
                                  .lane_batch = options.lane_batch,
                                  .seed = options.seed,
                                  .shuffle = options.shuffle,
                                  .last_step = options.last_step}),
      steps_(steps_of_run(options, sampler_.steps_per_epoch())),
      draw_(hash_of(options, dataset_->size(), steps_)),
      weighted_(!dataset_->weights(std::array<std::int64_t, 1>{0}).empty()) {
  check_at_least("first_step", options.first_step, 0);
  check_at_least("prefetch", options.prefetch, 1);
  check_at_least("threads", options.threads, 1);
  for (int worker = 0; worker < size; ++worker) {
    const LaneRange range = lanes_of(worker, size, options.lanes);
    last_first_ = std::max(last_first_, range.first);
    most_ = std::max(most_, range.count);
  }
}

StepDraft StepMaker::draft(std::int64_t number) const {
  StepDraft draft;
  Step& step = draft.step;
  step.number = number;
  step.epoch = number / sampler_.steps_per_epoch();
  step.of_epoch = number % sampler_.steps_per_epoch();
  step.ends_epoch = step.of_epoch + 1 == sampler_.steps_per_epoch();
  const auto sizes = sampler_.lane_sizes(step.of_epoch);
  step.samples = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  const bool equal = sizes.front() == sizes.back();  // they only fall
  step.everybodys = last_first_ < std::ssize(sizes) && sizes[static_cast<std::size_t>(last_first_)] > 0;
  step.most = most_;
  const auto weight_of = [&](std::int64_t samples) {
    return static_cast<double>(samples) * dataset_->weight();
  };
  step.total_weight = equal ? options_.lanes : weight_of(step.samples);

  for (int index = mine_.first; index < mine_.first + mine_.count; ++index) {
    Lane lane;
    lane.samples = sizes[static_cast<std::size_t>(index)];
    if (lane.samples == 0) break;
    lane.seed = options_.seed;
    lane.step = number;
    lane.index = index;
    lane.weight = equal ? 1 : weight_of(lane.samples);
    lane.total_weight = step.total_weight;
    lane.first = step.lanes.empty();
    lane.position = static_cast<int>(std::ssize(step.lanes));
    lane.last = false;
    step.lanes.push_back(std::move(lane));
    draft.examples.push_back(sampler_.lane(step.epoch, step.of_epoch, index));
  }
  if (!step.lanes.empty()) step.lanes.back().last = true;
  if (weighted_)
    for (int index = 0; index < options_.lanes; ++index)
      draft.of_all_lanes.push_back(sampler_.lane(step.epoch, step.of_epoch, index));
  return draft;
}

// Every worker weighs every lane of the step, sample by sample and then lane by lane: the same sums
// everywhere, without asking anybody.
void StepMaker::weigh(StepDraft& draft) const {
  Step& step = draft.step;
  step.total_weight = 0;
  auto own = step.lanes.begin();
  for (int index = 0; index < std::ssize(draft.of_all_lanes); ++index) {
    const Examples& examples = draft.of_all_lanes[static_cast<std::size_t>(index)];
    if (examples.empty()) break;
    const std::string place = place_of(step.number, index);
    std::vector<double> weights;
    try {
      weights = dataset_->weights(examples);
    } catch (...) {
      throw DatasetError(examples, place + "weights of " + in_words(examples) + ": " + current_message());
    }
    const double weight = sum_of(weights, examples, place);
    step.total_weight += weight;
    if (own == step.lanes.end() || own->index != index) continue;
    own->weight = weight;
    own->weights = torch::tensor(weights, torch::kFloat32);
    ++own;
  }
  for (Lane& lane : step.lanes) lane.total_weight = step.total_weight;
}

std::optional<Step> StepMaker::make(StepDraft draft, const std::stop_token& stop) const {
  if (weighted_) weigh(draft);
  for (std::size_t i = 0; i < draft.examples.size(); ++i) {
    if (stop.stop_requested()) return std::nullopt;
    Lane& lane = draft.step.lanes[i];
    std::optional<RandomStream> random;
    if (options_.augment) random = augmentation_stream(lane);
    std::optional<RandomStream> draws = random;
    try {
      static_cast<Batch&>(lane) = dataset_->get(draft.examples[i], draws ? &*draws : nullptr);
    } catch (...) {
      rethrow_with_example(*dataset_, draft.examples[i], random, place_of(lane.step, lane.index));
    }
    if (options_.place) options_.place(lane);
  }
  return std::move(draft.step);
}

}  // namespace lockstep
