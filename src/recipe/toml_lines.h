// The part of TOML that a list of options needs, read line by line, so that errors can name the line:
//
//   [train]             # one section, or none
//   model = "resnet18"  # text in quotes of either kind, or as it is where it is one word
//   lanes = 8
//   no_augment          # alone: true
#pragma once

#include <string>
#include <vector>

namespace lockstep {

struct TomlLine {
  int number = 0;  // 1 is the first
  std::string section;
  std::string key;
  std::string value;  // without its quotes
};

// The lines that set something. `where` begins the message of the UsageError that names a line which can't be
// read.
std::vector<TomlLine> read_toml_lines(const std::string& text, const std::string& where);

}  // namespace lockstep
