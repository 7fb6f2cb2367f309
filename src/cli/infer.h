// `lockstep infer`: what its two halves share.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::cli {

struct InferOptions {
  std::string resume;
  std::string data;  // empty: the run's
  std::string data_dir;
  std::int64_t batch = 1;
  std::int64_t examples = 500;  // 0: all
  std::int64_t threads = 1;
  std::string precision;  // empty: the run's
  std::string device = "cpu";
  // Of a model of text.
  std::string prompt = "\n";
  std::int64_t generate = 200;  // characters; 0: none
  double temperature = 1;
  std::uint64_t seed = 0;
  std::string text_flag;  // one of these that was given, for a model that writes none; empty: none was
  bool json = false;
};

template <class Options, class Visit>
void visit_infer_options(Options& o, Visit&& visit) {
  visit("resume", o.resume);
  visit("data", o.data);
  visit("data_dir", o.data_dir);
  visit("batch", o.batch);
  visit("examples", o.examples);
  visit("threads", o.threads);
  visit("precision", o.precision);
  visit("device", o.device);
  visit("prompt", o.prompt);
  visit("generate", o.generate);
  visit("temperature", o.temperature);
  visit("seed", o.seed);
  visit("text_flag", o.text_flag);
  visit("json", o.json);
}

// Runs it; gives the exit status. Throws Error.
int run_infer(const nlohmann::ordered_json& request);

}  // namespace lockstep::cli
