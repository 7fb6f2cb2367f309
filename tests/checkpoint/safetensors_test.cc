#include "lockstep/checkpoint/safetensors.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/version.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "checkpoint/file.h"
#include "checkpoint/safetensors_header.h"
#include "checkpoint/temp_folder.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/hash.h"
#include "lockstep/checkpoint/state.h"
#include "lockstep/checkpoint/store.h"

namespace lockstep {
namespace {

using test::message_of;
using test::TempFolder;

TensorMap samples() {
  TensorMap tensors;
  for (const auto dtype :
       {torch::kBool, torch::kUInt8, torch::kInt8, torch::kInt16, torch::kInt32, torch::kInt64,
        torch::kFloat16, torch::kBFloat16, torch::kFloat32, torch::kFloat64}) {
    tensors[std::string("t.") + torch::toString(dtype)] = torch::randint(0, 2, {3, 5}).to(dtype);
  }
  tensors["scalar"] = torch::tensor(7);
  tensors["empty"] = torch::empty({0, 4});
  tensors["nan"] = torch::tensor({std::nanf(""), -0.0f});
  tensors["transposed"] = torch::arange(12.0f).view({3, 4}).t();
  tensors["grown"] = torch::ones({1, 1}).expand({4, 4});
  tensors["parameter"] = torch::randn({2, 2}).requires_grad_();
  return tensors;
}

TEST(Safetensors, RoundTripOfEveryDTypeAndLayout) {
  const TempFolder temp;
  const auto file = temp.path() / "x.safetensors";
  const auto saved = samples();
  save_safetensors(file, saved, {{"step", "12"}});
  const auto loaded = load_safetensors(file);
  EXPECT_EQ(loaded.metadata, (Metadata{{"step", "12"}}));
  ASSERT_EQ(loaded.tensors.size(), saved.size());
  for (const auto& [name, tensor] : saved) {
    const auto& other = loaded.tensors.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(other.sizes(), tensor.sizes()) << name;
    const auto bytes = tensor.detach().contiguous();
    if (bytes.numel() == 0) continue;
    EXPECT_EQ(std::memcmp(other.data_ptr(), bytes.data_ptr(), bytes.nbytes()), 0) << name;
  }
}

TEST(Safetensors, EveryTensorIsAlignedInTheFile) {
  const TempFolder temp;
  const auto file = temp.path() / "x.safetensors";
  save_safetensors(file, samples());
  const auto text = read_text(file, 1 << 20);
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  const auto header = parse_header(text.substr(8, length), text.size() - 8 - length);
  for (const auto& entry : header.tensors) {
    EXPECT_EQ((8 + length + entry.begin) % size_of(entry.dtype), 0u) << entry.name;
  }
}

TEST(Safetensors, RefusalsNameTheFile) {
  const TempFolder temp;
  const auto file = temp.path() / "x.safetensors";
  save_safetensors(file, {{"w", torch::ones({4})}});
  EXPECT_NE(message_of<SystemError>([&] { save_safetensors(file, {}); }).find("x.safetensors: File exists"),
            std::string::npos);
  const auto refusal = [&](const std::string& bytes) {
    std::filesystem::remove(file);
    write_file(file, bytes);
    const auto message = message_of<UsageError>([&] { load_safetensors(file); });
    EXPECT_NE(message.find(file.string() + ": "), std::string::npos) << message;
    return message;
  };
  const std::string good = read_text(file, 1 << 20);
  EXPECT_NE(refusal(good.substr(0, good.size() - 1)).find("cut off"), std::string::npos);
  EXPECT_NE(refusal(good + "x").find("after its last tensor"), std::string::npos);
  EXPECT_NE(refusal(good.substr(0, 5)).find("it has 5 bytes"), std::string::npos);
  EXPECT_NE(refusal("").find("it has 0 bytes"), std::string::npos);
  EXPECT_NE(refusal(std::string(64, 'x')).find("no safetensors file"), std::string::npos);
  EXPECT_THROW(load_safetensors(temp.path() / "none"), SystemError);
  EXPECT_THROW(load_safetensors(temp.path()), SystemError);
}

TEST(Safetensors, ABoolIsZeroOrOne) {
  const TempFolder temp;
  const auto file = temp.path() / "x";
  save_safetensors(file, {{"flags", torch::ones({3}, torch::kBool)}});
  std::string bytes = read_text(file, 1 << 20);
  bytes.back() = 2;
  std::filesystem::remove(file);
  write_file(file, bytes);
  EXPECT_NE(message_of<UsageError>([&] { load_safetensors(file); }).find("neither 0 nor 1"),
            std::string::npos);
}

TEST(Safetensors, WhatTheFormatCantHoldIsRefusedAndLeavesNoFile) {
  const TempFolder temp;
  const auto file = temp.path() / "x";
  EXPECT_THROW(save_safetensors(file, {{"c", torch::ones({2}, torch::kComplexFloat)}}), UsageError);
  EXPECT_THROW(save_safetensors(file, {{"u", torch::Tensor()}}), UsageError);
  EXPECT_THROW(save_safetensors(file, {{"s", torch::ones({2, 2}).to_sparse()}}), UsageError);
  EXPECT_THROW(save_safetensors(file, {{"__metadata__", torch::ones({2})}}), UsageError);
  EXPECT_FALSE(std::filesystem::exists(file));
}

struct Net : torch::nn::Module {
  explicit Net(bool norm_first = false) {
    torch::manual_seed(3);
    torch::nn::Linear linear(3, 2);
    torch::nn::BatchNorm1d norm(2);
    if (norm_first) register_module("b", norm);
    register_module("a", linear);
    if (!norm_first) register_module("b", norm);
  }
  torch::Tensor at(const std::string& name) { return model_state(*this).at(name); }
};

TEST(ParamsHash, IsTheSameForTheSameBits) {
  Net one;
  Net other(/*norm_first=*/true);
  EXPECT_EQ(params_sha256(one).size(), 64u);
  EXPECT_EQ(params_sha256(one), params_sha256(other)) << "the order of registration counts";
  auto& weight = other.named_children()["a"]->as<torch::nn::LinearImpl>()->weight;
  weight.set_data(weight.detach().t().contiguous().t());
  ASSERT_FALSE(weight.is_contiguous());
  EXPECT_EQ(params_sha256(one), params_sha256(other)) << "the memory layout counts";
}

TEST(ParamsHash, ChangesWithAnyBitNameShapeOrDType) {
  Net net;
  const auto before = params_sha256(net);
  for (const auto& [name, tensor] : model_state(net)) {
    auto* last = static_cast<char*>(tensor.data_ptr()) + tensor.nbytes() - tensor.element_size();
    for (const int bit : {0, 7}) {
      *last = static_cast<char>(*last ^ (1 << bit));
      EXPECT_NE(params_sha256(net), before) << name;
      *last = static_cast<char>(*last ^ (1 << bit));
    }
  }
  EXPECT_EQ(params_sha256(net), before);

  const auto hash_of = [](const std::string& name, const torch::Tensor& tensor) {
    torch::nn::Module module;
    module.register_buffer(name, tensor);
    return params_sha256(module);
  };
  const auto zeros = torch::zeros({2, 3});
  EXPECT_EQ(hash_of("x", zeros), hash_of("x", torch::zeros({2, 3})));
  EXPECT_NE(hash_of("x", zeros), hash_of("y", zeros));
  EXPECT_NE(hash_of("x", zeros), hash_of("x", zeros.view({3, 2})));
  EXPECT_NE(hash_of("x", zeros), hash_of("x", zeros.view({6})));
  EXPECT_NE(hash_of("x", zeros), hash_of("x", zeros.to(torch::kInt32)));
  EXPECT_NE(hash_of("x", zeros), hash_of("x", -zeros)) << "-0 has other bits";
}

TEST(ModelState, TravelsThroughAFile) {
  const TempFolder temp;
  Net net;
  net.at("b.running_mean").fill_(0.5);
  save_safetensors(temp.path() / "x", model_state(net));
  Net other;
  other.at("a.weight").fill_(9);
  ASSERT_NE(params_sha256(net), params_sha256(other));
  load_model_state(other, load_safetensors(temp.path() / "x").tensors);
  EXPECT_EQ(params_sha256(net), params_sha256(other));
}

TEST(ModelState, TheFirstDifferenceIsNamedAndNothingIsCopied) {
  Net net;
  const auto before = params_sha256(net);
  const auto refusal = [&](const std::function<void(TensorMap&)>& change) {
    TensorMap state = model_state(net);
    for (auto& [name, tensor] : state) tensor = tensor + 1;
    change(state);
    const auto message = message_of<UsageError>([&] { load_model_state(net, state, "x.safetensors"); });
    EXPECT_EQ(params_sha256(net), before);
    return message;
  };
  const std::string accepted =
      "; accepted: the model that it was written for, on data of the same shape and classes";
  EXPECT_EQ(
      refusal([](TensorMap& s) { s.erase("a.bias"); }),
      "x.safetensors does not fit the model: it has no a.bias, which the model has as Float[2]" + accepted);
  EXPECT_EQ(refusal([](TensorMap& s) {
              s["a.weight"] = torch::ones({4, 3});
            }),
            "x.safetensors does not fit the model: it has a.weight as Float[4, 3], the model as Float[2, 3]" +
                accepted);
  EXPECT_EQ(refusal([](TensorMap& s) { s["c"] = torch::ones({1}); }),
            "x.safetensors does not fit the model: it has c Float[1], which the model has not" + accepted);
  EXPECT_NE(refusal([](TensorMap& s) { s.clear(); }).find("(7 differences in all)"), std::string::npos);
}

TEST(ModelState, TheNumberOfThreadsIsAFactOfTheRun) {
  const TempFolder temp;
  const Net net;
  const int before = at::get_num_threads();
  at::set_num_threads(2);
  save_safetensors(temp.path() / "x", model_state(net), arithmetic_facts());
  const Metadata saved = load_safetensors(temp.path() / "x").metadata;
  EXPECT_EQ(saved, arithmetic_facts());
  EXPECT_EQ(saved.at("threads"), "2");
  EXPECT_EQ(saved.at("libtorch"), TORCH_VERSION);
  EXPECT_NE(saved.at("instructions"), "");
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(same_arithmetic(saved, "x"));
  EXPECT_TRUE(same_arithmetic({{"format", "pt"}}, "x"));  // from elsewhere: nothing is known
  at::set_num_threads(1);
  EXPECT_FALSE(same_arithmetic(saved, "x"));
  at::set_num_threads(before);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("x was saved by a run with threads = 2, and here it is 1"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST(ModelState, AnotherLibraryOrProcessorIsNamed) {
  Metadata saved = arithmetic_facts();
  EXPECT_EQ(other_arithmetic(saved), "");
  saved["libtorch"] = "0.9";
  saved["instructions"] = "MMX";
  const std::string said = other_arithmetic(saved);
  EXPECT_NE(said.find("instructions = MMX, and here it is "), std::string::npos) << said;
  EXPECT_NE(said.find("; libtorch = 0.9, and here it is " TORCH_VERSION), std::string::npos) << said;
}

}  // namespace
}  // namespace lockstep
