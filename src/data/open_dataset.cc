#include "lockstep/data/open_dataset.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "data/file_bytes.h"
#include "data/grammar.h"
#include "lockstep/base/error.h"
#include "lockstep/base/knobs.h"
#include "lockstep/data/datasets.h"
#include "lockstep/data/shapes.h"

namespace lockstep {
namespace {

using Shape = std::vector<std::int64_t>;
using Open = std::shared_ptr<Dataset> (*)(const DataOptions& options);

// What is made when no number is given.
constexpr ShapesOptions kMade = {};

std::int64_t limit_of(const DataOptions& options) {
  return options.split == Split::train ? options.train_size : options.test_size;
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (const std::int64_t side : shape) {
    if (!text.empty()) text += 'x';
    text += std::to_string(side);
  }
  return text;
}

// The one of `accepted` that was asked for; the first when none was.
Shape choose_shape(const DataOptions& options, const std::vector<Shape>& accepted) {
  if (options.shape.empty()) return accepted.front();
  const auto found = std::find(accepted.begin(), accepted.end(), options.shape);
  if (found != accepted.end()) return *found;
  std::string names;
  for (const Shape& shape : accepted) names += (names.empty() ? "" : ", ") + text_of(shape);
  throw UsageError("data '" + options.name + "' with shape " + text_of(options.shape) +
                   "; accepted: " + names);
}

void need_folder(const DataOptions& options) {
  if (options.folder.empty())
    throw UsageError("data '" + options.name +
                     "' without a folder; accepted: the folder where its files are");
}

Images first_of(Images images, std::int64_t limit) {
  if (limit == 0 || limit >= images.size()) return images;
  images.labels.resize(static_cast<std::size_t>(limit));
  images.pixels.resize(static_cast<std::size_t>(limit * images.shape.bytes()));
  return images;
}

std::shared_ptr<Dataset> open_cifar10(const DataOptions& options) {
  need_folder(options);
  choose_shape(options, {{3, 32, 32}});
  return std::make_shared<ImageDataset>(
      first_of(read_cifar10(options.folder, options.split), limit_of(options)),
      ImageOptions{.mean = {0.4914, 0.4822, 0.4465}, .deviation = {0.2470, 0.2435, 0.2616}});
}

std::shared_ptr<Dataset> open_mnist(const DataOptions& options) {
  need_folder(options);
  const Shape shape = choose_shape(options, {{1, 28, 28}, {3, 32, 32}});
  const ImageShape output{static_cast<int>(shape[0]), static_cast<int>(shape[1]), static_cast<int>(shape[2])};
  const auto channels = static_cast<std::size_t>(output.channels);
  // A mirrored digit is another one, or none.
  return std::make_shared<ImageDataset>(
      first_of(read_mnist(options.folder, options.split), limit_of(options)),
      ImageOptions{.mean = std::vector<double>(channels, 0.1307),
                   .deviation = std::vector<double>(channels, 0.3081),
                   .output = output,
                   .crop_padding = 2,
                   .flip = false});
}

std::filesystem::path shapes_folder(const DataOptions& options) {
  if (!options.folder.empty()) return options.folder;
  const std::string cache = Knobs::from_environment().cache_dir;
  if (cache == "off")
    throw UsageError(
        "data 'shapes' without a folder, and there is no cache folder; accepted: a folder to make it in");
  return cache;
}

std::shared_ptr<Dataset> open_shapes(const DataOptions& options) {
  choose_shape(options, {{3, 32, 32}});
  const ShapesOptions made{.train = options.train_size == 0 ? kMade.train : options.train_size,
                           .test = options.test_size == 0 ? kMade.test : options.test_size,
                           .seed = options.seed};
  // A folder for each choice, so that runs with different ones don't get in each other's way.
  const std::string name = "shapes-" + std::to_string(made.train) + "-" + std::to_string(made.test) +
                           "-seed" + std::to_string(made.seed);
  const auto folder = make_shapes(shapes_folder(options) / name, made);
  const std::vector<double> mean(3, 0.5);
  const std::vector<double> deviation(3, 0.29);
  return std::make_shared<ImageDataset>(read_cifar10(folder, options.split),
                                        ImageOptions{.mean = mean, .deviation = deviation});
}

// Text of which the loss has a floor. The test split is a text of its own.
std::shared_ptr<Dataset> make_text(const DataOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{4} << 30;  // bytes, as of files
  const std::int64_t usual = options.split == Split::train ? 2000 : 200;
  const std::int64_t examples = limit_of(options) == 0 ? usual : limit_of(options);
  if (examples > (kMost - 1) / options.context)
    throw UsageError("text of " + std::to_string(examples) + " examples with a context of " +
                     std::to_string(options.context) + "; accepted: 4 GiB in all at most");
  const RandomStream random(options.seed, static_cast<std::uint64_t>(options.split), 0);
  return std::make_shared<TextDataset>(sentences().write(examples * options.context + 1, random),
                                       options.context, sentences().loss_floor(options.context));
}

std::shared_ptr<Dataset> open_text(const DataOptions& options) {
  if (options.context < 1)
    throw UsageError("context = " + std::to_string(options.context) + "; accepted: 1 or more");
  if (options.folder.empty()) return make_text(options);
  auto bytes = read_text(options.folder);
  const auto whole = std::ssize(bytes);
  const auto cut = bytes.begin() + (whole - whole / 10);
  if (options.split == Split::train) {
    bytes.erase(cut, bytes.end());
  } else {
    bytes.erase(bytes.begin(), cut);
  }
  const std::int64_t limit = limit_of(options);
  if (limit > 0 && limit < std::ssize(bytes) / options.context)
    bytes.resize(static_cast<std::size_t>(limit * options.context + 1));
  if (std::ssize(bytes) <= options.context)
    throw UsageError(
        shown(options.folder) + " has " + std::to_string(whole) + " bytes, " + std::to_string(bytes.size()) +
        " of them for " + (options.split == Split::train ? "training" : "testing (the last tenth)") +
        ": too short for a context of " + std::to_string(options.context) +
        "; accepted: " + std::to_string(options.context + 1) + " bytes or more there, or a shorter context");
  return std::make_shared<TextDataset>(std::move(bytes), options.context);
}

std::shared_ptr<Dataset> open_synthetic(const DataOptions& options) {
  const bool tokens = options.shape.empty();
  const std::int64_t limit = limit_of(options);
  const std::int64_t usual = options.split == Split::train ? kMade.train : kMade.test;
  const std::int64_t usual_classes = tokens ? 256 : 10;
  return std::make_shared<SyntheticDataset>(
      SyntheticOptions{.kind = tokens ? SyntheticKind::tokens : SyntheticKind::values,
                       .size = limit == 0 ? usual : limit,
                       .shape = tokens ? Shape{options.context} : options.shape,
                       .classes = options.classes == 0 ? usual_classes : options.classes,
                       .seed = stream_seed(options.seed, static_cast<std::uint64_t>(options.split))});
}

const std::vector<std::pair<std::string, Open>>& known() {
  static const std::vector<std::pair<std::string, Open>> datasets = {{"cifar10", open_cifar10},
                                                                     {"mnist", open_mnist},
                                                                     {"shapes", open_shapes},
                                                                     {"text", open_text},
                                                                     {"synthetic", open_synthetic}};
  return datasets;
}

}  // namespace

const std::vector<std::string>& dataset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, open] : known()) all.push_back(name);
    return all;
  }();
  return names;
}

std::shared_ptr<Dataset> open_dataset(const DataOptions& options) {
  if (options.train_size < 0 || options.test_size < 0)
    throw UsageError("data: " + std::to_string(options.train_size) + " examples for training and " +
                     std::to_string(options.test_size) + " for testing; accepted: 0 (all) or more");
  std::string names;
  for (const auto& [name, open] : known()) {
    if (name == options.name) return open(options);
    names += (names.empty() ? "" : ", ") + name;
  }
  throw UsageError("unknown data " + shown(options.name) + "; accepted: " + names);
}

}  // namespace lockstep
