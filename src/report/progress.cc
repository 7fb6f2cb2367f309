#include "report/progress.h"

#include <unistd.h>

#include <cstdio>

#include "base/environment.h"
#include "report/printer.h"

namespace lockstep {

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

bool wants_colours(int fd) { return is_terminal(fd) && !read_filled_variable("NO_COLOR"); }

void Progress::show(const std::string& text) {
  if (terminal_ && !takes_text(2)) return;  // after Ctrl-S: nobody waits for what only shows that time passes
  clear();
  std::fprintf(stderr, terminal_ ? "%s" : "%s\n", text.c_str());
  std::fflush(stderr);
  shown_ = terminal_;
}

void Progress::clear() {
  if (!shown_ || !takes_text(2)) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace lockstep
