// The table of costs: what it chooses, and that no text can break it.
#include "comm/tune/selector.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "comm/algo/builtin.h"
#include "comm/expect_error.h"

namespace lockstep::testing {
namespace {

const std::vector<int> kOneNode(4, 0);
const std::vector<int> kUneven = {0, 0, 0, 1};

CallShape shape(Collective what, std::size_t bytes, std::span<const int> nodes = kOneNode) {
  return {.what = what,
          .ranks = static_cast<int>(nodes.size()),
          .bytes = bytes,
          .reachable = true,
          .nodes = nodes};
}

// Makes `best` the cheapest of its shape by measurement.
void measure(Selector& selector, const CallShape& where, const Algorithm& best) {
  for (const Algorithm* algorithm : all_algorithms())
    if (algorithm->has(where.what))
      selector.add_measurement(where, *algorithm, algorithm == &best ? 1e-6 : 1e-3);
}

Selector with_measurements() {
  Selector selector;
  measure(selector, shape(Collective::all_reduce, 1 << 20), kTree);
  measure(selector, shape(Collective::all_reduce, 1 << 24), kHalvingDoubling);
  return selector;
}

TEST(Selector, AForcedAlgorithmIsUsedWhereItExists) {
  const Selector selector("hierarchical");
  EXPECT_EQ(selector.choose(shape(Collective::all_reduce, 4096), Order::canonical), &kHierarchical);
  EXPECT_NE(selector.choose(shape(Collective::all_gather, 4096), Order::canonical), &kHierarchical);
  const Selector eager("eager");
  EXPECT_EQ(eager.choose(shape(Collective::all_reduce, kEagerBytes), Order::canonical), &kEager);
  EXPECT_NE(eager.choose(shape(Collective::all_reduce, kEagerBytes + 1), Order::canonical), &kEager);
  EXPECT_NE(eager.choose(shape(Collective::reduce_scatter, kEagerBytes / 2), Order::canonical),
            &kEager);  // × 4 ranks
  expect_error<UsageError>([] { Selector("fastest"); },
                           {"'fastest'", "LOCKSTEP_ALGORITHM", "accepted", "direct", "ring"});
}

TEST(Selector, CanonicalOrderExcludesWhatSumsOtherwise) {
  Selector selector;
  for (std::size_t bytes : {std::size_t{16}, std::size_t{1} << 16, std::size_t{1} << 24})
    for (std::span<const int> nodes : {std::span<const int>(kOneNode), std::span<const int>(kUneven)})
      for (Collective what : {Collective::all_reduce, Collective::reduce_scatter, Collective::reduce}) {
        const auto rows = selector.table(shape(what, bytes, nodes), Order::canonical);
        ASSERT_FALSE(rows.empty());
        for (const Candidate& row : rows) {
          EXPECT_TRUE(row.algorithm->canonical(nodes)) << row.algorithm->name();
          EXPECT_TRUE(row.algorithm->has(what));
          EXPECT_LE(bytes, row.algorithm->needs().at_most_bytes);
        }
        EXPECT_EQ(selector.choose(shape(what, bytes, nodes), Order::canonical), rows.front().algorithm);
      }
  EXPECT_FALSE(kHierarchical.canonical(kUneven));
  measure(selector, shape(Collective::all_reduce, 1 << 20), kRing);
  EXPECT_NE(selector.choose(shape(Collective::all_reduce, 1 << 20), Order::canonical), &kRing);
  EXPECT_EQ(selector.choose(shape(Collective::all_reduce, 1 << 20), Order::any), &kRing);
}

// A sub-group begins with its parent's table, and what that remembers was chosen for the parent's nodes.
TEST(Selector, WhatWasChosenForOtherNodesIsNotRemembered) {
  const std::vector<int> aligned = {0, 0, 1, 1};
  const std::vector<int> interleaved = {0, 1, 0, 1};
  ASSERT_FALSE(kHierarchical.canonical(interleaved));
  Selector parent;
  const CallShape wide = shape(Collective::all_reduce, 1 << 20, aligned);
  measure(parent, wide, kHierarchical);
  ASSERT_EQ(parent.choose(wide, Order::canonical), &kHierarchical);
  const Selector part = parent;
  const CallShape mixed = shape(Collective::all_reduce, 1 << 20, interleaved);
  EXPECT_NE(part.choose(mixed, Order::canonical), &kHierarchical);
  EXPECT_EQ(part.choose(wide, Order::canonical), &kHierarchical);
  EXPECT_NE(part.choose(mixed, Order::canonical), &kHierarchical);
}

TEST(Selector, MeasuredBeatsPredictedWhereItWasMeasured) {
  const CallShape one = shape(Collective::all_reduce, 1 << 20);
  for (const Algorithm* best : {&kTree, &kPairwise, &kHalvingDoubling, &kDirect}) {
    Selector selector;
    EXPECT_EQ(selector.choose(one, Order::canonical),
              selector.table(one, Order::canonical).front().algorithm);
    measure(selector, one, *best);
    EXPECT_EQ(selector.choose(one, Order::canonical), best) << best->name();
    EXPECT_EQ(selector.table(one, Order::canonical).front().expected_s(), 1e-6);
    CallShape other = one;  // measured for four ranks and comm memory only
    other.reachable = false;
    EXPECT_EQ(selector.table(other, Order::canonical).front().measured_s, 0);
  }
  const Selector selector = with_measurements();
  const auto between = selector.table(shape(Collective::all_reduce, 1 << 22), Order::canonical);
  for (const Candidate& row : between) {
    EXPECT_GT(row.measured_s, 0) << row.algorithm->name();
    EXPECT_TRUE(row.measured_s >= 1e-6 && row.measured_s <= 1.001e-3);
  }
  for (const Candidate& row : selector.table(shape(Collective::all_reduce, 1 << 25), Order::canonical))
    EXPECT_EQ(row.measured_s, 0);
}

// Outside the measured sizes the model goes on from where the last of them was.
TEST(Selector, PredictionsGoOnFromWhatWasMeasured) {
  Selector selector;
  const CallShape large = shape(Collective::all_reduce, 1 << 24);
  const double model = selector.predict(kDirect, large);
  selector.add_measurement(large, kDirect, 3 * model);
  EXPECT_DOUBLE_EQ(selector.predict(kDirect, large), 3 * model);
  const CallShape huge = shape(Collective::all_reduce, 1 << 28);
  EXPECT_NEAR(selector.predict(kDirect, huge) / Selector().predict(kDirect, huge), 3, 1e-9);
  EXPECT_EQ(selector.expect(kDirect, huge), selector.predict(kDirect, huge));
  // Another number of ranks, never measured, is off by as much; the nearest one counts.
  const std::vector<int> two(2, 0), eight(8, 0);
  const CallShape pair = shape(Collective::all_reduce, 1 << 24, two);
  EXPECT_NEAR(selector.predict(kDirect, pair) / Selector().predict(kDirect, pair), 3, 1e-9);
  selector.add_measurement(shape(Collective::all_reduce, 1 << 24, eight), kDirect, 1e3);
  EXPECT_NEAR(selector.predict(kDirect, pair) / Selector().predict(kDirect, pair), 3, 1e-9);
  selector.add_measurement(shape(Collective::all_reduce, 1 << 24, eight), kHierarchical, 1e3);
  EXPECT_GT(selector.predict(kHierarchical, pair), 0);  // eight ranks, and nodes for two
  // Nothing is said of other algorithms, collectives and memory.
  CallShape other = large;
  other.reachable = false;
  EXPECT_EQ(selector.predict(kDirect, other), Selector().predict(kDirect, other));
  EXPECT_EQ(selector.predict(kTree, large), Selector().predict(kTree, large));
  other = shape(Collective::reduce, 1 << 24);
  EXPECT_EQ(selector.predict(kDirect, other), Selector().predict(kDirect, other));
}

TEST(Selector, WhatWasMeasuredGoesBeforeWhatNeverWas) {
  const CallShape one = shape(Collective::all_reduce, 1 << 20);
  Selector selector;
  const double slow = 10 * selector.table(one, Order::canonical).back().predicted_s;
  selector.add_measurement(one, kDirect, slow);
  EXPECT_EQ(selector.choose(one, Order::canonical), &kDirect);
  selector.add_measurement(one, kTree, slow / 2);
  EXPECT_EQ(selector.choose(one, Order::canonical), &kTree);
}

// The kernel may refuse it, to one group and not to another that holds a copy of the same table.
TEST(Selector, PagesAreACandidateOnlyWhereRanksMayReadThem) {
  CallShape allowed = shape(Collective::all_reduce, 1 << 20);
  allowed.reachable = false;
  allowed.pages = true;
  CallShape refused = allowed;
  refused.pages = false;
  Selector selector;
  measure(selector, allowed, kPages);
  EXPECT_EQ(selector.choose(allowed, Order::canonical), &kPages);
  EXPECT_NE(selector.choose(refused, Order::canonical), &kPages);
  EXPECT_EQ(selector.choose(allowed, Order::canonical), &kPages);
  for (const Candidate& row : selector.table(refused, Order::canonical)) EXPECT_NE(row.algorithm, &kPages);
  const Selector forced("pages");
  EXPECT_EQ(forced.choose(allowed, Order::canonical), &kPages);
  EXPECT_NE(forced.choose(refused, Order::canonical), &kPages);
  EXPECT_FALSE(can_run(kPages, shape(Collective::broadcast, 1 << 20)));
}

// Both swap with everybody: as many bytes go each way.
TEST(Selector, AllToAllCostsTheSwapsOfAReduceScatter) {
  for (const std::size_t bytes : {std::size_t{4} << 10, std::size_t{1} << 20}) {
    const Cost all_to_all = kPairwise.cost(shape(Collective::all_to_all, bytes));
    const Cost scattered = kPairwise.cost(shape(Collective::reduce_scatter, bytes));
    EXPECT_EQ(all_to_all.messages, scattered.messages);
    EXPECT_EQ(all_to_all.sent_bytes, scattered.sent_bytes);
    EXPECT_EQ(all_to_all.sent_bytes, kRing.cost(shape(Collective::all_gather, bytes)).sent_bytes);
  }
}

TEST(Selector, PredictionsGrowWithBytesAndNeverGoWild) {
  const Selector selector;
  for (int what = 0; what <= static_cast<int>(Collective::barrier); ++what)
    for (const Algorithm* algorithm : all_algorithms()) {
      if (!algorithm->has(static_cast<Collective>(what))) continue;
      double last = 0;
      for (std::size_t bytes = 0; bytes <= (std::size_t{1} << 34); bytes = bytes * 4 + 1) {
        const double now = selector.predict(*algorithm, shape(static_cast<Collective>(what), bytes));
        EXPECT_GT(now, 0) << algorithm->name() << " " << to_string(static_cast<Collective>(what));
        EXPECT_GE(now, last * 0.999) << algorithm->name() << " at " << bytes;
        last = now;
      }
    }
}

TEST(Selector, TextAndBack) {
  const Selector selector = with_measurements();
  Selector other;
  other.from_json(selector.to_json());
  EXPECT_EQ(other.to_json(), selector.to_json());
  EXPECT_EQ(other.choose(shape(Collective::all_reduce, 1 << 20), Order::canonical), &kTree);
  EXPECT_EQ(other.choose(shape(Collective::all_reduce, 1 << 24), Order::canonical), &kHalvingDoubling);
}

// A table that was refused leaves the old one.
void expect_refused(const std::string& text) {
  Selector selector = with_measurements();
  const std::string before = selector.to_json();
  expect_error<UsageError>([&] { selector.from_json(text); }, {"not a cost table"});
  EXPECT_TRUE(selector.to_json() == before) << text;
}

TEST(SelectorText, OfAnotherVersionIsRefusedAsThat) {
  nlohmann::json table = nlohmann::json::parse(with_measurements().to_json());
  table["version"] = table["version"].get<int>() + 1;
  Selector selector;
  expect_error<UsageError>([&] { selector.from_json(table.dump()); },
                           {"another version of Lockstep wrote it"});
}

TEST(SelectorText, ThatIsNoTableIsRefused) {
  for (const char* text : {"", " ", "{", "}", "null", "[]", "{}", "1", "\"x\"", "[[[[", "{\"version\":1}",
                           "\xff\xfe", "{\"version\":2}"})
    expect_refused(text);
  expect_refused(std::string(100'000, '['));
  expect_refused(std::string(10, '\0'));
}

// Their text, which a refusal quotes, would need more stack than there is.
TEST(SelectorText, WithListsInEachOtherWithoutEndIsRefused) {
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  const std::string good = with_measurements().to_json();
  for (const std::string key : {"version", "barrier_s", "copy_s_per_byte", "measured"}) {
    std::string text = good;
    text.insert(text.find(':', text.find('"' + key + '"')) + 1, deep + ",\"was\":");
    Selector selector;
    expect_error<UsageError>([&] { selector.from_json(text); }, {"not a cost table: nested deeper than 64"});
  }
}

TEST(SelectorText, WithOneWrongValueIsRefused) {
  using nlohmann::json;
  const json good = json::parse(with_measurements().to_json());
  const std::vector<json> wrong = {nullptr,
                                   "x",
                                   json::array(),
                                   json::object(),
                                   -1,
                                   1e300,
                                   json::array({json::array({1})}),
                                   json::array({json::array({2, 1e-9}), json::array({1, 1e-9})}),
                                   json::array({json::array({1, -1e-9})}),
                                   true};
  for (const auto& [key, value] : good.items()) {
    json without = good;
    without.erase(key);
    expect_refused(without.dump());
    for (const json& w : wrong) {
      const bool fits = (w == json(1e300) && key.ends_with("_s")) ||
                        (w == json(1e300) && key == "crowding") || (key == "measured" && w == json::array());
      if (fits) continue;
      json changed = good;
      changed[key] = w;
      expect_refused(changed.dump());
    }
  }
  for (const char* key : {"collective", "workers", "memory", "algorithm", "points"}) {
    json changed = good;
    changed["measured"][0].erase(key);
    expect_refused(changed.dump());
    changed = good;
    changed["measured"][0][key] = json::array({"?"});
    expect_refused(changed.dump());
  }
}

// What no call and no group can have is refused; the largest and smallest of what they can have are taken.
TEST(SelectorText, AbsurdMeasurementsAreRefusedOrLeaveTimesThatAreNumbers) {
  using nlohmann::json;
  const auto table = [](json workers, json points) {
    json text = json::parse(Selector().to_json());
    for (const Algorithm* algorithm : all_algorithms())
      if (algorithm->has(Collective::all_reduce))
        text["measured"].push_back({{"collective", "all_reduce"},
                                    {"workers", workers},
                                    {"memory", "comm"},
                                    {"algorithm", algorithm->name()},
                                    {"points", points}});
    return text.dump();
  };
  const json usual = json::array({json::array({1024, 1e-6})});
  expect_refused(table(4097, usual));
  expect_refused(table(1e6, usual));
  expect_refused(table(2.5, usual));
  expect_refused(table(2, json::array({json::array({1e300, 1e-6})})));
  for (const int workers : {1, 2, 4096})
    for (const double small : {0.0, 1.0})
      for (const double large : {2e6, 1e15})
        for (const double first : {1e-320, 1e-9, 1e308})
          for (const double last : {1e-320, 1e308}) {
            Selector selector;
            selector.from_json(
                table(workers, json::array({json::array({small, first}), json::array({large, last})})));
            for (std::size_t ranks : {1, 2, 4})
              for (const std::size_t bytes : {std::size_t{0}, std::size_t{1001}, std::size_t{1} << 30})
                for (const Candidate& row : selector.table(
                         shape(Collective::all_reduce, bytes, std::span(kOneNode).first(ranks)), Order::any))
                  ASSERT_FALSE(std::isnan(row.expected_s()))
                      << row.algorithm->name() << " of " << bytes << " bytes on " << ranks
                      << " ranks: " << workers << " took " << first << " and " << last;
          }
}

// Whatever happens to the text, it is either refused or a table with which every choice still works.
TEST(SelectorText, RandomMutationsNeverBreakTheChoice) {
  const std::string good = with_measurements().to_json();
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = good;
    for (unsigned i = 0, times = 1 + random() % 4; i < times && !text.empty(); ++i) {
      const std::size_t at = random() % text.size();
      switch (random() % 5) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + random() % 20); break;
        case 2: text.insert(at, text.substr(random() % text.size(), random() % 40)); break;
        case 3: text[at] = "0123456789-+eE.,:[]{}\""[random() % 22]; break;
        default: text.resize(std::max<std::size_t>(1, at)); break;
      }
    }
    Selector selector;
    try {
      selector.from_json(text);
    } catch (const UsageError& error) {
      ++refused;
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      continue;
    }
    for (int what = 0; what <= static_cast<int>(Collective::barrier); ++what)
      for (std::size_t bytes : {std::size_t{0}, std::size_t{1} << 20, std::size_t{1} << 22}) {
        const CallShape s = shape(static_cast<Collective>(what), bytes);
        const Algorithm* const chosen = selector.choose(s, Order::canonical);
        ASSERT_NE(chosen, nullptr);
        ASSERT_TRUE(chosen->has(s.what));
      }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_LT(refused, 4000);
}

}  // namespace
}  // namespace lockstep::testing
