#include "lockstep/checkpoint/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <vector>

#include "base/hex.h"
#include "checkpoint/file.h"
#include "lockstep/base/error.h"

namespace lockstep {

struct Sha256::State {
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context{EVP_MD_CTX_new()};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  if (!state_->context || EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) != 1) {
    throw SystemError("OpenSSL offers no SHA-256 on this machine");
  }
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  if (EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) != 1) {
    throw SystemError("OpenSSL failed to add to a SHA-256");
  }
}

std::string Sha256::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  if (EVP_DigestFinal_ex(state_->context.get(), digest.data(), &length) != 1) {
    throw SystemError("OpenSSL failed to end a SHA-256");
  }
  return hex_of(std::as_bytes(std::span(digest).first(length)));
}

std::string sha256_text(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

std::string sha256_file(const std::filesystem::path& file,
                        const std::function<void(std::uint64_t)>& on_read) {
  InputFile input(file);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  Sha256 hash;
  for (std::size_t got = input.read_some(piece); got > 0; got = input.read_some(piece)) {
    hash.update(std::span(piece).first(got));
    if (on_read) on_read(got);
  }
  return hash.hex();
}

}  // namespace lockstep
