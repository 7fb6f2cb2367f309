// Which output streams of which rank: the language of --redirects and --tee.
#pragma once

#include <map>
#include <string_view>

namespace lockstep {

enum class Stream { out = 0, err = 1 };

// A choice of streams for every rank, as torchrun writes it: one number for all ranks (0 none, 1 stdout,
// 2 stderr, 3 both), or a list of rank:number, where ranks not named have none.
class StreamChoice {
 public:
  StreamChoice() = default;
  // "3", "0:1,1:2". Throws UsageError that shows the accepted forms and says it of `flag`.
  static StreamChoice parse(std::string_view flag, std::string_view text);
  static StreamChoice all() { return StreamChoice(3); }

  bool has(int rank, Stream stream) const;
  bool any() const;
  // The largest rank that is named, -1 when none is.
  int largest_rank() const;

 private:
  explicit StreamChoice(int everyone) : everyone_(everyone) {}
  int everyone_ = 0;  // bit 0 stdout, bit 1 stderr
  std::map<int, int> of_rank_;
};

}  // namespace lockstep
