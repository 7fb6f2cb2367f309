#include "optim/disk_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/bytes.h"

namespace lockstep {
namespace {

constexpr std::size_t kLeastPageBytes = std::size_t{64} << 10;
constexpr std::size_t kMostPageBytes = std::size_t{4} << 20;  // beyond that disks get no faster

std::size_t page_bytes_of(const Offload& offload) {
  const std::size_t bytes = offload.staging_bytes / kStagedPages / ScratchFile::kAlign * ScratchFile::kAlign;
  if (bytes < kLeastPageBytes)
    throw UsageError(fmt::format("offload: staging_bytes = {}; accepted: {} or more", offload.staging_bytes,
                                 kStagedPages * kLeastPageBytes));
  return std::min(bytes, kMostPageBytes);
}

}  // namespace

DiskState::DiskState(const Offload& offload, std::vector<StateShape> shapes)
    : shapes_(std::move(shapes)),
      layout_(shapes_, page_bytes_of(offload)),
      pager_(offload, layout_.pages()),
      rates_(measure_rates(pager_)) {}

std::vector<StateInMemory> DiskState::parts_of(std::size_t page, std::span<std::byte> bytes,
                                               const std::vector<bool>& wanted) const {
  std::vector<StateInMemory> parts;
  for (const StatePages::Segment& segment : layout_.in_page(page))
    if (wanted[segment.slice])
      parts.push_back({.slice = segment.slice,
                       .begin = segment.begin,
                       .count = segment.count,
                       .arrays = bytes.data() + segment.at,
                       .array_stride = segment.array_stride});
  return parts;
}

void DiskState::initialize(const Work& work) {
  const std::vector<bool> all(shapes_.size(), true);
  std::vector<Pager::Visit> visits;
  for (std::size_t page = 0; page < layout_.pages().size(); ++page)
    visits.push_back({.page = page, .use = PageUse::write});
  pager_.pass(visits,
              [&](std::size_t page, std::span<std::byte> bytes) { work(parts_of(page, bytes, all)); });
  waits_.begin(pager_.waited_ns());
}

void DiskState::pass(const std::vector<bool>& wanted, const std::function<PageUse(std::size_t slice)>& use,
                     const Work& work) {
  std::vector<Pager::Visit> visits;
  for (std::size_t page = 0; page < layout_.pages().size(); ++page) {
    bool any = false, written = false;
    for (const StatePages::Segment& segment : layout_.in_page(page)) {
      if (!wanted[segment.slice]) continue;
      any = true;
      written = written || use(segment.slice) == PageUse::update;
    }
    if (any) visits.push_back({.page = page, .use = written ? PageUse::update : PageUse::read});
  }
  pager_.pass(visits,
              [&](std::size_t page, std::span<std::byte> bytes) { work(parts_of(page, bytes, wanted)); });
}

void DiskState::read(std::size_t slice, std::size_t which, const Take& take) const {
  std::vector<std::byte> piece;
  for (const StatePages::Segment& segment : layout_.of_slice(slice)) {
    piece.resize(segment.count * shapes_[slice].element_bytes);
    const std::uint64_t at = layout_.pages()[segment.page].at + segment.at + which * segment.array_stride;
    pager_.file().read(at, piece);
    take(piece);
  }
}

void DiskState::write(std::size_t slice, std::size_t which, std::span<const std::byte> bytes) {
  for (const StatePages::Segment& segment : layout_.of_slice(slice)) {
    const std::size_t length = segment.count * shapes_[slice].element_bytes;
    const std::uint64_t at = layout_.pages()[segment.page].at + segment.at + which * segment.array_stride;
    pager_.file().write(at, bytes.first(length));
    bytes = bytes.subspan(length);
  }
}

double DiskState::predicted_ms(const StepPasses& passes) const {
  return milliseconds_of(passes, static_cast<double>(layout_.bytes()), rates_);
}

OffloadFigures DiskState::figures() const {
  return {.folder = pager_.file().folder(),
          .bytes = layout_.bytes(),
          .staging_bytes = pager_.staging_bytes(),
          .io = pager_.io_name(),
          .path = pager_.file().path(),
          .read_rate = rates_.read,
          .write_rate = rates_.write,
          .both_rate = rates_.both,
          .measured_ms = waits_.median_ms()};
}

}  // namespace lockstep
