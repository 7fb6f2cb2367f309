#include "comm/tune/selector.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json_text.h"
#include "comm/call/rank_mask.h"
#include "comm/tune/links.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr int kTableVersion = 2;
constexpr double kMostBytes = 1e15;  // of a call: more than any machine has

double interpolate(double x0, double y0, double x1, double y1, double x) {
  if (x1 <= x0) return y0;
  const double t = (std::log(x) - std::log(x0)) / (std::log(x1) - std::log(x0));
  return y0 + t * (y1 - y0);
}

double number_from(const nlohmann::json& json) {
  if (!json.is_number()) throw UsageError("a number is needed where there is " + json.dump().substr(0, 40));
  return json.get<double>();
}

const nlohmann::json& list_from(const nlohmann::json& json) {
  if (!json.is_array()) throw UsageError("a list is needed where there is " + json.dump().substr(0, 40));
  return json;
}

// nlohmann's errors name types and positions but not the file's purpose; callers add that.
std::vector<std::pair<double, double>> points_from(const nlohmann::json& json) {
  std::vector<std::pair<double, double>> points;
  for (const auto& point : list_from(json))
    points.emplace_back(number_from(point.at(0)), number_from(point.at(1)));
  if (points.empty() || points.size() > 64) throw UsageError("a curve has 1 to 64 points");
  double last = 0;
  for (const auto& [size, value] : points) {
    if (!(size > last) || !(value > 0) || !(value < 1))
      throw UsageError("a curve's sizes rise and its values are positive");
    last = size;
  }
  return points;
}

}  // namespace

double Curve::at(double bytes) const {
  if (points_.empty()) return 0;
  if (bytes <= points_.front().first) return points_.front().second;
  for (std::size_t i = 1; i < points_.size(); ++i)
    if (bytes <= points_[i].first)
      return interpolate(points_[i - 1].first, points_[i - 1].second, points_[i].first, points_[i].second,
                         bytes);
  return points_.back().second;
}

bool can_run(const Algorithm& algorithm, const CallShape& shape) {
  const Needs needs = algorithm.needs();
  return algorithm.has(shape.what) &&
         input_bytes(shape.what, shape.bytes, shape.ranks) <= needs.at_most_bytes &&
         !(shape.messages_only && needs.reach) && (shape.pages || !needs.pages) &&
         (shape.posts || !needs.posts) && (shape.levels || !needs.levels);
}

void refuse_forced(const std::string& forced, const std::vector<std::string>& besides) {
  std::string names;
  for (const Algorithm* a : all_algorithms()) names += (names.empty() ? "" : ", ") + std::string(a->name());
  for (const std::string& name : besides)
    if (find_algorithm(name) == nullptr) names += ", " + name;
  throw UsageError("unknown algorithm '" + forced + "' in LOCKSTEP_ALGORITHM; accepted: " + names);
}

Selector::Selector(const std::string& forced) {
  if (forced.empty()) return;
  forced_ = find_algorithm(forced);
  if (forced_ == nullptr) refuse_forced(forced, {});
}

Selector::Selector(const Selector& other) { *this = other; }

Selector& Selector::operator=(const Selector& other) {
  if (this == &other) return *this;
  const std::scoped_lock lock(mutex_, other.mutex_);
  forced_ = other.forced_;
  costs_ = other.costs_;
  links_ = other.links_;
  routes_ = other.routes_;
  measured_ = other.measured_;
  cache_.clear();
  return *this;
}

void Selector::set_costs(Costs costs) {
  const std::lock_guard lock(mutex_);
  costs_ = std::move(costs);
  cache_.clear();
}

Costs Selector::costs() const {
  const std::lock_guard lock(mutex_);
  return costs_;
}

void Selector::set_links(std::shared_ptr<const Links> links, std::shared_ptr<const Routes> routes) {
  const std::lock_guard lock(mutex_);
  links_ = std::move(links);
  routes_ = std::move(routes);
  measured_.clear();
  cache_.clear();
}

void Selector::add_measurement(const CallShape& shape, const Algorithm& algorithm, double seconds) {
  const std::lock_guard lock(mutex_);
  measured_[{shape.what, shape.ranks, shape.reachable, std::string(algorithm.name())}]
           [static_cast<double>(shape.bytes)] = seconds;
  cache_.clear();
}

double Selector::by_model(const Algorithm& algorithm, const CallShape& shape) const {
  const bool wired = links_ != nullptr && shape.messages_only && shape.ranks > 1;
  CallShape known = shape;
  if (wired) {
    known.wires = links_.get();
    known.routes = routes_.get();
  }
  const Cost cost = algorithm.cost(known);
  const double at_work = static_cast<double>(input_bytes(shape.what, shape.bytes, shape.ranks)) * shape.ranks;
  if (wired)
    return wire_seconds(cost, *links_, shape.ranks) + cost.copied_bytes * costs_.copy.at(at_work) +
           cost.reduced_bytes * costs_.reduce.at(at_work);
  const double bytes_s = cost.sent_bytes * costs_.send.at(at_work) +
                         cost.copied_bytes * costs_.copy.at(at_work) +
                         cost.reduced_bytes * costs_.reduce.at(at_work);
  return cost.barriers * costs_.barrier_s + (cost.messages * costs_.message_s + bytes_s) * costs_.crowding;
}

double Selector::correction(const Algorithm& algorithm, const CallShape& shape) const {
  const Points* points = nullptr;
  CallShape at = shape;
  double nearest = 0;
  for (const auto& [key, these] : measured_) {
    if (key.what != shape.what || key.reachable != shape.reachable || key.algorithm != algorithm.name() ||
        these.empty())
      continue;
    const double distance = std::abs(std::log(static_cast<double>(key.ranks) / shape.ranks));
    if (points != nullptr && distance >= nearest) continue;
    points = &these;
    at.ranks = key.ranks;
    nearest = distance;
  }
  if (points == nullptr) return 0;
  const std::vector<int> one_node(static_cast<std::size_t>(at.ranks), 0);
  if (at.ranks != shape.ranks) at.nodes = one_node;
  const auto off_at = [&](const Points::value_type& point) {
    at.bytes = static_cast<std::size_t>(point.first);
    return std::log(point.second / by_model(algorithm, at));
  };
  const auto off = [&] {
    const auto bytes = static_cast<double>(shape.bytes);
    const auto above = points->lower_bound(bytes);
    if (above == points->end()) return off_at(*std::prev(above));
    if (above == points->begin()) return off_at(*above);
    const auto below = std::prev(above);
    return interpolate(below->first, off_at(*below), above->first, off_at(*above), bytes);
  };
  // Where the model says nothing at all (one rank sends no messages) no factor mends it.
  const double factor = std::exp(off());
  return std::isfinite(factor) ? factor : 0;
}

Candidate Selector::candidate(const Algorithm& algorithm, const CallShape& shape) const {
  const double factor = correction(algorithm, shape);
  return {.algorithm = &algorithm,
          .predicted_s = by_model(algorithm, shape) * (factor > 0 ? factor : 1),
          .fitted = factor > 0,
          .measured_s = measured(algorithm, shape)};
}

double Selector::predict(const Algorithm& algorithm, const CallShape& shape) const {
  const std::lock_guard lock(mutex_);
  return candidate(algorithm, shape).predicted_s;
}

// Inside the measured sizes only: outside them the prediction is the better guess.
double Selector::measured(const Algorithm& algorithm, const CallShape& shape) const {
  const auto found =
      measured_.find({shape.what, shape.ranks, shape.reachable, std::string(algorithm.name())});
  if (found == measured_.end()) return 0;
  const auto& points = found->second;
  const auto bytes = static_cast<double>(shape.bytes);
  const auto above = points.lower_bound(bytes);
  if (above == points.end()) return 0;
  if (above->first == bytes) return above->second;
  if (above == points.begin()) return 0;
  const auto below = std::prev(above);
  // Times grow by factors: interpolate their logarithms.
  return std::exp(
      interpolate(below->first, std::log(below->second), above->first, std::log(above->second), bytes));
}

double Selector::expect(const Algorithm& algorithm, const CallShape& shape) const {
  const std::lock_guard lock(mutex_);
  return candidate(algorithm, shape).expected_s();
}

std::vector<Candidate> Selector::table(const CallShape& shape, Order order) const {
  const std::lock_guard lock(mutex_);
  return candidates(shape, order);
}

std::vector<Candidate> Selector::candidates(const CallShape& shape, Order order) const {
  std::vector<Candidate> rows;
  for (const Algorithm* algorithm : all_algorithms()) {
    if (!can_run(*algorithm, shape)) continue;
    if (order == Order::canonical && reduces(shape.what) && !algorithm->canonical(shape.nodes)) continue;
    rows.push_back(candidate(*algorithm, shape));
  }
  // What was measured goes before what never was: a model that is off for some is off for others.
  std::stable_sort(rows.begin(), rows.end(), [](const Candidate& a, const Candidate& b) {
    return a.fitted != b.fitted ? a.fitted : a.expected_s() < b.expected_s();
  });
  return rows;
}

const Algorithm* Selector::choose(const CallShape& shape, Order order) const {
  if (forced_ != nullptr && can_run(*forced_, shape)) return forced_;
  const std::lock_guard lock(mutex_);
  if (!std::ranges::equal(cache_nodes_, shape.nodes)) {
    cache_nodes_.assign(shape.nodes.begin(), shape.nodes.end());
    cache_.clear();
  }
  for (const Remembered& r : cache_)
    if (r.shape.what == shape.what && r.shape.bytes == shape.bytes && r.shape.reachable == shape.reachable &&
        r.shape.ranks == shape.ranks && r.shape.pages == shape.pages && r.shape.posts == shape.posts &&
        r.shape.levels == shape.levels && r.order == order)
      return r.algorithm;
  const Algorithm* const best = candidates(shape, order).front().algorithm;
  if (cache_.size() >= 64) cache_.clear();
  cache_.push_back({shape, order, best});
  cache_.back().shape.nodes = {};
  return best;
}

std::string Selector::topology() const {
  const std::shared_ptr<const Links> links = [&] {
    const std::lock_guard lock(mutex_);
    return links_;
  }();
  if (links == nullptr) return {};
  std::string text = links->describe() + "\n";
  std::vector<std::string> reasons;
  links->routes(&reasons);
  for (const std::string& reason : reasons) text += reason + "\n";
  if (reasons.empty()) text += "ring and tree as they are: no other way is faster by a tenth\n";
  return text;
}

std::string Selector::to_json() const {
  const std::lock_guard lock(mutex_);
  nlohmann::json json;
  json["version"] = kTableVersion;
  json["barrier_s"] = costs_.barrier_s;
  json["message_s"] = costs_.message_s;
  json["send_s_per_byte"] = costs_.send.points();
  json["copy_s_per_byte"] = costs_.copy.points();
  json["reduce_s_per_byte"] = costs_.reduce.points();
  json["crowding"] = costs_.crowding;
  json["measured"] = nlohmann::json::array();
  for (const auto& [key, points] : measured_)
    json["measured"].push_back(
        {{"collective", to_string(key.what)},
         {"workers", key.ranks},
         {"memory", key.reachable ? "comm" : "private"},
         {"algorithm", key.algorithm},
         {"points", std::vector<std::pair<double, double>>(points.begin(), points.end())}});
  return json.dump(1);
}

void Selector::from_json(const std::string& text) try {
  const auto json = parse_json<nlohmann::json>(text);
  if (const auto& version = json.at("version"); version != kTableVersion)
    throw UsageError(version.is_number_integer() ? "another version of Lockstep wrote it (" + version.dump() +
                                                       " instead of " + std::to_string(kTableVersion) + ")"
                                                 : "version is not " + std::to_string(kTableVersion));
  Costs costs;
  costs.barrier_s = number_from(json.at("barrier_s"));
  costs.message_s = number_from(json.at("message_s"));
  costs.crowding = number_from(json.at("crowding"));
  if (!(costs.barrier_s > 0) || !(costs.message_s > 0) || !(costs.crowding >= 1))
    throw UsageError("costs must be positive");
  costs.send = points_from(json.at("send_s_per_byte"));
  costs.copy = points_from(json.at("copy_s_per_byte"));
  costs.reduce = points_from(json.at("reduce_s_per_byte"));
  decltype(measured_) measurements;
  for (const auto& row : list_from(json.at("measured"))) {
    const auto memory = row.at("memory").get<std::string>();
    if (memory != "comm" && memory != "private") throw UsageError("memory is comm or private");
    const double workers = number_from(row.at("workers"));
    if (!(workers >= 1) || !(workers <= kMostGroupRanks) || workers != std::floor(workers))
      throw UsageError("workers are 1 to " + std::to_string(kMostGroupRanks));
    auto& points =
        measurements[{parse_collective(row.at("collective").get<std::string>()), static_cast<int>(workers),
                      memory == "comm", row.at("algorithm").get<std::string>()}];
    for (const auto& point : list_from(row.at("points"))) {
      const double bytes = number_from(point.at(0));
      const double seconds = number_from(point.at(1));
      if (!(bytes >= 0) || !(bytes <= kMostBytes) || !(seconds > 0))
        throw UsageError("measured sizes and times are positive, and sizes those of calls");
      points[bytes] = seconds;
    }
  }
  const std::lock_guard lock(mutex_);
  costs_ = std::move(costs);
  measured_ = std::move(measurements);
  cache_.clear();
} catch (const nlohmann::json::exception& error) {
  throw UsageError(std::string("not a cost table: ") + error.what());
} catch (const UsageError& error) {
  throw UsageError(std::string("not a cost table: ") + error.what());
}

}  // namespace lockstep
