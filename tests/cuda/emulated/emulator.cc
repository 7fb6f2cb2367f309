#include "cuda/emulated/emulator.h"

#include <ucontext.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <vector>

namespace lockstep::emulated {

Place here;
dim3 block_size;
dim3 grid_size;

namespace {

constexpr std::size_t kStackBytes = 256 * 1024;
constexpr unsigned kWarp = 32;

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  Place place;
  long barriers = 0;  // it has come to
  long shuffles = 0;
  std::array<float, 2> offered{};  // of this shuffle and the one before
  bool over = false;
};

ucontext_t scheduler;
std::vector<Fiber> fibers;
Fiber* running = nullptr;
const std::function<void()>* work = nullptr;

void give_way() {
  Fiber* const self = running;
  self->place = here;
  swapcontext(&self->context, &scheduler);
  running = self;
  here = self->place;
}

void fiber_main() {
  (*work)();
  running->over = true;
  swapcontext(&running->context, &scheduler);
}

// Until all of [begin, end) that still run have come as far as this one.
void meet(long Fiber::*count, std::size_t begin, std::size_t end) {
  const long mine = ++(running->*count);
  for (bool all = false; !all;) {
    all = true;
    for (std::size_t i = begin; i < end; ++i) all = all && (fibers[i].over || fibers[i].*count >= mine);
    if (!all) give_way();
  }
}

}  // namespace

void sync_threads() { meet(&Fiber::barriers, 0, fibers.size()); }

float shuffle_xor(float value, int lane_mask) {
  const std::size_t me = here.thread.x;
  const std::size_t warp = me / kWarp * kWarp;
  const std::size_t slot = static_cast<std::size_t>(running->shuffles % 2);
  running->offered[slot] = value;
  meet(&Fiber::shuffles, warp, warp + kWarp);
  const Fiber& other = fibers[warp + (me % kWarp ^ static_cast<unsigned>(lane_mask))];
  if (other.shuffles < running->shuffles) throw std::logic_error("a shuffle with a thread that has ended");
  return other.offered[slot];
}

void run_grid(dim3 blocks, int threads, const std::function<void()>& body) {
  if (threads % static_cast<int>(kWarp) != 0) throw std::logic_error("a block of incomplete warps");
  grid_size = blocks;
  block_size = dim3(static_cast<unsigned>(threads));
  work = &body;
  fibers.resize(static_cast<std::size_t>(threads));
  for (unsigned y = 0; y < blocks.y; ++y)
    for (unsigned x = 0; x < blocks.x; ++x) {
      for (std::size_t i = 0; i < fibers.size(); ++i) {
        Fiber& fiber = fibers[i];
        fiber.place = {.thread = {static_cast<unsigned>(i), 0, 0}, .block = {x, y, 0}};
        fiber.barriers = fiber.shuffles = 0;
        fiber.over = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = kStackBytes;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, fiber_main, 0);
      }
      for (bool any = true; any;) {
        any = false;
        for (Fiber& fiber : fibers) {
          if (fiber.over) continue;
          any = true;
          running = &fiber;
          here = fiber.place;
          swapcontext(&scheduler, &fiber.context);
        }
      }
    }
}

}  // namespace lockstep::emulated
