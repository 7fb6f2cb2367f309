#include "lockstep/comm/lane_board.h"

#include <algorithm>
#include <exception>
#include <string_view>

#include "lockstep/comm/group.h"

namespace lockstep {
namespace {

// Said so many times over: a call that a program makes while others listen is hardly of that shape, so that
// all are told of it. Taken for a word it would be answered with one.
constexpr std::size_t kWordCount = 11;
constexpr std::string_view kPurpose = "whether the others' lanes are over";

std::vector<std::int64_t> spoken(std::int64_t word) { return std::vector<std::int64_t>(kWordCount, word); }

}  // namespace

int LaneBoard::add(LaneListener* listener) {
  listeners_.emplace_back(next_, listener);
  return next_++;
}

void LaneBoard::remove(LaneListener* listener) {
  std::erase_if(listeners_, [&](const auto& entry) { return entry.second == listener; });
}

void LaneBoard::begin(const LaneLoop& loop) {
  for (const auto& [number, listener] : listeners_) listener->check(loop);
  // Once more over what an exception has left: that loop's end is this one's.
  std::erase_if(loops_, [&](const LaneLoop& before) { return before.left && before.of == loop.of; });
  loops_.push_back(loop);
  if (!loop.mine) return;
  try {
    for (const auto& [number, listener] : listeners_) listener->lanes_begin();
  } catch (...) {
    thrown_out(loop.of);
    throw;
  }
}

// Null: none is such a one.
template <class Condition>
LaneLoop* LaneBoard::innermost(const Condition& condition) {
  const auto found = std::find_if(loops_.rbegin(), loops_.rend(), condition);
  return found == loops_.rend() ? nullptr : &*found;
}

LaneLoop* LaneBoard::find(const void* of) {
  return innermost([&](const LaneLoop& l) { return l.of == of; });
}

// The innermost loop over that, and with it those inside that were left. False: there is none.
bool LaneBoard::close(const void* of, LaneLoop& loop) {
  LaneLoop* const found = find(of);
  if (found == nullptr) return false;
  loop = *found;
  loops_.resize(static_cast<std::size_t>(found - loops_.data()) + 1);
  return true;
}

void LaneBoard::end(const Group& group, const void* of) {
  LaneLoop loop;
  ending_ = nullptr;
  if (!close(of, loop)) return;
  try {
    // Still under way while they exchange, so that they announce it.
    loops_.back().left = loops_.back().told = false;
    if (loop.mine)
      for (const auto& [number, listener] : listeners_) {
        ending_ = listener;
        listener->lanes_end();
      }
    ending_ = nullptr;
    loops_.pop_back();
    for (const auto& [number, listener] : listeners_) listener->loop_ended(loop);
    if (loop.everybodys) return;
    // Who had lanes and passed over all of them is as one that had none.
    for (const auto& [number, listener] : listeners_) listener->serve();
    listen(group, loop);
  } catch (...) {
    // Whose exchange failed is told so, with lanes or without: all come to this loop's end once more.
    if (find(of) == nullptr) loops_.push_back(loop);
    thrown_out(of);
    throw;
  }
  for (const auto& [word, work] : on_way_) work.wait();
  on_way_.clear();
  for (const auto& [number, listener] : listeners_) listener->loop_over();
}

void LaneBoard::thrown_out(const void* of) noexcept {
  LaneLoop* const loop = find(of);
  if (loop == nullptr) return;
  loop->left = true;
  for (const auto& [number, listener] : listeners_) listener->lanes_left();
}

bool LaneBoard::has_failed() const {
  return std::ranges::any_of(listeners_, [](const auto& entry) { return entry.second->has_failed(); });
}

// Where all were told of a failure a loop that was left ends with its loader's next step. So does one in
// which all have lanes: nobody listens, so each strategy exchanges when it is asked.
void LaneBoard::end_left(const Group& group) {
  while (!listens_) {
    const bool failed = has_failed();
    LaneLoop* const loop = innermost([&](const LaneLoop& l) { return !l.left || !(l.told || failed); });
    if (loop == nullptr || !loop->left) return;
    if (loop->everybodys) {
      loop->told = true;
    } else {
      loop->left = false;  // it is over now
      end(group, loop->of);
    }
  }
}

void LaneBoard::take_back() noexcept {
  for (const auto& [number, listener] : listeners_) listener->lanes_failed(nullptr);
  failure_is_over();
}

// In what was left, or else where the program is.
void LaneBoard::failure_is_over() noexcept {
  if (loops_.empty()) return;
  if (!loops_.back().left) loops_.back().told = true;
  for (LaneLoop& loop : loops_) loop.told = loop.told || loop.left;
}

void LaneBoard::end_early(const Group& group, const void* of) noexcept {
  try {
    end(group, of);
  } catch (...) {
    const bool told = ending_ == nullptr || ending_->has_failed();
    for (const auto& [number, listener] : listeners_)
      if (told || ending_ == listener) listener->lanes_failed(std::current_exception());
  }
}

void LaneBoard::leave(const Group& group, const void* of) noexcept {
  LaneLoop loop;
  if (!close(of, loop)) return;
  loops_.pop_back();
  for (const auto& [number, listener] : listeners_) listener->lanes_left();
  // Where an exception is on its way the ranks are no longer together: a word would wait for who never
  // answers.
  if (loop.everybodys || std::uncaught_exceptions() > 0) return;
  try {
    say(group, 0);
    for (const auto& [number, listener] : listeners_) listener->loop_over();
  } catch (...) {  // NOLINT(bugprone-empty-catch): the group keeps its failure
  }
}

bool LaneBoard::goes_through(std::int64_t step, std::uint64_t draw) const {
  return std::ranges::any_of(loops_, [&](const LaneLoop& loop) {
    return loop.mine && !loop.left && loop.step == step && loop.draw == draw;
  });
}

void LaneBoard::announce(const Group& group, int number) {
  if (listens_) return;
  // Whose others may listen. Of one that was left they don't where all were told of a failure, and where all
  // have lanes nobody ever does.
  const bool failed = has_failed();
  LaneLoop* const loop =
      innermost([&](const LaneLoop& l) { return !l.left || !(l.told || l.everybodys || failed); });
  if (loop == nullptr) return;
  loop->told = false;  // of a failure in it that was given up there: it goes on
  if (!loop->mine || loop->everybodys) return;
  say(group, number + 1);
}

void LaneBoard::say(const Group& group, std::int64_t word) {
  std::erase_if(on_way_, [](const auto& entry) { return entry.second.done(); });
  on_way_.emplace_back(spoken(word), Work());
  on_way_.back().second =
      group.all_reduce_async(buffer(on_way_.back().first), {.op = ReduceOp::max, .purpose = kPurpose});
}

void LaneBoard::listen(const Group& group, const LaneLoop& loop) {
  listens_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> until_then(&listens_, [](bool* listens) { *listens = false; });
  for (;;) {
    std::vector<std::int64_t> heard = spoken(0);
    group.all_reduce(buffer(heard), {.op = ReduceOp::max, .purpose = kPurpose});
    const std::int64_t word = heard.front();
    if (word == 0) return;
    const auto speaks = std::find_if(listeners_.begin(), listeners_.end(),
                                     [&](const auto& entry) { return entry.first == word - 1; });
    if (speaks == listeners_.end()) continue;
    speaks->second->take_part(loop);
    speaks->second->serve();  // the others' loop goes on
  }
}

LaneLoopGuard::LaneLoopGuard(const Group& group, const void* of)
    : group_(std::make_unique<Group>(group)), of_(of), exceptions_(std::uncaught_exceptions()) {}

LaneLoopGuard::~LaneLoopGuard() {
  if (std::uncaught_exceptions() <= exceptions_)
    group_->lane_board()->end_early(*group_, of_);
  else
    group_->lane_board()->thrown_out(of_);
}

}  // namespace lockstep
