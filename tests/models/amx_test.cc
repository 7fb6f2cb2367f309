#include "base/amx.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <torch/torch.h>

#include <optional>
#include <string>

#include "lockstep/models/precision.h"

namespace lockstep {
namespace {

constexpr std::uint32_t kTile = 1U << 24;

// A variable of the environment, as it was again at the end.
class KeptVariable {
 public:
  explicit KeptVariable(const char* name) : name_(name) {
    if (const char* const value = ::getenv(name)) before_ = value;
  }
  ~KeptVariable() {
    if (before_)
      ::setenv(name_, before_->c_str(), 1);
    else
      ::unsetenv(name_);
  }
  KeptVariable(const KeptVariable&) = delete;
  KeptVariable& operator=(const KeptVariable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

TEST(Amx, TilesNeedAPaletteToBeOfUse) {
  EXPECT_FALSE(has_tiles_it_does_not_describe({}));
  EXPECT_FALSE(has_tiles_it_does_not_describe({.highest_leaf = 0x1c}));  // no AMX at all
  EXPECT_FALSE(has_tiles_it_does_not_describe({.highest_leaf = 0x20, .features = kTile, .palettes = 1}));
  EXPECT_TRUE(has_tiles_it_does_not_describe({.highest_leaf = 0x1c, .features = kTile}));
  EXPECT_TRUE(has_tiles_it_does_not_describe({.highest_leaf = 0x1c, .features = kTile, .palettes = 7}));
  EXPECT_TRUE(has_tiles_it_does_not_describe({.highest_leaf = 0x20, .features = kTile}));
}

TEST(Amx, IsAvoidedWhereItIsNotDescribedAndNothingElseIsAskedFor) {
  const KeptVariable one("ONEDNN_MAX_CPU_ISA"), other("DNNL_MAX_CPU_ISA");
  const auto value = [] {
    const char* const text = ::getenv("ONEDNN_MAX_CPU_ISA");
    return std::string(text != nullptr ? text : "");
  };
  ::unsetenv("ONEDNN_MAX_CPU_ISA");
  ::setenv("DNNL_MAX_CPU_ISA", "ALL", 1);
  EXPECT_FALSE(avoid_undescribed_amx(below_amx(TORCH_VERSION_MAJOR)));
  EXPECT_EQ(value(), "");
  ::unsetenv("DNNL_MAX_CPU_ISA");
  const bool broken = has_tiles_it_does_not_describe(read_amx_claims());
  EXPECT_EQ(avoid_undescribed_amx(below_amx(TORCH_VERSION_MAJOR)), broken);
  EXPECT_EQ(value().starts_with("AVX512_CORE_"), broken) << value();
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1);
  EXPECT_FALSE(avoid_undescribed_amx(below_amx(TORCH_VERSION_MAJOR)));
  EXPECT_EQ(value(), "AVX2");
}

// Where tiles are not described this ends the process, unless oneDNN was told before its first use.
TEST(Amx, ProductsOf16BitsWorkAfterAConvolutionInF32) {
  EXPECT_EQ(torch::conv2d(torch::ones({1, 16, 8, 8}), torch::ones({16, 16, 3, 3})).min().item<float>(), 144);
  EXPECT_EQ(parameter_type(Precision::bf16), torch::kBFloat16);  // precision.cc is in this program
  const auto ones = [](at::IntArrayRef sizes) { return torch::ones(sizes, torch::kBFloat16); };
  EXPECT_EQ(torch::mm(ones({64, 64}), ones({64, 64})).min().item<float>(), 64);
  EXPECT_EQ(torch::conv2d(ones({2, 16, 8, 8}), ones({16, 16, 3, 3})).max().item<float>(), 144);
}

}  // namespace
}  // namespace lockstep
