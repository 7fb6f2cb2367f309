// The codecs' random numbers.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "codec/reference.h"
#include "codec/values.h"

namespace lockstep {
namespace {

using namespace testing;

// Random123's kat_vectors, philox4x32 of 10 rounds: that the reference is the paper's generator.
TEST(Philox, ReferenceHasTheKnownAnswers) {
  using Four = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Four{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Four{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Four{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, KernelGivesTheReferencesWords) {
  const codec_kernel::ElementRandom random = random_of(kKey);
  for (const std::uint64_t group :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{77}, std::uint64_t{1} << 28,
        (std::uint64_t{1} << 28) - 1, std::uint64_t{1} << 40}) {
    std::array<std::uint32_t, 64> words{};
    codec_kernel::random_words(random, group, words.data());
    for (std::size_t i = 0; i < words.size(); ++i)
      ASSERT_EQ(words[i], random_word(random, group * 64 + i)) << "group " << group << ", element " << i;
  }
}

TEST(CodecKey, EveryPartOfItMatters) {
  const auto codec = make_codec("qsgd:4");
  const auto values = gradient(1000);
  const CodecKey keys[] = {kKey,
                           {.seed = 4, .step = 41, .subtree = 2, .parameter = kKey.parameter},
                           {.seed = 3, .step = 42, .subtree = 2, .parameter = kKey.parameter},
                           {.seed = 3, .step = 41, .subtree = 3, .parameter = kKey.parameter},
                           {.seed = 3, .step = 41, .subtree = 2, .parameter = kKey.parameter + 1}};
  std::set<std::vector<std::byte>> payloads;
  for (const CodecKey& key : keys) payloads.insert(encoded(*codec, values, key));
  EXPECT_EQ(payloads.size(), std::size(keys));
  EXPECT_EQ(encoded(*codec, values), encoded(*codec, values));
}

}  // namespace
}  // namespace lockstep
