// The name under which rank 0 of a job on this machine is found: a Unix socket in the abstract namespace,
// which any local user may take first where it can be guessed. So both sides ask the kernel whose the other
// end is.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/fd.h"

namespace lockstep::shm {

UniqueFd new_socket();  // of packets; throws SystemError

// Who is at the other end of a connection; none when the kernel does not say.
std::optional<uid_t> peer_uid(int socket);
bool same_user(int socket);

// Takes the `door`, from which the socket's name follows, and listens; `job` is for people. Throws UsageError
// when a process of this user has it, SystemError that names the other user when somebody else does.
UniqueFd listen_at(const std::string& door, const std::string& job, int most_waiting);

// A connection to whoever listens there; none when nobody does before the deadline. `between`, where there is
// one, is called as long as nobody does. Throws SystemError when that is another user.
std::optional<UniqueFd> knock_at(const std::string& door, const Deadline& deadline,
                                 const std::function<void()>& between = {});

}  // namespace lockstep::shm
