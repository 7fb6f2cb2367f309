// What strategies have in common whose workers each hold the whole model and run it on their own lanes:
// lanes, batch norm's buffers, the exchange of gradients in buckets, and the looks at whether all is well.
// What a worker updates is theirs to say: slices(), begin_updates(), share_updates(), join(), cut(),
// add_parts().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/grad/reducer.h"
#include "lockstep/parallel/module_ref.h"
#include "lockstep/parallel/strategy.h"

namespace lockstep {

class ParameterUnits;

class Replicated : public Strategy {
 public:
  ~Replicated() override;
  Replicated(const Replicated&) = delete;
  Replicated& operator=(const Replicated&) = delete;

  std::vector<NamedTensor> parameters() const override;
  void synchronize() override;
  void watch_overflow(bool on) override;
  bool overflowed() const override;
  void end_step() override;
  void reset() override;
  void check_replicas() override;

  torch::nn::Module& module() const override { return *module_; }
  const Group& group() const override { return group_; }
  const ExchangeLog& last_exchange() const override;
  double bucket_cap_mb() const override { return bucket_cap_mb_; }
  int bucket_of(std::size_t i) const override;
  const Exchange& exchange() const override { return traits_.exchange; }
  std::size_t gradient_bytes() const override;
  std::size_t parameter_bytes() const override;
  std::vector<double> lane_squares() const override;
  bool gathers() const override;
  std::size_t gathered_bytes() const override;
  std::optional<OffloadFigures> offload(int lanes) const override;
  void meet() override;
  Reducer& reducer() { return *reducer_; }

 protected:
  // Collective. Throws MismatchError naming the first parameter or buffer whose name, shape or dtype differs
  // between two ranks, with both sides.
  // `keep_layout`: buckets are laid out as at first for ever, because slices follow them.
  struct Traits {
    std::string name;
    Exchange exchange;  // where the options have none
    bool keep_layout = false;
    bool reuse_buckets = false;  // ReducerOptions::reuse_buckets
    // Of parameters that are gathered when they are needed; null: none are.
    std::shared_ptr<ParameterUnits> units = nullptr;
    // Takes units that were cut as they were made (construction.h) as they are; otherwise they are brought
    // together first.
    bool takes_parts = false;
  };
  Replicated(Traits traits, const ModuleRef& module, Group group, StrategyOptions options);
  // Goes on in `group`, with the model of its rank 0. Collective there.
  void bind(Group group);
  // Somebody reads slices(). Where each rank has only its part of the gradients and nobody does, nothing is
  // trained: the second exchange says so.
  void slices_are_read() { slices_read_ = true; }
  void set_whole(bool on) override;
  void bring(const torch::Tensor& parameter) override;

 private:
  struct Lanes;  // the lane under way, and what travels with the gradients
  void begin_lane(const LaneInfo& info) override;
  void end_lane() noexcept override;
  void open_lane(const LaneInfo& info, int position);
  bool set_sync(bool on) override;
  void wait_for_passes();

  Traits traits_;
  std::shared_ptr<torch::nn::Module> module_;
  Group group_;
  StrategyOptions options_;
  double bucket_cap_mb_ = 0;
  bool slices_read_ = false;
  int overflow_watchers_ = 0;
  std::unique_ptr<Lanes> lanes_;
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace lockstep
