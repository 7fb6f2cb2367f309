#include "compress/debts.h"

#include <vector>

#include "comm/kernel/reduce.h"
#include "compress/arithmetic.h"

namespace lockstep::compress {

void Debts::add(const Exchange::State& entries) {
  for (const auto& [key, tensor] : entries)
    if (key.starts_with("owed/")) owed_.insert_or_assign(key, tensor);
}

void Debts::pay(const Bucket& bucket) {
  if (owed_.empty() || bucket.data.dtype == DType::f64) return;
  for (const SubtreeSum& sum : bucket.sums)
    for (std::size_t t = 0; t < bucket.tensors.size(); ++t) {
      const BucketTensor& tensor = bucket.tensors[t];
      const auto owed = owed_.find("owed/" + std::to_string(sum.subtree) + "/" + tensor.name);
      if (sum.has[t] == 0 || owed == owed_.end()) continue;
      std::byte* const data = static_cast<std::byte*>(sum.data) + tensor.offset * size_of(bucket.data.dtype);
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
