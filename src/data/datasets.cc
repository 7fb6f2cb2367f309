// One file for all three, because libtorch's headers cost more than they do.
#include "lockstep/data/datasets.h"

#include <string>
#include <utility>

#include "data/place_image.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

torch::Tensor make_tensor(std::int64_t batch, const std::vector<std::int64_t>& shape,
                          torch::ScalarType type) {
  std::vector<std::int64_t> sizes{batch};
  sizes.insert(sizes.end(), shape.begin(), shape.end());
  return torch::empty(sizes, torch::TensorOptions().dtype(type));
}

std::int64_t count_of(std::span<const std::int64_t> indices) {
  return static_cast<std::int64_t>(indices.size());
}

void check_index(std::int64_t index, std::int64_t size) {
  if (index < 0 || index >= size)
    throw UsageError("example " + std::to_string(index) + "; accepted: 0 to " + std::to_string(size - 1));
}

std::string text_of(const ImageShape& shape) {
  return std::to_string(shape.channels) + " × " + std::to_string(shape.height) + " × " +
         std::to_string(shape.width);
}

}  // namespace

const torch::Tensor& Batch::operator[](const std::string& name) const {
  if (name == "data") return data;
  if (name == "target") return target;
  if (const auto found = more.find(name); found != more.end()) return found->second;
  std::string accepted = "data, target";
  for (const auto& [known, tensor] : more) accepted += ", " + known;
  throw UsageError("a batch has no '" + name + "'; accepted: " + accepted);
}

ImageDataset::ImageDataset(Images images, ImageOptions options)
    : images_(std::move(images)), options_(std::move(options)) {
  const ImageShape& from = images_.shape;
  ImageShape& to = options_.output;
  if (to.channels == 0) to = from;
  if (from.bytes() < 1 || std::ssize(images_.pixels) != images_.size() * from.bytes())
    throw UsageError("images: " + std::to_string(images_.pixels.size()) + " bytes for " +
                     std::to_string(images_.size()) + " labels; accepted: " + text_of(from) +
                     " bytes an image");
  if ((to.channels != from.channels && from.channels != 1) || to.height < from.height ||
      to.width < from.width)
    throw UsageError("images of " + text_of(from) + " as " + text_of(to) +
                     "; accepted: the same number of channels (any, of one), the same size or a larger one");
  const auto channels = static_cast<std::size_t>(to.channels);
  if (options_.mean.empty()) options_.mean.assign(channels, 0);
  if (options_.deviation.empty()) options_.deviation.assign(channels, 1);
  if (options_.mean.size() != channels || options_.deviation.size() != channels)
    throw UsageError("images: " + std::to_string(options_.mean.size()) + " means and " +
                     std::to_string(options_.deviation.size()) + " deviations; accepted: one a channel (" +
                     std::to_string(channels) + ")");
  if (options_.crop_padding < 0)
    throw UsageError("crop_padding = " + std::to_string(options_.crop_padding) + "; accepted: 0 or more");
  for (std::size_t c = 0; c < channels; ++c) {
    if (!(options_.deviation[c] > 0))
      throw UsageError("images: deviation " + std::to_string(options_.deviation[c]) + "; accepted: above 0");
    for (int byte = 0; byte < 256; ++byte)
      values_.push_back(static_cast<float>((byte / 255.0 - options_.mean[c]) / options_.deviation[c]));
  }
}

std::vector<std::int64_t> ImageDataset::shape() const {
  return {options_.output.channels, options_.output.height, options_.output.width};
}

Batch ImageDataset::get(std::span<const std::int64_t> indices, RandomStream* random) const {
  const ImageShape& from = images_.shape;
  const ImageShape& to = options_.output;
  Batch batch{make_tensor(count_of(indices), shape(), torch::kFloat32),
              make_tensor(count_of(indices), {}, torch::kInt64)};
  auto* data = batch.data.data_ptr<float>();
  auto* target = batch.target.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    check_index(index, size());
    Placement placement{(to.height - from.height) / 2, (to.width - from.width) / 2, false};
    if (random != nullptr) {
      const auto places = static_cast<std::uint64_t>(2 * options_.crop_padding + 1);
      placement.down += static_cast<int>(random->below(places)) - options_.crop_padding;
      placement.right += static_cast<int>(random->below(places)) - options_.crop_padding;
      placement.mirror = options_.flip && random->below(2) == 1;
    }
    place_image(images_.pixels.data() + index * from.bytes(), from, placement, values_.data(), to, data);
    data += to.bytes();
    *target++ = images_.labels[static_cast<std::size_t>(index)];
  }
  return batch;
}

TextDataset::TextDataset(std::vector<std::uint8_t> bytes, std::int64_t context,
                         std::optional<double> loss_floor)
    : bytes_(std::move(bytes)), context_(context), loss_floor_(loss_floor) {
  if (context < 1) throw UsageError("context = " + std::to_string(context) + "; accepted: 1 or more");
  size_ = (std::ssize(bytes_) - 1) / context;
  if (size_ < 1)
    throw UsageError("a text of " + std::to_string(bytes_.size()) + " bytes is too short for a context of " +
                     std::to_string(context) + "; accepted: " + std::to_string(context) +
                     " + 1 bytes or more");
}

Batch TextDataset::get(std::span<const std::int64_t> indices, RandomStream* /*random*/) const {
  Batch batch{make_tensor(count_of(indices), {context_}, torch::kInt64),
              make_tensor(count_of(indices), {context_}, torch::kInt64)};
  auto* data = batch.data.data_ptr<std::int64_t>();
  auto* target = batch.target.data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    check_index(index, size_);
    const std::uint8_t* const text = bytes_.data() + index * context_;
    for (std::int64_t i = 0; i < context_; ++i) {
      *data++ = text[i];
      *target++ = text[i + 1];
    }
  }
  return batch;
}

SyntheticDataset::SyntheticDataset(SyntheticOptions options) : options_(std::move(options)) {
  if (options_.size < 1 || options_.classes < 1)
    throw UsageError("synthetic data: " + std::to_string(options_.size) + " examples of " +
                     std::to_string(options_.classes) + " classes; accepted: 1 or more of each");
  if (options_.kind == SyntheticKind::tokens && options_.shape.size() != 1)
    throw UsageError("synthetic tokens with " + std::to_string(options_.shape.size()) +
                     " dimensions; accepted: 1, the context");
  for (const std::int64_t side : options_.shape) {
    if (side < 1 || numbers_ > (std::int64_t{1} << 31) / side)
      throw UsageError("synthetic data with a dimension of " + std::to_string(side) +
                       "; accepted: 1 or more, and 2147483648 numbers an example at most");
    numbers_ *= side;
  }
}

double SyntheticDataset::weight() const {
  return options_.kind == SyntheticKind::tokens ? static_cast<double>(numbers_) : 1;
}

Batch SyntheticDataset::get(std::span<const std::int64_t> indices, RandomStream* /*random*/) const {
  constexpr std::uint64_t kStream = 0x64'61'74'61;  // "data": apart from every other use of the seed
  const bool tokens = options_.kind == SyntheticKind::tokens;
  Batch batch{
      make_tensor(count_of(indices), options_.shape, tokens ? torch::kInt64 : torch::kFloat32),
      make_tensor(count_of(indices), tokens ? options_.shape : std::vector<std::int64_t>(), torch::kInt64)};
  auto* target = batch.target.data_ptr<std::int64_t>();
  const auto classes = static_cast<std::uint64_t>(options_.classes);
  for (std::int64_t b = 0; b < count_of(indices); ++b) {
    const std::int64_t index = indices[static_cast<std::size_t>(b)];
    check_index(index, options_.size);
    RandomStream stream(mix_bits(options_.seed ^ kStream), static_cast<std::uint64_t>(index), 0);
    if (tokens) {
      auto* const data = batch.data.data_ptr<std::int64_t>() + b * numbers_;
      auto token = static_cast<std::int64_t>(stream.below(classes));
      for (std::int64_t i = 0; i < numbers_; ++i) {
        data[i] = token;
        token = static_cast<std::int64_t>(stream.below(classes));
        *target++ = token;
      }
    } else {
      constexpr double kHalfWidth = 1.7320508075688772;  // uniform numbers of deviation 1
      auto* const data = batch.data.data_ptr<float>() + b * numbers_;
      *target++ = static_cast<std::int64_t>(stream.below(classes));
      for (std::int64_t i = 0; i < numbers_; ++i)
        data[i] = static_cast<float>(stream.uniform(-kHalfWidth, kHalfWidth));
    }
  }
  return batch;
}

}  // namespace lockstep
