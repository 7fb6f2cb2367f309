// Options from a file: TOML, or JSON when its name ends in .json.
//
//   [train]              # this section, or none
//   model = "resnet18"
//   lanes = 8
//   no_augment = true
#pragma once

#include <string>
#include <string_view>

#include "recipe/train_options.h"

namespace lockstep {

// Takes every option of the file except those in `given`, which the command line has decided. Gives the names
// in the file. Throws UsageError naming the file, the line or key, and what is accepted.
Given load_config(const std::string& file, TrainOptions& options, const Given& given);
// The same of its text.
Given parse_config(std::string_view text, const std::string& file, TrainOptions& options, const Given& given);

}  // namespace lockstep
