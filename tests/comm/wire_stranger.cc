// Dials a gate of a running job, as wire_strangers_test.py asks, and says in one line what came of it.
//
//   wire_stranger HOST:PORT plaintext|tls SECONDS
//
// With the secret in LOCKSTEP_SECRET and the job in LOCKSTEP_JOB; without them with a secret of its own.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "net/gate.h"

int main(int argc, char** argv) try {
  namespace net = lockstep::net;
  if (argc != 4) return 2;
  const auto security = std::string(argv[2]) == "tls" ? net::Security::tls : net::Security::plaintext;
  const char* const job = std::getenv("LOCKSTEP_JOB");
  const auto known = net::Secret::from_environment();
  const net::Secret secret =
      known && job != nullptr ? known->derive("job " + std::string(job)) : net::Secret::make();
  const auto patience = std::chrono::milliseconds(static_cast<long>(1000 * std::atof(argv[3])));
  const auto stream = net::dial(net::Endpoint::parse("endpoint", argv[1], 0), secret, security,
                                "nobody asked for me", lockstep::Deadline::after(patience));
  std::printf("let in by %s\n", stream->peer().c_str());
  return 0;
} catch (const lockstep::Error& error) {
  std::printf("refused: %s\n", error.what());
  return 1;
}
