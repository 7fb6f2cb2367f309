#include "report/run_display.h"

#include <fmt/format.h>
#include <stdio_ext.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/base/bytes.h"
#include "lockstep/base/clock.h"
#include "lockstep/launch/launcher.h"
#include "report/noise_json.h"
#include "report/table.h"

namespace lockstep {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kPlainEvery_ns = 10'000'000'000;  // between lines when there is no terminal

std::size_t columns() {
  winsize size{};
  return ::ioctl(2, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 100;
}

std::string bar(double part, std::size_t width) {
  const auto eighths = static_cast<std::size_t>(std::clamp(part, 0.0, 1.0) * static_cast<double>(width * 8));
  static constexpr const char* kParts[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  std::string text;
  for (std::size_t i = 0; i < width; ++i)
    text += i < eighths / 8 ? "█" : i == eighths / 8 ? kParts[eighths % 8] : " ";
  return text;
}

double number(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found == event.end() || !found->is_number() ? NAN : found->get<double>();
}

// ", off by -20 %": how far a prediction is from what was measured. Nothing of one that is 0, as the exchange
// of one worker is.
std::string error_of(double predicted, double measured) {
  if (!(predicted > 0) || !(measured > 0)) return "";
  return fmt::format(", off by {:+.0f} %", std::round(100 * (predicted / measured - 1)) + 0.0);  // no -0
}

// What no model can do better than, where that is known.
std::string floor_of(const Json& summary) {
  const double floor = number(summary, "loss_floor");
  return std::isfinite(floor) ? fmt::format("floor {:.4f}, the text's entropy; ", floor) : "";
}

// "616 MiB (predicted 615 MiB, off by +0 %)", of rank 0's model state, and per parameter.
std::string state_of(const Json& summary, const char* bold, const char* plain) {
  const Json memory = summary.value("memory", Json::object());
  const double took = number(memory, "accounted_bytes"), predicted = number(memory, "predicted_bytes");
  if (!(took >= 0) || !(predicted >= 0)) return "";
  const auto text = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); };
  double most = took;  // of any worker
  for (const Json& bytes : summary.value("state_bytes", Json::array()))
    most = std::max(most, bytes.is_number() ? bytes.get<double>() : 0);
  return fmt::format("{}{}{}{}, {:.2f} bytes a parameter (predicted {}, {:.2f}{})", bold, text(took), plain,
                     most > 1.01 * took ? fmt::format(" on rank 0, {} at most", text(most)) : "",
                     number(summary, "state_bytes_a_parameter"), text(predicted),
                     number(summary, "predicted_state_bytes_a_parameter"), error_of(predicted, took));
}

// What steps waited for what is not in memory, of the optimizer's state and of parameters together.
std::string offload_cost_of(const Json& summary, const char* bold, const char* plain) {
  const Json offload = summary.value("offload", Json());
  if (!offload.is_object()) return "";
  double predicted = 0, measured = 0;
  for (const Json& part : {offload, offload.value("params", Json())}) {
    const double ms = number(part, "predicted_ms");
    if (!std::isfinite(ms)) continue;
    predicted += ms;
    measured += number(part, "measured_ms");
  }
  return std::isfinite(measured)
             ? fmt::format("{}{:.1f} ms{} that a step waited (predicted {:.1f} ms{})", bold, measured, plain,
                           predicted, error_of(predicted, measured))
             : fmt::format("no step waited (predicted {:.1f} ms)", predicted);
}

std::string percent(double part) { return std::isfinite(part) ? fmt::format("{:.1f} %", 100 * part) : "-"; }

}  // namespace

std::string format_duration(double seconds) {
  const auto s = static_cast<long long>(std::llround(std::clamp(seconds, 0.0, 1e9)));
  return s >= 3600 ? fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
                   : fmt::format("{}:{:02}", s / 60, s % 60);
}

// Both descriptors: mpirun gives its ranks a pseudo-terminal as standard output alone.
RunDisplay::RunDisplay(Show show)
    : show_(show), terminal_(is_terminal(2)), colours_(wants_colours(1) && wants_colours(2)) {}

void RunDisplay::handle(const Json& event) {
  const std::string kind = event.value("event", "");
  if (kind == "begin")
    begin(event);
  else if (kind == "step")
    step(event);
  else if (kind == "epoch")
    epoch(event);
  else if (kind == "note")
    note(event.at("text").get<std::string>());
  else if (kind == "checkpoint") {
    checkpoint_ = event.at("path").get<std::string>();
    resume_ = event.at("resume").get<std::string>();
  } else if (kind == "stopped") {
    stopped_by_ = event.at("signal").get<int>();
    const std::string checkpoint = event.at("checkpoint").get<std::string>();
    note(fmt::format("stopped at step {}; {}", event.at("step").get<std::int64_t>(),
                     checkpoint.empty() ? "there is no checkpoint"  // of weights that are not finite
                                        : fmt::format("the checkpoint is {}\nto resume: {}", checkpoint,
                                                      event.at("resume").get<std::string>())));
  } else if (kind == "done")
    finished(event);
  else if (kind == "through")
    through(event);
  else if (kind == "error" && errors.size() < 64)
    errors.push_back({event.value("kind", ""), event.value("text", "")});
}

void RunDisplay::begin(const Json& event) {
  begun_ = true;
  checkpoint_ = event.value("checkpoint", "");
  resume_ = event.value("resume", "");
  line(event.at("text").get<std::string>());
}

void RunDisplay::told_to_stop(int signal) {
  if (!begun_) return;  // there is nothing to save
  const char* const known = ::sigabbrev_np(signal);
  const std::string name = known != nullptr ? std::string("SIG") + known : fmt::format("signal {}", signal);
  const std::int64_t now = now_ns();
  if (told_ns_ == 0) {
    told_ns_ = now;
    note(fmt::format(
        "{}: ending the step, then writing a checkpoint; once more, after {} s, stops at once without one",
        name, kOneStop.count()));
  } else if (now - told_ns_ >= std::chrono::nanoseconds(kOneStopHeard).count()) {
    note(fmt::format(
        "{} again: stopping at once; {}", name,
        checkpoint_.empty() ? "there is no checkpoint" : "what came after " + checkpoint_ + " is lost"));
  }
}

std::string RunDisplay::hint() const {
  if (resume_.empty() || show_ == Show::nothing) return "";
  return checkpoint_.empty()
             ? "there is no checkpoint yet"
             : fmt::format("the newest checkpoint is {}; to resume: {}", checkpoint_, resume_);
}

void RunDisplay::step(const Json& event) {
  const double done = number(event, "step"), all = number(event, "steps");
  const std::string figures =
      fmt::format("loss {:.4f}  {} samples/s  comm {}  ETA {}", number(event, "loss"),
                  format_number(number(event, "samples_per_s")), percent(number(event, "comm_fraction")),
                  format_duration(number(event, "eta_s")));
  const std::string place =
      fmt::format("epoch {:.0f}  step {:.0f}/{:.0f}", number(event, "epoch"), done, all);
  if (terminal_) {
    const std::size_t taken = display_width(place) + display_width(figures) + 7;
    const std::size_t width = columns() > taken + 4 ? std::min<std::size_t>(30, columns() - taken) : 0;
    const std::string shown = width == 0 ? "" : fmt::format(" ▕{}▏", bar(done / all, width));
    progress_.show(colours_ ? fmt::format("\033[1m{}\033[0m{} {}", place, shown, figures)
                            : fmt::format("{}{} {}", place, shown, figures));
    return;
  }
  const std::int64_t now = now_ns();
  if (last_plain_ns_ == 0) last_plain_ns_ = now;
  if (now - last_plain_ns_ < kPlainEvery_ns) return;
  last_plain_ns_ = now;
  printer_.print(stderr, place + "  " + figures + "\n");
}

void RunDisplay::epoch(const Json& event) {
  std::string text = fmt::format("epoch {:.0f}  step {:.0f}  loss {:.4f}", number(event, "epoch"),
                                 number(event, "step"), number(event, "train_loss"));
  if (std::isfinite(number(event, "accuracy")))
    text += fmt::format("  validation {:.4f}  accuracy {}", number(event, "validation_loss"),
                        percent(number(event, "accuracy")));
  else if (std::isfinite(number(event, "validation_loss")))
    text += fmt::format("  validation {:.4f}", number(event, "validation_loss"));
  const Json metrics = event.value("metrics", Json::object());
  for (const auto& [name, value] : metrics.items())
    text += fmt::format("  {} {:.4f}", name, value.is_number() ? value.get<double>() : NAN);
  if (const auto noise = noise_from_json(event.value("noise", Json())))
    text += "  noise scale " + to_string(*noise);
  text += fmt::format("  {} samples/s  comm {}", format_number(number(event, "samples_per_s")),
                      percent(number(event, "comm_fraction")));
  if (show_ != Show::json) {
    line(text);
    return;
  }
  progress_.clear();
  print(stdout, event.dump());
}

void RunDisplay::finished(const Json& event) {
  done_ = true;
  const Json& s = event.at("summary");
  progress_.clear();
  if (show_ == Show::json) {
    print(stdout, s.dump());
    return;
  }
  const char* const bold = colours_ ? "\033[1m" : "";
  const char* const plain = colours_ ? "\033[0m" : "";
  if (std::isfinite(number(s, "accuracy")))
    line(fmt::format("accuracy       {}{}{}  (validation loss {:.4f})", bold, percent(number(s, "accuracy")),
                     plain, number(s, "validation_loss")));
  if (std::isfinite(number(s, "final_loss")))
    line(fmt::format("final loss     {:.4f}  ({}mean of the last {:.0f} step{}; the last one {:.4f})",
                     number(s, "final_loss"), floor_of(s), number(s, "final_loss_steps"),
                     number(s, "final_loss_steps") == 1 ? "" : "s", number(s, "last_step_loss")));
  const double predicted_ms = number(s, "predicted_step_ms");
  line(fmt::format("throughput     {}{}{} samples/s  (step {:.1f} ms{}, p95 {:.1f} ms)", bold,
                   format_number(number(s, "samples_per_s")), plain, number(s, "step_ms_p50"),
                   std::isfinite(predicted_ms) ? fmt::format(", predicted {:.1f} ms{}", predicted_ms,
                                                             error_of(predicted_ms, number(s, "step_ms_p50")))
                                               : "",
                   number(s, "step_ms_p95")));
  const double predicted = number(s, "predicted_comm_fraction");
  line(fmt::format("communication  {}{}{} of the work{}, {} of it hidden", bold,
                   percent(number(s, "comm_fraction")), plain,
                   std::isfinite(predicted) ? fmt::format(" (predicted {}{})", percent(predicted),
                                                          error_of(predicted, number(s, "comm_fraction")))
                                            : "",
                   percent(number(s, "overlap_fraction"))));
  if (const Json compress = s.value("compress", Json()); compress.is_object()) {
    const std::string about = compress.value("method", "");  // of auto with its reason, which the summary has
    const double ratio = number(compress, "ratio");
    const std::string less =
        ratio > 1 ? fmt::format(", messages {} × smaller in the last step", format_number(ratio)) : "";
    const double sent = number(s, "wire_bytes");  // none where workers share their memory
    line(fmt::format(
        "compression    {}{}{}{}{}", bold, about.substr(0, about.find(';')), plain, less,
        sent > 0 ? fmt::format(", all workers sent {} a step", format_bytes(static_cast<std::uint64_t>(sent)))
                 : ""));
  }
  if (const auto noise = noise_from_json(s.value("noise", Json())))
    line(fmt::format("noise scale    {}{}{} examples, 95 %, over {}; the batch is {:.0f}", bold,
                     to_string(*noise), plain,
                     noise->steps == 1 ? "one step" : fmt::format("the last {} steps", noise->steps),
                     number(s, "lanes") * number(s, "lane_batch")));
  if (const double bad = number(s, "steps_not_finite"); bad > 0)
    line(fmt::format("not finite     {}{:.0f}{} of {:.0f} steps, {}", bold, bad, plain,
                     number(event, "steps_here"),
                     event.value("on_nan", "") == "skip" ? "which were left out" : "which were trained on"));
  if (const double skipped = number(s, "steps_skipped"); skipped > 0)
    line(fmt::format("overflowed     {}{:.0f}{} of {:.0f} steps, which were skipped; the loss scale is {}",
                     bold, skipped, plain, number(s, "steps"), format_number(number(s, "loss_scale"))));
  if (const std::string state = state_of(s, bold, plain); !state.empty()) line("model state    " + state);
  if (const std::string cost = offload_cost_of(s, bold, plain); !cost.empty()) line("offload        " + cost);
  line(fmt::format("page           {}", event.at("page").get<std::string>()));
}

void RunDisplay::through(const Json& event) {
  done_ = true;
  line(event.at("text").get<std::string>());
  if (show_ == Show::json) print(stdout, event.dump());
}

void RunDisplay::line(const std::string& text) {
  if (show_ == Show::nothing) return;
  progress_.clear();
  print(show_ == Show::json ? stderr : stdout, text);
}

void RunDisplay::print(std::FILE* to, const std::string& text) {
  errno = 0;
  printer_.print(to, text + "\n");
  if (errno != EPIPE || to != stdout) return;  // what else is lost the frame says at the end
  ::__fpurge(stdout);                          // nobody will take it later either
  if (std::exchange(reader_gone_, true) || told_ns_ != 0 || done_) return;
  note("nobody reads standard output any more: ending the step, then writing a checkpoint");
}

void RunDisplay::note(const std::string& text) {
  progress_.clear();
  printer_.print(stderr, text + "\n");
}

}  // namespace lockstep
