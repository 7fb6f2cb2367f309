// lockstep secret: makes the secret that the machines of one job share.
#include "net/secret.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <iostream>
#include <memory>
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

int make_secret(const std::optional<std::string>& out) {
  const std::string text = net::Secret::make().hex() + "\n";
  if (out && out->empty())
    throw UsageError("--out '' names no file; accepted: a new file, for example job.key");
  if (out)
    write_new(*out, text);
  else if (!(std::cout << text << std::flush))
    throw SystemError("standard output can't be written");
  return 0;
}

}  // namespace

void add_secret(Cli& cli) {
  auto out = std::make_shared<std::optional<std::string>>();
  CLI::App* const command =
      cli.app.add_subcommand("secret", "Make the secret that the machines of a job share");
  command->group(kStart);
  command
      ->add_option_function<std::string>(
          "--out", [out](const std::string& file) { *out = file; },
          "write it to this new file, which only you may read; default: print it")
      ->type_name("FILE");
  command->footer(
      "Whoever has the secret may join the job; nobody else gets a byte. Copy it to every machine and give "
      "it\n"
      "to lockstep run with --secret-file, LOCKSTEP_SECRET_FILE or LOCKSTEP_SECRET, never on a command "
      "line.\n"
      "\n"
      "Examples:\n"
      "  lockstep secret --out job.key\n"
      "  export LOCKSTEP_SECRET=$(lockstep secret)         for srun, which passes the environment on");
  command->callback([&cli, out] { cli.action = [out] { return make_secret(*out); }; });
}

}  // namespace lockstep::cli
