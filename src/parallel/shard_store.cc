#include "parallel/shard_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/round_up.h"
#include "lockstep/base/clock.h"

namespace lockstep {
namespace {

// Own parts that are on their way to the disk while another is updated and the next one read.
constexpr std::size_t kWritten = 1;
constexpr std::size_t kPieceOfSlice = std::size_t{1} << 20;  // bytes

std::size_t on_pages(std::size_t bytes) { return round_up(bytes, ScratchFile::kAlign); }

std::vector<std::uint64_t> begins_of(const std::vector<ShardStore::Form>& forms) {
  std::vector<std::uint64_t> begins = {0};
  for (const ShardStore::Form& form : forms)
    begins.push_back(begins.back() + form.parts * on_pages(form.part_bytes));
  return begins;
}

}  // namespace

ShardStore::ShardStore(const Offload& offload, std::vector<Form> buckets, std::size_t slices)
    : forms_(std::move(buckets)),
      begins_(begins_of(forms_)),
      rates_(rates_of(offload, begins_.back())),
      file_(offload.folder, begins_.back()),
      places_(slices),
      gather_(file_, offload.io),
      update_(file_, offload.io) {}

ShardStore::~ShardStore() = default;

std::size_t ShardStore::stride(int bucket) const {
  return on_pages(forms_[static_cast<std::size_t>(bucket)].part_bytes);
}

std::uint64_t ShardStore::at(int bucket, std::size_t part) const {
  return begins_[static_cast<std::size_t>(bucket)] + part * stride(bucket);
}

AlignedMemory ShardStore::memory(std::size_t bytes) {
  AlignedMemory memory(std::max(bytes, ScratchFile::kAlign));
  now_ += memory.size();
  for (std::size_t most = peak_; now_ > most && !peak_.compare_exchange_weak(most, now_);) {
  }
  return memory;
}

void ShardStore::give_back(AlignedMemory memory) { now_ -= memory.size(); }

// One of the spare ones, unless that is far too large.
AlignedMemory ShardStore::window_memory(std::size_t bytes) {
  const auto fits = std::ranges::find_if(
      spare_, [&](const AlignedMemory& each) { return each.size() >= bytes && each.size() <= 2 * bytes; });
  if (fits != spare_.end()) {
    AlignedMemory found = std::move(*fits);
    spare_.erase(fits);
    return found;
  }
  for (AlignedMemory& other : spare_) give_back(std::move(other));
  spare_.clear();
  return memory(bytes);
}

// Between the passes of a step and those of the next the line reads nothing: its memory is for updates. Who
// updates, or reads, elsewhere (an optimizer that is made behind an evaluation) finds it in use.
void ShardStore::lend_slots() {
  if (!resting_) return;
  lent_ = true;
  for (Slot& slot : slots_) {
    if (slot.bucket >= 0 || slot.memory.data() == nullptr) continue;
    spare_.push_back(std::move(slot.memory));
    slot.memory = {};
  }
}

void ShardStore::return_slots() {
  const bool lent = std::exchange(lent_, false);
  for (Slot& slot : slots_) {
    if (!lent || slot.memory.data() != nullptr || spare_.empty()) continue;
    slot.memory = std::move(spare_.back());
    spare_.pop_back();
  }
  for (AlignedMemory& other : spare_) give_back(std::move(other));
  spare_.clear();
}

void ShardStore::write_part(int bucket, std::size_t part, std::span<const std::byte> bytes) {
  file_.write(at(bucket, part), bytes);
}

void ShardStore::read_part(int bucket, std::size_t part, std::span<std::byte> bytes) const {
  file_.read(at(bucket, part), bytes);
}

void ShardStore::add_slice(std::size_t slice, const torch::Tensor& parameter, int bucket,
                           std::size_t offset) {
  places_[slice] = {parameter.storage(), bucket, offset, static_cast<std::size_t>(parameter.nbytes())};
}

// Passes: the line's thread.

ShardStore::Slot* ShardStore::begin_read(int bucket) {
  for (Slot& slot : slots_)
    if (slot.bucket == bucket) return &slot;
  Slot& slot = slots_[0].used <= slots_[1].used ? slots_[0] : slots_[1];
  if (slot.bucket >= 0) gather_.wait(slot.ticket);  // expected, and then not wanted
  slot.bucket = -1;                                 // also where the other can't be read
  const std::size_t bytes = forms_[static_cast<std::size_t>(bucket)].parts * stride(bucket);
  if (slot.memory.size() < bytes) {
    give_back(std::move(slot.memory));
    slot.memory = memory(bytes);
  }
  slot.ticket = gather_.begin(Transfer::Way::read, at(bucket, 0), slot.memory.first(bytes));
  slot.bucket = bucket;
  slot.used = ++clock_;
  return &slot;
}

void ShardStore::expect(int bucket) { begin_read(bucket); }

const std::byte* ShardStore::fetch(int bucket) {
  const std::int64_t begin = now_ns();
  Slot& slot = *begin_read(bucket);
  gather_.wait(slot.ticket);
  slot.bucket = -1;  // what the next pass finds on the disk may be another
  slot.used = ++clock_;
  if (const std::int64_t since = waiting_since_; since != 0) waited_ns_ += now_ns() - std::max(begin, since);
  return slot.memory.data();
}

void ShardStore::begin_wait() { waiting_since_ = now_ns(); }

// Updates: the optimizer's.

const std::vector<std::vector<std::size_t>>& ShardStore::runs() const {
  if (!runs_.empty() || places_.empty()) return runs_;
  std::vector<int> buckets;  // in the order of their first slices, which is that of the optimizer's state
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const auto found = std::ranges::find(buckets, places_[i].bucket);
    if (found == buckets.end()) {
      buckets.push_back(places_[i].bucket);
      runs_.emplace_back();
      runs_.back().push_back(i);
    } else {
      runs_[static_cast<std::size_t>(found - buckets.begin())].push_back(i);
    }
  }
  return runs_;
}

void ShardStore::fill(int bucket, std::byte* with) {
  for (const Place& place : places_)
    if (place.bucket == bucket)
      place.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
          at::DataPtr(with != nullptr ? with + place.offset : nullptr, at::Device(at::kCPU)));
}

ShardStore::Window* ShardStore::find(int bucket) {
  for (const auto& window : windows_)
    if (window->bucket == bucket) return window.get();
  return nullptr;
}

void ShardStore::settle(Window& window) {
  if (window.state == Window::State::there) return;
  update_.wait(window.ticket);
  window.state = Window::State::there;
}

// There or on its way.
ShardStore::Window& ShardStore::bring(int bucket) {
  if (Window* const there = find(bucket)) return *there;
  auto window = std::make_unique<Window>();
  window->bucket = bucket;
  window->memory = window_memory(stride(bucket));
  windows_.reserve(windows_.size() + 1);  // from here on it is read into
  window->ticket =
      update_.begin(Transfer::Way::read, at(bucket, forms_[static_cast<std::size_t>(bucket)].own),
                    window->memory.first(stride(bucket)));
  windows_.push_back(std::move(window));
  return *windows_.back();
}

void ShardStore::write_back(Window& window) {
  settle(window);
  fill(window.bucket, nullptr);
  if (!window.written) return;
  window.ticket = update_.begin(Transfer::Way::write,
                                at(window.bucket, forms_[static_cast<std::size_t>(window.bucket)].own),
                                window.memory.first(stride(window.bucket)));
  window.written = false;  // not before: where it can't be begun, this memory is all that there is
  window.state = Window::State::writing;
}

void ShardStore::let_out(std::size_t most) {
  std::size_t writing = 0;
  for (std::size_t i = windows_.size(); i-- > 0;) {  // the oldest go
    Window& window = *windows_[i];
    if (window.state != Window::State::writing || ++writing <= most) continue;
    update_.wait(window.ticket);
    spare_.push_back(std::move(window.memory));
    windows_.erase(windows_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

void ShardStore::write_out(std::span<const int> but) {
  for (std::size_t i = 0; i < windows_.size();) {
    Window& window = *windows_[i];
    const bool stays = std::ranges::count(but, window.bucket) > 0;
    if (!stays && window.state != Window::State::writing) write_back(window);
    if (!stays && window.state == Window::State::there) {
      spare_.push_back(std::move(window.memory));
      windows_.erase(windows_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

void ShardStore::hold(std::span<const std::size_t> slices, Use use) {
  std::vector<int> wanted;
  std::size_t last = 0;
  for (const std::size_t slice : slices) {
    last = std::max(last, slice);
    if (has(slice) && std::ranges::count(wanted, places_[slice].bucket) == 0)
      wanted.push_back(places_[slice].bucket);
  }
  if (windows_.empty()) lend_slots();
  std::vector<int> brought = wanted;
  const auto& all = runs();  // and the one behind the last of them
  for (std::size_t r = 0; r + 1 < all.size(); ++r)
    if (std::ranges::count(all[r], last) > 0 && has(all[r + 1].front()))
      brought.push_back(places_[all[r + 1].front()].bucket);
  write_out(brought);
  let_out(kWritten);
  for (const int bucket : brought) (void)bring(bucket);
  for (const int bucket : wanted) {
    Window& window = bring(bucket);
    settle(window);
    window.written = window.written || use == Use::update;
    fill(bucket, window.memory.data());
  }
}

void ShardStore::let_go() {
  write_out({});
  let_out(0);
  return_slots();
  if (!file_.direct()) file_.sync();
}

void ShardStore::read(std::size_t slice, const Piece& take) const {
  const Place& place = places_[slice];
  const std::uint64_t begin =
      at(place.bucket, forms_[static_cast<std::size_t>(place.bucket)].own) + place.offset;
  std::vector<std::byte> piece;
  for (std::size_t done = 0; done < place.bytes; done += piece.size()) {
    piece.resize(std::min(kPieceOfSlice, place.bytes - done));
    file_.read(begin + done, piece);
    take(piece);
  }
}

OffloadFigures ShardStore::figures(int lanes) const {
  double gathered = 0, updated = 0;  // bytes
  for (std::size_t b = 0; b < forms_.size(); ++b) {
    const auto part = static_cast<double>(stride(static_cast<int>(b)));
    gathered += part * static_cast<double>(forms_[b].parts);
    updated += part;
  }
  const StepPasses passes{.updates = 0, .reads = 2 * lanes};  // before forward, and before backward
  return {.folder = file_.folder(),
          .bytes = file_.bytes(),
          .staging_bytes = peak_,
          .io = update_.io_name(),
          .path = file_.path(),
          .read_rate = rates_.read,
          .write_rate = rates_.write,
          .both_rate = rates_.both,
          .predicted_ms = milliseconds_of(passes, gathered, rates_) +
                          milliseconds_of({.updates = 1, .reads = reads_of_step_}, updated, rates_),
          .measured_ms = waits_.median_ms()};
}

}  // namespace lockstep
