// Methods by name: what one finds behind --compress.
#pragma once

#include <memory>

#include "compress/method.h"
#include "compress/method_text.h"

namespace lockstep::compress {

// UsageError says which there are, or what is wrong with its options.
std::unique_ptr<Method> make_method(MethodText text);

}  // namespace lockstep::compress
