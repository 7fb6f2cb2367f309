// One small worker for the tests with processes as ranks. It says in one line how it went:
//   "ok …" and exit status 0, or "<kind> <missing or rank>: <what()>" and 1.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <span>
#include <stdexcept>
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

std::string sum_in_second(int size, int rank) {
  const Group second = lockstep::form_group({.id = "second", .size = size, .rank = rank});
  return "sum " + std::to_string(second.all_reduce(rank + 1)) + " in " + second.name();
}

// Rank `victim` dies; the others go on in a group of their own, where a newcomer is the last.
std::string survive(int victim) {
  const Group world = lockstep::init();
  world.barrier();
  if (world.rank() == victim) ::kill(::getpid(), SIGKILL);
  int lost = -1;
  try {
    world.barrier();
  } catch (const lockstep::PeerError& error) {
    lost = error.rank();
  }
  const int rank = world.rank() - (world.rank() > lost ? 1 : 0);
  return "lost rank " + std::to_string(lost) + ", " + sum_in_second(world.size(), rank);
}

// What the kernel does from now on when this thread makes such a call.
void answer_call_with(unsigned call, unsigned action) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, action),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog filter{std::size(code), code};
  const rlimit no_core{0, 0};
  ::setrlimit(RLIMIT_CORE, &no_core);
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    throw std::runtime_error("cannot filter system calls");
}

// The same when it wants to read another process's memory.
void answer_reading_with(unsigned action) { answer_call_with(SYS_process_vm_readv, action); }

// "where:victim". The kernel ends the victim inside init(): where the ranks of a node meet, or where they
// try to read each other's memory.
std::string die_in_init(const std::string& value) {
  const std::size_t colon = std::min(value.find(':'), value.size());
  const char* const rank = std::getenv("RANK");
  if (rank != nullptr && value.substr(colon) == std::string(":") + rank)
    answer_call_with(value.substr(0, colon) == "meeting" ? SYS_pidfd_open : SYS_process_vm_readv,
                     SECCOMP_RET_KILL_PROCESS);
  return sum();
}

// "how:victim". Sums by pages in the world and in a part of it, then by whatever is chosen.
std::string pages(const std::string& value) {
  const std::size_t colon = std::min(value.find(':'), value.size());
  const std::string how = value.substr(0, colon);
  const char* const rank = std::getenv("RANK");
  const bool victim = rank != nullptr && value.substr(colon) == std::string(":") + rank;
  if (victim && how == "refused") answer_reading_with(SECCOMP_RET_ERRNO | EPERM);
  const Group world = lockstep::init();
  if (victim && how == "refused_later") answer_reading_with(SECCOMP_RET_ERRNO | EPERM);
  if (victim && how.starts_with("killed")) answer_reading_with(SECCOMP_RET_KILL_PROCESS);
  const std::size_t count = how == "killed_late" ? 1 : how == "killed" ? 1 << 24 : 1 << 16;
  void* const memory =
      ::mmap(nullptr, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory");
  const std::span<float> x(static_cast<float*>(memory), count);
  const Buffer buffer{memory, count, DType::f32};
  const auto sum_by = [&](const Group& group, std::string_view algorithm) -> std::string {
    std::fill(x.begin(), x.end(), static_cast<float>(world.rank() + 1));
    if (victim && how == "hole") ::mprotect(x.data() + 1024, 4096, PROT_NONE);
    if (victim && how == "unreadable") ::mprotect(memory, count * sizeof(float), PROT_WRITE);
    try {
      group.all_reduce(buffer, {.algorithm = algorithm});
    } catch (const lockstep::UsageError& error) {
      return error.what();
    }
    ::mprotect(memory, count * sizeof(float), PROT_READ | PROT_WRITE);
    const bool same = std::all_of(x.begin(), x.end(), [&](float one) { return one == x[0]; });
    return same ? std::to_string(static_cast<int>(x[0])) : "not the same everywhere";
  };
  if (how == "unreadable") {
    const std::string chosen = sum_by(world, "");
    return "chosen " + chosen + ", by name " + (victim ? sum_by(world, "pages") : "not tried");
  }
  std::string line = "world " + sum_by(world, "pages");
  line += ", part " + sum_by(world.split(0), "pages");
  return line + ", chosen " + sum_by(world, "");
}

std::string work(const std::string& what, const std::string& value) {
  if (what == "limit") limit_address_space();
  if (what == "files") limit_open_files(std::stoull(value));
  if (what == "sum" || what == "limit" || what == "files") return sum();
  if (what == "leave_first") return leave_first();
  if (what == "pages") return pages(value);
  if (what == "die_in_init") return die_in_init(value);
  if (what == "twice") return sum() + ", " + sum();
  if (what == "survive") return survive(std::stoi(value));
  if (what == "join") return sum_in_second(std::stoi(value), std::stoi(value) - 1);
  if (what == "allocate") {
    const Group world = lockstep::init();
    world.barrier();  // who goes now disturbs nobody
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
