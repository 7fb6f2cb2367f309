#include "compress/power_sgd.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "compress/arithmetic.h"
#include "compress/codec/element_random.h"
#include "compress/codec/low_rank.h"
#include "compress/tree_sum.h"

namespace lockstep::compress {
namespace {

struct Extents {
  std::size_t rows = 0;
  std::size_t columns = 0;
};

Extents extents_of(const std::vector<std::int64_t>& sizes) {
  if (sizes.size() < 2) return {1, 0};
  std::size_t columns = 1;
  for (std::size_t d = 1; d < sizes.size(); ++d) columns *= static_cast<std::size_t>(sizes[d]);
  return {static_cast<std::size_t>(sizes[0]), columns};
}

// One bucket's matrices on their way.
struct Matrices {
  struct One {
    std::size_t member = 0;
    Extents extents = {};
    std::span<float> p = {}, q = {};             // of all subtrees, in the memory that travels
    std::vector<std::vector<float>> own_q = {};  // of this worker's
    bool finite = true;
  };
  std::vector<One> list;
  float* p = nullptr;
  float* q = nullptr;
  std::size_t p_count = 0, q_count = 0;
};

class PowerSgd final : public Method {
 public:
  PowerSgd(std::string name, const PowerSgdOptions& options) : name_(std::move(name)), options_(options) {}

  std::string name() const override { return name_; }
  bool gathers() const override { return false; }
  bool has_two_calls(const Carriage&) const override { return true; }
  std::size_t payload_bytes(const std::vector<std::int64_t>& sizes) const override {
    const Extents e = extents_of(sizes);
    return (e.rows + e.columns) * options_.rank * sizeof(float);
  }
  std::string why_dense(const std::vector<std::int64_t>& sizes, std::size_t element_bytes) const override {
    const auto [rows, columns] = extents_of(sizes);
    if (sizes.size() < 2) return "it is no matrix";
    if (options_.rank > std::min(rows, columns))
      return fmt::format("rank {} is above that of a matrix of {} × {}", options_.rank, rows, columns);
    return payload_bytes(sizes) < rows * columns * element_bytes
               ? ""
               : fmt::format("rank {} makes a matrix of {} × {} no smaller", options_.rank, rows, columns);
  }

  void bind(const Setting& setting, const std::vector<NamedTensor>& parameters) override {
    setting_ = setting;
    extents_.clear();
    for (const auto& [name, tensor] : parameters) {
      extents_[name] = extents_of(tensor.sizes().vec());
      setting_.book->declare_shared(
          "q", name,
          {static_cast<std::int64_t>(options_.rank), static_cast<std::int64_t>(extents_[name].columns)});
      if (options_.feedback) setting_.book->declare_by_subtree("owed", name, tensor.sizes().vec());
    }
  }

  Work run(const std::shared_ptr<Flight>& flight, std::vector<std::size_t> members) override {
    const auto m = std::make_shared<Matrices>(lay_out(*flight, members));
    for (Matrices::One& one : m->list) project(*flight, one);
    setting_.savings->add_bytes(dense_bytes(*flight, members),
                                static_cast<double>((m->p_count + m->q_count) * sizeof(float)));
    const CallOptions options{.purpose = flight->bucket.purpose};
    return setting_.lines.first.all_reduce_async(Buffer{m->p, m->p_count, DType::f32}, options)
        .then([this, flight, m] {
          for (Matrices::One& one : m->list) project_back(*flight, one);
          return setting_.lines.second.all_reduce_async(Buffer{m->q, m->q_count, DType::f32},
                                                        {.purpose = flight->bucket.purpose});
        })
        .then([this, flight, m] {
          for (const Matrices::One& one : m->list) finish(*flight, one);
        });
  }

 private:
  Matrices lay_out(const Flight& flight, const std::vector<std::size_t>& members) {
    Matrices m;
    for (const std::size_t member : members) {
      const Extents extents = extents_.at(flight.bucket.tensors[member].name);
      m.list.push_back({.member = member, .extents = extents});
      m.p_count += extents.rows * options_.rank;
      m.q_count += extents.columns * options_.rank;
    }
    const int index = flight.bucket.index;
    m.p = reinterpret_cast<float*>(p_.of(setting_.lines.first, index, m.p_count * sizeof(float)));
    m.q = reinterpret_cast<float*>(q_.of(setting_.lines.second, index, m.q_count * sizeof(float)));
    float *p = m.p, *q = m.q;
    for (Matrices::One& one : m.list) {
      one.p = {p, one.extents.rows * options_.rank};
      one.q = {q, one.extents.columns * options_.rank};
      p += one.p.size();
      q += one.q.size();
    }
    return m;
  }

  const std::string& name_of(const Flight& flight, const Matrices::One& one) const {
    return flight.bucket.tensors[one.member].name;
  }
  Matrix matrix_of(const Flight& flight, const Matrices::One& one, std::size_t k) const {
    return {flight.sum(k, one.member).data(), one.extents.rows, one.extents.columns};
  }

  // The sum of what `each` makes of this worker's subtrees; negative zeros where another worker speaks.
  template <class Each>
  void sum_over_own(const Flight& flight, const Matrices::One& one, std::span<float> out,
                    const Each& each) const {
    const auto there = [&](std::size_t k) { return flight.there[k][one.member] != Presence::absent; };
    if (!setting_.carriage->speaks() || flight.subtrees.empty()) return fill(out, -0.0f);
    tree_sum(flight.subtrees.size(), out, there, each, [&](std::size_t k, std::span<float> to) {
      std::vector<float> part(to.size());
      each(k, std::span<float>(part));
      add(to, part);
    });
  }

  void project(const Flight& flight, Matrices::One& one) {
    const std::string& name = name_of(flight, one);
    const std::span<float> start = setting_.book->shared("q", name);
    draw_zero_columns(start, flight.step, name);
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k) {
      if (flight.there[k][one.member] != Presence::there) continue;
      const std::span<float> values = flight.sum(k, one.member);
      if (options_.feedback)
        add_owed(values, flight.inverse, setting_.book->of("owed", flight.subtrees[k], name));
      else
        scale(values, flight.inverse);
    }
    sum_over_own(flight, one, one.p, [&](std::size_t k, std::span<float> to) {
      if (flight.there[k][one.member] == Presence::not_finite)
        fill(to, std::numeric_limits<float>::quiet_NaN());
      else
        times(matrix_of(flight, one, k), start, options_.rank, to);
    });
  }

  void project_back(const Flight& flight, Matrices::One& one) const {
    one.finite = all_finite(one.p);
    if (!one.finite) return fill(one.q, -0.0f);
    orthonormalise(one.p, options_.rank);
    one.own_q.assign(flight.subtrees.size(), {});
    for (std::size_t k = 0; k < flight.subtrees.size(); ++k) {
      if (flight.there[k][one.member] != Presence::there) continue;
      one.own_q[k].resize(one.q.size());
      transposed_times(matrix_of(flight, one, k), one.p, options_.rank, one.own_q[k]);
    }
    sum_over_own(flight, one, one.q, [&](std::size_t k, std::span<float> to) {
      std::copy(one.own_q[k].begin(), one.own_q[k].end(), to.begin());
    });
  }

  void finish(const Flight& flight, const Matrices::One& one) {
    const std::span<float> out = flight.out(one.member);
    const std::string& name = name_of(flight, one);
    const std::size_t columns = one.extents.columns;
    if (!one.finite) return fill(out, std::numeric_limits<float>::quiet_NaN());
    if (!all_finite(one.q)) return overflow(flight, one);
    for (std::size_t k = 0; k < flight.subtrees.size() && options_.feedback; ++k)
      if (!one.own_q[k].empty()) {
        const std::span<float> owed = setting_.book->of("owed", flight.subtrees[k], name);
        expand_add(one.p, one.own_q[k], options_.rank, owed, columns);
        if (Savings::measures(flight.step))
          setting_.savings->add_error(squares(owed), squares(flight.sum(k, one.member)));
      }
    if (is_needed(flight, setting_, one.member)) expand(one.p, one.q, options_.rank, out, columns);
    const std::span<float> start = setting_.book->shared("q", name);
    for (std::size_t c = 0; c < options_.rank; ++c)  // where there was no gradient the old one stays
      if (!is_zero(one.q.subspan(c * columns, columns)))
        std::copy_n(one.q.data() + c * columns, columns, start.data() + c * columns);
  }

  // Every sum was finite, and a product with it is not: what is owed would do the same to the next step's.
  void overflow(const Flight& flight, const Matrices::One& one) {
    for (std::size_t k = 0; k < flight.subtrees.size() && options_.feedback; ++k)
      if (!one.own_q[k].empty()) fill(setting_.book->of("owed", flight.subtrees[k], name_of(flight, one)), 0);
    fill(flight.out(one.member), std::numeric_limits<float>::quiet_NaN());
  }

  static bool is_zero(std::span<const float> x) {
    return std::ranges::all_of(x, [](float value) { return value == 0; });
  }

  void draw_zero_columns(std::span<float> q, std::int64_t step, const std::string& name) const {
    const ElementRandom random(setting_.seed, step, -1, name);
    const std::size_t columns = q.size() / options_.rank;
    for (std::size_t c = 0; c < options_.rank; ++c) {
      const std::span<float> column = q.subspan(c * columns, columns);
      if (!is_zero(column)) continue;
      for (std::size_t j = 0; j < columns; ++j) column[j] = 2 * random.uniform(c * columns + j) - 1;
    }
  }

  std::string name_;
  PowerSgdOptions options_;
  Setting setting_;
  std::map<std::string, Extents> extents_;
  Staging p_, q_;
};

}  // namespace

std::unique_ptr<Method> power_sgd(std::string name, const PowerSgdOptions& options) {
  return std::make_unique<PowerSgd>(std::move(name), options);
}

}  // namespace lockstep::compress
