#include "net/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>

#include "lockstep/base/error.h"

namespace lockstep::net {
namespace {

const std::string kHex = "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210";

bool same(const Secret& a, const Secret& b) {
  return std::equal(a.bytes().begin(), a.bytes().end(), b.bytes().begin());
}

std::string refusal(const std::string& text) {
  try {
    Secret::parse(text);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

// A file that goes with the test.
class SecretFile {
 public:
  SecretFile(const std::string& text, mode_t mode)
      : path_(std::filesystem::path(::testing::TempDir()) / ("secret." + std::to_string(::getpid()))) {
    std::filesystem::remove(path_);
    std::ofstream(path_) << text;
    ::chmod(path_.c_str(), mode);
  }
  ~SecretFile() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

TEST(Secret, IsWrittenAndReadAsHex) {
  EXPECT_EQ(Secret::parse(kHex).hex(), kHex);
  EXPECT_EQ(Secret::parse(" \t" + kHex + "\r\n").hex(), kHex);
  std::string upper = kHex;
  std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return std::toupper(c); });
  EXPECT_EQ(Secret::parse(upper).hex(), kHex);
}

TEST(Secret, RefusesOtherTextWithoutRepeatingIt) {
  for (const std::string& bad : {std::string(), kHex.substr(1), kHex + "0", kHex.substr(0, 63) + "g",
                                 kHex.substr(0, 32) + " " + kHex.substr(33)}) {
    const std::string message = refusal(bad);
    EXPECT_NE(message.find("lockstep secret --out job.key"), std::string::npos) << message;
    EXPECT_EQ(message.find(kHex.substr(2, 8)), std::string::npos) << message;
  }
}

TEST(Secret, MadeOnesDiffer) {
  const Secret a = Secret::make();
  EXPECT_FALSE(same(a, Secret::make()));
  EXPECT_EQ(a.hex().size(), 64U);
  EXPECT_EQ(a.hex().find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(Secret, DerivedOnesDependOnSecretAndPurpose) {
  const Secret a = Secret::parse(kHex);
  EXPECT_TRUE(same(a.derive("x"), a.derive("x")));
  EXPECT_FALSE(same(a.derive("x"), a.derive("y")));
  EXPECT_FALSE(same(a.derive("x"), Secret::make().derive("x")));
  EXPECT_FALSE(same(a.derive("x"), a));
  // HKDF-SHA256 without salt, info "x", by another implementation of RFC 5869.
  EXPECT_EQ(a.derive("x").hex(), "80262528366c5d8a236c4bf3ba0ae913d1ea96dda9f3d465f768dd181f61fc7e");
}

TEST(Secret, ComesFromAFileThatOnlyItsOwnerReads) {
  const SecretFile good(kHex + "\n", 0600);
  EXPECT_EQ(Secret::read(good.path()).hex(), kHex);
  for (const mode_t mode : {0640, 0604, 0620, 0666}) {
    const SecretFile open(kHex, mode);
    try {
      Secret::read(open.path());
      FAIL() << "accepted mode " << std::oct << mode;
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find("chmod 600"), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).find(kHex), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(Secret::read("/nonexistent/secret"), SystemError);
  EXPECT_THROW(Secret::read(::testing::TempDir()), UsageError);
}

TEST(Secret, ALongFileIsRefused) {
  const SecretFile file(kHex + std::string(100'000, ' ') + "x", 0600);
  EXPECT_EQ(Secret::read(file.path()).hex(), kHex);  // blanks, as far as it is read
  const SecretFile junk(std::string(100'000, 'a'), 0600);
  EXPECT_THROW(Secret::read(junk.path()), UsageError);
}

TEST(Secret, ComesFromTheEnvironment) {
  ::unsetenv("LOCKSTEP_SECRET");
  ::unsetenv("LOCKSTEP_SECRET_FILE");
  EXPECT_FALSE(Secret::from_environment().has_value());
  const Secret other = Secret::make();
  const SecretFile file(other.hex(), 0600);
  ::setenv("LOCKSTEP_SECRET_FILE", file.path().c_str(), 1);
  EXPECT_EQ(Secret::from_environment()->hex(), other.hex());
  ::setenv("LOCKSTEP_SECRET", kHex.c_str(), 1);
  EXPECT_EQ(Secret::from_environment()->hex(), kHex);
  ::setenv("LOCKSTEP_SECRET", kHex.substr(1).c_str(), 1);
  try {
    Secret::from_environment();
    ADD_FAILURE() << "accepted 63 digits";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("LOCKSTEP_SECRET"), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find(kHex.substr(1)), std::string::npos) << error.what();
  }
  ::unsetenv("LOCKSTEP_SECRET");
  ::unsetenv("LOCKSTEP_SECRET_FILE");
}

TEST(Secret, IsWipedWhenItGoes) {
  alignas(Secret) std::byte place[sizeof(Secret)];
  auto* const secret = new (place) Secret(Secret::parse(kHex));
  secret->~Secret();
  // Through volatile: the compiler may not assume anything about memory whose object is gone.
  const volatile std::byte* const memory = place;
  for (std::size_t i = 0; i < sizeof place; ++i) EXPECT_TRUE(memory[i] == std::byte{}) << i;
}

}  // namespace
}  // namespace lockstep::net
