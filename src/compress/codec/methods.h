// The methods: each is in the file of its name, which says what it does, what it sends and what it is biased
// by. Options are right when they come here (codecs.cc).
#pragma once

#include <memory>
#include <string>

#include "compress/codec/codec.h"
#include "compress/codec/kernels.h"

namespace lockstep {

std::unique_ptr<Codec> fp8_codec(codec_kernel::Fp8 type);
std::unique_ptr<Codec> int8_codec();
std::unique_ptr<Codec> onebit_codec();
std::unique_ptr<Codec> qsgd_codec(int levels);  // 1 to 127
std::unique_ptr<Codec> terngrad_codec();
std::unique_ptr<Codec> topk_codec(double ratio);  // above 0, at most 1

}  // namespace lockstep
