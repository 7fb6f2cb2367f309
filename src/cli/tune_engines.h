// `lockstep tune --engines`: what each engine can do, and which of them this program lacks.
#pragma once

namespace lockstep::cli {

int show_engines(bool json);

}  // namespace lockstep::cli
