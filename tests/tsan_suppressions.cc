// What ThreadSanitizer can't see, since these libraries are not instrumented.
//
// libstdc++ counts the owners of an exception inside itself, so the last owner's delete looks like a race
// with those who read it before. oneDNN, which computes libtorch's convolutions, hands what it has compiled
// from thread to thread by std::shared_future and by statics: a rank that is a thread then seems to read what
// another has just allocated. OpenBLAS packs matrices into memory of its own, which goes from thread to
// thread under a lock that is a few instructions of assembler; where the packing calls memcpy (f64 by its
// Haswell kernels) two threads seem to write there at once, though the second began a second after the first
// was done. libtorch's reader of pickles looks names of types up in a table that is made once, in a
// function's static: who comes later looks at the static's guard without a call that is seen.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:std::__exception_ptr::exception_ptr::_M_release\n"
         "race:libdnnl.so\n"
         "race:gemm_*copy_\n"
         "race:std::_Hashtable<*::SingletonOrSharedTypePtr<c10::Type>\n";
}
