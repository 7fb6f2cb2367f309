// What a compressor expects of calls: for who asks, and for --compress auto, whose choices it follows.
#include <fmt/format.h>

#include <algorithm>

#include "compress/compressor.h"

namespace lockstep::compress {

std::vector<Compressor::Line>::const_iterator Compressor::line_for(std::size_t parameter,
                                                                   const std::string& name) const {
  if (!chooser_)
    return std::ranges::find_if(lines_, [&](const Line& line) { return matches(line.pattern, name); });
  const std::int64_t choice = chooser_->choices().empty() ? Chooser::kDense : chooser_->choices()[parameter];
  return choice < 0 ? lines_.end() : lines_.begin() + choice;
}

void Compressor::use_choices() {
  assign(parameters_);
  MemoryBook before = std::move(book_);
  book_ = MemoryBook(carriage_.subtrees(), carriage_.own());
  bind_methods();
  debts_.add(book_.inherit(std::move(before)), carriage_.speaks() && carriage_.own().first == 0);
}

double Compressor::table_seconds(Collective what, std::size_t count, DType dtype) const {
  return count == 0 ? 0 : links_.expected(*group_, {.what = what, .count = count, .dtype = dtype});
}

// Slices of payloads to who adds them up, and theirs of the sum to all.
double Compressor::scattered_seconds(std::size_t payload) const {
  const std::size_t slice = payload / static_cast<std::size_t>(group_->size()) + 1;
  const double sums_s = table_seconds(Collective::all_gather, slice, DType::u8);
  return table_seconds(Collective::all_to_all, carriage_.piece_bytes(slice), DType::u8) +
         (leaves_ == Exchange::Leaves::everything ? sums_s : 0);
}

// Decoding takes about a third of encoding, settling what is owed and decoding, which is what was tried.
std::optional<WayCost> Compressor::cost(const BucketView& bucket, int way) const {
  constexpr double kDecoding = 1.0 / 3;
  if (way < 0)
    return WayCost{.table_s = leaves_ == Exchange::Leaves::everything
                                  ? table_seconds(Collective::all_reduce, bucket.count, bucket.dtype)
                                  : table_seconds(Collective::reduce_scatter,
                                                  bucket.count / static_cast<std::size_t>(group_->size()),
                                                  bucket.dtype)};
  const Line& line = lines_[static_cast<std::size_t>(way)];
  std::size_t payload = 0, dense = 0, coded = 0;
  for (const std::size_t p : bucket.parameters) {
    const torch::Tensor& tensor = parameters_[p].tensor;
    const auto count = static_cast<std::size_t>(tensor.numel());
    const bool compresses = why_dense(line, tensor).empty();
    payload += compresses ? line.method->payload_bytes(tensor.sizes().vec()) : 0;
    (compresses ? coded : dense) += count;
  }
  if (coded == 0) return {};
  const SubtreeShare& own = carriage_.own();
  const double subtrees = carriage_.existing(), mine = own.count;
  WayCost cost{.table_s = table_seconds(Collective::all_reduce, dense, DType::f32),
               .coded_elements = mine * static_cast<double>(coded)};
  if (line.method->scatters(carriage_)) {
    cost.table_s += scattered_seconds(payload);
    cost.coded_elements += kDecoding * static_cast<double>(coded);  // of the sums
    cost.coded_elements += (1 + (subtrees - mine) * kDecoding) * static_cast<double>(coded) / group_->size();
  } else if (line.method->gathers()) {
    cost.table_s += table_seconds(Collective::all_gather, carriage_.piece_bytes(payload), DType::u8);
    cost.coded_elements += (subtrees - mine) * kDecoding * static_cast<double>(coded);
  } else {
    const std::size_t calls = line.method->has_two_calls(carriage_) ? 2 : 1;
    cost.table_s += static_cast<double>(calls) *
                    table_seconds(Collective::all_reduce, payload / sizeof(float) / calls + 1, DType::f32);
  }
  if (own.workers > 1)
    cost.table_s += links_.expected(
        calls_.inside, {.what = Collective::all_reduce, .count = bucket.count, .dtype = bucket.dtype});
  return cost;
}

std::string Compressor::never_begins(std::int64_t steps) const {
  std::string text;
  for (const Line& line : lines_)
    if (line.method && line.warmup >= steps)
      text += fmt::format("{}--compress {} compresses nothing: its warm-up is {} steps, the run {}",
                          text.empty() ? "" : "; ", line.method->name(), line.warmup, steps);
  return text;
}

// As if all buckets were compressed alike, without the time that encoding takes.
double Compressor::expected_seconds(const Group& group, std::size_t count, DType dtype) const {
  if (group.size() == 1) return 0;
  if (dtype == DType::f64 || carriage_.ranks() != group.size())
    return plain_.expected_seconds(group, count, dtype);
  const auto frame = static_cast<std::size_t>(static_cast<double>(count * size_of(dtype)) * ratio_);
  const auto scatters = [&](const Line& line) { return line.method && line.method->scatters(carriage_); };
  if (!chooser_ && std::ranges::any_of(lines_, scatters)) return scattered_seconds(frame);
  return group.expected_seconds(
      {.what = Collective::all_gather, .count = carriage_.piece_bytes(frame), .dtype = DType::u8});
}

}  // namespace lockstep::compress
