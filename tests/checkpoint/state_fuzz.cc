// Throws bytes at the state.json of a checkpoint. Whatever they are, the reader either refuses them with a
// short UsageError of one line, or gives an object that says how far the run was and has options.
#include <string_view>

#include "base/fuzz_driver.h"
#include "lockstep/base/error.h"
#include "train/read_state.h"

void lockstep::fuzz::one(std::string_view input) {
  try {
    const auto state = parse_state(input, "(fuzz)");
    require(state.at("step").get<std::int64_t>() >= 0, "a run that was not begun");
    require(state.at("options").is_object(), "no options");
    require(parse_state(state.dump(), "(fuzz)") == state, "a state changes when it is written and read");
    accepted = true;
  } catch (const UsageError& refusal) {
    const std::string_view said = refusal.what();
    require(said.find('\n') == std::string_view::npos, "a refusal of several lines");
    require(said.size() < 300, "a refusal that quotes the whole file");
  }
}

std::vector<std::string> lockstep::fuzz::seeds() {
  return {
      R"({"format": 1, "step": 120, "options": {"model": "mlp", "workers": 2, "lr": 0.1, "data": "é \"x\"\\"},)"
      R"( "best_accuracy": null, "data": {"path": "/data", "train_sha256": "00"}})",
      R"({"step": 0, "options": {}})",
      R"({"format": 1, "step": 9223372036854775807, "options": {"a": [1, 2]}})"};
}
