#include "parallel/replicas.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "grad/torch_types.h"
#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

std::string form_of(const NamedTensor& named) {
  std::ostringstream text;
  text << named.name << " " << torch::toString(named.tensor.scalar_type()) << " " << named.tensor.sizes();
  if (!named.tensor.is_contiguous()) text << " strides " << named.tensor.strides();
  return text.str();
}

// FNV-like over words, four chains at once so that it runs at memory speed.
std::uint64_t bits_of(const torch::Tensor& tensor) {
  const torch::Tensor dense = (tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous()).cpu();
  const auto bytes = static_cast<std::size_t>(dense.nbytes());
  const auto* const data = static_cast<const std::byte*>(dense.data_ptr());
  std::uint64_t chain[4] = {1, 2, 3, 4};
  constexpr std::uint64_t kPrime = 0x9e3779b97f4a7c15u;
  std::size_t at = 0;
  for (; at + 32 <= bytes; at += 32)
    for (std::size_t k = 0; k < 4; ++k) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + at + 8 * k, 8);
      chain[k] = (chain[k] ^ word) * kPrime;
      chain[k] ^= chain[k] >> 29;
    }
  for (std::size_t k = 0; at < bytes; at += 8, k = (k + 1) % 4) {
    std::uint64_t word = 0;
    std::memcpy(&word, data + at, std::min<std::size_t>(8, bytes - at));
    chain[k] = (chain[k] ^ word) * kPrime;
    chain[k] ^= chain[k] >> 29;
  }
  return mix_bits(chain[0] ^ mix_bits(chain[1] ^ mix_bits(chain[2] ^ mix_bits(chain[3]))));
}

}  // namespace

void check_form(const Group& group, const std::vector<NamedTensor>& tensors) {
  std::string own;
  for (const NamedTensor& tensor : tensors) own += form_of(tensor) + "\n";
  const std::vector<std::string> texts = group.all_gather(own);
  for (std::size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    std::istringstream first(texts[0]);
    std::istringstream other(texts[r]);
    std::string a;
    std::string b;
    do {
      if (!std::getline(first, a)) a = "nothing more";
      if (!std::getline(other, b)) b = "nothing more";
    } while (a == b);
    throw MismatchError("the models differ: " + group.named(0) + " has " + a + ", " +
                        group.named(static_cast<int>(r)) + " has " + b);
  }
}

void compare_threads(const Group& group, int threads) {
  const std::vector<int> all = group.all_gather(threads);
  const auto other = std::find_if(all.begin(), all.end(), [&](int n) { return n != all[0]; });
  if (group.rank() != 0 || other == all.end()) return;
  log().warn(
      "{} computes with {} threads, {} with {}: the same bits in another run need the same number "
      "everywhere (OMP_NUM_THREADS, or lockstep run --threads)",
      group.named(0), all[0], group.named(static_cast<int>(other - all.begin())), *other);
}

bool same_bits(const Group& group, const std::vector<NamedTensor>& tensors) {
  std::uint64_t own = 0;
  for (const NamedTensor& tensor : tensors) own = mix_bits(own ^ bits_of(tensor.tensor));
  const std::vector<std::int64_t> all = group.all_gather(static_cast<std::int64_t>(own));
  return std::ranges::count(all, all[0]) == group.size();
}

void check_bits(const Group& group, const std::vector<NamedTensor>& tensors) {
  std::vector<std::int64_t> own;
  for (const NamedTensor& tensor : tensors) own.push_back(static_cast<std::int64_t>(bits_of(tensor.tensor)));
  std::vector<std::int64_t> all(own.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(own, all);
  std::string differ;
  int count = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    std::string ranks;
    for (int r = 1; r < group.size(); ++r)
      if (all[static_cast<std::size_t>(r) * own.size() + i] != all[i])
        ranks += (ranks.empty() ? "" : ", ") + group.named(r);
    if (ranks.empty()) continue;
    if (++count <= 3) differ += (count == 1 ? "'" : "; '") + tensors[i].name + "' on " + ranks;
  }
  if (count > 3) differ += "; and " + std::to_string(count - 3) + " more";
  if (count > 0)
    throw MismatchError(
        "the replicas have drifted apart, against " + group.named(0) + ": " + differ +
        "; something changed parameters on some ranks only: a skipped backward without "
        "synchronize() and end_step(), a step() left out, an exception that one rank caught, a rate or "
        "clipping of its own, weights loaded on one rank");
}

void broadcast_all(const Group& group, const std::vector<NamedTensor>& tensors) {
  for (const NamedTensor& tensor : tensors) {
    const torch::Tensor real =
        tensor.tensor.is_complex() ? torch::view_as_real(tensor.tensor) : tensor.tensor;
    if (real.numel() == 0) continue;
    group.broadcast(buffer_of(real, "'" + tensor.name + "'"), 0);
    // Optimizers tell by it that their master weights are of before.
    if (group.rank() != 0 && !real.is_inference()) real.unsafeGetTensorImpl()->bump_version();
  }
}

}  // namespace lockstep
