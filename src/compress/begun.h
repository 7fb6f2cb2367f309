// Several calls of one bucket, begun one after the other.
#pragma once

#include <cstddef>
#include <exception>
#include <utility>
#include <vector>

#include "lockstep/comm/work.h"

namespace lockstep::compress {

// What has been begun, as one work: memory that calls write to is waited for though a later one could not be
// begun.
class Begun {
 public:
  explicit Begun(std::size_t most) { works_.reserve(most); }
  // `call` begins one and gives its Work. False: it threw, which is what all() ends with.
  template <class Call>
  bool add(Call&& call) try {
    works_.push_back(call());
    return true;
  } catch (...) {
    if (works_.empty()) throw;
    error_ = std::current_exception();
    return false;
  }
  // Done when all of them are.
  Work all() const {
    Work all = works_.size() == 1 ? works_.front() : when_all(works_);
    if (error_ == nullptr) return all;
    return all.then([error = error_] { std::rethrow_exception(error); });
  }

 private:
  std::vector<Work> works_;
  std::exception_ptr error_;
};

}  // namespace lockstep::compress
