#include "comm/tune/calibrate.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "base/output_file.h"
#include "comm/call/internal_call.h"
#include "comm/kernel/reduce.h"
#include "comm/tune/trials.h"
#include "lockstep/base/clock.h"
#include "lockstep/base/fnv.h"
#include "lockstep/base/folder.h"
#include "lockstep/base/knobs.h"
#include "lockstep/base/log.h"
#include "lockstep/base/small_file.h"

namespace lockstep {
namespace {

// The median time of `body`, which every rank runs `rounds` times at once.
template <class Body>
double median_seconds(Engine& engine, int rounds, Body&& body) {
  const Call meeting = meeting_call();
  std::vector<double> times;
  for (int i = 0; i < rounds + 2; ++i) {
    engine.run(meeting);
    const std::int64_t start = now_ns();
    body();
    if (i >= 2) times.push_back(static_cast<double>(now_ns() - start) * 1e-9);
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return std::max(times[static_cast<std::size_t>(rounds / 2)], 1e-9);
}

// One way between ranks 0 and 1; the others only meet.
double message_seconds(Engine& engine, std::vector<std::byte>& room, std::size_t bytes, int rounds) {
  const int rank = engine.rank();
  const Call send = internal_call(Collective::send, room.data(), bytes, 1 - rank);
  const Call recv = internal_call(Collective::recv, room.data(), bytes, 1 - rank);
  const double there_and_back = median_seconds(engine, rounds, [&] {
    if (rank > 1) return;
    engine.run(rank == 0 ? send : recv);
    engine.run(rank == 0 ? recv : send);
  });
  return there_and_back / 2;
}

std::string cpu_model() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 1);
  return "unknown";
}

constexpr std::size_t kMostTableBytes = 1 << 20;  // a table has a few hundred

bool keep(const std::filesystem::path& path, const std::string& text) {
  try {
    make_folder(path.parent_path());
    replace_file(path, text, Sync::no);
    return true;
  } catch (const SystemError& error) {
    log().info("cannot keep the cost table: {}", error.what());
    return false;
  }
}

// A machine with other work makes it long, and what was measured beside that is kept.
void say_if_long(int workers, std::int64_t took_ns) {
  const std::chrono::nanoseconds warn_after = Knobs::from_environment().warn_after;
  if (warn_after.count() == 0 || took_ns < warn_after.count()) return;
  log().warn(
      "measuring this machine for {0} workers took {1} s; was it busy? `lockstep tune -n {0}` does it again",
      workers, took_ns / 1'000'000'000);
}

}  // namespace

std::filesystem::path cost_cache_path(int workers) {
  const std::string dir = Knobs::from_environment().cache_dir;
  if (dir == "off" || dir.empty()) return {};
  const std::string machine = cpu_model() + "/" + std::to_string(::sysconf(_SC_NPROCESSORS_ONLN));
  std::ostringstream name;
  name << "costs-" << std::hex << fnv1a(machine) << std::dec << "-" << workers << ".json";
  return std::filesystem::path(dir) / name.str();
}

Costs measure_costs(Engine& engine) {
  constexpr std::size_t sizes[] = {std::size_t{16} << 10, std::size_t{256} << 10, std::size_t{4} << 20};
  const std::size_t largest = sizes[2];
  std::vector<std::byte> a(largest);
  std::vector<std::byte> b(largest);
  const double ranks = engine.size();
  Costs costs;
  const Call meeting = meeting_call();
  costs.barrier_s = median_seconds(engine, 200, [&] { engine.run(meeting); });
  costs.message_s = message_seconds(engine, a, 64, 100);
  std::vector<std::pair<double, double>> send;
  std::vector<std::pair<double, double>> copy;
  std::vector<std::pair<double, double>> reduce;
  for (std::size_t bytes : sizes) {
    const int rounds = bytes > (1 << 20) ? 5 : 20;
    const auto size = static_cast<double>(bytes);
    const double message = message_seconds(engine, a, bytes, rounds);
    send.emplace_back(size * 2, std::max(message - costs.message_s, message / 4) / size);
    copy.emplace_back(size * 2 * ranks, median_seconds(engine, rounds, [&] {
                                          std::memcpy(a.data(), b.data(), bytes);
                                        }) / (2 * size));
    const void* const ins[] = {a.data(), b.data()};
    void* const outs[] = {a.data(), b.data()};
    reduce.emplace_back(size * 2 * ranks, median_seconds(engine, rounds, [&] {
                                            kernel::reduce_tree(outs, ins, bytes / 4, {});
                                          }) / (4 * size));
  }
  costs.send = Curve(std::move(send));
  costs.copy = Curve(std::move(copy));
  costs.reduce = Curve(std::move(reduce));
  return costs;  // measured with all ranks at work: crowding is in the figures
}

bool share_costs(Engine& engine, const Selector& table) {
  const std::string text = broadcast_text(engine, engine.rank() == 0 ? table.to_json() : std::string());
  engine.selector()->from_json(text);
  const std::filesystem::path path = cost_cache_path(engine.size());
  return engine.rank() == 0 && !path.empty() && keep(path, text);
}

void load_or_measure_costs(Engine& engine) {
  if (engine.size() == 1) return;
  enum Source : std::uint8_t { built_in, cached, fresh };
  std::uint8_t source = fresh;
  std::string text;
  if (engine.rank() == 0) {
    const std::filesystem::path path = cost_cache_path(engine.size());
    if (path.empty()) {
      source = built_in;
    } else if (text = read_small_file(path, kMostTableBytes).value_or(""); !text.empty()) {
      try {
        Selector().from_json(text);
        source = cached;
      } catch (const UsageError& error) {
        log().warn("{}: {}; measuring anew", path.string(), error.what());
      }
    }
  }
  broadcast_bytes(engine, &source, 1);
  Selector& selector = *engine.selector();
  if (source == cached) selector.from_json(broadcast_text(engine, std::move(text)));
  if (source != fresh) return;
  const std::int64_t begin = now_ns();
  Selector table;
  table.set_costs(measure_costs(engine));
  run_trials(engine, table);
  share_costs(engine, table);
  if (engine.rank() == 0) say_if_long(engine.size(), now_ns() - begin);
}

}  // namespace lockstep
