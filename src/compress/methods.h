// Methods by name: what one finds behind --compress.
#pragma once

#include <memory>

#include "compress/method.h"
#include "compress/method_text.h"

namespace lockstep::compress {

// UsageError says which there are, or what is wrong with its options.
std::unique_ptr<Method> make_method(MethodText text);
// Steps that travel as they are, as it says or without a word: none; of onebit-adam 1000, which is how far
// back a variance with Adam's beta2 of 0.999 looks.
std::int64_t warmup_of(const MethodText& text);

}  // namespace lockstep::compress
