// Tensors that travel as they are beside compressed ones of the same bucket: small ones, vectors, those in
// their warm-up. The same bits as without compression.
#pragma once

#include <memory>

#include "compress/method.h"

namespace lockstep::compress {

std::unique_ptr<Method> dense_part();

// A whole bucket of them: this worker's subtrees are added up, in place and in the bucket's type, and `plain`
// does the rest.
Work run_dense(const Bucket& bucket, const Exchange& plain);

}  // namespace lockstep::compress
