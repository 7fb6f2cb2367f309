// What ThreadSanitizer can't see, since these libraries are not instrumented.
//
// libstdc++ counts the owners of an exception inside itself, so the last owner's delete looks like a race
// with those who read it before. oneDNN, which computes libtorch's convolutions, hands what it has compiled
// from thread to thread by std::shared_future and by statics: a rank that is a thread then seems to read what
// another has just allocated.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n"
         "race:libdnnl.so\n";
}
