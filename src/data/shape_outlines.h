// The ten outlines of `shapes`.
#pragma once

namespace lockstep {

// Whether (x, y) is inside the outline of class `label`, drawn upright around the origin within a circle of
// about 1.
bool inside_shape(int label, double x, double y);

}  // namespace lockstep
