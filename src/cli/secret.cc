// lockstep secret: makes the secret that the machines of one job share.
#include "net/secret.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "lockstep/base/error.h"
#include "lockstep/base/fd.h"

namespace lockstep::cli {
namespace {

// Only its owner may read the file. One that is there stays: other machines may have a copy of it.
void write_new(const std::string& file, const std::string& text) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd && errno == EEXIST)
    throw UsageError("--out " + file +
                     " is there already, and other machines may have a copy of it; accepted: a new file");
  if (!fd) throw SystemError("--out " + file, errno);
  if (::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    const int error = errno;
    ::unlink(file.c_str());
    throw SystemError("--out " + file, error);
  }
}

struct SecretFlags {
  std::optional<std::string> out;
  bool json = false;
};

int make_secret(const SecretFlags& flags) {
  const std::optional<std::string>& out = flags.out;
  const std::string secret = net::Secret::make().hex(), text = secret + "\n";
  if (out && out->empty())
    throw UsageError("--out '' names no file; accepted: a new file, for example job.key");
  if (out) write_new(*out, text);
  // A secret that is in a file is not printed too.
  if (flags.json)
    std::cout << nlohmann::ordered_json({{out ? "file" : "secret", out.value_or(secret)}}).dump() << '\n';
  else if (!out)
    std::cout << text;
  if (!(std::cout << std::flush)) throw SystemError("standard output can't be written");
  return 0;
}

}  // namespace

void add_secret(Cli& cli) {
  auto flags = std::make_shared<SecretFlags>();
  CLI::App* const command =
      cli.app.add_subcommand("secret", "Make the secret that the machines of a job share");
  command->group(kStart);
  command
      ->add_option_function<std::string>(
          "--out", [flags](const std::string& file) { flags->out = file; },
          "write it to this new file, which only you may read; default: print it")
      ->type_name("FILE");
  command->add_flag("--json", flags->json, "one JSON object: the secret, or the file that has it");
  command->footer(
      "Whoever has the secret may join the job; nobody else gets a byte. Copy it to every machine and give "
      "it\n"
      "to lockstep run with --secret-file, LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET, never on a command "
      "line.\n"
      "\n"
      "Examples:\n"
      "  lockstep secret --out job.key\n"
      "  export LOCKSTEP_SECRET=$(lockstep secret)         for srun, which passes the environment on");
  command->callback([&cli, flags] { cli.action = [flags] { return make_secret(*flags); }; });
}

}  // namespace lockstep::cli
