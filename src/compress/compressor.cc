#include "compress/compressor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "comm/kernel/reduce.h"
#include "compress/arithmetic.h"
#include "compress/begun.h"
#include "compress/dense_part.h"
#include "compress/methods.h"
#include "grad/torch_types.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"

namespace lockstep::compress {
Compressor::Compressor(const CompressOptions& options, Exchange::Leaves leaves, LinkView links)
    : options_(options),
      leaves_(leaves),
      plain_(leaves == Exchange::Leaves::everything ? all_reduce_exchange() : reduce_scatter_exchange()),
      links_(std::move(links)),
      dense_(dense_part()) {
  if (options_.method == "auto") {
    if (!(options_.max_error > 0) || options_.max_error > 10)
      throw UsageError(
          fmt::format("--compress-max-error {}; accepted: above 0, at most 10", options_.max_error));
    if (options_.probe_every != 0 && options_.probe_every < Chooser::kLeastInterval)
      throw UsageError(fmt::format("--compress-probe-every {}; accepted: 0 (once), {} steps or more",
                                   options_.probe_every, Chooser::kLeastInterval));
    chooser_.emplace(
        ChooserOptions{.max_error = options_.max_error, .every = options_.probe_every, .links = links_});
    for (const std::string& text : Chooser::candidates())
      lines_.push_back({.pattern = "*",
                        .method = make_method(parse_rules(text).front().method),
                        .min = Chooser::kLeastElements});
    return;
  }
  for (const Rule& rule : parse_rules(options_.method))
    lines_.push_back({.pattern = rule.pattern,
                      .method = rule.method.name == "none" ? nullptr : make_method(rule.method),
                      .warmup = warmup_of(rule.method),
                      .min = rule.method.min});
  settle_momenta();
}

Past Compressor::past() const {
  return {.bond = bond_,
          .steps = steps_,
          .last_step = last_step_,
          .subtrees = group_ ? carriage_.subtrees().count : 0,
          .begun = momenta_ && momenta_->begun ? 1 : 0,
          .most_gathered = carriage_.most_gathered(),
          .choices = chooser_ && !chooser_->is_given() ? chooser_->choices() : std::vector<std::int64_t>()};
}

Subtrees Compressor::settle_subtrees(const Group& group, const Past& past) const {
  const int lanes = options_.lanes != 0 ? options_.lanes : group.size();
  int count = options_.groups;
  if (count == 0) {
    const int before = options_.lanes != 0 ? static_cast<int>(past.subtrees) : 0;
    count = before != 0 ? before : static_cast<int>(std::bit_ceil(static_cast<unsigned>(group.size())));
  }
  const Subtrees subtrees{.lanes = lanes, .count = count};
  try {
    check(subtrees);
  } catch (const UsageError& error) {
    throw UsageError(std::string("--compress-groups: ") + error.what());
  }
  return subtrees;
}

std::size_t Compressor::element_bytes(const torch::Tensor& tensor) const {
  const auto bytes = static_cast<std::size_t>(tensor.element_size());
  return precision_ == ReducePrecision::f32 ? std::max(bytes, sizeof(float)) : bytes;
}

// Empty: it compresses the tensor.
std::string Compressor::why_dense(const Line& line, const torch::Tensor& tensor) const {
  if (!line.method) return "none was asked for";
  if (tensor.scalar_type() == torch::kFloat64) return "it is of f64";
  const auto count = static_cast<std::size_t>(tensor.numel());
  if (count < std::max<std::size_t>(line.min, 1))
    return fmt::format("it has {} elements, fewer than min={}", count, line.min);
  return line.method->why_dense(tensor.sizes().vec(), element_bytes(tensor));
}

void Compressor::assign(const std::vector<NamedTensor>& parameters) {
  struct Seen {
    std::size_t matched = 0, compressed = 0;
    std::int64_t largest = -1;
    std::string why;  // the largest travels as it is
  };
  std::vector<Seen> seen(lines_.size());
  line_of_.assign(parameters.size(), -1);
  double bytes = 0, all = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor] = parameters[i];
    if (!tensor.device().is_cpu())
      throw UsageError("--compress: " + name + " is on " + tensor.device().str() + "; accepted: on cpu");
    const double whole = static_cast<double>(tensor.numel()) * static_cast<double>(element_bytes(tensor));
    all += whole;
    bytes += whole;
    const auto line = line_for(i, name);
    if (line == lines_.end()) continue;
    Seen& own = seen[static_cast<std::size_t>(line - lines_.begin())];
    ++own.matched;
    const std::string why = why_dense(*line, tensor);
    if (tensor.numel() > own.largest) {
      own.largest = tensor.numel();
      own.why = name + ": " + why;
    }
    if (!why.empty()) continue;
    ++own.compressed;
    line_of_[i] = static_cast<int>(line - lines_.begin());
    bytes += static_cast<double>(line->method->payload_bytes(tensor.sizes().vec())) - whole;
  }
  for (std::size_t l = 0; l < lines_.size(); ++l) {
    const auto& [matched, compressed, largest, why] = seen[l];
    if (matched == 0 && lines_[l].pattern != "*")
      throw UsageError(fmt::format(
          "--compress: '{}' matches no parameter; accepted: names such as {}, with * for any text",
          lines_[l].pattern, parameters.empty() ? "fc.weight" : parameters.front().name));
    if (!chooser_ && lines_[l].method && matched > 0 && compressed == 0)
      throw UsageError(fmt::format("--compress {}: none of its {} parameters becomes smaller; {}",
                                   lines_[l].method->name(), matched, why));
  }
  ratio_ = all > 0 ? bytes / all : 1;
}

// Where workers share subtrees, calls of all begin where the sums inside end, so they have a group of their
// own. So have the second calls of each rule: they begin on the thread that ends the first, or behind the one
// that finds it ended, and between two rules ranks would not agree which comes first.
Compressor::Calls Compressor::make_lines(const Group& group, const Carriage& carriage) const {
  const SubtreeShare& own = carriage.own();
  Calls calls{.first = group, .second = std::vector<Group>(lines_.size())};
  if (carriage.shared()) {
    calls.inside = group.split(own.workers > 1 ? own.first : -1);
    calls.first = group.split(0);
  }
  for (std::size_t l = 0; l < lines_.size(); ++l)
    if (lines_[l].method && lines_[l].method->has_two_calls(carriage)) calls.second[l] = group.split(0);
  return calls;
}

void Compressor::bind_methods() {
  Setting setting{.carriage = &carriage_,
                  .book = &book_,
                  .lines = {.first = calls_.first},
                  .seed = options_.seed,
                  .leaves = leaves_,
                  .savings = &savings_};
  dense_->bind(setting, {});
  for (std::size_t l = 0; l < lines_.size(); ++l) {
    std::vector<NamedTensor> own;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (line_of_[i] == static_cast<int>(l)) own.push_back(parameters_[i]);
    setting.lines.second = calls_.second[l];
    if (lines_[l].method) lines_[l].method->bind(setting, own);
  }
}

Subtrees Compressor::bind(const std::vector<NamedTensor>& parameters, ReducePrecision precision,
                          const Group& group) {
  const auto same = [](const NamedTensor& a, const NamedTensor& b) { return a.name == b.name; };
  if (group_ && !std::ranges::equal(parameters, parameters_, same))
    throw UsageError(
        "--compress " + options_.method +
        ": an exchange that remembers parameters is of one model; accepted: another one for each");
  // What may fail, since another worker does, comes first: this one is as it was then.
  const auto [past, whose, is_own, bond] = agree(this->past(), group);
  const Subtrees subtrees = settle_subtrees(group, past);
  Carriage carriage(group, subtrees);
  carriage.gather_up_to(static_cast<int>(past.most_gathered));
  const Exchange::State before =
      book_.collect(group, is_own ? MemoryBook::Own::counts : MemoryBook::Own::is_left_out);
  Calls calls = make_lines(group, carriage);
  const Group alone = chooser_ ? group.split(group.rank()) : Group();
  std::string history = chooser_ ? chooser_->history_text() : "";
  if (chooser_) group.broadcast(history, whose);

  parameters_ = parameters;
  precision_ = precision;
  if (chooser_) chooser_->bind(group, alone, parameters, past.choices, history);
  if (momenta_) momenta_->begun = past.begun != 0;
  assign(parameters);
  carriage_ = carriage;
  book_ = MemoryBook(subtrees, carriage_.own());
  calls_ = std::move(calls);
  debts_.clear();
  before_.reset();
  bind_methods();
  if (!book_.knows(before))
    log().warn(
        "--compress {}: what was remembered is of other subtrees than the {} of now; it begins anew, but for "
        "what all have in common",
        options_.method, subtrees.count);
  book_.take(book_.knows(before) ? before : book_.without_subtrees(before), MemoryBook::Missing::begins_anew);
  steps_ = past.steps;
  last_step_ = past.last_step;
  bond_ = bond;
  group_ = group;
  return subtrees;
}

Compressor::Ways Compressor::ways_of(const Bucket& bucket, std::int64_t step) const {
  Ways ways{.by_line = std::vector<std::vector<std::size_t>>(lines_.size())};
  for (std::size_t t = 0; t < bucket.tensors.size(); ++t) {
    const int line = bucket.data.dtype == DType::f64 ? -1 : line_of_[bucket.tensors[t].parameter];
    if (line < 0 || is_warming_up(lines_[static_cast<std::size_t>(line)], step)) {
      ways.dense.push_back(t);
      continue;
    }
    ways.by_line[static_cast<std::size_t>(line)].push_back(t);
    ways.all_dense = false;
  }
  return ways;
}

// Of momenta the optimizer says when it is over, which may be later: a step may have been left out.
bool Compressor::is_warming_up(const Line& line, std::int64_t step) const {
  return momenta_ ? !momenta_->begun : step < line.warmup;
}

Work Compressor::run(const Bucket& bucket) {
  if (bucket.index == 0) {
    ++steps_;
    savings_.begin_step();
  }
  const std::int64_t step = bucket.step.value_or(steps_ - 1);
  last_step_ = step;
  if (chooser_ && chooser_->look(bucket, step, *this)) use_choices();
  if (bucket.index == 0) keep_for(bucket);
  if (!chooser_) return send(bucket, step);
  if (carriage_.speaks()) debts_.pay(bucket);
  Begun begun(2);
  Work work;
  begun.add([&] { return work = send(bucket, step); });
  begun.add([&] { return chooser_->sent(bucket, work, *this), Work(); });
  return begun.all();
}

Work Compressor::send(const Bucket& bucket, std::int64_t step) {
  const Ways ways = ways_of(bucket, step);
  if (ways.all_dense) {
    savings_.add_bytes(static_cast<double>(bucket.data.bytes()), static_cast<double>(bucket.data.bytes()));
    return run_dense(bucket, plain_);
  }
  const auto flight = std::make_shared<Flight>();
  flight->bucket = bucket;
  flight->step = step;
  flight->inverse = static_cast<float>(1 / bucket.divisor);
  flight->owner = shared_from_this();
  if (carriage_.own().count == 0) flight->bucket.sums.clear();
  if (carriage_.own().workers == 1) return begin(flight, ways);
  return sum_inside(flight).then([this, flight, ways] { return begin(flight, ways); });
}

// This worker's part of its subtree becomes the whole subtree's sum, on all that share it: which of them have
// a gradient is counted in front.
Work Compressor::sum_inside(const std::shared_ptr<Flight>& flight) {
  const Bucket& bucket = flight->bucket;
  const std::size_t tensors = bucket.tensors.size();
  auto* const counts =
      reinterpret_cast<std::int32_t*>(flags_.of(calls_.inside, bucket.index, tensors * sizeof(std::int32_t)));
  for (std::size_t t = 0; t < tensors; ++t) counts[t] = bucket.sums[0].has[t];
  Begun begun(2);
  begun.add([&] {
    return calls_.inside.all_reduce_async(Buffer{counts, tensors, DType::i32}, {.purpose = bucket.purpose});
  });
  begun.add([&] { return calls_.inside.all_reduce_async(bucket.data, {.purpose = bucket.purpose}); });
  return begun.all().then([flight, counts, tensors] {
    for (std::size_t t = 0; t < tensors; ++t) flight->bucket.sums[0].has[t] = counts[t] > 0 ? 1 : 0;
  });
}

// Sums and result in f32, where the bucket itself is not.
void Compressor::widen(Flight& flight) const {
  const Buffer& data = flight.bucket.data;
  const bool narrow = data.dtype != DType::f32;
  if (narrow) flight.wide.resize(data.count * std::max<std::size_t>(flight.bucket.sums.size(), 1));
  flight.result = narrow ? flight.wide.data() : static_cast<float*>(data.data);
  for (std::size_t k = 0; k < flight.bucket.sums.size(); ++k) {
    const SubtreeSum& sum = flight.bucket.sums[k];
    flight.subtrees.push_back(sum.subtree);
    flight.sums.push_back(narrow ? flight.wide.data() + k * data.count : static_cast<float*>(sum.data));
    if (narrow) kernel::widen(flight.sums[k], sum.data, data.count, data.dtype);
  }
}

void Compressor::look(Flight& flight, const Ways& ways) const {
  for (std::size_t k = 0; k < flight.subtrees.size(); ++k) {
    std::vector<Presence>& there = flight.there.emplace_back();
    for (const char has : flight.bucket.sums[k].has)
      there.push_back(has != 0 ? Presence::there : Presence::absent);
    for (const std::vector<std::size_t>& members : ways.by_line)
      for (const std::size_t t : members)
        if (there[t] == Presence::there && !all_finite(flight.sum(k, t))) there[t] = Presence::not_finite;
  }
}

Work Compressor::begin(const std::shared_ptr<Flight>& flight, const Ways& ways) {
  widen(*flight);
  look(*flight, ways);
  Begun begun(lines_.size() + 1);
  bool good = true;
  for (std::size_t l = 0; good && l < lines_.size(); ++l)
    if (!ways.by_line[l].empty())
      good = begun.add([&] { return lines_[l].method->run(flight, ways.by_line[l]); });
  if (good && !ways.dense.empty()) begun.add([&] { return dense_->run(flight, ways.dense); });
  return begun.all().then([flight] {
    const Buffer& data = flight->bucket.data;
    if (!flight->wide.empty()) kernel::narrow(data.data, flight->result, data.count, data.dtype);
  });
}

ExchangeFigures Compressor::figures() const {
  return {.dense_bytes = savings_.dense_bytes(),
          .sent_bytes = savings_.sent_bytes(),
          .error = savings_.error(),
          .about = chooser_ ? chooser_->about() : options_.method,
          .history = chooser_ ? chooser_->history() : std::vector<std::string>()};
}

Exchange exchange_of(const std::shared_ptr<Compressor>& compressor, Exchange::Leaves leaves) {
  return {.name = compressor->name(),
          .run = [compressor](const Bucket& bucket) { return compressor->run(bucket); },
          .leaves = leaves,
          .state = [compressor] { return compressor->state(); },
          .load = [compressor](const Exchange::State& state) { compressor->load(state); },
          .leave_out = [compressor] { compressor->leave_out(); },
          .bind = [compressor](const std::vector<NamedTensor>& parameters, ReducePrecision precision,
                               const Group& group) { return compressor->bind(parameters, precision, group); },
          .figures = [compressor] { return compressor->figures(); },
          .never_begins = [compressor](std::int64_t steps) { return compressor->never_begins(steps); },
          .momenta = compressor->has_momenta() ? compressor : nullptr,
          .expected_seconds = [compressor](
                                  const Group& group, std::size_t count,
                                  DType dtype) { return compressor->expected_seconds(group, count, dtype); }};
}

}  // namespace lockstep::compress

namespace lockstep {

std::function<Exchange(Exchange::Leaves)> compressed(CompressOptions options) {
  (void)compress::Compressor(options, Exchange::Leaves::everything);  // throws here rather than later
  return [options = std::move(options)](Exchange::Leaves leaves) {
    return exchange_of(std::make_shared<compress::Compressor>(options, leaves), leaves);
  };
}

}  // namespace lockstep
