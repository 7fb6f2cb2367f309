// From bytes to tensors, and datasets by name.
#include "lockstep/data/datasets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>

#include "comm/expect_error.h"
#include "data/temp_folder.h"
#include "lockstep/data/open_dataset.h"
#include "lockstep/data/shapes.h"

namespace lockstep {
namespace {

using testing::bytes_of;
using testing::expect_error;
using testing::TempFolder;
using testing::write_bytes;
using testing::write_cifar;
using testing::write_mnist;
using Indices = std::vector<std::int64_t>;
using Shape = std::vector<std::int64_t>;

// `count` images whose pixels are all different, none of them 0.
Images counting_images(int count, ImageShape shape) {
  Images images{.shape = shape, .classes = 10, .pixels = {}, .labels = {}};
  for (std::int64_t i = 0; i < count * shape.bytes(); ++i)
    images.pixels.push_back(static_cast<std::uint8_t>(1 + (i * 7) % 255));
  for (int i = 0; i < count; ++i) images.labels.push_back(static_cast<std::uint8_t>(i % 10));
  return images;
}

float at(const torch::Tensor& data, std::int64_t b, std::int64_t c, std::int64_t y, std::int64_t x) {
  return data[b][c][y][x].item<float>();
}

TEST(ImageDataset, NormalisesEachChannel) {
  const Images images = counting_images(3, {3, 4, 5});
  const ImageDataset dataset(images, {.mean = {0.1, 0.2, 0.3}, .deviation = {0.5, 0.25, 0.125}});
  EXPECT_EQ(dataset.shape(), (Shape{3, 4, 5}));
  const Batch batch = dataset.get(Indices{2, 0}, nullptr);
  ASSERT_EQ(batch.data.sizes(), (Shape{2, 3, 4, 5}));
  EXPECT_EQ(batch.target[0].item<std::int64_t>(), 2);
  EXPECT_EQ(batch.target[1].item<std::int64_t>(), 0);
  for (int c = 0; c < 3; ++c)
    for (int y = 0; y < 4; ++y)
      for (int x = 0; x < 5; ++x) {
        const double byte = images.pixels[static_cast<std::size_t>(2 * 60 + c * 20 + y * 5 + x)];
        EXPECT_FLOAT_EQ(at(batch.data, 0, c, y, x),
                        static_cast<float>((byte / 255 - 0.1 * (c + 1)) / (0.5 / (1 << c))));
      }
}

// Every augmented image is one of the possible crops and flips of the image padded with black, made here the
// slow way, and in many draws all of them come.
TEST(ImageDataset, AugmentsByCropAndFlip) {
  const ImageShape shape{2, 6, 5};
  const Images images = counting_images(1, shape);
  const ImageDataset dataset(images, {.mean = {0.25, 0.5}, .deviation = {0.5, 2}, .crop_padding = 2});
  const auto expected = [&](int down, int right, bool mirror) {
    torch::Tensor out = torch::zeros({2, 6, 5});
    for (int c = 0; c < 2; ++c)
      for (int y = 0; y < 6; ++y)
        for (int x = 0; x < 5; ++x) {
          const int sy = y - down;
          const int sx = (mirror ? 4 - x : x) - right;
          const bool inside = sy >= 0 && sy < 6 && sx >= 0 && sx < 5;
          const double byte = inside ? images.pixels[static_cast<std::size_t>(c * 30 + sy * 5 + sx)] : 0;
          out[c][y][x] = static_cast<float>((byte / 255 - (c == 0 ? 0.25 : 0.5)) / (c == 0 ? 0.5 : 2.0));
        }
    return out;
  };
  std::vector<torch::Tensor> possible;
  for (int down = -2; down <= 2; ++down)
    for (int right = -2; right <= 2; ++right)
      for (const bool mirror : {false, true}) possible.push_back(expected(down, right, mirror));

  RandomStream random(17);
  std::set<std::size_t> seen;
  for (int i = 0; i < 600; ++i) {
    const torch::Tensor image = dataset.get(Indices{0}, &random).data[0];
    const auto found =
        std::find_if(possible.begin(), possible.end(), [&](const auto& p) { return torch::equal(p, image); });
    ASSERT_NE(found, possible.end()) << image;
    seen.insert(static_cast<std::size_t>(found - possible.begin()));
  }
  EXPECT_EQ(seen.size(), possible.size());
}

TEST(ImageDataset, WithoutFlipNothingIsMirrored) {
  const ImageDataset dataset(counting_images(1, {1, 3, 3}), {.crop_padding = 0, .flip = false});
  RandomStream random(1);
  const torch::Tensor plain = dataset.get(Indices{0}, nullptr).data;
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(torch::equal(dataset.get(Indices{0}, &random).data, plain));
}

TEST(ImageDataset, PutsASmallGreyImageInTheMiddleOfThreeChannels) {
  const ImageDataset dataset(counting_images(1, {1, 28, 28}), {.output = {3, 32, 32}});
  const torch::Tensor data = dataset.get(Indices{0}, nullptr).data;
  ASSERT_EQ(data.sizes(), (Shape{1, 3, 32, 32}));
  EXPECT_EQ(at(data, 0, 0, 1, 10), 0);
  EXPECT_EQ(at(data, 0, 2, 30, 10), 0);
  for (int c = 0; c < 3; ++c) EXPECT_FLOAT_EQ(at(data, 0, c, 2, 3), 8 / 255.0f);
}

TEST(ImageDataset, NamesWhatDoesNotFit) {
  const auto make = [](ImageOptions options) {
    ImageDataset(counting_images(2, {3, 8, 8}), std::move(options));
  };
  expect_error<UsageError>([&] { make({.output = {3, 7, 8}}); }, {"3 × 8 × 8 as 3 × 7 × 8"});
  expect_error<UsageError>([&] { make({.output = {1, 8, 8}}); }, {"number of channels"});
  expect_error<UsageError>([&] { make({.mean = {0.5}}); }, {"1 means", "one a channel (3)"});
  expect_error<UsageError>([&] { make({.deviation = {1, 0, 1}}); }, {"deviation 0"});
  expect_error<UsageError>([&] { make({.crop_padding = -1}); }, {"crop_padding = -1"});
  const ImageDataset dataset(counting_images(2, {3, 8, 8}));
  expect_error<UsageError>([&] { dataset.get(Indices{0, 2}, nullptr); }, {"example 2", "0 to 1"});
  expect_error<UsageError>([&] { dataset.get(Indices{-1}, nullptr); }, {"example -1"});
}

TEST(TextDataset, TargetsAreTheNextBytes) {
  const TextDataset dataset(bytes_of("abcdefghij\xff"), 3);
  EXPECT_EQ(dataset.size(), 3);  // abc→bcd, def→efg, ghi→hij; j→ÿ is no whole window
  EXPECT_EQ(dataset.weight(), 3);
  EXPECT_EQ(dataset.classes(), 256);
  const Batch batch = dataset.get(Indices{2, 0}, nullptr);
  ASSERT_EQ(batch.data.sizes(), (Shape{2, 3}));
  EXPECT_EQ(batch.data[0][0].item<std::int64_t>(), 'g');
  EXPECT_EQ(batch.target[0][2].item<std::int64_t>(), 'j');
  EXPECT_EQ(batch.data[1][2].item<std::int64_t>(), 'c');
  EXPECT_EQ(batch.target[1][2].item<std::int64_t>(), 'd');
  EXPECT_EQ(TextDataset(bytes_of("a\xff"), 1).get(Indices{0}, nullptr).target[0][0].item<std::int64_t>(),
            255);
  EXPECT_EQ(TextDataset(bytes_of("abcd"), 3).size(), 1);
  expect_error<UsageError>([] { TextDataset(bytes_of("abc"), 3); }, {"3 bytes", "context of 3"});
  expect_error<UsageError>([] { TextDataset({}, 3); }, {"0 bytes"});
}

TEST(SyntheticDataset, IsAFunctionOfSeedAndIndex) {
  const SyntheticDataset dataset({.size = 500, .shape = {3, 8, 8}, .classes = 7, .seed = 1});
  const Batch together = dataset.get(Indices{499, 3}, nullptr);
  const Batch alone = dataset.get(Indices{3}, nullptr);
  EXPECT_TRUE(torch::equal(together.data[1], alone.data[0]));
  EXPECT_TRUE(torch::equal(together.target[1], alone.target[0]));
  EXPECT_FALSE(torch::equal(together.data[0], together.data[1]));
  const SyntheticDataset other({.size = 500, .shape = {3, 8, 8}, .classes = 7, .seed = 2});
  EXPECT_FALSE(torch::equal(other.get(Indices{3}, nullptr).data, alone.data));
  double sum = 0;
  double squares = 0;
  std::set<std::int64_t> classes;
  for (std::int64_t i = 0; i < 500; ++i) {
    const Batch batch = dataset.get(Indices{i}, nullptr);
    sum += batch.data.sum().item<double>();
    squares += (batch.data * batch.data).sum().item<double>();
    classes.insert(batch.target[0].item<std::int64_t>());
  }
  EXPECT_NEAR(sum / (500 * 192), 0, 0.02);
  EXPECT_NEAR(squares / (500 * 192), 1, 0.02);
  EXPECT_EQ(classes, (std::set<std::int64_t>{0, 1, 2, 3, 4, 5, 6}));
}

TEST(SyntheticDataset, TokensAreFollowedByTheirTargets) {
  const SyntheticDataset dataset({.kind = SyntheticKind::tokens, .size = 4, .shape = {16}, .classes = 50});
  const Batch batch = dataset.get(Indices{1, 2}, nullptr);
  EXPECT_TRUE(torch::equal(batch.data.slice(1, 1), batch.target.slice(1, 0, 15)));
  EXPECT_LT(batch.target.max().item<std::int64_t>(), 50);
  EXPECT_EQ(dataset.weight(), 16);
  expect_error<UsageError>(
      [] {
        SyntheticDataset({.kind = SyntheticKind::tokens, .shape = {2, 2}});
      },
      {"the context"});
  expect_error<UsageError>([] { SyntheticDataset({.shape = {3, 0}}); }, {"dimension of 0"});
  expect_error<UsageError>([] { SyntheticDataset({.shape = {1 << 30, 1 << 30, 16}}); }, {"2147483648"});
}

TEST(Fingerprint, IsThatOfTheExamples) {
  std::set<std::string> seen;
  const auto is_new = [&](const Dataset& data) {
    EXPECT_EQ(data.fingerprint().size(), 64U);
    EXPECT_EQ(data.fingerprint(), data.fingerprint());
    return seen.insert(data.fingerprint()).second;
  };
  const ImageShape shape{.channels = 3, .height = 2, .width = 2};
  const Images images = counting_images(4, shape);
  EXPECT_TRUE(is_new(ImageDataset(images)));
  EXPECT_FALSE(is_new(ImageDataset(images)));
  for (const auto& change : std::vector<std::function<void(Images&)>>{
           [](Images& i) { i.pixels.back() ^= 1; }, [](Images& i) { i.labels.front() ^= 1; },
           [](Images& i) { i.shape = {.channels = 3, .height = 1, .width = 4}; },
           [](Images& i) { i.classes = 11; }, [&](Images& i) { i = counting_images(3, shape); }}) {
    Images other = images;
    change(other);
    EXPECT_TRUE(is_new(ImageDataset(other)));
  }
  EXPECT_TRUE(is_new(ImageDataset(images, {.mean = {0.5, 0.5, 0.5}, .deviation = {1, 1, 1}})));
  EXPECT_TRUE(is_new(ImageDataset(images, {.flip = false})));
  EXPECT_TRUE(is_new(ImageDataset(images, {.crop_padding = 1})));

  EXPECT_TRUE(is_new(TextDataset(bytes_of("to be or not"), 3)));
  EXPECT_FALSE(is_new(TextDataset(bytes_of("to be or not"), 3)));
  EXPECT_TRUE(is_new(TextDataset(bytes_of("to be or nit"), 3)));
  EXPECT_TRUE(is_new(TextDataset(bytes_of("to be or not"), 4)));

  EXPECT_TRUE(is_new(SyntheticDataset({.size = 5, .shape = {4}})));
  EXPECT_FALSE(is_new(SyntheticDataset({.size = 5, .shape = {4}})));
  EXPECT_TRUE(is_new(SyntheticDataset({.size = 6, .shape = {4}})));
  EXPECT_TRUE(is_new(SyntheticDataset({.size = 5, .shape = {2, 2}})));
  EXPECT_TRUE(is_new(SyntheticDataset({.size = 5, .shape = {4}, .classes = 3})));
  EXPECT_TRUE(is_new(SyntheticDataset({.size = 5, .shape = {4}, .seed = 1})));
  EXPECT_TRUE(is_new(SyntheticDataset({.kind = SyntheticKind::tokens, .size = 5, .shape = {4}})));
}

TEST(OpenDataset, KnowsEachName) {
  const TempFolder temp;
  write_cifar(temp.path() / "cifar", 4);
  write_mnist(temp.path() / "mnist", 6);
  write_bytes(temp.path() / "text.txt", testing::Bytes(1000, 'a'));

  const auto cifar = open_dataset({.name = "cifar10", .folder = temp.path() / "cifar", .train_size = 7});
  EXPECT_EQ(cifar->size(), 7);
  EXPECT_EQ(cifar->shape(), (Shape{3, 32, 32}));
  EXPECT_EQ(cifar->classes(), 10);
  const auto cifar_test =
      open_dataset({.name = "cifar10", .folder = temp.path() / "cifar", .split = Split::test});
  EXPECT_EQ(cifar_test->size(), 4);

  const auto mnist = open_dataset({.name = "mnist", .folder = temp.path() / "mnist"});
  EXPECT_EQ(mnist->shape(), (Shape{1, 28, 28}));
  const auto large = open_dataset({.name = "mnist", .folder = temp.path() / "mnist", .shape = {3, 32, 32}});
  EXPECT_EQ(large->get(Indices{5}, nullptr).data.sizes(), (Shape{1, 3, 32, 32}));

  const auto text = open_dataset({.name = "text", .folder = temp.path() / "text.txt", .context = 10});
  EXPECT_EQ(text->size(), 89);  // 900 bytes
  EXPECT_EQ(text->shape(), (Shape{10}));
  const auto text_test = open_dataset({.name = "text",
                                       .folder = temp.path() / "text.txt",
                                       .split = Split::test,
                                       .context = 10,
                                       .test_size = 4});
  EXPECT_EQ(text_test->size(), 4);

  const DataOptions few{.name = "shapes", .folder = temp.path() / "made", .train_size = 20, .test_size = 10};
  const auto shapes = open_dataset(few);
  EXPECT_EQ(shapes->size(), 20);
  EXPECT_EQ(shapes->get(Indices{13}, nullptr).target[0].item<std::int64_t>(), 3);

  const auto images = open_dataset({.name = "synthetic", .shape = {3, 224, 224}, .train_size = 64});
  EXPECT_EQ(images->size(), 64);
  EXPECT_EQ(images->classes(), 10);
  const auto tokens = open_dataset({.name = "synthetic", .context = 32});
  EXPECT_EQ(tokens->shape(), (Shape{32}));
  EXPECT_EQ(tokens->classes(), 256);
}

TEST(OpenDataset, MakesShapesInTheCacheFolderWhenNoneIsGiven) {
  const TempFolder temp;
  ::setenv("LOCKSTEP_CACHE_DIR", temp.path().c_str(), 1);
  open_dataset({.name = "shapes", .train_size = 10, .test_size = 5, .seed = 3});
  EXPECT_EQ(read_cifar10(temp.path() / "shapes-10-5-seed3", Split::train).size(), 10);
  ::setenv("LOCKSTEP_CACHE_DIR", "off", 1);
  expect_error<UsageError>([] { open_dataset({.name = "shapes"}); }, {"without a folder"});
  ::unsetenv("LOCKSTEP_CACHE_DIR");
}

TEST(OpenDataset, NamesWhatIsWrong) {
  expect_error<UsageError>([] { open_dataset({.name = "cifar"}); },
                           {"unknown data 'cifar'", "cifar10, mnist, shapes, text, synthetic"});
  expect_error<UsageError>([] { open_dataset({.name = "cifar10"}); }, {"'cifar10' without a folder"});
  expect_error<UsageError>(
      [] {
        open_dataset({.name = "mnist", .folder = "/", .shape = {3, 28, 28}});
      },
      {"3x28x28", "1x28x28, 3x32x32"});
  expect_error<UsageError>([] { open_dataset({.name = "synthetic", .train_size = -1}); }, {"-1 examples"});
  const TempFolder temp;
  write_bytes(temp.path() / "short.txt", testing::Bytes(100, 'a'));
  expect_error<UsageError>(
      [&] {
        open_dataset(
            {.name = "text", .folder = temp.path() / "short.txt", .split = Split::test, .context = 10});
      },
      {"short.txt", "100 bytes", "10 of them", "context of 10", "11 bytes"});
}

}  // namespace
}  // namespace lockstep
