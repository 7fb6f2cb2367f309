// SHA-256, without libtorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

// A hash that is fed piece by piece.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  // 64 hexadecimal digits. Ends this hash: nothing may be added after it.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_text(std::string_view text);
// `on_read` is told of every piece's bytes. Throws SystemError that names the file.
std::string sha256_file(const std::filesystem::path& file,
                        const std::function<void(std::uint64_t)>& on_read = {});

}  // namespace lockstep
