// Linked to an example, has it compute in f64: then two ways to the same sum differ by so little that any
// mistake shows.
#include <torch/types.h>

namespace {
const bool done = [] {
  torch::set_default_dtype(c10::scalarTypeToTypeMeta(torch::kFloat64));
  return true;
}();
}  // namespace
