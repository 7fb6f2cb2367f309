#include "net/silence.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <string>

#include "net/stream.h"

namespace lockstep::net {

void SilenceWatch::ask(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  // Two retransmissions of data, or two probes of a closed window, without an answer: one alone may have left
  // just now, after a long pause. Any answer sets both back to 0.
  const bool unanswered = info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2;
  if (unanswered && info.tcpi_last_ack_recv >= kSilenceSeconds * 1000U)
    throw ConnectionLost{"does not answer for " + std::to_string(info.tcpi_last_ack_recv / 1000) + " s"};
}

}  // namespace lockstep::net
