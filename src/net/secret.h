// The secret that all machines of one job share, and what is derived from it. Whoever has it may join the
// job; nobody else gets a byte.
#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::net {

class Secret {
 public:
  static constexpr std::size_t kBytes = 32;

  static Secret make();  // from the system's random numbers
  // 64 hexadecimal digits, blanks around them allowed. Throws UsageError that says how to make one and never
  // repeats the text.
  static Secret parse(std::string_view hex);
  // Such a file. Throws UsageError when others than its owner may read it (accepted: chmod 600), SystemError
  // when it can't be read.
  static Secret read(const std::filesystem::path& file);
  // LOCKSTEP_SECRET, or the file that LOCKSTEP_SECRET_FILE names; none when neither is set.
  static std::optional<Secret> from_environment();

  Secret(const Secret&) = default;
  Secret& operator=(const Secret&) = default;
  ~Secret();  // wipes it

  std::span<const std::byte, kBytes> bytes() const { return bytes_; }
  std::string hex() const;
  // Another secret, which says nothing about this one (HKDF-SHA256 with `purpose` as its info).
  Secret derive(std::string_view purpose) const;

 private:
  Secret() = default;
  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace lockstep::net
