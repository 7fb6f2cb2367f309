// What a rank lets its peers know while it waits, and how a transport carries that: all that the agreement
// (comm/agree/agreement.h) asks of shared memory, TCP or MPI. Used only by waits that last, a few times a
// second.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

// "I wait": posted again and again as long as it is so.
struct Notice {
  std::vector<int> waits_for = {};  // ranks of this group
  bool outside = false;             // for somebody who is in none of its seats: another node's rank
};

class Notices {
 public:
  virtual ~Notices() = default;

  // Posts this rank's where every peer will read it. Waits for nobody.
  virtual void post(const Notice& mine) = 0;
  // Reads theirs; none: that rank does not say that it waits, or said so too long ago to count on it.
  virtual std::optional<Notice> read(int rank) const = 0;

  // The call that this rank is in, for messages: "barrier(), operation 3 of group world".
  virtual std::string where() const = 0;
  // What is known of where a peer is, behind its name: " (last seen in operation 6)"; may be empty.
  virtual std::string seen(int rank) const = 0;
  // A library that waits without saying for whom, "MPI"; empty: it is always known.
  virtual std::string silent() const = 0;
};

}  // namespace lockstep
