// Every method over 50 steps beside its paper's algorithm, written down once more in f64: means, and what is
// remembered from step to step.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "comm/thread_ranks.h"
#include "compress/codec/element_random.h"
#include "compress/random_k.h"
#include "lockstep/compress/compress.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using Vector = std::vector<double>;

constexpr std::size_t kRows = 16, kColumns = 12, kCount = kRows * kColumns;
constexpr int kRanks = 4, kSteps = 50;

// The gradient of one rank: a trend that all have, and noise.
Vector gradient(int rank, int step) {
  Vector g(kCount);
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto x = static_cast<double>(i);
    g[i] = static_cast<float>(std::sin(0.7 * x) + 0.5 * std::sin(x * (0.31 * rank + 0.13 * step + 1.7)));
  }
  return g;
}

// One step of all ranks: their gradients, divided by their number; gives the mean that each method makes of
// it.
using Reference = std::function<Vector(const std::vector<Vector>& parts, int step)>;
using Remembered = std::map<std::string, Vector>;

Vector& operator+=(Vector& a, const Vector& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

std::string of(const std::string& kind, std::size_t subtree) {
  return kind + "/" + std::to_string(subtree) + "/w";
}

double largest(const Vector& x) {
  double most = 0;
  for (const double value : x) most = std::max(most, std::abs(value));
  return most;
}

void expect_near(const torch::Tensor& tensor, const Vector& expected, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(tensor.numel(), static_cast<std::int64_t>(expected.size())) << what;
  const torch::Tensor flat = tensor.reshape({-1}).to(torch::kFloat64);
  const double scale = std::max(largest(expected), 1e-6);
  for (std::size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(flat[static_cast<std::int64_t>(i)].item<double>(), expected[i], tolerance * scale)
        << what << ", element " << i;
}

// Trains nothing: the gradients of 50 steps, exchanged as `method` does it, beside the reference's.
void compare(const std::string& method, const Reference& reference, const Remembered& remembered,
             double tolerance) {
  std::vector<Vector> means(kSteps);
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Vector> parts;
    for (int rank = 0; rank < kRanks; ++rank) {
      parts.push_back(gradient(rank, step));
      for (double& x : parts.back()) x /= kRanks;
    }
    means[static_cast<std::size_t>(step)] = reference(parts, step);
  }
  on_threads(thread_groups(kRanks), [&](const Group& group) {
    const Exchange exchange = compressed({.method = method, .seed = 3})(Exchange::Leaves::everything);
    const std::vector<NamedTensor> parameters = {{"w", torch::ones({kRows, kColumns}).requires_grad_()}};
    Reducer reducer(parameters, group, {.exchange = exchange});
    for (int step = 0; step < kSteps; ++step) {
      const Vector g = gradient(group.rank(), step);
      parameters[0].tensor.mutable_grad() = torch::Tensor();
      (parameters[0].tensor * torch::tensor(g).to(torch::kFloat32).view({kRows, kColumns})).sum().backward();
      expect_near(parameters[0].tensor.grad(), means[static_cast<std::size_t>(step)], tolerance,
                  method + ", step " + std::to_string(step));
      if (::testing::Test::HasFatalFailure()) break;
    }
    const Exchange::State state = exchange.state();
    if (::testing::Test::HasFatalFailure()) return;
    EXPECT_EQ(state.size(), remembered.size() + 1) << method;
    EXPECT_EQ(state.at("steps").item<std::int64_t>(), kSteps);
    for (const auto& [name, values] : remembered) {
      ASSERT_TRUE(state.contains(name)) << name;
      expect_near(state.at(name), values, tolerance, name);
    }
  });
}

// The k largest stay, the others become zero; of equal ones the lower index.
Vector only_largest(const Vector& x, std::size_t k) {
  std::vector<std::size_t> order(x.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return std::abs(x[a]) > std::abs(x[b]); });
  Vector kept(x.size(), 0.0);
  for (std::size_t i = 0; i < k; ++i) kept[order[i]] = x[order[i]];
  return kept;
}

Vector scaled_signs(const Vector& x) {
  double sum = 0;
  for (const double value : x) sum += std::abs(value);
  Vector out;
  for (const double value : x) out.push_back(std::copysign(sum / static_cast<double>(x.size()), value));
  return out;
}

std::size_t share_of(double ratio) { return static_cast<std::size_t>(std::ceil(ratio * kCount)); }

// v = g + e; send C(v); e = v - C(v) (Karimireddy et al. 2019). `owed` is -e, which is how it is saved.
struct Feedback {
  Vector owed = Vector(kCount, 0.0);
  Vector send(const Vector& g, const std::function<Vector(const Vector&)>& compress) {
    Vector v = g;
    for (std::size_t i = 0; i < v.size(); ++i) v[i] -= owed[i];
    const Vector sent = compress(v);
    for (std::size_t i = 0; i < v.size(); ++i) owed[i] = sent[i] - v[i];
    return sent;
  }
};

TEST(Reference, TopKWithErrorFeedback) {
  std::vector<Feedback> workers(kRanks);
  Remembered state;
  compare(
      "topk:0.05:min=0",
      [&](const std::vector<Vector>& parts, int) {
        Vector mean(kCount, 0.0);
        for (std::size_t w = 0; w < kRanks; ++w) {
          mean += workers[w].send(parts[w], [](const Vector& v) { return only_largest(v, share_of(0.05)); });
          state[of("owed", w)] = workers[w].owed;
        }
        return mean;
      },
      state, 1e-4);
}

// Errors of the workers and of the server (Tang et al. 2021, 1-bit Adam, algorithm 1 without its
// preconditioner).
TEST(Reference, OneBitWithErrorFeedbackOnBothSides) {
  std::vector<Feedback> workers(kRanks);
  Feedback server;
  Remembered state;
  compare(
      "onebit:min=0",
      [&](const std::vector<Vector>& parts, int) {
        Vector sum(kCount, 0.0);
        for (std::size_t w = 0; w < kRanks; ++w) {
          sum += workers[w].send(parts[w], scaled_signs);
          state[of("owed", w)] = workers[w].owed;
        }
        const Vector mean = server.send(sum, scaled_signs);
        state["server/w"] = server.owed;
        return mean;
      },
      state, 1e-4);
}

// Lin et al. 2018, algorithm 4: momentum correction and masking, local clipping, and a share that falls.
TEST(Reference, DeepGradientCompression) {
  std::vector<Vector> u(kRanks, Vector(kCount, 0.0)), v = u;
  Remembered state;
  compare(
      "dgc:0.05:momentum=0.8:clip=20:rampup=6:min=0",
      [&](const std::vector<Vector>& parts, int step) {
        const double share = step < 3 ? 0.25 : step < 6 ? 0.0625 : 0.05;
        Vector mean(kCount, 0.0);
        for (std::size_t w = 0; w < kRanks; ++w) {
          double norm = 0;
          for (const double x : parts[w]) norm += x * kRanks * x * kRanks;
          norm = std::sqrt(norm);
          const double clipped = std::min(1.0, 20 / std::sqrt(kRanks) / norm);
          for (std::size_t i = 0; i < kCount; ++i) {
            u[w][i] = 0.8 * u[w][i] + parts[w][i] * clipped;
            v[w][i] += u[w][i];
          }
          const Vector sent = only_largest(v[w], share_of(share));
          for (std::size_t i = 0; i < kCount; ++i)
            if (sent[i] != 0) u[w][i] = v[w][i] = 0;
          mean += sent;
          state[of("velocity", w)] = u[w];
          state[of("pending", w)] = v[w];
        }
        return mean;
      },
      state, 1e-4);
}

// Unbiased: what is chosen is multiplied by n / k.
TEST(Reference, RandomK) {
  compare(
      "randk:0.1:min=0",
      [](const std::vector<Vector>& parts, int step) {
        const std::size_t k = kCount / 10;
        Vector mean(kCount, 0.0);
        for (const std::size_t i : compress::chosen(3, step, "w", kCount, k))
          for (const Vector& part : parts)
            mean[i] += part[i] * static_cast<double>(kCount) / static_cast<double>(k);
        return mean;
      },
      {}, 1e-5);
}

TEST(Reference, RandomKWithErrorFeedback) {
  std::vector<Feedback> workers(kRanks);
  Remembered state;
  compare(
      "randk:0.1:min=0:ef=on",
      [&](const std::vector<Vector>& parts, int step) {
        const std::vector<std::size_t> picks = compress::chosen(3, step, "w", kCount, kCount / 10);
        Vector mean(kCount, 0.0);
        for (std::size_t w = 0; w < kRanks; ++w) {
          mean += workers[w].send(parts[w], [&](const Vector& v) {
            Vector kept(kCount, 0.0);
            for (const std::size_t i : picks) kept[i] = v[i];
            return kept;
          });
          state[of("owed", w)] = workers[w].owed;
        }
        return mean;
      },
      state, 1e-5);
}

TEST(RandomK, ChoosesEachElementEquallyOftenAndNoneTwice) {
  std::vector<int> times(10, 0);
  for (int step = 0; step < 3000; ++step) {
    const auto picks = compress::chosen(1, step, "w", 10, 3);
    EXPECT_EQ(picks.size(), 3u);
    EXPECT_EQ(std::set<std::size_t>(picks.begin(), picks.end()).size(), 3u);
    for (const std::size_t i : picks) ++times[i];
  }
  for (const int count : times) EXPECT_NEAR(count, 900, 5 * std::sqrt(3000 * 0.3 * 0.7));
}

// One scale for all, integers rounded at random; in f32 where it decides which integer comes out.
TEST(Reference, IntegersOfOneScale) {
  compare(
      "intsgd:min=0",
      [](const std::vector<Vector>& parts, int step) {
        constexpr int kLevels = 127 / kRanks;
        double most = 0;
        for (const Vector& part : parts) most = std::max(most, largest(part));
        Vector mean(kCount, 0.0);
        for (int w = 0; w < kRanks; ++w) {
          const compress::ElementRandom random(3, step, w, "w");
          for (std::size_t i = 0; i < kCount; ++i) {
            const float level = static_cast<float>(parts[static_cast<std::size_t>(w)][i]) /
                                static_cast<float>(most) * kLevels;
            mean[i] += std::floor(level + random.uniform(i)) * most / kLevels;
          }
        }
        return mean;
      },
      {}, 1e-5);
}

// Vogels et al. 2019, algorithms 1 and 2.
struct PowerIteration {
  static constexpr std::size_t kRank = 2;
  std::vector<Feedback> workers = std::vector<Feedback>(kRanks);
  std::vector<Vector> q = std::vector<Vector>(kRank, Vector(kColumns));

  PowerIteration() {
    const compress::ElementRandom random(3, 0, -1, "w");
    for (std::size_t c = 0; c < kRank; ++c)
      for (std::size_t j = 0; j < kColumns; ++j) q[c][j] = 2 * random.uniform(c * kColumns + j) - 1;
  }

  static Vector times(const Vector& m, const Vector& x) {
    Vector out(kRows, 0.0);
    for (std::size_t i = 0; i < kRows; ++i)
      for (std::size_t j = 0; j < kColumns; ++j) out[i] += m[i * kColumns + j] * x[j];
    return out;
  }
  static Vector transposed_times(const Vector& m, const Vector& x) {
    Vector out(kColumns, 0.0);
    for (std::size_t i = 0; i < kRows; ++i)
      for (std::size_t j = 0; j < kColumns; ++j) out[j] += m[i * kColumns + j] * x[i];
    return out;
  }
  static double dot(const Vector& a, const Vector& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  }
  static Vector product(const std::vector<Vector>& p, const std::vector<Vector>& columns) {
    Vector m(kCount, 0.0);
    for (std::size_t c = 0; c < kRank; ++c)
      for (std::size_t i = 0; i < kRows; ++i)
        for (std::size_t j = 0; j < kColumns; ++j) m[i * kColumns + j] += p[c][i] * columns[c][j];
    return m;
  }

  Vector step(const std::vector<Vector>& parts) {
    std::vector<Vector> m = parts;  // with the errors
    for (std::size_t w = 0; w < kRanks; ++w)
      for (std::size_t i = 0; i < kCount; ++i) m[w][i] -= workers[w].owed[i];
    std::vector<Vector> p(kRank, Vector(kRows, 0.0));
    for (std::size_t c = 0; c < kRank; ++c) {
      for (const Vector& own : m) p[c] += times(own, q[c]);
      for (std::size_t d = 0; d < c; ++d) {
        const double along = dot(p[c], p[d]);
        for (std::size_t i = 0; i < kRows; ++i) p[c][i] -= along * p[d][i];
      }
      const double norm = std::sqrt(dot(p[c], p[c]));
      for (double& x : p[c]) x /= norm;
    }
    for (Vector& column : q) std::fill(column.begin(), column.end(), 0.0);
    for (std::size_t w = 0; w < kRanks; ++w) {
      std::vector<Vector> own;
      for (std::size_t c = 0; c < kRank; ++c) {
        own.push_back(transposed_times(m[w], p[c]));
        q[c] += own.back();
      }
      const Vector sent = product(p, own);
      for (std::size_t i = 0; i < kCount; ++i) workers[w].owed[i] = sent[i] - m[w][i];
    }
    return product(p, q);
  }
};

TEST(Reference, PowerSgd) {
  PowerIteration iteration;
  Remembered state;
  compare(
      "powersgd:rank=2:min=0",
      [&](const std::vector<Vector>& parts, int) {
        const Vector mean = iteration.step(parts);
        for (std::size_t w = 0; w < kRanks; ++w) state[of("owed", w)] = iteration.workers[w].owed;
        Vector& q = state["q/w"] = iteration.q[0];
        q.insert(q.end(), iteration.q[1].begin(), iteration.q[1].end());
        return mean;
      },
      state, 1e-3);
}

// Of methods that round at random, without a memory: on average what was given.
TEST(Reference, RandomRoundingIsRightOnAverage) {
  for (const char* method : {"qsgd:4:min=0", "terngrad:min=0", "intsgd:min=0", "randk:0.2:min=0"})
    on_threads(thread_groups(2), [&](const Group& group) {
      const Exchange exchange = compressed({.method = method})(Exchange::Leaves::everything);
      const std::vector<NamedTensor> parameters = {{"w", torch::ones({kRows, kColumns}).requires_grad_()}};
      Reducer reducer(parameters, group, {.exchange = exchange});
      const auto given = [](int rank) {
        return torch::tensor(gradient(rank, 0)).to(torch::kFloat32).view({kRows, kColumns});
      };
      torch::Tensor sum = torch::zeros({kRows, kColumns});
      constexpr int kTimes = 400;
      for (int step = 0; step < kTimes; ++step) {
        parameters[0].tensor.mutable_grad() = torch::Tensor();
        (parameters[0].tensor * given(group.rank())).sum().backward();
        sum += parameters[0].tensor.grad();
      }
      const torch::Tensor mean = (given(0) + given(1)) / 2;
      // A standard deviation of an element is at most about 2 × the largest; of 400, a tenth of that.
      EXPECT_LT((sum / kTimes - mean).abs().mean().item<double>(), 0.12) << method;
      EXPECT_GT((sum / kTimes - mean).abs().max().item<double>(), 0) << method;
    });
}

}  // namespace
}  // namespace lockstep
