// One small worker for the tests with processes as ranks. It says in one line how it went:
//   "ok …" and exit status 0, or "<kind> <missing or rank>: <what()>" and 1.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "lockstep/comm/init.h"

namespace {

using lockstep::Buffer;
using lockstep::DType;
using lockstep::Group;

// Little room beyond what the process has already.
void limit_address_space() {
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t most = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{1} << 30);
  const rlimit limit{most, most};
  ::setrlimit(RLIMIT_AS, &limit);
}

void limit_open_files(rlim_t most) {
  const rlimit limit{most, most};
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string sum() {
  const Group world = lockstep::init();
  float x = static_cast<float>(world.rank() + 1);
  world.all_reduce(Buffer{&x, 1, DType::f32});
  return "sum " + std::to_string(static_cast<int>(x)) + " nodes " + std::to_string(world.nodes().back() + 1) +
         " local " + std::to_string(world.split_by_node().size());
}

// The leader of a sub-group lets go of everything while the others still use it.
std::string leave_first() {
  Group world = lockstep::init();
  Group part = world.split(0);
  float x = static_cast<float>(part.rank());
  const Buffer b{&x, 1, DType::f32};
  if (part.rank() == 1) part.send(b, 2);
  part.barrier();
  const int rank = part.rank();
  world = {};
  if (rank == 0) part = {};
  std::this_thread::sleep_for(std::chrono::milliseconds(rank == 0 ? 600 : 250));
  if (rank == 2) part.recv(b, 1);
  if (rank == 2 && x != 1) return "wrong: " + std::to_string(x);
  return "left";
}

std::string work(const std::string& what, const std::string& value) {
  if (what == "limit") limit_address_space();
  if (what == "files") limit_open_files(std::stoull(value));
  if (what == "sum" || what == "limit" || what == "files") return sum();
  if (what == "leave_first") return leave_first();
  if (what == "twice") return sum() + ", " + sum();
  if (what == "allocate") {
    const Group world = lockstep::init();
    (void)world.allocate(std::stoull(value));
    return "allocated";
  }
  return "nothing";
}

std::string numbers(const std::vector<int>& ranks) {
  std::string text;
  for (int r : ranks) text += " " + std::to_string(r);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::string line;
  int status = 1;
  try {
    line = "ok " + work(argc > 1 ? argv[1] : "sum", argc > 2 ? argv[2] : "");
    status = 0;
  } catch (const lockstep::TimeoutError& error) {
    line = "timeout" + numbers(error.missing()) + ": " + error.what();
  } catch (const lockstep::PeerError& error) {
    line = "peer" + numbers({error.rank()}) + ": " + error.what();
  } catch (const lockstep::Error& error) {
    line = std::string(lockstep::to_string(error.kind())) + ": " + error.what();
  } catch (const std::exception& error) {
    line = std::string("untyped: ") + error.what();
  }
  std::puts(line.c_str());
  return status;
}
