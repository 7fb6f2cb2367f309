// Calls of a bucket of which not all can be begun.
#include "compress/begun.h"

#include <gtest/gtest.h>

#include "comm/expect_error.h"
#include "lockstep/base/error.h"

namespace lockstep::compress {
namespace {

Work refused() { throw UsageError("no second call today"); }

TEST(Begun, IsWaitedForWhereALaterCallCannotBeBegun) {
  WorkPromise first;
  Begun begun(2);
  EXPECT_TRUE(begun.add([&] { return first.work(); }));
  EXPECT_FALSE(begun.add(refused));
  const Work all = begun.all();
  EXPECT_FALSE(all.wait_for(std::chrono::milliseconds(0)));  // it will write into the bucket
  first.set_done();
  testing::expect_error<UsageError>([&] { all.wait(); }, {"no second call today"});
}

TEST(Begun, ThrowsAtOnceWhereNothingIsUnderWay) {
  Begun begun(2);
  EXPECT_THROW(begun.add(refused), UsageError);
}

TEST(Begun, IsDoneWhenAllAre) {
  WorkPromise first, second;
  Begun begun(2);
  for (const WorkPromise* promise : {&first, &second})
    EXPECT_TRUE(begun.add([&] { return promise->work(); }));
  const Work all = begun.all();
  second.set_done();
  EXPECT_FALSE(all.done());
  first.set_done();
  EXPECT_TRUE(all.done());
  all.wait();
}

}  // namespace
}  // namespace lockstep::compress
