// State on disk against state in memory: the same bits, in less memory.
#include "lockstep/offload/offload.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/temp_folder.h"
#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/parallel/strategies.h"

namespace lockstep {
namespace {

using test::message_of;
using test::TempFolder;

constexpr std::size_t kLeastStaging = 6 * (64 << 10);

// One that fills several pages, several in one page, parameters without elements, of other types, and memory
// that is not in the order of its indices, with holes too.
std::vector<NamedTensor> offloaded_net(torch::ScalarType dtype) {
  torch::manual_seed(5);
  std::vector<NamedTensor> made;
  const auto add = [&](const std::string& name, const torch::Tensor& tensor) {
    made.push_back({name, tensor.detach().set_requires_grad(true)});
  };
  for (const std::int64_t n : {1, 511, 513, 150'000})
    add("w" + std::to_string(n), torch::randn({1, n}).to(dtype));
  add("bias", torch::randn({33}).to(dtype));
  add("nothing", torch::ones({0, 3}).to(dtype));
  add("turned", torch::randn({140, 130}).to(dtype).t());
  add("images", torch::randn({8, 6, 3, 3}).to(dtype).contiguous(torch::MemoryFormat::ChannelsLast));
  add("holes", torch::randn({30, 40}).to(dtype).narrow(1, 3, 20));
  add("wide", torch::randn({20'000}));
  add("unused", torch::randn({9}).to(dtype));
  return made;
}

enum class Gradients { same, f32 };

void give_gradients(std::vector<NamedTensor>& net, int step, std::vector<Slice>& slices, Gradients type) {
  torch::manual_seed(100 + step);
  for (std::size_t i = 0; i < net.size(); ++i) {
    const torch::Tensor& p = net[i].tensor;
    if (net[i].name == "unused" || (net[i].name == "bias" && step == 1)) {
      slices[i].gradient = torch::Tensor();
      continue;
    }
    const torch::Tensor gradient = torch::randn(p.sizes());
    slices[i].gradient = type == Gradients::f32 ? gradient : gradient.to(p.scalar_type());
  }
}

// Gradients may be of another type than the parameters, as those that strategies add up in f32.
class GivenGradients : public GradientSource {
 public:
  GivenGradients(std::vector<NamedTensor> net, Gradients type) : net_(std::move(net)), type_(type) {
    for (const NamedTensor& p : net_)
      slices_.push_back({.name = p.name,
                         .whole = p.tensor.sizes().vec(),
                         .elements = {0, static_cast<std::size_t>(p.tensor.numel())},
                         .parameter = p.tensor});
  }
  std::vector<NamedTensor> parameters() const override { return net_; }
  std::span<const Slice> slices() override { return slices_; }
  void synchronize() override { give_gradients(net_, step_, slices_, type_); }
  void watch_overflow(bool) override {}
  bool overflowed() const override { return false; }
  void begin_updates() override {}
  void share_updates() override {}
  void end_step() override { ++step_; }
  void join(const std::vector<torch::Tensor>& parts, const Take& take) override {
    for (std::size_t i = 0; i < parts.size(); ++i)
      if (parts[i].defined()) take(i, parts[i]);
  }
  torch::Tensor cut(std::size_t, const torch::Tensor& whole) const override { return whole; }
  void add_parts(std::span<double>) override {}

  std::vector<NamedTensor> net_;
  std::vector<Slice> slices_;
  Gradients type_;
  int step_ = 0;
};

using Make = std::function<std::unique_ptr<Optimizer>(GradientSource&, MasterWeights, const Offload&)>;
const std::vector<std::pair<std::string, Make>> kMakers = {
    {"sgd",
     [](GradientSource& s, MasterWeights m, const Offload& o) {
       return std::make_unique<SGD>(s, SGDOptions{.lr = 0.1, .master_weights = m, .offload = o});
     }},
    {"momentum",
     [](GradientSource& s, MasterWeights m, const Offload& o) {
       return std::make_unique<SGD>(
           s, SGDOptions{.lr = 0.1, .momentum = 0.9, .nesterov = true, .master_weights = m, .offload = o});
     }},
    {"adam",
     [](GradientSource& s, MasterWeights m, const Offload& o) {
       return std::make_unique<Adam>(s, AdamOptions{.weight_decay = 0.1, .master_weights = m, .offload = o});
     }},
    {"adamw",
     [](GradientSource& s, MasterWeights m, const Offload& o) {
       return std::make_unique<AdamW>(s, AdamWOptions{.lr = 0.01, .master_weights = m, .offload = o});
     }},
    {"lars",
     [](GradientSource& s, MasterWeights m, const Offload& o) {
       return std::make_unique<LARS>(s, LARSOptions{.lr = 2, .master_weights = m, .offload = o});
     }},
    {"lamb", [](GradientSource& s, MasterWeights m, const Offload& o) {
       return std::make_unique<LAMB>(s, LAMBOptions{.lr = 0.01, .master_weights = m, .offload = o});
     }}};

void expect_same_bits(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  ASSERT_EQ(a.sizes(), b.sizes()) << what;
  const torch::Tensor x = a.detach().contiguous(), y = b.detach().contiguous();
  EXPECT_EQ(std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()), 0) << what;
}

struct Trained {
  Trained(const Make& make, torch::ScalarType dtype, MasterWeights masters, Gradients type,
          const Offload& offload)
      : source(offloaded_net(dtype), type), optimizer(make(source, masters, offload)) {}
  void steps(int count) {
    for (int i = 0; i < count; ++i) optimizer->step(source.step_ == 2 ? 8.0 : 1.0);
  }
  // As somebody who loads weights does.
  void write_weights() {
    const torch::NoGradGuard no_grad;
    source.net_[3].tensor.narrow(1, 70'000, 50'000).add_(1);
    source.net_[6].tensor.mul_(2);
  }
  GivenGradients source;
  std::unique_ptr<Optimizer> optimizer;
};

void expect_same(const Trained& a, const Trained& b, const std::string& what) {
  for (std::size_t i = 0; i < a.source.net_.size(); ++i)
    expect_same_bits(a.source.net_[i].tensor, b.source.net_[i].tensor, what + ", " + a.source.net_[i].name);
  const StateDict first = a.optimizer->state_dict(), second = b.optimizer->state_dict();
  ASSERT_EQ(first.size(), second.size()) << what;
  for (const auto& [name, tensor] : first) expect_same_bits(tensor, second.at(name), what + ", " + name);
}

struct Form {
  const char* name;
  torch::ScalarType dtype;
  MasterWeights masters;
  Gradients gradients;
};
constexpr Form kForms[] = {{"f32", torch::kFloat32, MasterWeights::none, Gradients::same},
                           {"bf16", torch::kBFloat16, MasterWeights::none, Gradients::same},
                           {"f16 with masters", torch::kFloat16, MasterWeights::f32, Gradients::same},
                           {"bf16 with masters", torch::kBFloat16, MasterWeights::f32, Gradients::same},
                           {"bf16 with f32 gradients", torch::kBFloat16, MasterWeights::f32, Gradients::f32}};

TEST(OffloadedState, HasTheBitsOfStateInMemory) {
  const TempFolder folder;
  const Offload disk{.folder = folder.path(), .staging_bytes = kLeastStaging};
  for (const auto& [optimizer, make] : kMakers)
    for (const Form& form : kForms) {
      const std::string what = optimizer + ", " + form.name;
      Trained here(make, form.dtype, form.masters, form.gradients, {});
      Trained there(make, form.dtype, form.masters, form.gradients, disk);
      EXPECT_FALSE(here.optimizer->offload()) << what;
      for (Trained* one : {&here, &there}) {
        one->steps(3);
        one->write_weights();
        one->steps(1);
      }
      expect_same(here, there, what);
      EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    }
}

TEST(OffloadedState, HasThemForAnyNumberOfThreadsAndAnyMemory) {
  const TempFolder folder;
  const int before = at::get_num_threads();
  Trained here(kMakers[5].second, torch::kFloat32, MasterWeights::none, Gradients::same, {});
  here.steps(4);
  for (const int threads : {1, 3}) {
    at::set_num_threads(threads);
    for (const std::size_t staging : {kLeastStaging, Offload().staging_bytes})
      for (const OffloadIo io : {OffloadIo::automatic, OffloadIo::threads}) {
        Trained there(kMakers[5].second, torch::kFloat32, MasterWeights::none, Gradients::same,
                      {.folder = folder.path(), .staging_bytes = staging, .io = io});
        there.steps(4);
        expect_same(here, there, std::to_string(threads) + " threads");
      }
  }
  at::set_num_threads(before);
}

// Slices that are cut anywhere, each over several pages: blocks of norms that two workers share lie in pages
// of both.
TEST(OffloadedState, HasThemWhereWorkersHavePartsOfAParameter) {
  const TempFolder folder;
  const Offload disk{.folder = folder.path(), .staging_bytes = kLeastStaging};
  for (const std::size_t which : {4u, 5u}) {
    std::mutex making;  // torch's generator is one for all threads
    testing::on_threads(thread_groups(3), [&](const Group& group) {
      const auto train = [&](const Offload& offload) {
        torch::nn::Linear model{nullptr};
        {
          const std::lock_guard lock(making);
          torch::manual_seed(9);
          model = torch::nn::Linear(331, 311);
          model->to(torch::kBFloat16);
        }
        const auto strategy = make_strategy("zero2", model, group);
        const auto optimizer = kMakers[which].second(*strategy, MasterWeights::f32, offload);
        if (offload) {
          EXPECT_GT(optimizer->offload()->bytes, 4 * kLeastStaging / 6);  // several pages
        }
        for (int step = 0; step < 3; ++step) {
          const torch::Tensor x = torch::full({2, 331}, 0.1 * (group.rank() + 1)).to(torch::kBFloat16);
          (model->forward(x).to(torch::kFloat32) - static_cast<float>(step)).square().sum().backward();
          optimizer->step();
          optimizer->zero_grad();
        }
        return std::pair(model->weight.detach().clone(), optimizer->state_dict());
      };
      const auto [here, state] = train({});
      const auto [there, stored] = train(disk);
      expect_same_bits(here, there, kMakers[which].first);
      ASSERT_EQ(state.size(), stored.size());
      for (const auto& [name, tensor] : state) expect_same_bits(tensor, stored.at(name), name);
    });
  }
}

// A state dict goes from one to the other, both ways.
TEST(OffloadedState, GoesOnFromAStateDict) {
  const TempFolder folder;
  const Offload disk{.folder = folder.path(), .staging_bytes = kLeastStaging};
  for (const Form& form : {kForms[0], kForms[3]})
    for (const bool to_disk : {false, true}) {
      Trained whole(kMakers[3].second, form.dtype, form.masters, form.gradients, {});
      whole.steps(3);
      Trained first(kMakers[3].second, form.dtype, form.masters, form.gradients, to_disk ? Offload() : disk);
      first.steps(2);
      Trained second(kMakers[3].second, form.dtype, form.masters, form.gradients, to_disk ? disk : Offload());
      {
        const torch::NoGradGuard no_grad;
        for (std::size_t i = 0; i < first.source.net_.size(); ++i)
          second.source.net_[i].tensor.copy_(first.source.net_[i].tensor);
      }
      second.optimizer->load_state_dict(first.optimizer->state_dict());
      second.source.step_ = 2;
      second.steps(1);
      expect_same(whole, second, std::string(form.name) + (to_disk ? ", to disk" : ", from disk"));
    }
}

// What a checkpoint reads: the parts' bytes, which together are the state dict's.
TEST(OffloadedState, GivesItsPartsPieceByPiece) {
  const TempFolder folder;
  Trained there(kMakers[3].second, torch::kFloat32, MasterWeights::none, Gradients::same,
                {.folder = folder.path(), .staging_bytes = kLeastStaging});
  there.steps(2);
  const StateDict whole = there.optimizer->state_dict();
  std::size_t most = 0, streamed = 0;
  for (const StatePart& part : there.optimizer->state_parts()) {
    if (part.everywhere) continue;
    EXPECT_FALSE(part.tensor.defined());
    expect_same_bits(part.fetch(), whole.at(part.name), part.name);
    if (!part.plain) continue;
    std::vector<std::byte> bytes;
    part.stream([&](std::span<const std::byte> piece) {
      most = std::max(most, piece.size());
      bytes.insert(bytes.end(), piece.begin(), piece.end());
    });
    ASSERT_EQ(bytes.size(), whole.at(part.name).nbytes());
    EXPECT_EQ(std::memcmp(bytes.data(), whole.at(part.name).data_ptr(), bytes.size()), 0) << part.name;
    ++streamed;
  }
  EXPECT_GT(streamed, 10u);
  EXPECT_LE(most, kLeastStaging / 6);
}

TEST(OffloadedState, TakesTheMemoryItIsTold) {
  const TempFolder folder;
  torch::Tensor large = torch::zeros({1'000'000}).set_requires_grad(true);
  const std::vector<NamedTensor> net = {{"large", large}};
  EXPECT_EQ(AdamW(net).state_bytes(), 8'000'000u);
  AdamW there(net, {.offload = {.folder = folder.path(), .staging_bytes = 1 << 20}});
  EXPECT_LE(there.state_bytes(), 1u << 20);
  const OffloadFigures before = *there.offload();
  EXPECT_EQ(before.folder, folder.path());
  EXPECT_GE(before.bytes, 8'000'000u);
  EXPECT_LT(before.bytes, 8'100'000u);
  EXPECT_EQ(before.staging_bytes, there.state_bytes());
  EXPECT_FALSE(before.measured_ms);
  EXPECT_NEAR(before.predicted_ms, static_cast<double>(before.bytes) / before.both_rate * 1e3, 1e-6);
  large.mutable_grad() = torch::ones_like(large);
  there.step();
  EXPECT_GT(there.offload()->measured_ms.value(), 0);
  // LAMB goes over it twice.
  const LAMB twice(net, {.offload = {.folder = folder.path()}});
  const OffloadFigures lamb = *twice.offload();
  EXPECT_NEAR(lamb.predicted_ms,
              static_cast<double>(lamb.bytes) * (1 / lamb.both_rate + 1 / lamb.read_rate) * 1e3, 1e-6);
  // Nothing is kept, nothing is on disk.
  EXPECT_EQ(SGD(net, {.offload = {.folder = folder.path()}}).offload()->bytes, 0u);
}

TEST(OffloadedState, RefusesWhatCannotBe) {
  const TempFolder folder;
  const auto net = offloaded_net(torch::kFloat32);
  EXPECT_EQ(message_of<UsageError>(
                [&] { AdamW(net, {.offload = {.folder = folder.path(), .staging_bytes = 1000}}); }),
            "offload: staging_bytes = 1000; accepted: 393216 or more");
  const std::string missing = (folder.path() / "missing").string();
  EXPECT_EQ(message_of<OffloadError>([&] { AdamW(net, {.offload = {.folder = missing}}); }),
            "cannot make a scratch file in " + missing + ": No such file or directory");
  // A parameter that was replaced, as for state in memory.
  std::vector<NamedTensor> one = {{"w", torch::ones({4}).set_requires_grad(true)}};
  AdamW optimizer(one, {.offload = {.folder = folder.path()}});
  one[0].tensor.set_data(torch::ones({5}));
  one[0].tensor.mutable_grad() = torch::ones({5});
  EXPECT_EQ(
      message_of<UsageError>([&] { optimizer.step(); }),
      "AdamW: 'w' is Float [5] of strides [1], but its state on disk was made for Float [4] of strides [1]; "
      "make a new optimizer after changing parameters");
}

// Bytes in a file have the order that the parameter had: moments would go to other elements than their own.
TEST(OffloadedState, RefusesAParameterThatIsLaidOutAnew) {
  const TempFolder folder;
  const auto p = torch::randn({2, 3, 4, 5}).set_requires_grad(true);
  const auto holes = torch::randn({4, 6}).narrow(1, 0, 3).set_requires_grad(true);
  const auto one = torch::randn({7, 1}).set_requires_grad(true);
  SGD optimizer({{"p", p}, {"holes", holes}, {"one", one}},
                {.lr = 0.1, .momentum = 0.9, .offload = {.folder = folder.path()}});
  const auto step = [&] {
    for (const torch::Tensor& each : {p, holes, one}) each.mutable_grad() = torch::ones_like(each);
    optimizer.step();
  };
  step();
  // What leaves the state's order alone is no change.
  holes.set_data(holes.detach().contiguous());
  one.set_data(one.detach().as_strided({7, 1}, {1, 7}));
  step();
  const StateDict before = optimizer.state_dict();
  p.set_data(p.detach().contiguous(torch::MemoryFormat::ChannelsLast));
  const std::string said =
      "SGD: 'p' is Float [2, 3, 4, 5] of strides [60, 1, 15, 3], but its state on disk was made for Float "
      "[2, 3, 4, 5] of strides [60, 20, 5, 1]; make a new optimizer after changing parameters";
  EXPECT_EQ(message_of<UsageError>(step), said);
  EXPECT_EQ(message_of<UsageError>([&] { optimizer.state_dict(); }), said);
  EXPECT_EQ(message_of<UsageError>([&] { optimizer.state_parts(); }), said);
  EXPECT_EQ(message_of<UsageError>([&] { optimizer.load_state_dict(before); }), said);
  // As many elements in another shape.
  p.set_data(torch::randn({6, 20}));
  EXPECT_NE(message_of<UsageError>(step).find("is Float [6, 20] of strides [20, 1]"), std::string::npos);
  p.set_data(torch::randn({2, 3, 4, 5}));
  step();
}

}  // namespace
}  // namespace lockstep
