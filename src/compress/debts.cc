#include "compress/debts.h"

#include <vector>

#include "comm/kernel/reduce.h"
#include "compress/arithmetic.h"
#include "grad/finite.h"

namespace lockstep::compress {

// Beside what has waited since an earlier change, for a gradient.
void Debts::owe(const std::string& key, const torch::Tensor& tensor) {
  const auto [at, is_new] = owed_.try_emplace(key, tensor);
  if (!is_new) at->second = at->second + tensor;
}

void Debts::add(const Exchange::State& entries, bool has_first) {
  const std::string server = "server/";
  for (const auto& [key, tensor] : entries) {
    if (key.starts_with("owed/")) owe(key, tensor);
    if (has_first && key.starts_with(server)) owe("owed/0/" + key.substr(server.size()), tensor);
  }
}

void Debts::pay(const Bucket& bucket) {
  if (owed_.empty() || bucket.data.dtype == DType::f64) return;
  for (const SubtreeSum& sum : bucket.sums)
    for (std::size_t t = 0; t < bucket.tensors.size(); ++t) {
      const BucketTensor& tensor = bucket.tensors[t];
      const auto owed = owed_.find("owed/" + std::to_string(sum.subtree) + "/" + tensor.name);
      if (sum.has[t] == 0 || owed == owed_.end()) continue;
      std::byte* const data = static_cast<std::byte*>(sum.data) + tensor.offset * size_of(bucket.data.dtype);
      if (!lockstep::all_finite(Buffer{data, tensor.count, bucket.data.dtype})) continue;
      std::vector<float> paid(tensor.count);
      const auto* const from = owed->second.data_ptr<float>();
      for (std::size_t i = 0; i < paid.size(); ++i) paid[i] = -from[i] * static_cast<float>(bucket.divisor);
      if (bucket.data.dtype == DType::f32) {
        compress::add({reinterpret_cast<float*>(data), tensor.count}, paid);
      } else {
        std::vector<float> wide(tensor.count);
        kernel::widen(wide.data(), data, tensor.count, bucket.data.dtype);
        compress::add(wide, paid);
        kernel::narrow(data, wide.data(), tensor.count, bucket.data.dtype);
      }
      owed_.erase(owed);
    }
}

}  // namespace lockstep::compress
