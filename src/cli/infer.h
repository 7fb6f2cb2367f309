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
  // Of a model of text.
  std::string prompt = "\n";
  std::int64_t generate = 200;  // characters; 0: none
  double temperature = 1;
  std::uint64_t seed = 0;
  std::string text_flag;  // one of these that was given, for a model that writes none; empty: none was
  bool json = false;
};

inline nlohmann::ordered_json to_json(const InferOptions& o) {
  return {{"resume", o.resume}, {"data", o.data},           {"data_dir", o.data_dir},
          {"batch", o.batch},   {"examples", o.examples},   {"threads", o.threads},
          {"prompt", o.prompt}, {"generate", o.generate},   {"temperature", o.temperature},
          {"seed", o.seed},     {"text_flag", o.text_flag}, {"json", o.json}};
}

inline InferOptions infer_options(const nlohmann::ordered_json& json) {
  InferOptions o;
  json.at("resume").get_to(o.resume);
  json.at("data").get_to(o.data);
  json.at("data_dir").get_to(o.data_dir);
  json.at("batch").get_to(o.batch);
  json.at("examples").get_to(o.examples);
  json.at("threads").get_to(o.threads);
  json.at("prompt").get_to(o.prompt);
  json.at("generate").get_to(o.generate);
  json.at("temperature").get_to(o.temperature);
  json.at("seed").get_to(o.seed);
  json.at("text_flag").get_to(o.text_flag);
  json.at("json").get_to(o.json);
  return o;
}

// Runs it; gives the exit status. Throws Error.
int run_infer(const InferOptions& options);

}  // namespace lockstep::cli
