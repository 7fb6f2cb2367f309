#include "lockstep/observe/flight_dump.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

FlightDump sample() {
  FlightDump dump{.job = "job-1", .group = "world/0", .rank = 1, .world_rank = 5, .size = 3};
  dump.world_ranks = {4, 5, 6};
  dump.error_kind = ErrorKind::timeout;
  dump.gone = {4, 6};
  dump.error_message = "all_reduce timed out";
  set_time(dump);
  const FlightEntry done{.sequence = 16,
                         .what = "all_reduce",
                         .detail = "f32 × 1024, sum",
                         .algorithm = "direct",
                         .state = FlightState::done,
                         .begin_ns = dump.steady_ns - 3'000,
                         .end_ns = dump.steady_ns - 2'000};
  FlightEntry waiting = done;
  waiting.sequence = std::numeric_limits<std::uint64_t>::max();
  waiting.state = FlightState::waiting;
  waiting.algorithm = "";
  waiting.end_ns = 0;
  dump.ranks = {{.rank = 0, .pid = 41, .entries = {done, waiting}},
                {.rank = 1, .state = RankState::left, .pid = 42, .entries = {done}},
                {.rank = 2, .state = RankState::dead, .signal = 9, .entries = {}}};
  return dump;
}

void expect_same(const FlightDump& a, const FlightDump& b) {
  EXPECT_EQ(a.version, b.version);
  EXPECT_EQ(a.job, b.job);
  EXPECT_EQ(a.group, b.group);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.size, b.size);
  EXPECT_EQ(a.error_kind, b.error_kind);
  EXPECT_EQ(a.error_message, b.error_message);
  EXPECT_EQ(a.world_rank, b.world_rank);
  EXPECT_EQ(a.world_ranks, b.world_ranks);
  EXPECT_EQ(a.gone, b.gone);
  EXPECT_EQ(a.unix_ns, b.unix_ns);
  EXPECT_EQ(a.steady_ns, b.steady_ns);
  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  for (std::size_t i = 0; i < a.ranks.size(); ++i) {
    EXPECT_EQ(a.ranks[i].rank, b.ranks[i].rank);
    EXPECT_EQ(a.ranks[i].state, b.ranks[i].state);
    EXPECT_EQ(a.ranks[i].signal, b.ranks[i].signal);
    EXPECT_EQ(a.ranks[i].pid, b.ranks[i].pid);
    EXPECT_EQ(a.ranks[i].entries, b.ranks[i].entries);
    EXPECT_EQ(a.ranks[i].recorded, b.ranks[i].recorded);
  }
}

// A folder that goes with the test.
class FlightDumpFile : public testing::Test {
 protected:
  FlightDumpFile() {
    std::string name = (fs::temp_directory_path() / "lockstep-observe-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw SystemError("mkdtemp", errno);
    dir_ = name;
  }
  ~FlightDumpFile() override { fs::remove_all(dir_); }

  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& file : fs::directory_iterator(dir_)) found.push_back(file.path().filename().string());
    return found;
  }
  fs::path file(const std::string& text) const {
    std::ofstream(dir_ / "given.json", std::ios::binary) << text;
    return dir_ / "given.json";
  }

  fs::path dir_;
};

TEST_F(FlightDumpFile, ReadsWhatWasWritten) {
  const FlightDump dump = sample();
  const fs::path path = write_flight_dump(dump, dir_ / "a" / "b");
  EXPECT_EQ(path, dir_ / "a" / "b" / "flight-world.0-rank1.json");
  expect_same(read_flight_dump(path), dump);
}

TEST_F(FlightDumpFile, ReplacesTheOldOneAndLeavesNothingElse) {
  FlightDump dump = sample();
  write_flight_dump(dump, dir_);
  dump.job = "job-2";
  const fs::path path = write_flight_dump(dump, dir_);
  EXPECT_EQ(read_flight_dump(path).job, "job-2");
  EXPECT_EQ(names(), std::vector<std::string>{"flight-world.0-rank1.json"});
}

TEST_F(FlightDumpFile, IsNeverSeenHalfWritten) {
  const FlightDump dump = sample();
  const fs::path path = write_flight_dump(dump, dir_);
  std::atomic<bool> stop = false;
  std::atomic<int> writes = 0;
  std::jthread writer([&] {
    while (!stop.load()) writes += write_flight_dump(dump, dir_).empty() ? 0 : 1;
  });
  for (int i = 0; i < 200 || (writes < 20 && i < 100'000); ++i) EXPECT_NO_THROW(read_flight_dump(path));
  stop.store(true);
  writer.join();
  EXPECT_GE(writes.load(), 20);
}

TEST_F(FlightDumpFile, AFailureToWriteIsNoException) {
  const fs::path blocked = file("a file, no folder");
  EXPECT_EQ(write_flight_dump(sample(), blocked), fs::path());
  EXPECT_EQ(write_flight_dump(sample(), blocked / "below"), fs::path());
  fs::create_directory(dir_ / "flight-world.0-rank1.json");  // can't be renamed over
  EXPECT_EQ(write_flight_dump(sample(), dir_), fs::path());
  EXPECT_EQ(names().size(), 2U) << "a temporary file was left";
}

TEST_F(FlightDumpFile, RefusesWhatIsNoFile) {
  EXPECT_THROW(read_flight_dump(dir_ / "missing.json"), UsageError);
  EXPECT_THROW(read_flight_dump(dir_), UsageError);
  ASSERT_EQ(::mkfifo((dir_ / "fifo").c_str(), 0600), 0);
  EXPECT_THROW(read_flight_dump(dir_ / "fifo"), UsageError);  // and does not wait for a writer
  EXPECT_THROW(read_flight_dump("/dev/zero"), UsageError);
}

TEST_F(FlightDumpFile, RefusesAHugeFile) {
  const fs::path path = file("{}");
  fs::resize_file(path, std::uintmax_t{65} << 20);  // sparse
  try {
    read_flight_dump(path);
    FAIL() << "was read";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("accepted: up to"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
}

TEST(FlightDump, NamesAreSafe) {
  EXPECT_EQ(flight_dump_name("world", 0), "flight-world-rank0.json");
  EXPECT_EQ(flight_dump_name("world/1/0", 12), "flight-world.1.0-rank12.json");
  EXPECT_EQ(flight_dump_name("a b\n*", 1), "flight-a_b__-rank1.json");
}

TEST(FlightDump, JsonHasTheDocumentedKeys) {
  const Json json = Json::parse(to_json(sample()));
  EXPECT_EQ(json.at("version"), 1);
  EXPECT_EQ(json.at("error").at("kind"), "timeout");
  EXPECT_EQ(json.at("summary"), Json(summary(sample())));
  EXPECT_EQ(json.at("ranks").at(0).at("entries").at(0).at("detail"), "f32 × 1024, sum");
  FlightDump calm = sample();
  calm.error_kind.reset();
  calm.error_message.clear();
  calm.gone.clear();
  EXPECT_TRUE(Json::parse(to_json(calm)).at("error").is_null());
  expect_same(parse_flight_dump(to_json(calm)), calm);
}

TEST(FlightDump, BytesThatAreNoUtf8AreReplaced) {
  FlightDump dump = sample();
  dump.error_message = "bad \xff byte";
  EXPECT_EQ(parse_flight_dump(to_json(dump)).error_message, "bad \xef\xbf\xbd byte");
}

TEST(FlightDump, UnknownKeysArePassedOver) {
  const FlightDump dump = sample();
  Json json = Json::parse(to_json(dump));
  json["colour"] = {1, 2, 3};
  expect_same(parse_flight_dump(json.dump()), dump);
}

TEST(FlightDump, RefusesEveryTruncation) {
  const std::string text = to_json(sample());
  for (std::size_t size = 0; size + 2 < text.size(); ++size)
    EXPECT_THROW(parse_flight_dump(text.substr(0, size)), UsageError) << size;
  EXPECT_THROW(parse_flight_dump(text + "{}"), UsageError);
}

TEST(FlightDump, RefusesOtherVersions) {
  for (const Json& version : {Json(0), Json(2), Json(-1), Json(1.0), Json("1"), Json(nullptr)}) {
    Json json = Json::parse(to_json(sample()));
    json["version"] = version;
    EXPECT_THROW(parse_flight_dump(json.dump()), UsageError) << version;
  }
  // The version is looked at first: a later one may have none of the other keys.
  try {
    parse_flight_dump(R"({"version": 2})");
    FAIL() << "was read";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "flight dump (text): version 2; accepted: 1");
  }
}

// Each value of a dump in turn is removed and replaced by values of the wrong type.
TEST(FlightDump, RefusesMissingAndWrongTypes) {
  const Json good = Json::parse(to_json(sample()));
  int tried = 0;
  const Json flat = good.flatten();  // {"/version": 1, …}
  for (const auto& [pointer_text, value] : flat.items()) {
    const Json::json_pointer pointer(pointer_text);
    for (const Json& wrong : {Json(true), Json(0.5), Json::array({Json::array()}),
                              Json(value.is_string() ? Json(7) : Json("x"))}) {
      Json bad = good;
      bad[pointer] = wrong;
      EXPECT_THROW(parse_flight_dump(bad.dump()), UsageError) << pointer_text << " = " << wrong;
      ++tried;
    }
    if (pointer_text == "/world_rank") continue;  // older dumps have none
    Json bad = good;
    if (auto& parent = bad[pointer.parent_pointer()]; parent.is_object()) {
      parent.erase(pointer.back());
      EXPECT_THROW(parse_flight_dump(bad.dump()), UsageError) << "without " << pointer_text;
    }
  }
  EXPECT_GT(tried, 100);
}

// They are of the same version.
TEST(FlightDump, ReadsThoseWithoutTheKeysThatWereAddedLater) {
  Json json = Json::parse(to_json(sample()));
  json.erase("world_rank");
  json.erase("world_ranks");
  json["error"].erase("gone");
  const FlightDump dump = parse_flight_dump(json.dump());
  EXPECT_EQ(dump.world_rank, -1);
  EXPECT_TRUE(dump.world_ranks.empty());
  EXPECT_TRUE(dump.gone.empty());
}

TEST(FlightDump, RefusesValuesOutOfRange) {
  const auto refused = [](const char* pointer, const Json& value) {
    Json bad = Json::parse(to_json(sample()));
    bad[Json::json_pointer(pointer)] = value;
    EXPECT_THROW(parse_flight_dump(bad.dump()), UsageError) << pointer << " = " << value;
  };
  refused("/size", 0);
  refused("/size", std::int64_t{1} << 40);
  refused("/world_ranks", Json::array({4, 5}));
  refused("/world_ranks/0", -1);
  refused("/rank", 3);
  refused("/rank", -1);
  refused("/ranks/0/rank", 3);
  refused("/ranks/0/rank", 1);  // twice
  refused("/ranks/0/pid", -1);
  refused("/ranks/0/signal", 1000);
  refused("/ranks/0/state", "asleep");
  refused("/ranks/0/entries/0/state", "");
  refused("/ranks/0/entries/0/sequence", -1);
  refused("/ranks/0/entries/0/begin_ns", std::numeric_limits<std::uint64_t>::max());
  refused("/error/kind", "bad luck");
}

TEST(FlightDump, RefusesDeepNestingAndNonsense) {
  // A whole dump but for one unknown key: only its depth speaks against it.
  const int depth = 1'000'000;
  const std::string deep = std::string(depth, '[') + std::string(depth, ']');
  std::string text = Json::parse(to_json(sample())).dump();
  text.replace(text.size() - 1, 1, ",\"unknown\":" + deep + "}");
  EXPECT_THROW(parse_flight_dump(text), UsageError);
  std::string objects;
  for (int i = 0; i < depth; ++i) objects += "{\"a\":";
  EXPECT_THROW(parse_flight_dump(objects), UsageError);
  for (const char* bad : {"", " ", "null", "7", "[]", "{}", "\"", "{\"version\"", "\x00\xff", "nan"})
    EXPECT_THROW(parse_flight_dump(bad), UsageError) << bad;
}

TEST(FlightDump, ErrorsAreOneShortLine) {
  for (const std::string& text :
       std::vector<std::string>{"\"" + std::string(1'000'000, 'a'), "{\n\n\"version\": \n oops", "[[["})
    try {
      parse_flight_dump(text);
      FAIL() << "was read";
    } catch (const UsageError& error) {
      const std::string_view what = error.what();
      EXPECT_EQ(what.find('\n'), std::string_view::npos) << what;
      EXPECT_LT(what.size(), 300U);
    }
}

// Times of a hostile file must not overflow.
TEST(FlightDump, SummaryOfExtremeTimesIsDefined) {
  FlightDump dump = sample();
  dump.steady_ns = std::numeric_limits<std::int64_t>::max();
  for (FlightRank& rank : dump.ranks)
    for (FlightEntry& entry : rank.entries) {
      entry.begin_ns = std::numeric_limits<std::int64_t>::min();
      entry.end_ns = std::numeric_limits<std::int64_t>::min();
    }
  EXPECT_FALSE(summary(dump).empty());
}

}  // namespace
}  // namespace lockstep
