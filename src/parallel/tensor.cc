#include "lockstep/parallel/tensor.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "grad/torch_types.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

std::string text_of(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

Buffer checked(const torch::Tensor& tensor, const BufferUse& use) {
  const auto refuse = [&](const std::string& why) { throw UsageError(use.call + (": " + why)); };
  if (!tensor.defined()) refuse("the tensor is undefined; accepted: one of the same size on every rank");
  const std::string it = "the tensor of shape " + text_of(tensor.sizes());
  if (tensor.layout() != torch::kStrided)
    refuse(it + " is sparse, or of another layout of its own; accepted: dense ones (tensor.to_dense())");
  const Device device = device_of(tensor, use.call + (": " + it));
  if (!tensor.is_contiguous())
    refuse(it + " is not contiguous, its strides are " + text_of(tensor.strides()) +
           "; accepted: contiguous ones (tensor.contiguous(), and copy_ the result back)");
  const DType dtype = dtype_of(tensor, use.call + (": " + it));
  if (use.reduces && tensor.scalar_type() == torch::kBool &&
      (use.op == ReduceOp::sum || use.op == ReduceOp::avg))
    refuse(std::string("the ") + to_string(use.op) + " of Bool is no Bool; accepted: max (any), min (all), " +
           "or tensor.to(torch::kInt64)");
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), dtype, device};
}

// Whether its memory goes with it. Memory that came from elsewhere (from_blob) has no allocator.
bool held_by_nobody_else(const torch::Tensor& tensor) {
  return tensor.use_count() == 1 && tensor.storage().use_count() == 1 &&
         tensor.storage().allocator() != nullptr;
}

// What ranks must have in common to gather their tensors: the type, and all dimensions but the first, which
// comes last here.
std::vector<std::int64_t> form_of(const torch::Tensor& tensor) {
  std::vector<std::int64_t> form = {static_cast<std::int64_t>(tensor.scalar_type())};
  form.insert(form.end(), tensor.sizes().begin() + 1, tensor.sizes().end());
  form.push_back(tensor.size(0));
  return form;
}

std::string form_in_words(const std::vector<std::int64_t>& form) {
  std::vector<std::int64_t> sizes(form.begin() + 1, form.end());
  std::rotate(sizes.begin(), sizes.end() - 1, sizes.end());
  return std::string(torch::toString(static_cast<torch::ScalarType>(form[0]))) + " " + text_of(sizes);
}

bool differ(const std::vector<std::int64_t>& a, const std::vector<std::int64_t>& b) {
  return a.size() != b.size() || !std::equal(a.begin(), a.end() - 1, b.begin());
}

}  // namespace

Buffer buffer(const torch::Tensor& tensor) { return AsBuffer<torch::Tensor>::out(tensor, {"buffer"}); }
Buffer buffer(torch::Tensor&& tensor) {
  return AsBuffer<torch::Tensor>::out(tensor, {.call = "buffer", .temporary = true});
}

ConstBuffer AsBuffer<torch::Tensor>::in(const torch::Tensor& tensor, const BufferUse& use) {
  return checked(tensor, use);
}

Buffer AsBuffer<torch::Tensor>::out(const torch::Tensor& tensor, const BufferUse& use) {
  const Buffer buffer = checked(tensor, use);
  if (use.temporary && held_by_nobody_else(tensor))
    throw UsageError(use.call + (": nobody else holds the tensor of shape " + text_of(tensor.sizes())) +
                     ", so the result would go with it; accepted: one with a name (auto y = x.contiguous(), "
                     "and copy_ it back), or a part of one");
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  return buffer;
}

std::vector<torch::Tensor> AllGather<torch::Tensor>::call(const Group& group, const torch::Tensor& tensor,
                                                          const CallOptions& options) {
  (void)checked(tensor, {"all_gather"});
  if (tensor.dim() == 0)
    throw UsageError(
        "all_gather: the tensor has no dimension along which ranks could differ; accepted: one or more "
        "(tensor.view({1}))");
  const auto forms = group.all_gather(form_of(tensor), options);
  for (std::size_t r = 1; r < forms.size(); ++r)
    if (differ(forms[0], forms[r]))
      throw MismatchError("all_gather: the tensors differ in more than the first dimension: " +
                          group.named(0) + " has " + form_in_words(forms[0]) + ", " +
                          group.named(static_cast<int>(r)) + " has " + form_in_words(forms[r]));
  const torch::Tensor host = tensor.cpu();  // of different lengths: they pass through the host
  const GatheredElements all = gather_elements(group, checked(host, {"all_gather"}), options);
  std::vector<torch::Tensor> tensors;
  for (std::size_t r = 0; r < forms.size(); ++r) {
    auto sizes = tensor.sizes().vec();
    sizes[0] = forms[r].back();
    tensors.push_back(torch::empty(sizes, torch::TensorOptions().dtype(tensor.scalar_type())));
    if (tensors[r].numel() > 0) std::memcpy(tensors[r].data_ptr(), all.begin_of(r), tensors[r].nbytes());
    tensors[r] = tensors[r].to(tensor.device());
  }
  return tensors;
}

}  // namespace lockstep
