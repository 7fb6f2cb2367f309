// Everything a program needs, in one include.
//
// Start with comm/init.h (how a program joins its peers) and comm/group.h (what it can do with them).
#pragma once

#include "lockstep/base/bytes.h"   // IWYU pragma: export
#include "lockstep/base/dtype.h"   // IWYU pragma: export
#include "lockstep/base/error.h"   // IWYU pragma: export
#include "lockstep/comm/buffer.h"  // IWYU pragma: export
#include "lockstep/comm/group.h"   // IWYU pragma: export
#include "lockstep/comm/init.h"    // IWYU pragma: export
#include "lockstep/comm/memory.h"  // IWYU pragma: export
#include "lockstep/comm/work.h"    // IWYU pragma: export
