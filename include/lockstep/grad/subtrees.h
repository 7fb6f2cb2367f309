// Where the lanes' tree (comm/lanes.h) is cut so that each part can be treated as one: compressed once, with
// what is remembered of it. The cut belongs to the run, not to the workers that carry it, and so do the bits.
//
//   8 lanes in 4 subtrees:  (0 1) (2 3) (4 5) (6 7)
//   2 workers               0     0     1     1        several subtrees a worker
//   3 workers               0     1     2     2
//   8 workers               0 1   2 3   4 5   6 7      several workers a subtree
#pragma once

namespace lockstep {

struct Subtrees {
  int lanes = 0;  // of the run
  int count = 0;  // a power of two; 0: the tree is not cut
  bool operator==(const Subtrees&) const = default;

  // Lanes of a subtree, a power of two.
  int span() const;
  // Subtrees that have lanes. The others, at the end, do not exist: where the lanes are no power of two.
  int existing() const;
};

// Throws UsageError that says which counts so many lanes have.
void check(const Subtrees& subtrees);

// What one worker carries: subtrees first … first + count - 1, all of them; or a part of one, as the
// place-th of several workers. A worker without lanes carries none.
struct SubtreeShare {
  int first = 0;
  int count = 0;
  int place = 0;
  int workers = 1;  // that carry subtree `first`; above 1 the count is 1
  bool operator==(const SubtreeShare&) const = default;
};
SubtreeShare subtrees_of(int worker, int workers, const Subtrees& subtrees);

}  // namespace lockstep
