// The exchange of one model that compresses: which method has which parameter, and a bucket's way through
// them.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "compress/chooser.h"
#include "compress/debts.h"
#include "compress/method.h"
#include "compress/method_text.h"
#include "compress/past.h"
#include "lockstep/compress/compress.h"

namespace lockstep::compress {

class Compressor final : public MomentumExchange,
                         public WayCosts,
                         public std::enable_shared_from_this<Compressor> {
 public:
  // `links`: by which auto chooses.
  Compressor(const CompressOptions& options, Exchange::Leaves leaves, LinkView links = real_links());

  const std::string& name() const { return options_.method; }
  Subtrees bind(const std::vector<NamedTensor>& parameters, ReducePrecision precision, const Group& group);
  Work run(const Bucket& bucket);
  Exchange::State state();
  void load(const Exchange::State& state);
  // Exchange::leave_out.
  void leave_out();
  double expected_seconds(const Group& group, std::size_t count, DType dtype) const;
  ExchangeFigures figures() const;
  // Exchange::never_begins.
  std::string never_begins(std::int64_t steps) const;
  // What a way costs a bucket: of auto's candidates.
  std::optional<WayCost> cost(const BucketView& bucket, int way) const override;

  // Of onebit-adam; else nobody asks.
  bool has_momenta() const { return momenta_.has_value(); }
  double beta1() const override { return momenta_->beta1; }
  bool begun() const override { return momenta_->begun; }
  bool carries(std::size_t parameter) const override;
  bool is_due() const override;
  void take(std::size_t parameter, const torch::Tensor& momentum) override;
  void begin_momenta() override;

 private:
  struct Line {  // a rule
    std::string pattern;
    std::unique_ptr<Method> method = nullptr;
    std::int64_t warmup = 0;
    std::size_t min = 0;
  };
  // Which of a bucket's tensors go which way.
  struct Ways {
    std::vector<std::vector<std::size_t>> by_line;
    std::vector<std::size_t> dense = {};
    bool all_dense = true;
  };

  struct Momenta {
    double beta1 = 0;
    std::int64_t warmup = 0;
    bool begun = false;
  };

  // Groups of calls that begin in one order each.
  struct Calls {
    Group inside = {};               // of the workers that share this one's subtree
    Group first = {};                // of the methods' first calls, and of what travels as it is
    std::vector<Group> second = {};  // by rule: of its method's second calls, where it has any
  };

  void settle_momenta();
  Past past() const;
  Subtrees settle_subtrees(const Group& group, const Past& past) const;
  // Of its gradient's elements.
  std::size_t element_bytes(const torch::Tensor& tensor) const;
  std::string why_dense(const Line& line, const torch::Tensor& tensor) const;
  // The first rule that has the parameter; of auto the candidate that was chosen for it.
  std::vector<Line>::const_iterator line_for(std::size_t parameter, const std::string& name) const;
  void assign(const std::vector<NamedTensor>& parameters);
  Calls make_lines(const Group& group, const Carriage& carriage) const;
  void bind_methods();
  // auto: other methods have the parameters from now on, which go on with what was remembered of them.
  void use_choices();
  void load_choices(Exchange::State& rest);
  bool has_forms() const;
  void keep_form(int most_gathered);
  double table_seconds(Collective what, std::size_t count, DType dtype) const;
  double scattered_seconds(std::size_t payload) const;
  // Of a step that may be void.
  void keep_for(const Bucket& bucket);
  Work send(const Bucket& bucket, std::int64_t step);
  bool is_warming_up(const Line& line, std::int64_t step) const;
  Ways ways_of(const Bucket& bucket, std::int64_t step) const;
  Work begin(const std::shared_ptr<Flight>& flight, const Ways& ways);
  Work sum_inside(const std::shared_ptr<Flight>& flight);
  void widen(Flight& flight) const;
  void look(Flight& flight, const Ways& ways) const;

  CompressOptions options_;
  Exchange::Leaves leaves_;
  Exchange plain_;
  std::vector<Line> lines_;  // of auto: its candidates
  std::optional<Chooser> chooser_;
  LinkView links_;
  std::unique_ptr<Method> dense_;
  std::vector<NamedTensor> parameters_;
  ReducePrecision precision_ = ReducePrecision::same;
  std::vector<int> line_of_;  // by parameter; -1: none
  double ratio_ = 1;          // of compressed bytes to all
  std::optional<Group> group_;
  Carriage carriage_;
  MemoryBook book_;
  Debts debts_;
  // Before the last step, where it may be void.
  struct Before {
    Exchange::State book;
    Debts debts;
  };
  std::optional<Before> before_;
  Calls calls_;
  Staging flags_;
  Savings savings_;
  std::int64_t steps_ = 0;       // so far, of a run without lanes
  std::int64_t last_step_ = -1;  // whose buckets were the last
  std::int64_t bond_ = 0;        // Past::bond
  std::optional<Momenta> momenta_;
};

Exchange exchange_of(const std::shared_ptr<Compressor>& compressor, Exchange::Leaves leaves);

}  // namespace lockstep::compress
