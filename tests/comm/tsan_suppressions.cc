// What ThreadSanitizer can't see: libstdc++ counts the owners of an exception inside its own library, which
// is not instrumented, so the last owner's delete looks like a race with those who read it before.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n";
}
