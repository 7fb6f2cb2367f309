// Codecs of blocks that round alike wherever they are (int8, fp8): all-to-all, sums in f32, rounded once
// more, all-gather. In place of all payloads each worker gets its slice of them, adds that up along the
// lanes' tree, encodes the sum, and all get that.
//
// Bytes a rank sends, of a payload of p bytes a subtree and W workers with c subtrees each:
//
//   c p (W - 1) / W   slices of its subtrees' payloads, to those who add them up
//   p (W - 1) / W     its slice of the sum, to all: where everybody keeps everything
//
// so 2 p (W - 1) / W with a subtree each, as an all-reduce of p bytes has it, whatever W is; gathered.h sends
// (W - 1) p. A rank that keeps its own part only (zero1, zero2) adds up that part, and nothing is sent
// behind.
//
// The same bits. A block's payload depends on the block's sum alone. So what a slice is, which differs with
// the number of workers, decides who rounds a block and not to what: slices are of whole blocks of a tensor.
// Where a rank's own part ends within a block, its neighbour rounds that block too.
//
// Bias: rounded twice, once a subtree and once the sum. Errors of subtrees are fed back where that was asked
// for, those of the sum are not. State: "owed" by subtree and parameter then. Framing: a byte of Presence a
// tensor and subtree in every slice; slices are as long as the longest.
#pragma once

#include "compress/gathered.h"

namespace lockstep::compress {

// What `form=` says: by number of subtrees (Carriage::most_gathered), or one of them.
enum class Form : unsigned char { by_subtrees, gathered, scattered };

std::unique_ptr<Method> scattered_method(const std::string& name, const GatheredParts& parts, Form form);

}  // namespace lockstep::compress
