#include "lockstep/grad/exchange.h"

namespace lockstep {
namespace {

CallOptions call_options(const ExchangeOptions& options, const Bucket& bucket) {
  return {.op = ReduceOp::avg,
          .algorithm = options.algorithm,
          .order = options.order,
          .divisor = bucket.divisor,
          .purpose = bucket.purpose};
}

// Nothing to add, nothing to divide by.
bool is_its_own_mean(const Bucket& bucket) { return bucket.group.size() == 1 && bucket.divisor == 1; }

std::function<double(const Group&, std::size_t, DType)> expected(Collective what, ExchangeOptions options) {
  return [what, options = std::move(options)](const Group& group, std::size_t count, DType dtype) {
    if (group.size() == 1) return 0.0;
    if (what == Collective::reduce_scatter) count /= static_cast<std::size_t>(group.size());
    return group.expected_seconds({.what = what,
                                   .count = count,
                                   .dtype = dtype,
                                   .options = {.algorithm = options.algorithm, .order = options.order}});
  };
}

}  // namespace

Buffer own_part(const Bucket& bucket) {
  const std::size_t count = bucket.data.count / static_cast<std::size_t>(bucket.group.size());
  const std::size_t begin = count * static_cast<std::size_t>(bucket.group.rank());
  return {static_cast<std::byte*>(bucket.data.data) + begin * size_of(bucket.data.dtype), count,
          bucket.data.dtype, bucket.data.device};
}

Buffer own_result(const Bucket& bucket) { return bucket.own.data != nullptr ? bucket.own : own_part(bucket); }

Exchange all_reduce_exchange(ExchangeOptions options) {
  return {.name = "all-reduce",
          .run =
              [options](const Bucket& bucket) {
                if (is_its_own_mean(bucket)) return Work();
                return bucket.group.all_reduce_async(bucket.data, call_options(options, bucket));
              },
          .nothing_alone = true,
          .expected_seconds = expected(Collective::all_reduce, options)};
}

Exchange reduce_scatter_exchange(ExchangeOptions options) {
  return {.name = "reduce-scatter",
          .run =
              [options](const Bucket& bucket) {
                if (is_its_own_mean(bucket)) return Work();
                return bucket.group.reduce_scatter_async(bucket.data, own_result(bucket),
                                                         call_options(options, bucket));
              },
          .leaves = Exchange::Leaves::own_part,
          .writes_own = true,
          .expected_seconds = expected(Collective::reduce_scatter, options)};
}

Exchange no_exchange() {
  return {.name = "none", .run = [](const Bucket&) { return Work(); }};
}

}  // namespace lockstep
