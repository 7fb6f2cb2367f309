#include "net/secret.h"

#include <fcntl.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <memory>

#include "base/environment.h"
#include "base/hex.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep::net {
namespace {

constexpr const char* kHowToMake =
    "accepted: 64 hexadecimal digits, the same on every machine, as `lockstep secret --out job.key` makes "
    "them";

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Text that held a secret for a moment: wiped at the end.
struct Scratch {
  std::array<char, 1024> text{};
  ~Scratch() { OPENSSL_cleanse(text.data(), text.size()); }
};

}  // namespace

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

Secret Secret::make() {
  Secret secret;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.bytes_.data()), kBytes) != 1)
    throw SystemError("the system gave no random numbers for a secret");
  return secret;
}

Secret Secret::parse(std::string_view hex) {
  while (!hex.empty() && blank(hex.front())) hex.remove_prefix(1);
  while (!hex.empty() && blank(hex.back())) hex.remove_suffix(1);
  if (hex.size() != 2 * kBytes)
    throw UsageError("the job's secret has " + std::to_string(hex.size()) + " characters; " + kHowToMake);
  Secret secret;
  for (std::size_t i = 0; i < kBytes; ++i) {
    const int high = digit(hex[2 * i]);
    const int low = digit(hex[2 * i + 1]);
    if (high < 0 || low < 0)
      throw UsageError(std::string("the job's secret has a character that is no digit; ") + kHowToMake);
    secret.bytes_[i] = static_cast<std::byte>(high << 4 | low);
  }
  return secret;
}

Secret Secret::read(const std::filesystem::path& file) {
  // Opened first and then asked about: what is read is what was checked. Not waiting for the writer of a
  // pipe.
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd) throw SystemError("can't read the secret file '" + file.string() + "'", errno);
  struct stat about {};
  if (::fstat(fd.get(), &about) != 0)
    throw SystemError("can't read the secret file '" + file.string() + "'", errno);
  if (!S_ISREG(about.st_mode)) throw UsageError("the secret file '" + file.string() + "' is no regular file");
  if ((about.st_mode & (S_IRWXG | S_IRWXO)) != 0)
    throw UsageError("the secret file '" + file.string() +
                     "' is open to others than its owner; accepted after: chmod 600 '" + file.string() + "'");
  Scratch scratch;
  std::size_t length = 0;
  while (length < scratch.text.size()) {
    const ssize_t got = ::read(fd.get(), scratch.text.data() + length, scratch.text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw SystemError("can't read the secret file '" + file.string() + "'", errno);
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  try {
    return parse({scratch.text.data(), length});
  } catch (const UsageError& error) {
    throw UsageError("secret file '" + file.string() + "': " + error.what());
  }
}

std::optional<Secret> Secret::from_environment() {
  if (const auto text = read_filled_variable("LOCKSTEP_SECRET")) {
    try {
      return parse(*text);
    } catch (const UsageError& error) {
      throw UsageError(std::string("LOCKSTEP_SECRET: ") + error.what());
    }
  }
  if (const auto file = read_filled_variable("LOCKSTEP_SECRET_FILE")) return read(*file);
  return std::nullopt;
}

std::string Secret::hex() const { return hex_of(bytes_); }

Secret Secret::derive(std::string_view purpose) const {
  const std::unique_ptr<EVP_KDF, decltype(&EVP_KDF_free)> hkdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr),
                                                               &EVP_KDF_free);
  const std::unique_ptr<EVP_KDF_CTX, decltype(&EVP_KDF_CTX_free)> context(EVP_KDF_CTX_new(hkdf.get()),
                                                                          &EVP_KDF_CTX_free);
  char digest[] = "SHA256";
  // OpenSSL's parameters are not const, but are only read here.
  OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<std::byte*>(bytes_.data()), kBytes),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, const_cast<char*>(purpose.data()),
                                        purpose.size()),
      OSSL_PARAM_construct_end()};
  Secret derived;
  if (context == nullptr ||
      EVP_KDF_derive(context.get(), reinterpret_cast<unsigned char*>(derived.bytes_.data()), kBytes,
                     params) != 1)
    throw SystemError("OpenSSL could not derive a key (HKDF-SHA256)");
  return derived;
}

}  // namespace lockstep::net
