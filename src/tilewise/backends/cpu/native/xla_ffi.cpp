// Every buffer is dense and row-major. `present` has a bit for each optional operand: absent ones are not passed.
#include "xla_ffi.hpp"

#include <exception>
#include <new>
#include <string>

#include "calls.hpp"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;
namespace tilewise {
namespace {

using Span = ffi::Span<const int64_t>;
using Reals = ffi::Span<const double>;
using Addresses = std::vector<uintptr_t>;

Ints ints(Span s) { return Ints(s.begin(), s.end()); }

ffi::Error wrong(const std::string& words) {
  return ffi::Error(ffi::ErrorCode::kInvalidArgument, "tilewise: " + words);
}

ffi::Error answer(int error) {
  switch (static_cast<ValueError>(error)) {
    case ValueError::ok: return ffi::Error::Success();
    case ValueError::kv_len_range: return wrong("a kv length is out of range");
    case ValueError::page_range: return wrong("a page id is out of range");
    case ValueError::starts_fall: return wrong("starts fall");
    case ValueError::starts_end: return wrong("starts begin below 0 or end past the tokens");
    case ValueError::num_seqs_range: return wrong("num_seqs is out of range");
    case ValueError::q_len_range: return wrong("a query length is out of range");
  }
  return wrong("a value is out of range");
}

// XLA's boundary is one of C: what a call throws becomes an error here, whatever XLA would make of it.
template <class F> ffi::Error guarded(F&& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "tilewise: out of memory");
  } catch (const std::exception& error) {
    return ffi::Error(ffi::ErrorCode::kInternal, std::string("tilewise: ") + error.what());
  } catch (...) {
    return ffi::Error(ffi::ErrorCode::kInternal, "tilewise: an unknown exception");
  }
}

// Takes the buffers of a call one by one; a call with too few of them reads none that is not there.
class Operands {
 public:
  Operands(ffi::RemainingArgs args, int64_t present) : args_(args), present_(present) {}
  uintptr_t next() {
    auto buffer = args_.get<ffi::AnyBuffer>(used_++);
    if (!buffer.has_value()) { short_ = true; return 0; }
    return reinterpret_cast<uintptr_t>(buffer->untyped_data());
  }
  uintptr_t optional() { return (present_ >> bit_++) & 1 ? next() : 0; }
  bool complete() const { return !short_ && used_ == args_.size(); }

 private:
  ffi::RemainingArgs args_;
  int64_t present_;
  std::size_t used_ = 0;
  int bit_ = 0;
  bool short_ = false;
};

class Results {
 public:
  explicit Results(ffi::RemainingRets rets) : rets_(rets) {}
  uintptr_t next() {
    auto buffer = rets_.get<ffi::AnyBuffer>(used_++);
    if (!buffer.has_value()) { short_ = true; return 0; }
    return reinterpret_cast<uintptr_t>((*buffer)->untyped_data());
  }
  bool complete() const { return !short_ && used_ == rets_.size(); }

 private:
  ffi::RemainingRets rets_;
  std::size_t used_ = 0;
  bool short_ = false;
};

const char* kCount = "the custom call has another number of buffers than its attributes say";

// codes: dtype, bias dtype, left, right; reals: scale, soft cap
DenseCall dense(Span sizes, Span strides, Span codes, Reals reals) {
  return DenseCall(ints(sizes), static_cast<int>(codes[0]), reals[0], codes[2], codes[3], reals[1], ints(strides),
                   static_cast<int>(codes[1]));
}

Addresses dense_operands(Operands& in) {
  Addresses o(12);
  for (int i = 0; i < 12; i++) o[i] = i < 3 ? in.next() : in.optional();
  return o;
}

ffi::Error forward_call(Span sizes, Span strides, Span codes, Reals reals, int64_t present, ffi::RemainingArgs args,
                        ffi::RemainingRets rets) {
  return guarded([&]() -> ffi::Error {
    Operands in(args, present);
    Results results(rets);
    const Addresses o = dense_operands(in);
    const uintptr_t out = results.next(), lse = results.next();
    if (!in.complete() || !results.complete()) return wrong(kCount);
    return answer(dense(sizes, strides, codes, reals).run_forward(o, out, lse));
  });
}

// args: the operands, out, lse, dout, dlse (bit 9 of present); results: the gradients in the bits of wanted
ffi::Error backward_call(Span sizes, Span strides, Span grad_strides, Span codes, Reals reals, int64_t present,
                         int64_t wanted, ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return guarded([&]() -> ffi::Error {
    Operands in(args, present);
    Results results(rets);
    const Addresses o = dense_operands(in);
    const uintptr_t out = in.next(), lse = in.next();
    Addresses grads(7);
    grads[0] = in.next();
    grads[1] = in.optional();
    for (int i = 0; i < 5; i++) grads[2 + i] = (wanted >> i) & 1 ? results.next() : 0;
    if (!in.complete() || !results.complete()) return wrong(kCount);
    return answer(dense(sizes, strides, codes, reals).run_backward(o, out, lse, grads, ints(grad_strides)));
  });
}

// k and v pages, or combined ones, in which V lies v_offset bytes behind K
void page_operands(Addresses& o, int first, uintptr_t k, uintptr_t v, int64_t v_offset) {
  o[first] = k;
  o[first + 1] = v ? v : k + static_cast<uintptr_t>(v_offset);
}

// codes: dtype, page dtype, left, right, batch invariant; optional: v_pages k_scale v_scale num_seqs sinks draft_mask
ffi::Error paged_call(Span sizes, Span strides, Span codes, Reals reals, int64_t v_offset, int64_t present,
                      ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return guarded([&]() -> ffi::Error {
    Operands in(args, present);
    Results results(rets);
    Addresses o(13);
    o[0] = in.next();
    const uintptr_t k = in.next();
    for (int i : {5, 6, 7}) o[i] = in.next();
    page_operands(o, 1, k, in.optional(), v_offset);
    for (int i : {3, 4, 8, 9, 10}) o[i] = in.optional();
    o[11] = results.next(); o[12] = results.next();
    if (!in.complete() || !results.complete()) return wrong(kCount);
    const PagedCall call(ints(sizes), static_cast<int>(codes[0]), static_cast<int>(codes[1]), reals[0], codes[2],
                         codes[3], reals[1], codes[4] != 0, ints(strides));
    return answer(call.run(o));
  });
}

// args: k v kv_lens page_indices cu_q_lens k_pages; optional: v_pages k_scale v_scale num_seqs.
// The results are the pages: XLA has made them the same buffers, or copies.
ffi::Error append_call(Span sizes, Span strides, Span codes, int64_t v_offset, int64_t present,
                       ffi::RemainingArgs args, ffi::RemainingRets rets) {
  return guarded([&]() -> ffi::Error {
    Operands in(args, present);
    Results results(rets);
    Addresses o(10);
    o[0] = in.next(); o[1] = in.next();
    for (int i : {6, 7, 8}) o[i] = in.next();
    in.next();
    const bool pair = in.optional() != 0 || (present & 1);
    for (int i : {4, 5, 9}) o[i] = in.optional();
    const uintptr_t k = results.next();
    page_operands(o, 2, k, pair ? results.next() : 0, v_offset);
    if (!in.complete() || !results.complete()) return wrong(kCount);
    return answer(
        AppendCall(ints(sizes), static_cast<int>(codes[0]), static_cast<int>(codes[1]), ints(strides)).run(o));
  });
}

XLA_FFI_DEFINE_HANDLER(forward_handler, forward_call,
                       ffi::Ffi::Bind().Attr<Span>("sizes").Attr<Span>("strides").Attr<Span>("codes")
                           .Attr<Reals>("reals").Attr<int64_t>("present").RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(backward_handler, backward_call,
                       ffi::Ffi::Bind().Attr<Span>("sizes").Attr<Span>("strides").Attr<Span>("grad_strides")
                           .Attr<Span>("codes").Attr<Reals>("reals").Attr<int64_t>("present").Attr<int64_t>("wanted")
                           .RemainingArgs().RemainingRets());
XLA_FFI_DEFINE_HANDLER(paged_handler, paged_call,
                       ffi::Ffi::Bind().Attr<Span>("sizes").Attr<Span>("strides").Attr<Span>("codes")
                           .Attr<Reals>("reals").Attr<int64_t>("v_offset").Attr<int64_t>("present").RemainingArgs()
                           .RemainingRets());
XLA_FFI_DEFINE_HANDLER(append_handler, append_call,
                       ffi::Ffi::Bind().Attr<Span>("sizes").Attr<Span>("strides").Attr<Span>("codes")
                           .Attr<int64_t>("v_offset").Attr<int64_t>("present").RemainingArgs().RemainingRets());

nanobind::capsule capsule(XLA_FFI_Error* (*handler)(XLA_FFI_CallFrame*)) {
  return nanobind::capsule(reinterpret_cast<void*>(handler));
}

}  // namespace

nanobind::dict ffi_handlers() {
  nanobind::dict handlers;
  handlers["tilewise_forward"] = capsule(forward_handler);
  handlers["tilewise_backward"] = capsule(backward_handler);
  handlers["tilewise_paged"] = capsule(paged_handler);
  handlers["tilewise_append"] = capsule(append_handler);
  return handlers;
}

}  // namespace tilewise
