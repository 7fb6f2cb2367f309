// How a program of a user is compiled and linked: tools/check_docs builds the pages' code blocks with
// this program's commands.
#include <lockstep/lockstep.h>

int main() { return lockstep::format_bytes(4096) == "4 KiB" ? 0 : 1; }
