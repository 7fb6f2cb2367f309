// What make_method() knows (methods.h), for those who only want the names.
#pragma once

namespace lockstep::compress {

inline constexpr const char* kMethodNames[] = {"none",   "dgc",    "fp8",         "int8",
                                               "intsgd", "onebit", "onebit-adam", "powersgd",
                                               "qsgd",   "randk",  "terngrad",    "topk"};

}  // namespace lockstep::compress
