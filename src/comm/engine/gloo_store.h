// Gloo's rendezvous carried by collectives that exist already.
#pragma once

#include <gloo/rendezvous/store.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

// Every rank's blob, in rank order: a collective over the ranks that are to meet.
using Exchange = std::function<std::vector<std::string>(const std::string& mine)>;

// Each set() is one exchange, after which every rank knows every rank's value. Right for what Gloo does
// while it connects: all ranks call set equally often, in the same order, before they ask for the others'.
class ExchangeStore final : public gloo::rendezvous::Store {
 public:
  explicit ExchangeStore(Exchange exchange) : exchange_(std::move(exchange)) {}

  void set(const std::string& key, const std::vector<char>& data) override;
  // Throws SystemError for a key that nobody has set.
  std::vector<char> get(const std::string& key) override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  Exchange exchange_;
  std::map<std::string, std::vector<char>> values_;
};

}  // namespace lockstep
