#include "comm/engine/gloo_store.h"

#include "lockstep/base/error.h"

namespace lockstep {

void ExchangeStore::set(const std::string& key, const std::vector<char>& data) {
  // A key has no zero byte, so the first one ends it.
  std::string mine = key;
  mine.push_back('\0');
  mine.append(data.begin(), data.end());
  for (const std::string& blob : exchange_(mine)) {
    const std::size_t end = blob.find('\0');
    if (end == std::string::npos) throw SystemError("gloo rendezvous: a peer sent no key");
    values_[blob.substr(0, end)] = std::vector<char>(blob.begin() + static_cast<long>(end) + 1, blob.end());
  }
}

std::vector<char> ExchangeStore::get(const std::string& key) {
  wait({key});
  return values_.at(key);
}

void ExchangeStore::wait(const std::vector<std::string>& keys) {
  for (const std::string& key : keys)
    if (!values_.contains(key)) throw SystemError("gloo rendezvous: no rank has set '" + key + "'");
}

}  // namespace lockstep
