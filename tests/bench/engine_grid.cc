// Every collective of the vendors' engines against results known exactly, with every type; our algorithms
// over MPI, whose grid of types is mpi.grid, with one. Started by mpirun with any number of processes:
// bench_engine_grid mpi|gloo. Prints the first mistake and exits 1.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "bench/check.h"
#include "comm/algo/algorithm.h"
#include "comm/call/engine.h"
#include "comm/world/group_impl.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init.h"
#ifdef LOCKSTEP_HAS_MPI
#include "comm/engine/mpi_engine.h"
#endif
#ifdef LOCKSTEP_HAS_GLOO
#include "comm/engine/gloo_engine.h"
#endif

namespace lockstep {
namespace {

constexpr BenchOp kOps[] = {BenchOp::all_reduce, BenchOp::reduce_scatter, BenchOp::all_gather,
                            BenchOp::broadcast,  BenchOp::reduce,         BenchOp::gather,
                            BenchOp::scatter,    BenchOp::all_to_all,     BenchOp::barrier,
                            BenchOp::send_recv};

enum class Place { in, out };

int refused = 0, ran = 0;

// One call in one place. In place means what group.h says it means.
void run_case(Engine& engine, Expectation e, Place place, const std::string& algorithm) {
  const std::size_t size = size_of(e.dtype);
  const std::size_t ins = input_count(e), outs = output_count(e);
  const std::size_t own = static_cast<std::size_t>(e.rank) * e.extent.slice * size;
  std::vector<std::byte> a(std::max<std::size_t>(1, std::max(ins, outs) * size), std::byte{0x55});
  std::vector<std::byte> b = a;
  std::byte* in = a.data();
  std::byte* out = place == Place::in || e.what == BenchOp::broadcast ? a.data() : b.data();
  if (place == Place::in) {
    const bool root = e.rank == e.root;
    if (e.what == BenchOp::send_recv) return;  // no such thing
    if (e.what == BenchOp::all_gather || (e.what == BenchOp::gather && root)) in = a.data() + own;
    if (e.what == BenchOp::reduce_scatter || (e.what == BenchOp::scatter && root)) out = a.data() + own;
  }
  fill_pattern(in, ins, e.dtype, e.op, e.rank);

  Call call;
  call.what = collective_of(e.what);
  call.in = in;
  call.out = out;
  call.count = e.extent.slice;
  call.dtype = e.dtype;
  call.op = e.op;
  call.root = e.root;
  call.algorithm = algorithm;
  if (const std::string why = engine.refuses(call); !why.empty()) {
    if (e.what == BenchOp::all_reduce && e.dtype == DType::f32 && e.op == ReduceOp::sum)
      throw SystemError(call.describe() + " is refused: " + why);
    ++refused;
    return;
  }
  if (e.what == BenchOp::send_recv) {
    if (e.workers == 1) return;
    Call receive = call;
    receive.what = Collective::recv;
    receive.root = (e.rank + e.workers - 1) % e.workers;
    call.root = (e.rank + 1) % e.workers;
    engine.run(e.rank % 2 == 0 ? call : receive);
    engine.run(e.rank % 2 == 0 ? receive : call);
  } else {
    engine.run(call);
  }
  ++ran;
  if (const auto wrong = find_mistake(out, e))
    throw SystemError(call.describe() + (place == Place::in ? " in place, root " : ", root ") +
                      std::to_string(e.root) + ", rank " + std::to_string(e.rank) + ": " + *wrong);
}

bool has_root(BenchOp what) {
  return what == BenchOp::broadcast || what == BenchOp::reduce || what == BenchOp::gather ||
         what == BenchOp::scatter;
}

// One collective by one algorithm: sizes, roots, in place and not.
void run_shapes(Engine& engine, BenchOp what, DType dtype, ReduceOp op, const std::string& algorithm) {
  std::vector<int> roots{0};
  if (has_root(what) && engine.size() > 1) roots.push_back(engine.size() - 1);
  const auto workers = static_cast<std::size_t>(engine.size());
  for (const std::size_t count : {0, 1, 17, 4099})
    for (const int root : roots)
      for (const Place place : {Place::in, Place::out})
        run_case(engine,
                 {.what = what,
                  .rank = engine.rank(),
                  .workers = engine.size(),
                  .root = root,
                  .dtype = dtype,
                  .op = op,
                  .extent = extent_of(what, engine.size(), count * size_of(dtype) * workers, dtype)},
                 place, algorithm);
}

// Gloo's own have names of ours too (ring), and ours over it no other grid.
bool elsewhere(const Engine& engine, const std::string& algorithm) {
  return std::string(engine.name()) == "mpi" && find_algorithm(algorithm) != nullptr;
}

void run_grid(Engine& engine) {
  for (const BenchOp what : kOps) {
    const std::vector<std::string> algorithms = engine.algorithms(collective_of(what));
    for (const DType dtype : kAllDTypes)
      for (const ReduceOp op : kAllReduceOps) {
        if (!supports(op, dtype) || (!reduces(what) && op != ReduceOp::sum)) continue;
        for (const std::string& algorithm : algorithms)
          if (dtype == DType::f32 || !elsewhere(engine, algorithm))
            run_shapes(engine, what, dtype, op, algorithm);
      }
  }
}

void run_splits(Engine& engine) {
  // Odd and even ranks, in reverse order; rank 0 joins none.
  const int colour = engine.rank() == 0 ? -1 : engine.rank() % 2;
  Call call;
  call.what = Collective::split;
  const auto part = engine.split(colour, -engine.rank(), "part", call);
  if ((part == nullptr) != (colour < 0)) throw SystemError("split: wrong membership");
  if (!part) return;
  int members = 0, before = 0;
  for (int r = 1; r < engine.size(); ++r) {
    members += r % 2 == colour ? 1 : 0;
    before += r % 2 == colour && r > engine.rank() ? 1 : 0;
  }
  if (part->size() != members || part->rank() != before) throw SystemError("split: wrong rank or size");
  run_grid(*part);
}

void run_refusals(Engine& engine) {
  Call call;
  call.what = Collective::all_reduce;
  call.dtype = DType::bf16;
  call.algorithm = engine.algorithms(call.what).front();  // the vendor's own
  float x = 0;
  call.in = call.out = &x;
  call.count = 2;
  if (engine.refuses(call).empty()) throw SystemError("bf16 sums should be refused");
  try {
    engine.run(call);
  } catch (const UsageError&) {
    call.dtype = DType::f32;  // and the engine still works
    call.count = 1;
    engine.run(call);
    return;
  }
  throw SystemError("a refused call ran");
}

std::unique_ptr<Engine> make(const std::string& name, [[maybe_unused]] const Group& world) {
#ifdef LOCKSTEP_HAS_MPI
  if (name == "mpi") return make_mpi_engine();
#endif
#ifdef LOCKSTEP_HAS_GLOO
  if (name == "gloo") return make_gloo_engine(kept_engine_of(world.split(0, world.rank())));
#endif
  throw UsageError("no engine '" + name + "' in this build");
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  using namespace lockstep;
  // What one rank alone runs, rounded down; with more there are messages and a second root. MPI carries our
  // algorithms besides its own.
  constexpr int kFewestOfMpi = 2'500, kFewestOfGloo = 2'300;
  int rank = -1;
  try {
    const Group world = init();
    rank = world.rank();
    const auto engine = make(argc > 1 ? argv[1] : "", world);
    if (engine->rank() != world.rank() || engine->size() != world.size())
      throw SystemError("wrong rank or size");
    run_grid(*engine);
    run_splits(*engine);
    run_refusals(*engine);
    if (rank == 0) std::printf("%s: %d calls right, %d refused\n", engine->name(), ran, refused);
    world.barrier();
    const int fewest = std::string(argv[1]) == "mpi" ? kFewestOfMpi : kFewestOfGloo;
    if (ran >= fewest) return 0;
    throw SystemError("only " + std::to_string(ran) + " calls ran, of at least " + std::to_string(fewest));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    std::_Exit(1);  // MPI's end would wait for the others
  }
}
