// The Python face of one instruction-set level: addresses in, error codes out, the GIL released while a kernel runs.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cxxabi.h>

#include <chrono>
#include <thread>

#include "calls.hpp"
#include "probe.hpp"
#include "simd.hpp"
#include "threads.hpp"
#if defined(TILEWISE_XLA_FFI)
#include "xla_ffi.hpp"
#endif

namespace nb = nanobind;
using namespace tilewise;
using Addresses = std::vector<uintptr_t>;

// Releases the GIL for the time of a call. A daemon thread that wants it back after the interpreter has begun to end is
// unwound by CPython (up to 3.13); leaving this destructor so would abort the process, so the thread sleeps instead.
struct GilReleased {
  PyThreadState* state = PyEval_SaveThread();
  ~GilReleased() {
#if defined(__GLIBCXX__)
    try {
      PyEval_RestoreThread(state);
    } catch (abi::__forced_unwind&) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
#else
    PyEval_RestoreThread(state);
#endif
  }
};
using Unlocked = nb::call_guard<GilReleased>;

static void need(std::size_t have, std::size_t want) {
  if (have != want) throw std::invalid_argument("wrong number of addresses");
}

NB_MODULE(TILEWISE_MODULE, m) {
  nb::set_leak_warnings(false);  // prepared calls are cached until the interpreter ends
  nb::class_<DenseCall>(m, "DenseCall")
      .def(nb::init<const Ints&, int, double, int64_t, int64_t, double, const Ints&, int>())
      .def(
          "forward_plain",
          [](const DenseCall& c, uintptr_t q, uintptr_t k, uintptr_t v, uintptr_t out, uintptr_t lse) {
            const uintptr_t o[12] = {q, k, v};
            return c.run_forward(o, out, lse);
          },
          Unlocked())
      .def(
          "forward",
          [](const DenseCall& c, const Addresses& o, uintptr_t out, uintptr_t lse) {
            need(o.size(), 12);
            return c.run_forward(o, out, lse);
          },
          Unlocked())
      .def(
          "backward",
          [](const DenseCall& c, const Addresses& o, uintptr_t out, uintptr_t lse, const Addresses& grads,
             const Ints& strides) {
            need(o.size(), 12);
            need(grads.size(), 7);
            return c.run_backward(o, out, lse, grads, strides);
          },
          Unlocked());

  nb::class_<PagedCall>(m, "PagedCall")
      .def(nb::init<const Ints&, int, int, double, int64_t, int64_t, double, bool, const Ints&>())
      .def("run", [](const PagedCall& c, const Addresses& p) { need(p.size(), 13); return c.run(p); }, Unlocked());

  nb::class_<AppendCall>(m, "AppendCall")
      .def(nb::init<const Ints&, int, int, const Ints&>())
      .def("run", [](const AppendCall& c, const Addresses& p) { need(p.size(), 10); return c.run(p); }, Unlocked());

  // sizes: batch rows heads v_dim; strides: out of each state, lse of each state, out, lse (b h t each)
  m.def("merge", [](const Ints& sizes, int dtype, const Addresses& outs, const Addresses& lses, const Ints& strides,
                    uintptr_t out, uintptr_t lse) {
    Reader n(sizes), s(strides);
    const std::size_t states = outs.size();
    need(lses.size(), states);
    std::vector<const void*> out_pointers(states), lse_pointers(states);
    std::vector<Strides> out_strides(states), lse_strides(states);
    for (Strides& stride : out_strides) stride = s.strides();
    for (Strides& stride : lse_strides) stride = s.strides();
    MergeArguments a;
    const int64_t batch = n.next();
    a.states = static_cast<int64_t>(states);
    a.rows = n.next(); a.heads = n.next(); a.v_dim = n.next();
    a.dtype = static_cast<DType>(dtype);
    a.os = s.strides(); a.ls = s.strides();
    const int64_t item = a.dtype == DType::f64 ? 8 : a.dtype == DType::f32 ? 4 : 2;
    const int64_t real = a.dtype == DType::f64 ? 8 : 4;
    for (int64_t b = 0; b < batch; b++) {
      for (std::size_t i = 0; i < states; i++) {
        out_pointers[i] = at<char>(outs[i]) + b * out_strides[i].b * item;
        lse_pointers[i] = at<char>(lses[i]) + b * lse_strides[i].b * real;
      }
      a.outs = out_pointers.data(); a.out_strides = out_strides.data();
      a.lses = lse_pointers.data(); a.lse_strides = lse_strides.data();
      a.out = at<char>(out) + b * a.os.b * item;
      a.lse = at<char>(lse) + b * a.ls.b * real;
      merge(a);
    }
  }, Unlocked());

  m.def("set_num_threads", &set_num_threads);
  m.def("num_threads", &num_threads);
  m.attr("lanes") = kLanes;
  m.attr("bf16_dot") = kHasBf16Dot;
  m.def("peak_flops", &peak_flops, Unlocked(), nb::arg("seconds"), nb::arg("pairs"));
  m.def("read_bandwidth", &read_bandwidth, Unlocked(), nb::arg("bytes"), nb::arg("repeats"));
#if defined(TILEWISE_XLA_FFI)
  m.def("ffi_handlers", &ffi_handlers);
#endif
}
