// Activations are [tokens × batch, width], position first: a head's queries, keys and values then are strided
// views of the one projection that makes them, for all heads of all samples at once, and attention copies
// nothing but its result. On a GPU, without dropout, they are [batch × tokens, width] and go through fused
// kernels (fused.h) and libtorch's fused attention, which takes strided views in that order.
#include <torch/nn/init.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cmath>
#include <limits>
#include <string>

#include "lockstep/models/models.h"
#include "lockstep/parallel/units.h"
#include "models/check.h"
#include "models/fused.h"

namespace lockstep {
namespace {

using torch::nn::LayerNorm;
using torch::nn::Linear;

constexpr double kInitialDeviation = 0.02;

class Attention : public torch::nn::Module {
 public:
  explicit Attention(const GptOptions& options)
      : heads_(options.heads),
        dropout_(options.dropout),
        qkv_(register_module("qkv", Linear(options.width, 3 * options.width))),
        out_(register_module("out", Linear(options.width, options.width))) {}

  // `x`: [tokens × batch, width]; `mask`: [tokens, tokens], 0 or -∞, added to the scores.
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const std::int64_t tokens = mask.size(0);
    const std::int64_t depth = x.size(1) / heads_;
    // A row of the projection is head by head its query, key and value, so [batch × heads] is one stride.
    const auto parts = qkv_->forward(x).view({tokens, -1, 3, depth}).unbind(2);
    const auto queries = parts[0].transpose(0, 1);  // [batch × heads, tokens, depth]
    const auto keys = parts[1].permute({1, 2, 0});
    const auto values = parts[2].transpose(0, 1);
    const double scale = 1 / std::sqrt(static_cast<double>(depth));
    auto weights = torch::baddbmm(mask, queries, keys, 1, scale).softmax(-1);
    if (dropout_ > 0) weights = torch::dropout(weights, dropout_, is_training());
    return out_->forward(torch::bmm(weights, values).transpose(0, 1).reshape(x.sizes()));
  }

  // On a GPU: `x` is [batch × tokens, width], and `stream` gets the result.
  void forward_fused(const torch::Tensor& x, std::int64_t batch, fused::ResidualStream& stream) {
    if constexpr (fused::kBuilt)
      stream.add(*out_, fused::causal_attention(*qkv_, x, {.batch = batch, .heads = heads_}));
  }

  Linear& out() { return out_; }

 private:
  std::int64_t heads_;
  double dropout_;
  Linear qkv_;
  Linear out_;
};

class GptBlock : public torch::nn::Module {
 public:
  explicit GptBlock(const GptOptions& options)
      : dropout_(options.dropout),
        norm1_(register_module("norm1", LayerNorm(torch::nn::LayerNormOptions({options.width})))),
        attention_(register_module("attention", std::make_shared<Attention>(options))),
        norm2_(register_module("norm2", LayerNorm(torch::nn::LayerNormOptions({options.width})))),
        up_(register_module("up", Linear(options.width, 4 * options.width))),
        down_(register_module("down", Linear(4 * options.width, options.width))) {}

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask) {
    x = x + drop(attention_->forward(norm1_->forward(x), mask));
    return x + drop(down_->forward(torch::gelu(up_->forward(norm2_->forward(x)))));
  }

  void forward_fused(fused::ResidualStream& stream, std::int64_t batch) {
    if constexpr (fused::kBuilt) {
      attention_->forward_fused(stream.normed(*norm1_), batch, stream);
      stream.add(*down_, fused::linear_gelu(*up_, stream.normed(*norm2_)));
    }
  }

  // Projections that end a residual branch.
  std::vector<Linear> branch_ends() { return {attention_->out(), down_}; }

 private:
  torch::Tensor drop(torch::Tensor x) const {
    return dropout_ > 0 ? torch::dropout(x, dropout_, is_training()) : std::move(x);
  }

  double dropout_;
  LayerNorm norm1_;
  std::shared_ptr<Attention> attention_;
  LayerNorm norm2_;
  Linear up_;
  Linear down_;
};

class Gpt final : public Model {
 public:
  explicit Gpt(const GptOptions& options)
      : options_(options),
        tok_(register_module("tok", torch::nn::Embedding(options.vocabulary, options.width))),
        pos_(register_module("pos", torch::nn::Embedding(options.context, options.width))) {
    embedding_ = Unit({tok_.ptr(), pos_.ptr()});
    const auto blocks = std::make_shared<torch::nn::Module>();
    for (std::int64_t i = 0; i < options.blocks; ++i) {
      blocks_.push_back(
          shard(blocks->register_module(std::to_string(i), std::make_shared<GptBlock>(options))));
    }
    register_module("blocks", blocks);
    norm_ = register_module("norm", LayerNorm(torch::nn::LayerNormOptions({options.width})));
    if (options.tied_embeddings) {
      output_ = Unit({norm_.ptr(), tok_.ptr()});
    } else {
      head_ = register_module(
          "head",
          Linear(torch::nn::LinearOptions(options.width, options.vocabulary).bias(options.head_bias)));
      output_ = Unit({norm_.ptr(), head_.ptr()});
    }
    initialise_all();
  }

  torch::Tensor forward(torch::Tensor x) override {
    if (x.dim() != 2 || x.size(1) > options_.context || x.size(1) < 1) {
      throw UsageError("gpt: input of shape " + c10::str(x.sizes()) + "; accepted: [batch, 1 to " +
                       std::to_string(options_.context) + "] token numbers");
    }
    const std::int64_t batch = x.size(0);
    const std::int64_t tokens = x.size(1);
    if constexpr (fused::kBuilt)
      if (options_.dropout == 0 && fused::takes(*norm_, tok_->weight, options_.heads) &&
          !detail::recomputes(*embedding_.point()))
        return forward_fused(x);
    auto h = embedding_.run([this](const torch::Tensor& numbers) { return embed(numbers); },
                            x.t().to(torch::kLong));
    h = h.view({tokens * batch, options_.width});
    if (options_.dropout > 0) h = torch::dropout(h, options_.dropout, is_training());
    const auto mask = causal_mask(h, tokens);
    for (const auto& block : blocks_) h = block.forward(h, mask);
    h = output_.run([this](const torch::Tensor& last) { return project(norm_->forward(last)); }, h);
    return h.view({tokens, batch, options_.vocabulary}).transpose(0, 1);
  }

 private:
  torch::Tensor forward_fused(const torch::Tensor& x) {
    if constexpr (fused::kBuilt) {
      using torch::Tensor;
      const std::int64_t batch = x.size(0), tokens = x.size(1);
      const Tensor h = embedding_.run(
          [this, tokens](const Tensor& numbers) { return tok_->forward(numbers) + first_positions(tokens); },
          x.to(torch::kLong));
      fused::ResidualStream::Parts parts = {h.view({batch * tokens, options_.width}), Tensor(), Tensor()};
      for (const auto& block : blocks_)
        parts = std::apply(
            [&](const auto&... each) {
              return block.unit().run(
                  [here = &*block, batch, gathered = detail::gathered(*block.unit().point())](
                      const Tensor& sum, const Tensor& branch, const Tensor& bias) {
                    fused::ResidualStream stream({sum, branch, bias});
                    here->forward_fused(stream, batch);
                    if (gathered) stream.keep_bias();
                    return stream.parts();
                  },
                  each...);
            },
            parts);
      const auto end = [this](const Tensor& sum, const Tensor& branch, const Tensor& bias) {
        return project(fused::ResidualStream({sum, branch, bias}).normed(*norm_));
      };
      const Tensor logits = std::apply([&](const auto&... each) { return output_.run(end, each...); }, parts);
      return logits.view({batch, tokens, options_.vocabulary});
    }
    return {};
  }

  torch::Tensor first_positions(std::int64_t tokens) const {
    return tokens == options_.context ? pos_->weight : pos_->weight.narrow(0, 0, tokens);
  }

  // `numbers`: [tokens, batch]
  torch::Tensor embed(const torch::Tensor& numbers) {
    return tok_->forward(numbers) + first_positions(numbers.size(0)).unsqueeze(1);
  }

  // In the order of the modules, unit by unit: each may be in parts again before the next.
  torch::Tensor project(const torch::Tensor& h) {  // to the vocabulary
    return options_.tied_embeddings ? torch::linear(h, tok_->weight) : head_->forward(h);
  }

  void initialise_all() {
    const torch::NoGradGuard no_grad;
    initialise(embedding_, [this] {
      for (const auto& embedding : {tok_, pos_}) embedding->weight.normal_(0, kInitialDeviation);
    });
    // Each block adds two branches to the sum; scaled so, the sum's variance does not grow with their number.
    const double scale = 1 / std::sqrt(2 * static_cast<double>(options_.blocks));
    for (const auto& block : blocks_)
      initialise(block, [&] {
        for (const auto& module : block->modules(/*include_self=*/false))
          if (auto* linear = module->as<torch::nn::LinearImpl>()) initialise_linear(*linear);
        for (const Linear& end : block->branch_ends()) end->weight.mul_(scale);
      });
    if (!options_.tied_embeddings) initialise(output_, [this] { initialise_linear(*head_); });
  }
  static void initialise_linear(torch::nn::LinearImpl& linear) {
    linear.weight.normal_(0, kInitialDeviation);
    if (linear.bias.defined()) linear.bias.zero_();
  }

  // Kept from call to call, for the largest context, where the activations are.
  torch::Tensor causal_mask(const torch::Tensor& like, std::int64_t tokens) {
    if (!mask_.defined() || mask_.device() != like.device() || mask_.scalar_type() != like.scalar_type()) {
      const torch::NoGradGuard no_grad;
      mask_ = torch::full({options_.context, options_.context}, -std::numeric_limits<float>::infinity(),
                          like.options().requires_grad(false))
                  .triu(1);
    }
    return tokens == options_.context ? mask_ : mask_.slice(0, 0, tokens).slice(1, 0, tokens);
  }

  GptOptions options_;
  torch::nn::Embedding tok_;
  torch::nn::Embedding pos_;
  std::vector<UnitOf<GptBlock>> blocks_;
  LayerNorm norm_{nullptr};
  Linear head_{nullptr};
  Unit embedding_;
  Unit output_;
  torch::Tensor mask_;  // no buffer: a constant does not belong into checkpoints
};

}  // namespace

std::shared_ptr<Model> make_gpt(GptOptions options) {
  check_positive("gpt", "blocks", options.blocks);
  check_positive("gpt", "width", options.width);
  check_positive("gpt", "heads", options.heads);
  check_positive("gpt", "context", options.context);
  check_positive("gpt", "vocabulary", options.vocabulary);
  if (options.width % options.heads != 0) {
    throw UsageError("gpt: width = " + std::to_string(options.width) +
                     " is no multiple of heads = " + std::to_string(options.heads));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    throw UsageError("gpt: dropout = " + std::to_string(options.dropout) +
                     "; accepted: 0 up to, not including, 1");
  }
  return std::make_shared<Gpt>(options);
}

}  // namespace lockstep
