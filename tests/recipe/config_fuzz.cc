// Throws bytes at the reader of files of options, as TOML and as JSON: what is taken passes every check of a
// value and gives the same options when they are written as config.json and read again; everything else is
// refused with a UsageError of one line.
#include <nlohmann/json.hpp>

#include "base/fuzz_driver.h"
#include "lockstep/base/error.h"
#include "recipe/config_file.h"

void lockstep::fuzz::one(std::string_view input) {
  for (const char* const file : {"a.toml", "a.json"}) {
    TrainOptions options;
    try {
      parse_config(input, file, options, {});
    } catch (const UsageError& refusal) {
      require(std::string_view(refusal.what()).find('\n') == std::string_view::npos,
              "a refusal of several lines");
      continue;
    }
    accepted = true;
    check_values(options);
    TrainOptions again;
    parse_config(to_json(options).dump(), "config.json", again, {});
    require(to_json(again) == to_json(options), "options change when they are written and read");
  }
}

std::vector<std::string> lockstep::fuzz::seeds() {
  return {"# a comment\nmodel = \"mlp\"\nlane-batch = 16\nlr = 1e-3\nno_augment = true\ndata = 'a\\b'\n",
          "[train]\nseed = 0x1F\nbucket_cap_mb = \"auto\"\nlanes = 1_000\n",
          "data = \"\"\"\\\n\xC2\xA7\"\"\"\n",  // a letter where the parser looks for white space
          "train = { steps = 5, lr = 0.5 }", to_json(TrainOptions()).dump(2)};
}
