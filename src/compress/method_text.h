// What --compress says, taken apart.
//
//   topk:0.01                                 one method for all
//   tok.*=topk:0.001,powersgd:rank=4          the first rule whose pattern a parameter's name has
//   *.bias=none,onebit:warmup=100:min=0
//
// A method is a name, then values and key=value, all behind colons. The keys of every method are here; the
// others are the method's own (methods.cc). Without a last rule for all, what no rule names travels as it is.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::compress {

struct MethodText {
  std::string text;                                 // all of it
  std::string name = {};                            // "topk"
  std::vector<std::string> values = {};             // "0.01"
  std::map<std::string, std::string> options = {};  // but for these:
  std::optional<std::int64_t> warmup = {};          // so many first steps travel as they are
  std::size_t min = 1024;                           // tensors of fewer elements travel as they are

  // What is left in values and options is the method's to take; who took all calls done().
  double number(const std::string& key, double otherwise, double least, double most);
  bool flag(const std::string& key, bool otherwise);  // on or off
  void done() const;                                  // UsageError naming what nobody takes
  [[noreturn]] void refuse(const std::string& what) const;
};

struct Rule {
  std::string pattern;  // * stands for any text
  MethodText method;
};

// UsageError for a text that is none.
std::vector<Rule> parse_rules(std::string_view text);
bool matches(std::string_view pattern, std::string_view name);

}  // namespace lockstep::compress
