#include "train/saver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/checkpoint/leader.h"
#include "train/save_job.h"
#include "train/save_place.h"

namespace lockstep {
namespace {

double milliseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

constexpr std::chrono::milliseconds kLongestSaveRound{250};

// How long a rank may keep the others waiting between two meetings.
std::chrono::milliseconds round_of(const Group& world) {
  return std::min(kLongestSaveRound, world.timeout() / 4);
}

// The same on every rank: all of them list all runs of slices.
bool has_streams(const SavedState& state) {
  for (const auto& [name, set] : state.sets)
    if (std::ranges::any_of(set.runs, [](const SavedRun& run) { return run.stream != nullptr; })) return true;
  return false;
}

}  // namespace

struct Saver::Job {
  ~Job() {
    if (thread.valid()) thread.wait();
  }

  // On a thread of its own; what goes wrong becomes the standing.
  void start(const std::function<void()>& work) {
    standing = Standing::busy;
    const auto guarded = [this, work] {
      const std::int64_t begin = now_ns();
      Standing end = Standing::done;
      try {
        work();
      } catch (const UsageError& wrong) {
        end = Standing::refused;
        error = wrong.what();
      } catch (const std::exception& wrong) {
        end = Standing::failed;
        error = wrong.what();
      }
      report.write_ms += milliseconds(now_ns() - begin);
      let_go();
      standing = end;
    };
    try {
      thread = std::async(std::launch::async, guarded);
    } catch (const std::system_error&) {
      guarded();  // no thread can be had: then the run waits
    }
  }
  void write() {
    report.copied_bytes += copy_runs(files);
    std::ranges::stable_partition(files, &FileToSave::is_streamed);
    auto streamed = std::ranges::count_if(files, &FileToSave::is_streamed);
    if (streamed == 0) let_go();
    for (FileToSave& file : files)
      notes.push_back(compose_manifest(write_file_of_runs(folder, file, [&] {
        if (--streamed == 0) let_go();
      })));
    for (const auto& [name, writer] : small_files) writer(folder / name);
    if (alone) publish();
  }
  void publish() { report.folder = draft->publish(notes); }
  // What was to be copied is.
  void let_go() {
    const std::lock_guard lock(mutex);
    copied = true;
    changed.notify_all();
  }
  // Whether it is; waits for at most that.
  bool wait_for_copies(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, longest, [&] { return copied; });
  }

  bool alone = false;       // rank 0 writes everything
  bool streams = false;     // some rank reads state from disk that the next update waits for; on all ranks
  bool publishing = false;  // all have written
  std::int64_t since_ns = 0;
  std::filesystem::path folder;          // hidden; this worker's name for it
  std::optional<CheckpointDraft> draft;  // on rank 0
  std::vector<FileToSave> files;
  std::vector<std::pair<std::string, SavedState::FileWriter>> small_files;
  std::vector<std::string> notes;  // of the manifest
  SaveReport report;
  std::string error;
  std::atomic<Standing> standing = Standing::idle;
  std::mutex mutex;
  std::condition_variable changed;
  bool copied = false;
  std::future<void> thread;  // last: it uses the others
};

Saver::Saver(Group world, CheckpointStore store, Mode mode, Published published)
    : world_(std::move(world)), store_(std::move(store)), mode_(mode), published_(std::move(published)) {}

Saver::~Saver() {
  if (!job_) return;
  if (job_->thread.valid()) job_->thread.wait();
  // A run that fails behind it has it all the same.
  if ((job_->alone || job_->publishing) && job_->draft && job_->standing == Standing::done) try {
      published_(job_->report);
    } catch (const std::exception& wrong) {
      log().warn("a checkpoint was written, and nobody could be told: {}", wrong.what());
    }
}

bool Saver::busy() const { return job_ != nullptr; }

double Saver::standing() const { return static_cast<double>(job_ ? job_->standing.load() : Standing::idle); }

void Saver::begin(std::int64_t step, SavedState state, const SliceOwners& owners, std::int64_t since_ns) {
  wait();
  auto job = std::make_unique<Job>();
  job->since_ns = since_ns;
  job->streams = has_streams(state);
  job->alone = owners.whole_everywhere();
  run_on_leader(world_, "making room for a checkpoint", [&] { job->draft.emplace(store_.begin(step)); });
  SavePlace place{.folder = store_.folder(), .alone = job->alone};
  if (!job->alone) find_place(world_, job->draft ? &*job->draft : nullptr, place);
  job->folder = job->draft ? job->draft->folder() : place.folder;
  if (world_.rank() == 0) job->small_files = std::move(state.files);
  std::function<void()> work = [own = job.get()] { own->write(); };
  try {
    if (!job->alone) job->notes = bring_parts(world_, place, state, owners);
    job->files = files_to_save(world_, place, std::move(state), owners);
  } catch (const SystemError& wrong) {
    if (world_.rank() != 0) throw;  // its state on disk, which rank 0 waits for: nobody can go on
    // Where the checkpoint goes to: told to all as what the thread finds is.
    work = [text = std::string(wrong.what())] { throw SystemError(text); };
  }
  job_ = std::move(job);
  if (world_.rank() == 0 || !job_->files.empty()) {
    job_->start(work);
  } else {
    job_->let_go();
    job_->standing = Standing::done;
  }
  if (mode_ == Mode::at_once) wait();
  if (job_) job_->report.pause_ms += milliseconds(now_ns() - since_ns);
}

void Saver::hold_update() {
  if (!job_) return;
  if (!job_->streams && job_->wait_for_copies({})) return;
  const std::int64_t begin = now_ns();
  std::vector<std::uint8_t> all(static_cast<std::size_t>(world_.size()));
  for (bool copied = false; !copied;) {
    copied = job_->wait_for_copies(round_of(world_));
    if (!job_->streams) continue;
    world_.all_gather(std::vector{static_cast<std::uint8_t>(copied)}, all);
    copied = std::ranges::count(all, 0) == 0;
  }
  job_->streams = false;
  job_->report.pause_ms += milliseconds(now_ns() - begin);
}

void Saver::advance(std::span<const double> standings) {
  if (!job_) return;
  const auto is = [](Standing standing) {
    return [standing](double other) { return other == static_cast<double>(standing); };
  };
  if (std::ranges::any_of(standings, is(Standing::busy))) return;
  const auto wrong = std::ranges::find_if(
      standings, [&](double other) { return is(Standing::failed)(other) || is(Standing::refused)(other); });
  if (wrong != standings.end()) {
    std::string message = job_->error;
    job_.reset();  // rank 0 removes what all have written
    world_.broadcast(message, static_cast<int>(wrong - standings.begin()));
    if (is(Standing::refused)(*wrong)) throw UsageError(message);
    throw SystemError(message);
  }
  if (job_->alone || job_->publishing) return end_job();
  std::string mine;
  for (const std::string& note : job_->notes) mine += note + '\0';
  const std::vector<std::string> all = world_.all_gather(mine);
  job_->publishing = true;
  if (world_.rank() != 0) return;
  job_->notes.clear();
  for (const std::string& notes : all)
    for (std::size_t at = 0; at < notes.size(); at = notes.find('\0', at) + 1)
      job_->notes.push_back(notes.substr(at, notes.find('\0', at) - at));
  if (job_->thread.valid()) job_->thread.wait();
  job_->start([job = job_.get()] { job->publish(); });
}

void Saver::end_job() {
  if (mode_ == Mode::at_once) job_->report.pause_ms = milliseconds(now_ns() - job_->since_ns);
  const SaveReport report = std::move(job_->report);
  job_.reset();
  published_(report);
}

void Saver::wait() {
  const auto timeout = world_.timeout();
  const Deadline expected = Deadline::after(timeout);
  bool logged = false;
  while (job_) {
    if (job_->standing == Standing::busy && job_->thread.valid()) job_->thread.wait_for(round_of(world_));
    if (!logged && expected.passed() && job_->standing == Standing::busy) {
      log().warn("rank {} is still writing a checkpoint after {} s; the others wait", world_.rank(),
                 timeout.count() / 1000);
      logged = true;
    }
    std::vector<double> all(static_cast<std::size_t>(world_.size()));
    world_.all_gather(std::vector{standing()}, all);
    advance(all);
  }
}

}  // namespace lockstep
