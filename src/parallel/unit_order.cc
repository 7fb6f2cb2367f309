#include "parallel/unit_order.h"

namespace lockstep {

UnitOrder::UnitOrder(std::size_t units) : units_(units), after_(2 * units + 1, kNone) {}

std::int32_t& UnitOrder::after(Pass pass, int unit) {
  return after_[(pass == Pass::forward ? 0 : units_) + static_cast<std::size_t>(unit)];
}

void UnitOrder::begins(Pass pass, int unit) {
  if (agreed_) return;
  if (pass == pass_ && before_ != kNone) {
    std::int32_t& next = after(pass, before_);
    if (next == kNone)
      next = unit;
    else if (next != unit)
      next = kSeveral;
  }
  if (pass_ == Pass::forward && pass == Pass::backward && before_ != kNone) after_.back() = before_;
  pass_ = pass;
  before_ = unit;
}

int UnitOrder::next(Pass pass, int unit) const {
  if (!agreed_) return kNone;
  const std::int32_t next = after_[(pass == Pass::forward ? 0 : units_) + static_cast<std::size_t>(unit)];
  return next >= 0 ? next : kNone;
}

bool UnitOrder::ends_forward(int unit) const { return agreed_ && after_.back() == unit; }

void UnitOrder::agree(const Group& group) {
  if (agreed_) return;
  std::vector<std::int32_t> told = after_;
  group.broadcast(buffer(told), 0, {.purpose = "the order of the units"});
  if (told.back() == kNone) return;
  after_ = std::move(told);
  agreed_ = true;
}

}  // namespace lockstep
