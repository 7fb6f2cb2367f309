// How good the model is on examples that it has not learnt from.
#pragma once

#include "lockstep/comm/group.h"
#include "lockstep/data/dataset.h"
#include "lockstep/models/models.h"

namespace lockstep::cli {

struct Evaluation {
  double loss = 0;      // mean
  double accuracy = 0;  // part of the targets that is the likeliest class
};

// The workers share the batches; the sums are taken in the order of the batches, so the result has the same
// bits for any number of workers. Collective. The model is in training mode afterwards.
Evaluation evaluate(Model& model, const Dataset& data, std::int64_t batch, const Group& world);

}  // namespace lockstep::cli
