// Tensors in collectives: what comes out, and what is refused and how.
#include "lockstep/parallel/tensor.h"

#include <gtest/gtest.h>

#include "comm/expect_error.h"
#include "comm/thread_ranks.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"

namespace lockstep {
namespace {

using lockstep::testing::expect_error;
using lockstep::testing::on_threads;

constexpr torch::ScalarType kTypes[] = {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16,
                                        torch::kInt64,   torch::kInt32,   torch::kInt8,    torch::kUInt8};

void on_tensor_ranks(const std::function<void(const Group&, int rank, int size)>& body) {
  for (const int size : {1, 2, 3, 4})
    on_threads(thread_groups(size, {.timeout = std::chrono::seconds(20)}), [&](const Group& g) {
      SCOPED_TRACE("rank " + std::to_string(g.rank()) + " of " + std::to_string(size));
      body(g, g.rank(), size);
    });
}

TEST(Tensors, OfEveryTypeAndSizeGoThroughEveryCollective) {
  on_tensor_ranks([](const Group& g, int rank, int n) {
    for (const auto type : kTypes)
      for (const std::int64_t rows : {0, 1, 3, 501}) {
        SCOPED_TRACE(std::string(torch::toString(type)) + ", rows " + std::to_string(rows));
        const auto full = [&](std::int64_t count, double value) {
          return torch::full({count, 3}, value, type);
        };
        const double sum = n * (n + 1) / 2.0;
        torch::Tensor x = full(rows, rank + 1);
        g.all_reduce(x);
        EXPECT_TRUE(torch::equal(x, full(rows, sum)));
        const torch::Tensor own = full(rows, rank + 1);
        torch::Tensor out = torch::empty_like(own);
        g.all_reduce(own, out, {.op = ReduceOp::max});
        EXPECT_TRUE(torch::equal(out, full(rows, n)));

        torch::Tensor all = full(rows * n, 0);
        g.all_gather(own, all);
        for (int r = 0; r < n; ++r)
          EXPECT_TRUE(torch::equal(all.narrow(0, r * rows, rows), full(rows, r + 1)));
        g.reduce_scatter(all, out);
        EXPECT_TRUE(torch::equal(out, full(rows, (rank + 1) * n)));
        g.scatter(all, out, 0);
        EXPECT_TRUE(torch::equal(out, own));
        torch::Tensor swapped = torch::empty_like(all);
        g.all_to_all(all, swapped);
        EXPECT_TRUE(torch::equal(swapped, full(rows * n, rank + 1)));

        x = own.clone();
        g.broadcast(x, n - 1);
        EXPECT_TRUE(torch::equal(x, full(rows, n)));
        torch::Tensor whole = rank == 0 ? torch::empty_like(all) : torch::Tensor();  // needed on root alone
        g.gather(own, whole, 0);
        EXPECT_TRUE(rank != 0 || torch::equal(whole, all));
        torch::Tensor reduced = rank == 0 ? torch::empty_like(own) : torch::Tensor();
        g.reduce(own, reduced, 0);
        EXPECT_TRUE(rank != 0 || torch::equal(reduced, full(rows, sum)));

        x = own.clone();
        g.all_reduce_async(buffer(x)).wait();
        EXPECT_TRUE(torch::equal(x, full(rows, sum)));
      }
  });
}

TEST(Tensors, OfDifferentLengthsAreGathered) {
  on_tensor_ranks([](const Group& g, int rank, int n) {
    for (const auto type : kTypes)
      for (const int most : {0, 1, 7}) {
        const auto rows_of = [&](int r) { return std::int64_t{most} * ((r + 1) % 3); };  // some have none
        const auto parts = g.all_gather(torch::full({rows_of(rank), 2, 5}, rank + 1, type));
        ASSERT_EQ(parts.size(), static_cast<std::size_t>(n));
        for (int r = 0; r < n; ++r)
          EXPECT_TRUE(
              torch::equal(parts[static_cast<std::size_t>(r)], torch::full({rows_of(r), 2, 5}, r + 1, type)));
      }
    const auto flags = g.all_gather(torch::tensor({rank % 2 == 0}));
    for (int r = 0; r < n; ++r) EXPECT_EQ(flags[static_cast<std::size_t>(r)].item<bool>(), r % 2 == 0);
  });
}

TEST(Tensors, NoDimensionAndPartsOfOthersAreOrdinary) {
  on_tensor_ranks([](const Group& g, int rank, int n) {
    const torch::Tensor one = torch::tensor(static_cast<double>(rank));
    g.all_reduce(one);
    EXPECT_EQ(one.item<double>(), n * (n - 1) / 2.0);
    const torch::Tensor table = torch::ones({4, 3});
    g.all_reduce(table[1]);  // a row is a handle to the table's memory
    EXPECT_EQ(table.sum().item<float>(), static_cast<float>(9 + 3 * n));
  });
}

TEST(Tensors, ThatCanNotTravelAreRefusedWithWhatToDo) {
  const Group alone = thread_groups(1)[0];
  const auto refused = [&](const torch::Tensor& x, const std::vector<std::string>& parts) {
    expect_error<UsageError>([&] { alone.all_reduce(x); }, parts);
    expect_error<UsageError>([&] { (void)alone.all_gather(x); }, {"all_gather"});
    expect_error<UsageError>([&] { (void)buffer(x); }, {"buffer"});
  };
  refused(torch::Tensor(), {"all_reduce", "undefined", "every rank"});
  refused(torch::zeros({3, 4}).t(), {"all_reduce", "[4, 3]", "not contiguous", "[1, 4]", "contiguous()"});
  refused(torch::zeros({1}).expand({5}), {"not contiguous", "[0]"});
  refused(torch::zeros({2, 2}).to_sparse(), {"all_reduce", "[2, 2]", "sparse", "to_dense()"});
  refused(torch::empty({2}, torch::kMeta), {"all_reduce", "[2]", "meta", "cpu"});
  refused(torch::zeros({2}, torch::kComplexFloat), {"all_reduce", "ComplexFloat", "accepted", "Float"});
  refused(torch::zeros({2}, torch::kInt16), {"all_reduce", "Short", "accepted", "Int"});

  const torch::Tensor flag = torch::tensor({true, false});
  expect_error<UsageError>([&] { alone.all_reduce(flag); }, {"all_reduce", "sum of Bool", "max (any)"});
  alone.all_reduce(flag, {.op = ReduceOp::max});
  expect_error<UsageError>([&] { (void)alone.all_gather(torch::tensor(1.0)); },
                           {"all_gather", "no dimension", "view({1})"});
}

TEST(Tensors, ThatNobodyWouldSeeAreNotWritten) {
  const Group alone = thread_groups(1)[0];
  const torch::Tensor x = torch::ones({3, 4});
  const std::vector<std::string> parts = {"nobody else holds", "[4, 3]", "accepted", "contiguous()"};
  expect_error<UsageError>([&] { alone.all_reduce(x.t().contiguous()); }, parts);
  expect_error<UsageError>([&] { alone.all_gather(x, x.t().contiguous()); }, parts);
  expect_error<UsageError>([&] { (void)buffer(x.t().contiguous()); }, parts);
  alone.all_reduce(x.contiguous());  // x itself
  alone.all_reduce(x.view(-1));
  (void)buffer(x[1]);
  alone.all_gather(x.t().contiguous(), x);  // is only read
  EXPECT_TRUE(x.equal(torch::ones({3, 4})));
  std::vector<float> own(6, 2);
  alone.all_reduce(torch::from_blob(own.data(), {2, 3}));
}

TEST(Tensors, ThatDifferBetweenRanksAreAMismatch) {
  on_threads(thread_groups(2), [](const Group& g) {
    const torch::Tensor x = torch::zeros({3 + g.rank(), 2});
    expect_error<MismatchError>([&] { g.all_reduce(x); }, {"all_reduce", "f32 × 6", "f32 × 8"});
  });
  on_threads(thread_groups(2), [](const Group& g) {
    const torch::Tensor x = torch::zeros({4}, g.rank() == 0 ? torch::kFloat32 : torch::kFloat64);
    expect_error<MismatchError>([&] { g.broadcast(x, 0); }, {"broadcast", "f32", "f64"});
  });
  on_threads(thread_groups(3), [](const Group& g) {
    const std::vector<std::string> parts = {"rank 0 has Float [2, 3]", "rank 2 has Float [2, 4]"};
    expect_error<MismatchError>([&] { (void)g.all_gather(torch::zeros({2, g.rank() == 2 ? 4 : 3})); }, parts);
    expect_error<MismatchError>(
        [&] {
          (void)g.all_gather(g.rank() == 1 ? torch::zeros({2, 3, 1}) : torch::zeros({2, 3}));
        },
        {"rank 1 has Float [2, 3, 1]"});
    expect_error<MismatchError>(
        [&] { (void)g.all_gather(torch::zeros({0}, g.rank() == 1 ? torch::kInt32 : torch::kInt64)); },
        {"rank 0 has Long [0]", "rank 1 has Int [0]"});
    EXPECT_EQ(g.all_gather(torch::zeros({g.rank()}))[2].numel(), 2);  // the group is as it was
  });
}

TEST(Tensors, AreChangedInPlaceAsAutogradUnderstandsIt) {
  on_threads(thread_groups(2), [](const Group& g) {
    const torch::Tensor weight = torch::ones({2}, torch::requires_grad());
    const torch::Tensor square = weight * weight;
    const torch::Tensor loss = (square * square).sum();  // needs `square` as it is
    g.all_reduce(square.detach());
    EXPECT_THROW(loss.backward(), c10::Error);
  });
}

}  // namespace
}  // namespace lockstep
