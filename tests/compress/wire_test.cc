// Bytes that the kernel has sent in a step: theory, and framing.
#include <gtest/gtest.h>

#include <cmath>

#include "comm/bytes_sent.h"
#include "comm/thread_ranks.h"
#include "comm/wire_ranks.h"
#include "lockstep/compress/compress.h"
#include "lockstep/grad/reducer.h"

namespace lockstep {
namespace {

using lockstep::testing::on_threads;
using lockstep::testing::settled_bytes_sent;
using lockstep::testing::tcp_groups;

constexpr std::int64_t kWireRows = 600, kWireColumns = 500;
constexpr double kWireCount = kWireRows * kWireColumns;

// Both ends of every connection are in this process, so all that is sent is counted, once.
double compressed_bytes(int workers, const std::string& method, Exchange::Leaves leaves) {
  constexpr int kMeasured = 3;
  double sent = 0;
  on_threads(tcp_groups(workers, net::Security::plaintext), [&](const Group& group) {
    std::vector<NamedTensor> large = {{"w", torch::ones({kWireRows, kWireColumns}).requires_grad_()}};
    const Exchange exchange = compressed({.method = method})(leaves);
    Reducer reducer(large, group, {.exchange = exchange});
    if (exchange.momenta) exchange.momenta->begin_momenta();  // as its optimizer does behind the dense phase
    const torch::Tensor g =
        torch::sin(torch::arange(kWireRows * kWireColumns, torch::kFloat32)).view({kWireRows, kWireColumns});
    const auto step = [&] {
      large[0].tensor.mutable_grad() = torch::Tensor();
      (large[0].tensor * g).sum().backward();
      reducer.end_step();  // as an optimizer says
      group.barrier();
    };
    step();  // connections are made, buckets laid out
    const std::uint64_t before = group.rank() == 0 ? settled_bytes_sent() : 0;
    group.barrier();
    for (int i = 0; i < kMeasured; ++i) step();
    if (group.rank() == 0) sent = static_cast<double>(settled_bytes_sent() - before) / kMeasured;
    group.barrier();
  });
  return sent;
}

// What cards, counts, barriers and fingerprints take: of a step whose tensor is almost nothing.
TEST(CompressedWire, CarriesTheoryAndFraming) {
  const double framing = 6000;
  const auto blocks = std::ceil(kWireCount / 512);
  const auto expect = [&](const std::string& method, int workers, double theory,
                          Exchange::Leaves leaves = Exchange::Leaves::everything) {
    const double sent = compressed_bytes(workers, method, leaves);
    RecordProperty(method, std::to_string(sent));
    EXPECT_GE(sent, theory) << method;
    EXPECT_LE(sent, theory + framing * workers) << method << ": theory says " << theory;
  };
  // An all-gather brings each of W workers the payloads of the W - 1 others.
  expect("topk:0.01", 2, 2 * 8 * kWireCount / 100);
  expect("topk:0.01", 3, 6 * 8 * kWireCount / 100);
  expect("onebit", 2, 2 * (kWireCount / 8 + 4 * blocks));
  expect("onebit-adam", 2, 2 * (kWireCount / 8 + 4 * blocks));
  expect("onebit-adam", 3, 6 * (kWireCount / 8 + 4 * blocks));
  expect("int8", 2, 2 * (kWireCount + 4 * blocks));
  // Slices of whole blocks go to who adds them up, and of the sum to all, where all keep it: W - 1 of W each.
  const auto slice = [&](int workers) { return std::ceil(blocks / workers) * (512 + 4); };
  expect("fp8", 4, 12 * (kWireCount + 4 * blocks));
  expect("fp8:form=scattered", 2, 2 * 2 * slice(2));
  expect("fp8:form=scattered", 4, 2 * 12 * slice(4));
  expect("int8", 8, 2 * 56 * slice(8));
  expect("int8", 8, 56 * slice(8), Exchange::Leaves::own_part);
  // An all-reduce of two workers sends everything both ways, or half of it twice.
  expect("randk:0.01", 2, 2 * 4 * kWireCount / 100);
  expect("intsgd", 2, 2 * kWireCount);
  expect("powersgd:rank=4", 2, 2 * 4 * 4 * (kWireRows + kWireColumns));
}

}  // namespace
}  // namespace lockstep
