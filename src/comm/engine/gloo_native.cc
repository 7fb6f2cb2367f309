#include "comm/engine/gloo_native.h"

#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>
#include <gloo/types.h>

namespace lockstep {
namespace {

using ReduceFunction = void (*)(void*, const void*, const void*, std::size_t);

template <class T>
ReduceFunction function_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::avg: return &gloo::sum<T>;
    case ReduceOp::min: return &gloo::min<T>;
    case ReduceOp::max: return &gloo::max<T>;
    case ReduceOp::product: return &gloo::product<T>;
    case ReduceOp::bit_and:
    case ReduceOp::bit_or: return nullptr;
  }
  return nullptr;
}

// Null where Gloo has none.
ReduceFunction reduce_function(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::f64: return function_for<double>(op);
    case DType::f32: return function_for<float>(op);
    case DType::f16: return op == ReduceOp::avg ? nullptr : function_for<gloo::float16>(op);
    case DType::bf16: return nullptr;
    case DType::i64: return function_for<std::int64_t>(op);
    case DType::i32: return function_for<std::int32_t>(op);
    case DType::i8: return function_for<std::int8_t>(op);
    case DType::u8: return function_for<std::uint8_t>(op);
  }
  return nullptr;
}

using Byte = std::uint8_t;
Byte* bytes_of(const void* data) { return static_cast<Byte*>(const_cast<void*>(data)); }

// Options want a typed pointer only for its size; the reduction gets the count of elements.
template <class Options>
void set_buffers(Options& options, const Call& call) {
  const auto set = [&]<class T>(T*) {
    if (call.in != call.out) options.setInput(static_cast<T*>(const_cast<void*>(call.in)), call.count);
    if (call.out != nullptr) options.setOutput(static_cast<T*>(call.out), call.count);
  };
  switch (size_of(call.dtype)) {
    case 1: return set(static_cast<std::uint8_t*>(nullptr));
    case 2: return set(static_cast<std::uint16_t*>(nullptr));
    case 4: return set(static_cast<std::uint32_t*>(nullptr));
    default: return set(static_cast<std::uint64_t*>(nullptr));
  }
}

}  // namespace

const std::vector<Offer>& GlooNative::offers() {
  static const std::vector<Offer> all = [] {
    std::vector<Lack> lacks;
    for (const ReduceOp op : kAllReduceOps)
      for (const DType dtype : kAllDTypes)
        if (reduce_function(dtype, op) == nullptr) lacks.push_back({{op}, {dtype}, "gloo has no"});
    const auto offer = [&](const char* name, SetOf<Collective> collectives) {
      return Offer{.name = name, .collectives = collectives, .canonical = false, .lacks = lacks};
    };
    return std::vector<Offer>{
        offer("ring", {Collective::all_reduce}), offer("bcube", {Collective::all_reduce}),
        offer("native", {Collective::all_gather, Collective::broadcast, Collective::reduce,
                         Collective::gather, Collective::scatter, Collective::all_to_all, Collective::barrier,
                         Collective::send, Collective::recv})};
  }();
  return all;
}

const Offer* GlooNative::usual(const Call& call) {
  for (const Offer& offer : offers())
    if (offer.collectives.has(call.what) && offer.lack_of(call).empty()) return &offer;
  return nullptr;
}

template <class Options>
void GlooNative::prepare(Options& options, const Call& call) {
  options.setTag(++tag_);
  options.setTimeout(call.timeout);
}

void GlooNative::run(const Call& call) {
  const auto slices = static_cast<std::size_t>(context_->size);
  const bool root = context_->rank == call.root;
  Byte* const in = bytes_of(call.in);
  Byte* const out = bytes_of(call.out);
  const std::size_t bytes = call.bytes();
  switch (call.what) {
    case Collective::all_reduce: return all_reduce(call);
    case Collective::reduce: return reduce(call);
    case Collective::all_gather: {
      gloo::AllgatherOptions options(context_);
      prepare(options, call);
      options.setInput(in, bytes);
      options.setOutput(out, slices * bytes);
      return gloo::allgather(options);
    }
    case Collective::broadcast: {
      gloo::BroadcastOptions options(context_);
      prepare(options, call);
      options.setRoot(call.root);
      options.setOutput(out, bytes);
      return gloo::broadcast(options);
    }
    case Collective::gather: {
      gloo::GatherOptions options(context_);
      prepare(options, call);
      options.setRoot(call.root);
      options.setInput(in, bytes);
      if (root) options.setOutput(out, slices * bytes);
      return gloo::gather(options);
    }
    case Collective::scatter: {
      gloo::ScatterOptions options(context_);
      prepare(options, call);
      options.setRoot(call.root);
      if (root) {
        std::vector<Byte*> parts;
        for (std::size_t r = 0; r < slices; ++r) parts.push_back(in + r * bytes);
        options.setInputs(std::move(parts), bytes);
      }
      options.setOutput(out, bytes);
      return gloo::scatter(options);
    }
    case Collective::all_to_all: return all_to_all(call);
    case Collective::barrier: {
      gloo::BarrierOptions options(context_);
      prepare(options, call);
      return gloo::barrier(options);
    }
    default: throw UsageError(std::string("gloo has no ") + to_string(call.what));
  }
}

void GlooNative::all_reduce(const Call& call) {
  gloo::AllreduceOptions options(context_);
  prepare(options, call);
  options.setAlgorithm(call.algorithm == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                                 : gloo::AllreduceOptions::Algorithm::RING);
  options.setReduceFunction(reduce_function(call.dtype, call.op));
  set_buffers(options, call);
  gloo::allreduce(options);
}

void GlooNative::reduce(const Call& call) {
  // Gloo works in the output on every rank; elsewhere than on root ours must stay as it is.
  Call mine = call;
  if (context_->rank != call.root) {
    scratch_.resize(call.bytes());
    mine.out = scratch_.data();
  }
  gloo::ReduceOptions options(context_);
  prepare(options, mine);
  options.setRoot(mine.root);
  options.setReduceFunction(reduce_function(mine.dtype, mine.op));
  set_buffers(options, mine);
  gloo::reduce(options);
}

void GlooNative::all_to_all(const Call& call) {
  const std::size_t bytes = call.bytes() * static_cast<std::size_t>(context_->size);
  Byte* in = bytes_of(call.in);
  if (call.in == call.out) {  // Gloo can't in place
    scratch_.assign(in, in + bytes);
    in = scratch_.data();
  }
  gloo::AlltoallOptions options(context_);
  prepare(options, call);
  options.setInput(in, bytes);
  options.setOutput(bytes_of(call.out), bytes);
  gloo::alltoall(options);
}

}  // namespace lockstep
