#include "bench/op.h"

#include <array>

#include "base/suggest.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

struct Traits {
  const char* name;
  Collective collective;
  bool slices;  // does it cut its larger buffer into one slice a rank?
};

constexpr std::array<Traits, 10> kTraits = {{
    {"all_reduce", Collective::all_reduce, false},
    {"reduce_scatter", Collective::reduce_scatter, true},
    {"all_gather", Collective::all_gather, true},
    {"broadcast", Collective::broadcast, false},
    {"reduce", Collective::reduce, false},
    {"gather", Collective::gather, true},
    {"scatter", Collective::scatter, true},
    {"all_to_all", Collective::all_to_all, true},
    {"barrier", Collective::barrier, false},
    {"send_recv", Collective::send, false},
}};

const Traits& traits(BenchOp op) { return kTraits[static_cast<std::size_t>(op)]; }

}  // namespace

const char* to_string(BenchOp op) { return traits(op).name; }

std::vector<std::string> bench_op_names() {
  std::vector<std::string> names;
  for (const Traits& t : kTraits) names.emplace_back(t.name);
  return names;
}

BenchOp parse_bench_op(const std::string& text) {
  for (std::size_t i = 0; i < kTraits.size(); ++i)
    if (text == kTraits[i].name) return static_cast<BenchOp>(i);
  throw UsageError("collective " + not_understood(text, bench_op_names()));
}

Collective collective_of(BenchOp op) { return traits(op).collective; }

bool reduces(BenchOp op) {
  return op == BenchOp::all_reduce || op == BenchOp::reduce || op == BenchOp::reduce_scatter;
}

Extent extent_of(BenchOp op, int workers, std::uint64_t bytes, DType dtype) {
  if (op == BenchOp::barrier) return {};
  const std::size_t total = bytes / size_of(dtype);
  if (!traits(op).slices) return {.total = total, .slice = total};
  const std::size_t slice = total / static_cast<std::size_t>(workers);
  return {.total = slice * static_cast<std::size_t>(workers), .slice = slice};
}

double bus_factor(BenchOp op, int workers) {
  const double n = workers;
  if (op == BenchOp::all_reduce) return 2 * (n - 1) / n;
  return traits(op).slices ? (n - 1) / n : 1;
}

double bytes_that_must_move(BenchOp op, int workers, double bytes) {
  const double n = workers;
  switch (op) {
    case BenchOp::all_reduce:
    case BenchOp::all_to_all:
    case BenchOp::send_recv: return 2 * n * bytes;
    case BenchOp::reduce_scatter:
    case BenchOp::all_gather:
    case BenchOp::reduce: return (n + 1) * bytes;
    case BenchOp::broadcast: return n * bytes;  // root's is read, the others' are written
    case BenchOp::gather:
    case BenchOp::scatter: return 2 * bytes;
    case BenchOp::barrier: return 0;
  }
  return 0;
}

}  // namespace lockstep
