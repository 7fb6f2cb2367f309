// What `lockstep bench` can measure, with the conventions of nccl-tests: what "bytes" means for each
// collective, and the factor from algorithm bandwidth to bus bandwidth.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/call/call.h"

namespace lockstep {

enum class BenchOp : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  barrier,
  send_recv
};

const char* to_string(BenchOp op);
std::vector<std::string> bench_op_names();
BenchOp parse_bench_op(const std::string& text);  // throws UsageError that lists the names

// The collective behind it; send for send_recv.
Collective collective_of(BenchOp op);
bool reduces(BenchOp op);

// Elements of the buffers of one rank. `total` is what "bytes" counts: the larger of input and output on
// a rank that has all of it. Collectives of slices round it down to a multiple of the workers.
struct Extent {
  std::size_t total = 0;  // elements
  std::size_t slice = 0;  // elements a rank contributes to one peer; total where there are no slices
};
Extent extent_of(BenchOp op, int workers, std::uint64_t bytes, DType dtype);

// busbw = factor × algbw: 2(n-1)/n for all_reduce, (n-1)/n for collectives of slices, else 1.
double bus_factor(BenchOp op, int workers);

// Bytes that must be read and written in memory by all workers together, whoever does it: every input
// read once, every output written once. 0 for barrier.
double bytes_that_must_move(BenchOp op, int workers, double bytes);

}  // namespace lockstep
